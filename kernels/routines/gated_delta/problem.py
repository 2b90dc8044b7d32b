"""Problems of a gated delta net: which axes apply, the bytes and FLOPs of a call, and the layers of a model. Imports no torch.

A value head has a state S, [V, K], of a fixed size: what came before the call is in it. So the context length is no axis. The
axes are `batch_size`, `s_qo` (tokens of the call: 1 in decode, drafts plus one in verification, many in prefill), and `states`:
`last` keeps the state behind the last token in the place of the one before the call, as decode and prefill do; `each` leaves that
one alone and writes the state behind every token beside it, from which an engine takes the one behind the last accepted draft.

`num_qo_heads` are heads of queries and keys, `num_kv_heads` heads of values, of which each has a state. `kv_dtype` is the state's.
The short convolution before it and the gated norm behind it are kernels of their own, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kernels.problem.dtypes import size_bytes
from kernels.problem.routine import Axis, Routine

SPARE_SLOTS = 3  # of the pool of states, which no request has: whoever writes there is seen
GATE_DTYPE = "bf16"  # of the projections a and b, as models compute them


class GatedDelta(Routine):
    """Sizes of a layer in `model.routines.gated_delta`: num_k_heads, num_v_heads, head_k_dim and head_v_dim, of the whole model."""

    name = "gated_delta"
    oracle = "fp32_recurrence"
    keys: ClassVar[frozenset[str]] = frozenset({"q_dtype", "kv_dtype"})
    axes: ClassVar[Mapping[str, Axis]] = {"states": ("last", "each")}
    second_output = True
    any_model: ClassVar[Mapping[str, int]] = {"num_qo_heads": 16, "num_kv_heads": 32, "head_dim_qk": 128, "head_dim_vo": 128}
    config_keys: ClassVar[Mapping[str, str]] = {
        "num_k_heads": "linear_num_key_heads",
        "num_v_heads": "linear_num_value_heads",
        "head_k_dim": "linear_key_head_dim",
        "head_v_dim": "linear_value_head_dim",
    }
    promises: ClassVar[Mapping[str, str]] = {
        "lost": "loses a token that counts in one value head",
        "doubled": "counts such a token twice",
        "foreign": "reads or writes a state of another slot of the pool",
        "headoff": "leaves a state of one value head off by more than check_max_error in root mean square",
        "kept": "answers from memory",
    }

    def completed(self, keys: dict[str, Any]) -> dict[str, Any]:
        """`s_kv` is `s_qo`; a single token has one state, which stands where the one before was."""
        keys = {**keys, "routine_axes": "states=last"} if keys.get("s_qo") == 1 else keys
        return {**keys, "s_kv": keys.get("s_kv") or keys.get("s_qo")}

    def check(self, problem: Any) -> None:
        p = problem
        if p.s_kv != p.s_qo:
            raise ValueError(
                f"s_kv={p.s_kv}: routine=gated_delta has none, since the state is as large after any context; leave s_kv out "
                f"(sweep.s_kv=null), and give batch_size and s_qo"
            )
        if p.num_kv_heads % p.num_qo_heads:
            raise ValueError(
                f"num_kv_heads={p.num_kv_heads} does not divide by num_qo_heads={p.num_qo_heads}; allowed with "
                f"routine=gated_delta: value heads that are a multiple of the heads of queries and keys"
            )
        for key, allowed in (("q_dtype", ("bf16", "fp16", "fp32")), ("kv_dtype", ("fp32", "bf16", "fp16"))):
            if getattr(p, key) not in allowed:
                raise ValueError(f"{key}={getattr(p, key)}: allowed with routine=gated_delta: {', '.join(allowed)}")

    def flops(self, problem: Any) -> int:
        """Of the recurrence, a token and value head: decay, S k, an outer product and S q, 7 * V * K. Kernels in chunks do more."""
        found: int = 7 * problem.num_q_tokens * problem.num_kv_heads * problem.head_dim_vo * problem.head_dim_qk
        return found

    def kv_bytes(self, problem: Any) -> int:
        """The states of all requests, read once, and each that is kept, written once."""
        return (1 + kept_states(problem)) * int(problem.batch_size) * state_bytes(problem)

    def qo_bytes(self, problem: Any) -> int:
        """Queries, keys, values and the projections of the two gates, read once, and the output."""
        p = problem
        values = size_bytes(p.q_dtype, p.num_q_tokens * p.num_kv_heads * p.head_dim_vo)
        keys = size_bytes(p.q_dtype, p.num_q_tokens * p.num_qo_heads * p.head_dim_qk)
        return 2 * (values + keys + size_bytes(GATE_DTYPE, p.num_q_tokens * p.num_kv_heads))

    def input_bytes(self, problem: Any) -> int:
        """A pool of states, its copy that a call overwrites, and the rest."""
        return 2 * num_slots(problem) * state_bytes(problem) + self.qo_bytes(problem)

    def share(self, model: Any, tp: int) -> dict[str, int | str] | str:
        sizes = model.routines.get(self.name)
        if sizes is None:
            return f"model {model.name} has no gated delta nets; type model=qwen3_next_80b_a3b, or a sweep of another routine"
        heads = {"num_qo_heads": sizes["num_k_heads"], "num_kv_heads": sizes["num_v_heads"]}
        if any(count % tp for count in heads.values()):
            return f"sweep.tp={tp}: allowed for the gated delta nets of {model.name}: divisors of {heads['num_qo_heads']} heads"
        dims = {"head_dim_qk": sizes["head_k_dim"], "head_dim_vo": sizes["head_v_dim"]}
        return {**{key: count // tp for key, count in heads.items()}, **dims}


def kept_states(problem: Any) -> int:
    """States of a request that a call writes."""
    return int(problem.s_qo) if problem.axis("states") == "each" else 1


def state_bytes(problem: Any) -> int:
    """Bytes of one state of all value heads."""
    return size_bytes(problem.kv_dtype, problem.num_kv_heads * problem.head_dim_vo * problem.head_dim_qk)


def num_slots(problem: Any) -> int:
    """Slots of the pool of states."""
    return int(problem.batch_size) + SPARE_SLOTS


ROUTINE = GatedDelta()
