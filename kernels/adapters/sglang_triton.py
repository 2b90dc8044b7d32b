"""SGLang's decode attention in Triton (`--attention-backend triton`), for one query token a request.

Rules and the call read from SGLang 0.5.23: `decode_attention.py` (`decode_attention_fwd`), and `triton_backend.py`, which chooses
the splits and sizes the buffers. Drafts and prompts run another kernel (`kernels/adapters/sglang_extend.py`).

MLA runs the same kernels: one KV head, whose values are the first elements of its keys. There SGLang raises the number of parts to
that of the processors, and the kernel for grouped heads takes the tile of keys for one of values (`HAS_MLA`), so both must be of
one size: 512 + 64 and 256 + 32 are cut in two, 256 + 64 is not, and does not compile.

Over an FP8 cache its kernel for grouped heads is coarse: it rounds queries and probabilities to the cache's dtype, without a
scale, and multiplies in FP8 (`_fwd_grouped_kernel_stage1`: `q.to(K_Buffer.dtype.element_ty)`, `p.to(v.dtype)`).
"""

# T = query tokens of all requests, B = batch_size, H = num_qo_heads, K = stored KV heads, D = head_dim

from __future__ import annotations

from dataclasses import dataclass

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.inputs.rows import rows_of, token_rows
from kernels.lazy import Tensor, torch
from kernels.libraries.engine_common import MAX_PROCESSORS, needs_of_triton, power_of_two
from kernels.problem.dtypes import FP8
from kernels.problem.features import USUAL, Feature

DEFAULT_SPLITS = 8  # `triton_attention_num_kv_splits`, SGLang's default
PASSES: frozenset[Feature] = (USUAL - {"a full mask", "query lengths that differ"}) | {"attention sinks", "a soft cap of logits"}
BLOCK = 32  # keys of a part at least (`_MLA_DECODE_MIN_BLOCK_KV`)
MIN_SCHEDULED = 256  # requests that SGLang's kernel of splits is compiled for, at least


@dataclass(frozen=True, kw_only=True)
class SglangTriton(Adapter):
    routine: str = "paged_decode"
    name: str = "sglang_triton"
    query_lengths: QueryLengths = "single"
    takes_sinks: bool = True
    takes_soft_cap: bool = True
    takes_num_splits: bool = True  # at most so many: `--triton-attention-num-kv-splits`
    max_seq_len: EngineMaximum = "unread"  # it reads tokens by request
    takes_pdl: bool = True
    distributions: tuple[str, ...] = ("sglang",)
    rules_hold_for: tuple[str, ...] = ("sglang>=0.5.23,<0.6",)
    imports: str = "sglang"
    passes: frozenset[Feature] | None = PASSES

    def takes_pdl_in(self, problem: Problem, device: Device) -> bool:
        """Its kernel for grouped heads takes `use_pdl`; the one for as many KV heads as query heads does not."""
        return problem.group_size > 1

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p, in_fp8 = problem, problem.kv_dtype in FP8 and problem.group_size > 1
        # The kernel for grouped heads loads keys, or their first part, in a tile of the size of one of values.
        keys = {576: 512, 288: 256}.get(p.key_dim, power_of_two(p.key_dim))
        one_tile = p.group_size == 1 or keys == power_of_two(p.value_dim)
        tile = Need("a latent of 512 + 64, of 256 + 32, or whose keys and values need one power of two", one_tile)
        return (
            *needs_of_triton(p, device),
            Need("head_dims of 16 or more", min(p.key_dim, p.value_dim) >= 16),
            # Triton multiplies 32 elements of 8 bits or more. The kernel without grouped heads multiplies no matrices.
            Need("with an FP8 cache and grouped heads, a head_dim of keys of more than 16", not in_fp8 or p.key_dim > 16),
            *((tile,) if p.latent else ()),
        )

    def _most_splits(self, p: Problem, processors: int) -> int:
        """The most parts: SGLang's default, and with MLA up to a part a processor (`_mla_decode_kv_splits_cap`)."""
        default = self.num_splits or DEFAULT_SPLITS
        return max(default, min(power_of_two(processors), power_of_two(-(-p.longest // BLOCK)))) if p.latent else default

    def workspace_bytes(self, problem: Problem) -> int:
        p = problem
        parts = p.batch_size * p.num_qo_heads * self._most_splits(p, MAX_PROCESSORS)
        return 4 * parts * (p.value_dim + 1) + 8 * p.num_kv_tokens

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        from sglang.kernels.jit.utils.arch import is_arch_support_pdl
        from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

        p, out = inputs.problem, inputs.empty_output()
        (k, step), (v, _) = (rows_of(p, cache) for cache in inputs.kv)  # [rows, K, D], with any stride between rows
        starts, rows = token_rows(inputs, step, torch.zeros_like(inputs.kv_lens), inputs.kv_lens)
        cuda = inputs.device.type == "cuda"
        processors = torch.cuda.get_device_properties(inputs.device).multi_processor_count if cuda else 1
        most = self._most_splits(p, processors)
        logits = torch.empty(p.batch_size, p.num_qo_heads, most, p.value_dim, device=inputs.device)
        lse = torch.empty(p.batch_size, p.num_qo_heads, most, device=inputs.device)
        splits = _splits(inputs, most, processors)
        overlaps = is_arch_support_pdl() if p.enable_pdl is None else p.enable_pdl

        def launch() -> None:
            decode_attention_fwd(
                inputs.q, k, v, out, starts, rows, logits, lse, splits, most,
                inputs.sm_scale, inputs.k_scale, inputs.v_scale, logit_cap=p.soft_cap or 0.0,
                sinks=inputs.sinks, has_mla=p.latent, use_pdl=overlaps, page_size=1,
            )  # fmt: skip

        launch()  # compiles
        # For grouped heads operands of tensor cores have the cache's dtype. The other kernel multiplies probabilities in fp32.
        kernel = ("triton_decode_grouped", p.kv_dtype) if p.group_size > 1 else ("triton_decode", p.q_dtype)
        return Runner(launch, out, *kernel, kernel_config=f"num_kv_splits={int(splits.max())}")


def _splits(inputs: Inputs, most_splits: int, processors: int) -> Tensor:
    """SGLang's choice for each request, int32 [B]; it makes it once a step."""
    from sglang.kernels.ops.attention.metadata import get_num_kv_splits_triton

    p = inputs.problem
    found = torch.empty(p.batch_size, dtype=torch.int32, device=inputs.device)
    most = max(MIN_SCHEDULED, power_of_two(p.batch_size))
    shape = (p.batch_size, 1, p.num_qo_heads, p.num_kv_heads)
    get_num_kv_splits_triton[(1,)](found, inputs.kv_lens, *shape, most_splits, processors, MAX_NUM_SEQ=most, uneven_batch_ptr=None)
    return found


ADAPTERS = (SglangTriton(), SglangTriton(routine="mla", max_seq_len="passed", takes_num_splits=False))
