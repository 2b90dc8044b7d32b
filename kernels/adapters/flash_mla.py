"""FlashMLA, for DeepSeek's latent attention on Hopper: SGLang's, and vLLM's own build, which also serves an FP8 latent.

Rules and calls read from the wheels tokenspeed-flashmla 1.0.0.post20260615, 20260810 and 20260924 (`flash_mla_interface.py`, whose
code is the same in all), and from vLLM 0.25.1, 0.32.0 and 0.33.0: `v1/attention/backends/mla/flashmla.py`,
`v1/attention/ops/flashmla.py` and `third_party/flashmla`. Those of the FP8 latent also from vllm-project/FlashMLA
(`csrc/extension/sm90/dense_fp8`, commit 46d64a8), and from the operators that these wheels register.
"""

# B = batch_size, Q = s_qo, H = num_qo_heads, P = pages, N = slots a page, D = D_ckv + D_kpe

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kernels.adapter import Adapter, Device, EngineMaximum, Inputs, Need, Problem, QueryLengths, Runner
from kernels.lazy import Tensor, torch
from kernels.libraries.engine_common import MAX_PROCESSORS, VLLM_READ, latent_needs, queries_by_request
from kernels.problem.dtypes import FP8, HALF
from kernels.problem.features import Feature
from kernels.problem.padded import has_empty

PAGE = 64
EIGHT_BITS = "fp8_e4m3"
TILE = 64  # rows, of a query token and a head
FEWEST_PROCESSORS = 78  # of a Hopper GPU: the H20's
TOO_MANY_REQUESTS = 4096  # `MaxBatchSize` of the plan's kernel, which ends the process at as many
CONFIG = "scheduler_metadata=given output=copied"


@dataclass(frozen=True, kw_only=True)
class FlashMla(Adapter):
    """FlashMLA over a 16-bit latent. It allocates its output, so the call copies that; an engine would not."""

    routine: str = "mla"
    name: str = "flash_mla"
    query_lengths: QueryLengths = "uniform"
    gives_lse: bool = True
    max_seq_len: EngineMaximum = "unread"  # planned from the lengths themselves
    takes_empty: bool = True  # vLLM captures full graphs with it, whose padded requests have no token
    # Its plan gives a request without keys no block: 0, over FP8 too, as an H200 said, and +inf (`splitkv_mla.cuh`).
    takes_no_keys: bool = True
    distributions: tuple[str, ...] = ("tokenspeed-flashmla",)
    rules_hold_for: tuple[str, ...] = ("tokenspeed-flashmla>=1.0.0.post20260615,<=1.0.0.post20260924",)
    imports: str = "flash_mla"
    extra: str = "flashmla"
    module: str = "flash_mla"  # that has the call
    passes: frozenset[Feature] | None = frozenset({"a full mask", "KV lengths that differ"})

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        p = problem
        return (
            Need("SM90 (FlashMLA)", device.is_sm(9)),
            *self._dtype_needs(p),
            Need("page_size 64", p.page_size == PAGE),
            Need("with a log-sum-exp, a key for every request (it writes +inf)", not (p.return_lse and p.lacks_keys)),
            *latent_needs(p),
        )

    def _dtype_needs(self, p: Problem) -> tuple[Need, ...]:
        return (Need("fp16 or bf16 queries", p.q_dtype in HALF), Need("output of the query's dtype", p.output_dtype == p.q_dtype))

    def workspace_bytes(self, problem: Problem) -> int:
        """Its output, and partial outputs and log-sum-exps, fp32: of each request, and of a tile for each processor."""
        p = problem
        rows = p.num_q_tokens * p.num_qo_heads
        return 2 * rows * p.value_dim + 4 * (rows + MAX_PROCESSORS * TILE) * (p.value_dim + 1)

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        library = import_module(self.module)
        given = _of_16_bits(inputs, library.get_mla_metadata()[0])
        return _copied(inputs, lambda: library.flash_mla_with_kvcache(**given), "flash_mla")


@dataclass(frozen=True, kw_only=True)
class FlashMlaOfVllm(FlashMla):
    """FLASHMLA of vLLM: the same call in vLLM's own build, and another kernel for FP8 queries over an FP8 latent.

    With FP8 it is vLLM's default on Hopper, whose FLASH_ATTN_MLA serves no FP8 latent. That kernel rounds probabilities to e4m3
    without a scale, so on an H100 it was off by more than the tolerance at 65,536 tokens and large batches
    (docs/findings/mla_engines.md).

    vLLM gives it no output. On an H200 that of vLLM 0.25.1 refused [B, Q, H, D_vo] for more than one query token: it asks for
    [B, 1, Q * H, D_vo].
    """

    name: str = "flash_mla_vllm"
    distributions: tuple[str, ...] = ("vllm",)
    rules_hold_for: tuple[str, ...] = VLLM_READ
    imports: str = "vllm"
    extra: str = ""
    module: str = "vllm.third_party.flashmla.flash_mla_interface"
    passes: frozenset[Feature] | None = frozenset({"a full mask", "KV lengths that differ", "scales of keys and values"})

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        of_fp8 = _fp8_needs(problem) if problem.q_dtype == EIGHT_BITS else ()
        return (*super().needs(problem, device), *of_fp8)

    def not_passed(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """The kernel of 16 bits, which a forced run over fp8_e5m2 takes, gets no scale."""
        dropped = ("scales of keys and values",) if problem.kv_dtype in FP8 - {EIGHT_BITS} else ()
        return (*super().not_passed(problem, device), *dropped)

    def _dtype_needs(self, p: Problem) -> tuple[Need, ...]:
        eight_bits = p.q_dtype == EIGHT_BITS
        return (
            Need("fp16, bf16 or fp8_e4m3 queries", p.q_dtype in HALF or eight_bits),
            Need("output of the query's dtype, or bf16 with FP8 queries", p.output_dtype == ("bf16" if eight_bits else p.q_dtype)),
        )

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        # vLLM takes the kernel by the cache's dtype. A forced run over another pair of dtypes shows what that one says.
        if inputs.problem.kv_dtype != EIGHT_BITS:
            return super().prepare(inputs, device)
        operators = _fp8_operators()
        given = _of_8_bits(inputs, operators)
        return _copied(inputs, lambda: operators.fwd_kvcache_mla_fp8(*given), "flash_mla_fp8")


def _copied(inputs: Inputs, attend: Callable[[], tuple[Tensor, ...]], kernel: str) -> Runner:
    """A call that copies what the library allocates, [B, Q, H, D_vo]. The first makes the plan, if there is none yet.

    The natural log-sum-exp [B, H, Q] comes with it, whether it is asked for or not. An engine reads it where it lies.
    """
    p, out = inputs.problem, inputs.empty_output()
    by_request = out.view(p.batch_size, p.s_qo, p.num_qo_heads, p.value_dim)

    def launch() -> Tensor | None:
        found, lse, *_ = attend()
        by_request.copy_(found)
        return lse.transpose(1, 2) if p.return_lse else None

    launch()
    return Runner(launch, out, kernel, p.q_dtype, lse="returned" if p.return_lse else None, kernel_config=CONFIG)


def _of_16_bits(inputs: Inputs, plan: object) -> dict[str, Any]:
    """The arguments of FlashMLA's dense call. `plan` is of a step: the first call fills it, and later ones use it."""
    p = inputs.problem
    return {
        "q": queries_by_request(inputs),
        "k_cache": inputs.latent[:, :, None],  # [P, N, 1, D]
        "block_table": inputs.page_table,
        "cache_seqlens": inputs.kv_lens,
        "head_dim_v": p.value_dim,
        "tile_scheduler_metadata": plan,
        "softmax_scale": inputs.sm_scale,
        "causal": p.mask == "causal",
    }


def _fp8_operators() -> Any:
    """The two operators. vLLM's functions around them add defaults alone, and cannot be imported without most of vLLM."""
    import_module("vllm._flashmla_extension_C")  # registers them
    return torch.ops._flashmla_extension_C


def _of_8_bits(inputs: Inputs, operators: Any) -> tuple[object, ...]:
    """The arguments of the dense call for an FP8 latent, with the plan of a step. They have no names in vLLM 0.25.1."""
    p = inputs.problem
    plan, num_splits = operators.get_mla_decoding_metadata_dense_fp8(inputs.kv_lens, p.s_qo * p.num_qo_heads, 1)
    q_scale, latent_scale = (torch.tensor([scale], dtype=torch.float32, device=inputs.device) for scale in (1.0, inputs.k_scale))
    latent = inputs.latent[:, :, None]  # [P, N, 1, D]
    causal = p.mask == "causal"
    return (
        *(queries_by_request(inputs), latent, p.value_dim, inputs.kv_lens, inputs.page_table, inputs.sm_scale, causal),
        *(plan, num_splits, q_scale, latent_scale),
    )


def _fp8_needs(p: Problem) -> tuple[Need, ...]:
    """What the kernel for FP8 does not refuse, and does wrong or cannot do."""
    hides_in_two = all(kv - q + 1 >= PAGE * ((kv - 1) // PAGE - 1) for q, kv in zip(p.q_lens, p.kv_lens, strict=True))
    pages_of_table = "with FP8, no padded requests without a token (it follows the entry of the page table before their rows)"
    return (
        Need("with FP8, fewer than 4,096 requests", p.batch_size < TOO_MANY_REQUESTS),
        # Each tile needs a processor of its own, or the plan has no parts and the kernel stops the GPU.
        Need("with FP8, up to 4,992 rows of a query token and a head", p.s_qo * p.num_qo_heads <= TILE * FEWEST_PROCESSORS),
        Need("with FP8, hidden keys in a request's last two pages alone (it masks no others)", p.mask == "full" or hides_in_two),
        Need(pages_of_table, not has_empty(p)),
    )


ADAPTERS = (FlashMla(), FlashMlaOfVllm())
