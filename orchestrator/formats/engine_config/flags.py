"""What an engine calls the backends, and which backend here makes the same call in each phase of serving.

vLLM 0.32.0: `vllm/config/attention.py` (`AttentionConfig`), `vllm/platforms/cuda.py`, `v1/attention/backends/flashinfer.py`.
It has one backend for all phases of a kind of layer. On Hopper its FLASHINFER runs XQA for decode and drafts if
`use_trtllm_attention` is true; else tensor-core decode (`fa2_tc` here) and, for drafts and prompts, the wrapper's `auto`.
SGLang 0.5.23: `srt/arg_groups/fields/exec_.py`, `spec.py`, `overrides.py`. It has a backend for prefill and one for decode, and
takes one of the two for drafts.
Over an FP8 cache FlashAttention-3 and trtllm-gen get FP8 queries, rounded by the engine. XQA and FlashInfer's own kernels get 16
bits; in vLLM `disable_flashinfer_q_quantization` makes sure of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.analysis.engines import SGLANG, VLLM

Engine = Literal["vllm", "sglang"]
Phase = Literal["decode", "verify", "prefill"]
LayerKind = Literal["full_attention", "sliding_window", "mla_attention"]
BackendCall = tuple[str, str]  # a routine and a backend of this project
CallOf = tuple[str, str, bool]  # with whether its queries have 8 bits

PHASES: tuple[Phase, ...] = ("decode", "verify", "prefill")
VERSIONS: dict[Engine, str] = {"vllm": VLLM, "sglang": SGLANG}
PAGED: tuple[LayerKind, ...] = ("full_attention", "sliding_window")
MLA: tuple[LayerKind, ...] = ("mla_attention",)
AMPERE, HOPPER, SM100, SM120 = 8, 9, 10, 12  # major compute capabilities
PAGES_ALONE = ("vllm_triton", "sglang_triton", "trtllm-context")  # their prefill reads keys and values from pages alone


@dataclass(frozen=True)
class Flag:
    """A backend as an engine names it.

    `calls` has for each phase the calls here that are the same, the best match first. `settings` are further keys that the name
    needs. `pages` are the page sizes it takes, None for any. `default_on` are the major compute capabilities on which the engine
    takes it by itself. `rounds_q`: over an FP8 cache the engine hands the kernel FP8 queries.
    """

    name: str
    majors: tuple[int, ...]
    kinds: tuple[LayerKind, ...]
    calls: Mapping[Phase, tuple[BackendCall, ...]]
    settings: Mapping[str, object] = field(default_factory=dict)
    pages: tuple[int, ...] | None = None
    default_on: tuple[int, ...] = ()
    rounds_q: bool = False

    def calls_in(self, phase: Phase, fp8_cache: bool) -> list[CallOf]:
        """The calls of a phase, the best match first."""
        return [(*call, self.rounds_q and fp8_cache) for call in self.calls.get(phase, ())]

    def __str__(self) -> str:
        given = ", ".join(f"{key} {str(value).lower()}" for key, value in self.settings.items())
        return f"{self.name} ({given})" if given else self.name


def _calls(
    decode: str | None, verify: str | None = None, prefill: str | None = None, *, wrapper: bool = False
) -> dict[Phase, tuple[BackendCall, ...]]:
    """The calls of each phase. With `wrapper`, drafts run as a prefill, which is another kernel than `paged_decode` has."""
    found: dict[Phase, tuple[BackendCall, ...]] = {}
    if decode:
        found["decode"] = (("paged_decode", decode),)
    if verify:
        found["verify"] = (("paged_prefill", verify),) if wrapper else (("paged_decode", verify), ("paged_prefill", verify))
    if prefill:
        ragged = () if prefill in PAGES_ALONE else (("ragged_prefill", prefill),)
        found["prefill"] = (("paged_prefill", prefill), *ragged)
    return found


def _latent(backend: str) -> dict[Phase, tuple[BackendCall, ...]]:
    """MLA's absorbed kernels run decode and drafts; prompts are plain attention, by other kernels."""
    return {"decode": (("mla", backend),), "verify": (("mla", backend),)}


def _same(backend: str) -> dict[Phase, tuple[BackendCall, ...]]:
    return _calls(backend, backend, backend)


def _best_first(*matches: Mapping[Phase, tuple[BackendCall, ...]]) -> dict[Phase, tuple[BackendCall, ...]]:
    """The calls of several backends that are the same, the best match first: an engine's own build, then another of the library."""
    return {phase: found for phase in PHASES if (found := tuple(call for calls in matches for call in calls.get(phase, ())))}


_XQA: dict[Phase, tuple[BackendCall, ...]] = {**_calls("trtllm-native"), "verify": (("paged_decode", "trtllm-native"),)}
_SM100: dict[Phase, tuple[BackendCall, ...]] = {**_XQA, **_calls(None, None, "trtllm-context")}
_ON, _OFF = {"use_trtllm_attention": True}, {"use_trtllm_attention": False}

FLAGS: dict[Engine, tuple[Flag, ...]] = {
    "vllm": (
        Flag("FLASH_ATTN", (HOPPER,), PAGED, _best_first(_same("flash_attn_3_vllm"), _same("flash_attn_3")),
             default_on=(HOPPER,), rounds_q=True),
        Flag("FLASH_ATTN", (AMPERE, SM120), PAGED, _same("flash_attn_2_vllm"), default_on=(AMPERE, SM120)),
        Flag("FLASH_ATTN", (SM100,), PAGED, _same("flash_attn_4"), {"flash_attn_version": 4}, rounds_q=True),
        Flag("FLASHINFER", (HOPPER, SM120), PAGED, {**_XQA, **_calls(None, None, "auto")}, _ON),
        Flag("FLASHINFER", (SM100,), PAGED, _SM100, _ON, default_on=(SM100,), rounds_q=True),
        Flag("FLASHINFER", (AMPERE, HOPPER, SM100, SM120), PAGED, _calls("fa2_tc", "auto", "auto", wrapper=True), _OFF),
        Flag("TRITON_ATTN", (AMPERE, HOPPER, SM100, SM120), PAGED, _same("vllm_triton")),
        Flag("FLEX_ATTENTION", (AMPERE, HOPPER, SM100, SM120), PAGED, _same("flex_attention")),
        Flag("FLASH_ATTN_MLA", (HOPPER,), MLA, _latent("flash_attn_3"), default_on=(HOPPER,)),
        Flag("FLASHMLA", (HOPPER,), MLA, _latent("flash_mla_vllm"), pages=(64,), rounds_q=True),
        Flag("FLASHINFER_MLA", (SM100,), MLA, _latent("trtllm-native"), pages=(32, 64), default_on=(SM100,), rounds_q=True),
        Flag("TOKENSPEED_MLA", (SM100,), MLA, _latent("tokenspeed_mla"), pages=(32, 64), rounds_q=True),
        Flag("CUTLASS_MLA", (SM100,), MLA, _latent("cutlass"), pages=(128,)),
    ),
    "sglang": (
        Flag("fa3", (HOPPER,), PAGED, _best_first(_same("flash_attn_3_sglang"), {
            "decode": (("paged_decode", "flash_attn_3"),),
            "verify": (("paged_decode", "flash_attn_3_unplanned"), ("paged_prefill", "flash_attn_3_unplanned")),
            "prefill": (("paged_prefill", "flash_attn_3_unplanned"), ("ragged_prefill", "flash_attn_3")),
        }), default_on=(HOPPER,), rounds_q=True),
        Flag("fa4", (SM100,), PAGED, _same("flash_attn_4"), rounds_q=True),
        Flag("trtllm_mha", (HOPPER, SM120), PAGED, _XQA, pages=(16, 32, 64, 128)),
        Flag("trtllm_mha", (SM100,), PAGED, _SM100, pages=(16, 32, 64, 128), default_on=(SM100,), rounds_q=True),
        Flag("flashinfer", (AMPERE, HOPPER, SM100, SM120), PAGED, _calls("fa2_tc", "fa2", "fa2", wrapper=True),
             default_on=(AMPERE, SM120)),
        Flag("triton", (AMPERE, HOPPER, SM100, SM120), PAGED,
             _calls("sglang_triton", "sglang_triton", "sglang_triton", wrapper=True)),
        Flag("flex_attention", (AMPERE, HOPPER, SM100, SM120), PAGED, _same("flex_attention")),
        Flag("fa3", (HOPPER,), MLA, _best_first(_latent("flash_attn_3_sglang"), _latent("flash_attn_3_unplanned")),
             default_on=(HOPPER,)),
        Flag("flashmla", (HOPPER,), MLA, _latent("flash_mla"), pages=(64,)),
        Flag("trtllm_mla", (SM100,), MLA, _latent("trtllm-native"), pages=(32, 64), default_on=(SM100,), rounds_q=True),
        Flag("cutedsl_mla", (SM100,), MLA, _latent("cute-dsl"), pages=(32, 64)),
    ),
}  # fmt: skip


def flags_of(engine: Engine, major: int, kind: LayerKind) -> list[Flag]:
    """The names that an engine has on a device for a kind of layers."""
    return [flag for flag in FLAGS[engine] if major in flag.majors and kind in flag.kinds]
