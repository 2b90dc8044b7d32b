"""Which backend an inference engine takes if its users choose none. Read from the engines' source in November 2026.

vLLM 0.32.0: `vllm/platforms/cuda.py`, `_get_backend_priorities`, the first that is able. FLASH_ATTN is FlashAttention-3 on Hopper.
SGLang 0.5.23: `arg_groups/model_override_base.py`, `get_default_attn_backend`. On Hopper `fa3` is FlashAttention-3. For one query
token its plan is made before the layers, for drafts and in MLA in each of them; for trees of drafts SGLang takes `flashinfer`.
On Hopper prompts of ordinary heads are read from pages. Without pages both run the prompts of MLA alone, with keys longer than
values.
MLA: on Hopper vLLM takes FLASH_ATTN_MLA and then FLASHMLA, SGLang takes `fa3`. On SM100 vLLM takes FLASHINFER_MLA, whose decode is
trtllm-gen, and SGLang takes `trtllm_mla` for DeepSeek V3 and R1 (`model_overrides/deepseek_v2.py`). Over an FP8 latent vLLM takes
FLASHMLA on Hopper: FLASH_ATTN_MLA lists no FP8 dtype (`supported_kv_cache_dtypes` in `v1/attention/backends/mla/flashattn_mla.py`),
and FLASHMLA, the next of the list, does (`flashmla.py`), for pages of 64.
On Ampere, Ada and SM12x vLLM's FLASH_ATTN is FlashAttention-2 (`get_flash_attn_version`), which serves no FP8 cache.
Defaults that no backend here runs are left out: vLLM's Triton MLA on other devices, SGLang's `triton` there.
Each engine has its own build of FlashAttention-3. Where that was not measured, `flash_attn_3` stands in: the same calls.
"""

from __future__ import annotations

from typing import NamedTuple

VLLM, SGLANG = "vLLM 0.32.0", "SGLang 0.5.23"
MAX_DRAFT = 64  # query tokens of a request that are a draft; more of them are a part of a prompt


class Default(NamedTuple):
    """What an engine runs on devices of a major compute capability. `drafts`, `trees`, `fp8_cache`, `equal_dims`: None for both."""

    engine: str
    name: str  # what the engine calls it
    major: int
    routine: str
    drafts: bool | None  # more than one query token a request
    trees: bool | None
    backend: str
    fp8_cache: bool | None = None  # an FP8 cache or latent, if the engine takes another backend over it
    equal_dims: bool | None = None  # keys and values of one head_dim; False: the heads of MLA's prompts


class OwnBuild(NamedTuple):
    """An engine's own build of a library. Where it was measured, it counts instead of `stands_in`, another build of the same."""

    engine: str
    stands_in: str
    backend: str


OWN_BUILDS = (
    OwnBuild(VLLM, "flash_attn_3", "flash_attn_3_vllm"),
    OwnBuild(SGLANG, "flash_attn_3", "flash_attn_3_sglang"),  # it makes its plan where SGLang does, so it stands for both
    OwnBuild(SGLANG, "flash_attn_3_unplanned", "flash_attn_3_sglang"),
)
IN_PAGES = ("paged_decode", "paged_prefill")
HOPPER = (
    *(Default(VLLM, "FLASH_ATTN", 9, routine, None, False, "flash_attn_3") for routine in IN_PAGES),
    *(Default(SGLANG, "fa3", 9, routine, False, False, "flash_attn_3") for routine in IN_PAGES),
    *(Default(SGLANG, "fa3", 9, routine, True, False, "flash_attn_3_unplanned") for routine in IN_PAGES),
    Default(VLLM, "FLASH_ATTN", 9, "ragged_prefill", None, False, "flash_attn_3", equal_dims=False),
    Default(SGLANG, "fa3", 9, "ragged_prefill", None, False, "flash_attn_3", equal_dims=False),
    Default(SGLANG, "flashinfer", 9, "paged_prefill", None, True, "fa2"),
    Default(VLLM, "FLASH_ATTN_MLA", 9, "mla", None, False, "flash_attn_3", fp8_cache=False),
    Default(VLLM, "FLASHMLA", 9, "mla", None, False, "flash_mla_vllm", fp8_cache=True),
    Default(SGLANG, "fa3", 9, "mla", None, False, "flash_attn_3_unplanned"),
)
BLACKWELL = (
    Default(VLLM, "FLASHINFER", 10, "paged_decode", None, False, "trtllm-native"),  # both call the function, not the wrapper
    Default(SGLANG, "trtllm_mha", 10, "paged_decode", None, False, "trtllm-native"),
    Default(VLLM, "FLASHINFER_MLA", 10, "mla", None, False, "trtllm-native"),
    Default(SGLANG, "trtllm_mla", 10, "mla", None, False, "trtllm-native"),
)
OTHERS = (
    *(
        Default(SGLANG, "flashinfer", major, routine, None, None, backend)
        for major in (8, 12)
        for routine, backend in (("paged_decode", "fa2_tc"), ("paged_prefill", "fa2"), ("ragged_prefill", "fa2"))
    ),
    *(
        Default(VLLM, "FLASH_ATTN", major, routine, None, False, "flash_attn_2_vllm", fp8_cache=False)
        for major in (8, 12)
        for routine in IN_PAGES
    ),
)
DEFAULTS: tuple[Default, ...] = (*HOPPER, *BLACKWELL, *OTHERS)
