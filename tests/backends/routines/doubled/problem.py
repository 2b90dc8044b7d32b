"""Its problem: batch_size, s_qo, heads and an axis of its own."""

from typing import Any, ClassVar

from kernels.problem.routine import Routine


class Doubled(Routine):
    name = "doubled"
    oracle = "fp32_product"
    keys: ClassVar = frozenset({"q_dtype", "kv_dtype"})
    axes: ClassVar = {"times": (2, 3)}
    any_model: ClassVar = {"num_qo_heads": 2, "num_kv_heads": 2, "head_dim_qk": 8, "head_dim_vo": 8}

    def completed(self, keys: dict[str, Any]) -> dict[str, Any]:
        return {"s_kv": keys.get("s_qo"), **keys}

    def check(self, problem: Any) -> None:
        if problem.s_kv != problem.s_qo:
            raise ValueError(f"s_kv={problem.s_kv}: routine=doubled has no keys; leave s_kv out")

    def flops(self, problem: Any) -> int:
        return problem.num_q_tokens * problem.num_qo_heads * problem.head_dim_qk

    def kv_bytes(self, problem: Any) -> int:
        return 1


ROUTINE = Doubled()
