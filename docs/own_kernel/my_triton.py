"""The kernel of my_kernel.py as a backend: the rule that says what it serves, and the call."""

from dataclasses import dataclass
from os import environ

from kernels.adapter import Adapter, Need, QueryLengths, Runner


@dataclass(frozen=True, kw_only=True)
class PagedTriton(Adapter):
    routine: str = "paged_decode"
    name: str = "paged_triton"
    query_lengths: QueryLengths = "uniform"
    skips_unused: bool = True  # such slots are never loaded
    takes_empty: bool = True
    distributions: tuple[str, ...] = ("triton",)  # rows name its version
    passes: frozenset | None = frozenset({"KV lengths that differ"})

    def needs(self, problem, device):
        p, on_cpu = problem, device.kind == "cpu"  # where Triton's interpreter stands in, which multiplies no bf16
        return (
            Need("SM80 or later, or TRITON_INTERPRET=1", device.major >= 8 or environ.get("TRITON_INTERPRET") == "1"),
            Need("fp16, or bf16 on a GPU", p.q_dtype == "fp16" or (p.q_dtype == "bf16" and not on_cpu)),
            Need("a cache of 16 or 32 bits, or of FP8 on SM89", p.kv_dtype in ("fp32", "fp16", "bf16") or self.is_fp8(p, device)),
            Need("a causal mask with drafts", p.s_qo == 1 or p.mask == "causal"),
            Need("an output of the query's dtype", p.output_dtype == p.q_dtype),
            Need("at most 128 rows: query tokens times query heads of a KV head", p.s_qo * p.num_qo_heads // p.num_kv_heads <= 128),
            Need("pages of 16, 32 or 64", p.page_size in (16, 32, 64)),
            Need("heads of 16, 32, 64, 128 or 256", p.head_dim_qk == p.head_dim_vo and p.head_dim_qk in (16, 32, 64, 128, 256)),
        )

    def is_fp8(self, problem, device):
        return problem.kv_dtype == "fp8_e4m3" and (device.compute_capability or (0, 0)) >= (8, 9)

    def prepare(self, inputs, device):
        from my_kernel import attend

        from kernels.inputs.tensors import token_major

        p, q, out = inputs.problem, inputs.q, inputs.empty_output()
        (k, v), pages = (token_major(p, cache) for cache in inputs.kv), inputs.page_table
        tokens, group = p.s_qo, p.num_qo_heads // p.num_kv_heads
        rows = max(16, 1 << (tokens * group - 1).bit_length())
        sizes = {"T": tokens, "G": group, "R": rows, "N": p.page_size, "D": p.head_dim_qk}
        scales = (inputs.sm_scale * inputs.k_scale, inputs.v_scale)
        strides = (*q.stride()[:2], k.stride(0), k.stride(2), k.stride(1), pages.stride(0))

        def launch():
            attend[p.batch_size, p.num_kv_heads](q, k, v, out, pages, inputs.kv_lens, *scales, *strides, **sizes)

        return Runner(launch, out, resolved_backend="my_kernel.attend", compute_dtype=p.q_dtype)


ADAPTERS = (PagedTriton(),)
