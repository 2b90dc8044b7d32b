"""The flags that choose an attention backend of an engine, and the kernel that then runs. The defaults are among the choices.

vLLM 0.32.0: `vllm/config/attention.py` (`--attention-backend`, `-ac.key=v`), `v1/attention/backends/flashinfer.py`. With
`use_trtllm_attention` FlashInfer's function runs XQA on Hopper, for drafts too. Without it drafts count as prefills, and the
prefill wrapper chooses its kernel itself (`auto`), as it does for prompts.
SGLang 0.5.23: `srt/arg_groups/fields/exec_.py`, `spec.py` (`--attention-backend` and its variants), `layers/attention/*.py`.
A verify runs the prefill backend unless `--speculative-attention-mode decode` is typed.
Its MLA wrapper with backend="auto" was read from an older version (commit 004d79cff9ef, `flashinfer_mla_backend.py`).
FlashInfer 0.7.2: the functions and wrappers that the adapters in `kernels/adapters` call.
A choice that no backend here runs is left out: vLLM's CUTLASS MLA, SGLang's own flex_attention and hpc_ops.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.analysis.engines import DEFAULTS, IN_PAGES, SGLANG, VLLM

FLASHINFER = "FlashInfer 0.7.2"


class EngineChoice(NamedTuple):
    """What an engine runs in one routine if a user types `flags`. `major`, `drafts` and `trees` are as in `engines.Default`."""

    engine: str
    flags: str
    major: int
    routine: str
    drafts: bool | None
    trees: bool | None
    backend: str
    kind: str | None = None  # decode, verify or chunked prefill (questions/one_backend.sql); None for each


def _flags_of(engine: str, name: str) -> str:
    """The flags that choose an engine's backend by its name. XQA and trtllm-gen are a switch of vLLM's FLASHINFER."""
    return XQA_OF_VLLM if (engine, name) == (VLLM, "FLASHINFER") else f"--attention-backend {name}"


XQA_OF_VLLM = "-ac.backend=FLASHINFER -ac.use_trtllm_attention=true"
WRAPPERS_OF_VLLM = "-ac.backend=FLASHINFER -ac.use_trtllm_attention=false"
XQA_OF_SGLANG = "--prefill-attention-backend fa3 --decode-attention-backend trtllm_mha --speculative-attention-mode decode"
WRAPPERS_OF_SGLANG = "--attention-backend flashinfer"
OF_ANY_CACHE = tuple(d for d in DEFAULTS if not d.fp8_cache)  # without defaults over an FP8 cache alone, which are flags on Hopper
OF_DEFAULTS = tuple(EngineChoice(d.engine, _flags_of(d.engine, d.name), *d[2:7]) for d in OF_ANY_CACHE)
ON_HOPPER = (
    EngineChoice(VLLM, XQA_OF_VLLM, 9, "paged_decode", None, False, "trtllm-native"),
    EngineChoice(VLLM, XQA_OF_VLLM, 9, "paged_prefill", None, False, "auto", "chunked prefill"),
    EngineChoice(VLLM, WRAPPERS_OF_VLLM, 9, "paged_decode", False, False, "fa2_tc"),
    EngineChoice(VLLM, WRAPPERS_OF_VLLM, 9, "paged_prefill", True, False, "auto"),
    EngineChoice(VLLM, "--attention-backend FLASHMLA", 9, "mla", None, False, "flash_mla_vllm"),
    EngineChoice(SGLANG, XQA_OF_SGLANG, 9, "paged_decode", None, None, "trtllm-native"),
    EngineChoice(SGLANG, XQA_OF_SGLANG, 9, "paged_prefill", None, False, "flash_attn_3", "chunked prefill"),
    EngineChoice(SGLANG, XQA_OF_SGLANG, 9, "ragged_prefill", None, False, "flash_attn_3"),
    EngineChoice(SGLANG, WRAPPERS_OF_SGLANG, 9, "paged_decode", False, False, "fa2_tc"),
    EngineChoice(SGLANG, WRAPPERS_OF_SGLANG, 9, "paged_prefill", True, False, "fa2"),
    EngineChoice(SGLANG, WRAPPERS_OF_SGLANG, 9, "mla", None, False, "auto"),
    EngineChoice(SGLANG, "--attention-backend flashmla", 9, "mla", None, False, "flash_mla"),
)
OF_ONE_KERNEL: tuple[tuple[str, bool | None, bool | None], ...] = tuple((routine, None, False) for routine in IN_PAGES)
WHEREVER_TRITON_RUNS = tuple(
    EngineChoice(engine, f"--attention-backend {name}", major, *served, backend)
    for major in (8, 9, 10, 12)
    for engine, name, all_served, backend in (
        (VLLM, "TRITON_ATTN", OF_ONE_KERNEL, "vllm_triton"),
        (VLLM, "FLEX_ATTENTION", OF_ONE_KERNEL, "flex_attention"),
        # A kernel for one query token, and another for drafts, trees of them too, and prompts.
        (SGLANG, "triton", (("paged_decode", False, False), ("paged_prefill", True, None)), "sglang_triton"),
    )
    for served in all_served
)
CHOICES: tuple[EngineChoice, ...] = (*OF_DEFAULTS, *ON_HOPPER, *WHEREVER_TRITON_RUNS)

# The routines and `drafts` that may serve a kind of shape.
_ROUTINES = {
    "decode": (IN_PAGES, False),
    "verify": (IN_PAGES, True),
    "chunked prefill": (IN_PAGES, True),
    "prefill": (("ragged_prefill",), None),
    "MLA": (("mla",), None),
}

# The flags that name an engine's default, by engine and major compute capability: typing them changes nothing. Not those of trees.
DEFAULT_FLAGS = frozenset((d.engine, _flags_of(d.engine, d.name), d.major) for d in OF_ANY_CACHE if not d.trees)


def flags_for(engine: str, major: int | None, kind: str) -> set[str]:
    """Every choice of an engine that serves shapes of a kind on devices of a major compute capability."""
    return {c.flags for c in _serving(engine, major, kind)}


def runs_in(engine: str, flags: str, major: int | None, kind: str) -> list[str]:
    """What these flags run for shapes of a kind, such as `auto in paged_prefill`."""
    return sorted({f"{c.backend} in {c.routine}" for c in _serving(engine, major, kind) if c.flags == flags and not c.trees})


def _serving(engine: str, major: int | None, kind: str) -> list[EngineChoice]:
    routines, drafts = _ROUTINES.get(kind, ((), None))
    return [
        c
        for c in CHOICES
        if (c.engine, c.major) == (engine, major)
        and c.routine in routines
        and c.kind in (None, kind)
        and (drafts is None or c.drafts in (None, drafts))
    ]


_WRAPPERS = {  # of FlashInfer, by routine
    "paged_decode": 'BatchDecodeWithPagedKVCacheWrapper(backend="{}", use_tensor_cores=True)',
    "paged_prefill": 'BatchPrefillWithPagedKVCacheWrapper(backend="{}")',
    "ragged_prefill": 'BatchPrefillWithRaggedKVCacheWrapper(backend="{}")',
    "mla": 'BatchMLAPagedAttentionWrapper(backend="{}")',
}
_FUNCTIONS = {
    ("paged_decode", "trtllm-native"): "trtllm_batch_decode_with_kv_cache",
    ("mla", "trtllm-native"): "trtllm_batch_decode_with_kv_cache_mla",
    ("paged_prefill", "trtllm-fmha-v2"): "trtllm_fmha_v2_prefill",
    ("ragged_prefill", "trtllm-fmha-v2"): "trtllm_fmha_v2_prefill",
    ("paged_prefill", "trtllm-context"): "trtllm_batch_context_with_kv_cache",
    ("paged_decode", "cudnn"): 'BatchDecodeWithPagedKVCacheWrapper(backend="cudnn")',
    ("paged_decode", "fa2"): 'BatchDecodeWithPagedKVCacheWrapper(backend="fa2")',
    ("paged_decode", "fa2_tc"): _WRAPPERS["paged_decode"].format("fa2"),
}


def in_flashinfer(routine: str, backend: str) -> str | None:
    """What FlashInfer calls a backend of this project; None if it has no such."""
    if (routine, backend) in _FUNCTIONS:
        return _FUNCTIONS[routine, backend]
    known = backend in ("auto", "fa2", "fa3", "cudnn") or (routine == "mla" and backend == "cutlass")
    return _WRAPPERS[routine].format(backend) if known and routine in _WRAPPERS else None
