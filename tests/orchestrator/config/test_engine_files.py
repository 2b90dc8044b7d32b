"""What `conf/engine` says of each release agrees with itself and with the backends that there are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import duckdb
import pytest

from kernels.registry import adapters
from orchestrator import ROOT
from orchestrator.config.engine import PHASES, Engine, Flag, Layers, Phase, Workload, calls_of, kernel_names, releases

RELEASES = releases()
RAN = "device_name, model, engine_version, kv_dtype"
FLAGS = [
    pytest.param(flag, id=f"{name}-{turn}-{flag.name}") for name, one in RELEASES.items() for turn, flag in enumerate(one.flags)
]
ROUTINES: dict[tuple[bool, Phase], set[str]] = {  # by whether the layers are MLA's, and phase
    ("full", "decode"): {"paged_decode"},
    ("full", "verify"): {"paged_decode", "paged_prefill"},
    ("full", "prefill"): {"paged_prefill", "ragged_prefill"},
    ("mla", "decode"): {"mla"},
    ("mla", "verify"): {"mla"},
    ("mla", "prefill"): {"ragged_prefill"},
    **{("sparse_mla", phase): {"sparse_mla"} for phase in PHASES},
}
MAJORS, LAYERS = (8, 9, 10, 12), ("full", "sliding", "mla")
CACHES = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "fp8_ds_mla")


def workloads() -> Iterator[Workload]:
    return (Workload(*of) for of in product(MAJORS, (*LAYERS, "sparse_mla"), PHASES, CACHES, (False, True), (False, True)))


@pytest.mark.parametrize("flag", FLAGS)
def test_every_call_is_one_of_a_backend_that_serves_such_a_phase(flag: Flag):
    known = adapters()

    for phase, _, call in calls_of(flag):
        assert call in known, call
        assert call.routine in ROUTINES[flag.layers[0], phase], call


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_says_what_to_type_and_names_its_own_build_first(flag: Flag):
    assert all(flag.text(phase) for phase in flag.phases)
    assert flag.pages is None or flag.page is None or flag.page in flag.pages
    for phase, calls in flag.calls.items():
        others = [flag.stands_in(call) for call in calls]
        assert others == sorted(others), (phase, calls)


@pytest.mark.parametrize("name", RELEASES)
def test_a_text_runs_one_thing_for_a_workload(name: str):
    for workload in workloads():
        texts = [flag.text(workload.phase) for flag in RELEASES[name].flags if flag.serves(workload)]
        assert len(texts) == len(set(texts)), (workload, texts)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_has_a_default_for_common_caches(name: str):
    common = (Workload(*of) for of in product(MAJORS, LAYERS, ("decode", "verify"), ("bf16", "fp16", "fp8_e4m3")))
    covered = (workload for workload in common if RELEASES[name].covers.matches(workload))
    without = [workload for workload in covered if RELEASES[name].default(workload) is None]

    assert not without


@pytest.mark.parametrize("name", RELEASES)
def test_every_flag_with_a_default_is_the_default_of_some_workload(name: str):
    taken = [RELEASES[name].default(workload) for workload in workloads()]

    assert not [flag.name for flag in RELEASES[name].flags if flag.default and flag not in taken]


def test_sglang_names_one_default_for_a_workload():
    """It chooses by rules that exclude each other, where vLLM takes the first of a list that is able."""
    for workload in workloads():
        taken = [
            flag
            for flag in RELEASES["sglang_0_5_23"].flags
            if flag.serves(workload) and any(c.matches(workload) for c in flag.default)
        ]
        assert len(taken) <= 1, (workload, [flag.name for flag in taken])


@pytest.mark.parametrize(
    ("name", "major", "layers", "phase", "kv_dtype", "tree", "sinks", "flag", "backend"),
    [
        ("vllm_0_33_0", 9, "full", "verify", "fp8_e4m3", False, False, "FLASH_ATTN", "flash_attn_3_vllm"),
        ("vllm_0_33_0", 8, "full", "decode", "fp8_e4m3", False, False, "FLASHINFER", "fa2_tc"),
        ("vllm_0_33_0", 12, "sliding", "decode", "bf16", False, True, "FLASHINFER", "trtllm-native"),
        ("vllm_0_25_1", 12, "sliding", "decode", "bf16", False, True, "TRITON_ATTN", "vllm_triton"),
        ("vllm_0_33_0", 9, "mla", "verify", "fp8_e4m3", False, False, "FLASHMLA", "flash_mla_vllm"),
        ("vllm_0_32_0", 9, "mla", "prefill", "bf16", False, False, "FLASH_ATTN", "flash_attn_3_vllm"),
        ("sglang_0_5_12_post1", 9, "full", "decode", "bf16", False, False, "fa3", "flash_attn_3_sglang"),
        ("sglang_0_5_12_post1", 9, "full", "verify", "fp8_e4m3", False, False, "fa3", "flash_attn_3_sglang"),
        ("sglang_0_5_23", 9, "full", "verify", "bf16", True, False, "flashinfer", "fa2"),
        ("sglang_0_5_23", 9, "sliding", "verify", "bf16", True, True, "fa3", "flash_attn_3_sglang"),
        ("sglang_0_5_23", 8, "sliding", "decode", "bf16", False, True, "triton", "sglang_triton"),
        ("sglang_0_5_23", 9, "mla", "decode", "fp8_e4m3", False, False, "fa3", "flash_attn_3_sglang"),
    ],
)
def test_what_an_engine_takes_by_itself(
    name: str, major: int, layers: Layers, phase: Phase, kv_dtype: str, tree: bool, sinks: bool, flag: str, backend: str | None
):
    found = RELEASES[name].default(Workload(major, layers, phase, kv_dtype, tree, sinks))

    assert found is not None
    assert (found.name, found.calls[phase][0].backend if found.calls else None) == (flag, backend)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("vllm_0_25_1", "paged_prefill/auto"),
        ("vllm_0_32_0", "paged_decode/trtllm-native"),
        ("vllm_0_33_0", "paged_decode/trtllm-native"),
    ],
)
def test_what_flashinfer_runs_for_drafts_on_hopper_changed_between_releases_of_vllm(name: str, calls: str):
    """466 us a layer in 0.25.1 where XQA alone takes 86, seen in a running engine."""
    drafts = Workload(9, "full", "verify", "bf16")
    typed = [f for f in _serving(RELEASES[name], drafts) if f.text("verify") == "--attention-backend FLASHINFER"]

    assert ["/".join(flag.calls["verify"][0]) for flag in typed] == [calls]


@pytest.mark.parametrize("name", RELEASES)
def test_a_profile_has_kernels_of_a_call_that_the_flag_makes(name: str):
    """What rows call a kernel is nearly its backend: `flash_attn_3` of `flash_attn_3_vllm`, `xqa` of `trtllm-native`."""
    others = {"xqa": "trtllm-native", "triton_unified_3d": "vllm_triton", "triton_mla_grouped": "triton_mla"}
    others |= {"triton_decode_grouped": "sglang_triton", "triton_extend": "sglang_triton"}
    for one in RELEASES[name].seen:
        (major,), (layers,) = one.cc, one.layers
        for phase, kv_dtype in product(one.phases, one.kv):
            serving = _serving(RELEASES[name], Workload(major, layers, phase, kv_dtype))
            flag = next((flag for flag in serving if flag.text(phase) == one.typed), None)
            seen = [(routine, kernel) for part, routine, kernel in kernel_names() if part.strip() in one.kernels]
            launched = {(routine, others.get(kernel, kernel)) for routine, kernel in seen}
            assert flag is not None
            assert any(c.routine == of and c.backend.startswith(kernel) for c in flag.calls[phase] for of, kernel in launched)


@pytest.mark.parametrize("name", RELEASES)
def test_a_profile_is_of_a_model_that_its_dataset_has_in_that_release(name: str):
    found = set()
    for place in {one.by for one in RELEASES[name].seen}:
        found |= {(place, *of) for of in duckdb.sql(f"SELECT DISTINCT {RAN} FROM '{ROOT}/{place}.parquet'").fetchall()}

    release = RELEASES[name].release
    assert {(one.by, one.gpu, one.model, release, kv) for one in RELEASES[name].seen for kv in one.kv} <= found


def test_every_line_of_kernel_names_is_a_routine_and_a_kernel_of_rows():
    assert {routine for _, routine, _ in kernel_names()} <= set().union(*ROUTINES.values())


def _serving(engine: Engine, workload: Workload) -> list[Flag]:
    return [flag for flag in engine.flags if flag.serves(workload)]


@pytest.mark.parametrize(
    ("name", "libraries", "build"),
    [
        ("sglang_0_5_23", "sglang-kernel 0.4.2.post2", "sglang 0.5.12.post1"),
        ("sglang_0_5_23", "sglang-kernel 0.4.10", None),
        ("sglang_0_5_23", "flashinfer-python 0.7.2, sglang-kernel 0.4.3", "sglang-kernel 0.4.3"),
        ("sglang_0_5_12_post1", "sglang 0.5.23", "sglang 0.5.23"),
        ("vllm_0_33_0", "vllm 0.25.1+cu130", "vllm 0.25.1"),
        ("vllm_0_33_0", "vllm 0.33.0+cu130", None),
        ("vllm_0_33_0", "sglang-kernel 0.4.10", None),
    ],
)
def test_the_release_that_requires_a_library_is_named_by_it(name: str, libraries: str, build: str | None):
    assert RELEASES[name].other_build(libraries) == build
