"""Releases of kernel libraries: rules that follow them, and calls that each takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapter import Adapter, Need, Runner, Since
from kernels.contract.releases import is_from, meets
from kernels.libraries.flashinfer_calls import bound, fitted, module_spec, resolved_decode_backend, takes
from kernels.problem import Problem
from kernels.split import Split
from orchestrator import ROOT, libraries
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from tools import releases

FI, FA3 = "flashinfer-python", "tokenspeed-fa3"
H200, B200 = known_devices()["h200"], known_devices()["b200"]
SHAPE = {"batch_size": 2, "s_qo": 1, "s_kv": 200, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 128, "head_dim_vo": 128}


def make(routine: str = "paged_decode", **keys: Any) -> Problem:
    return Problem.model_validate({"routine": routine, "page_size": 16, **SHAPE, **keys})


def at(release: str, backend: str, routine: str = "paged_decode", library: str = FI) -> Adapter:
    return registry.get(routine, backend).for_versions({library: release})


def unmet(release: str, backend: str, *, library: str = FI, **keys: Any) -> list[str]:
    problem = make(**keys)
    return at(release, backend, problem.routine, library).unmet(problem, H200)


@pytest.mark.parametrize(
    ("release", "backend", "keys", "sentences"),
    [
        ("0.5.3", "auto", {}, []),
        ("0.7.9", "auto", {}, []),
        ("0.5.2", "auto", {}, ["flashinfer-python>=0.5.3,<0.8 (not known for flashinfer-python 0.5.2)"]),
        ("0.8.0", "auto", {}, ["flashinfer-python>=0.5.3,<0.8 (not known for flashinfer-python 0.8.0)"]),
        ("0.5.3", "fa3", {}, ["flashinfer-python>=0.6.0,<0.8 (not known for flashinfer-python 0.5.3)"]),
        ("0.6.15.post1", "fa2_tc", {"s_qo": 4}, ["flashinfer-python 0.6.16 or later for more than one query token a request"]),
        ("0.6.16", "fa2_tc", {"s_qo": 4}, []),
        ("0.6.17", "fa2", {"num_qo_heads": 12}, ["flashinfer-python 0.6.18 or later for 6 query heads a KV head"]),
        ("0.6.17", "fa2_tc", {"head_dim_qk": 512, "head_dim_vo": 512},
         ["flashinfer-python 0.6.18 or later for a head_dim of 512 on tensor cores"]),
        ("0.7.2.post1", "fa2_tc", {"head_dim_qk": 512, "head_dim_vo": 512}, []),
        ("0.7.2.post1", "auto", {"head_dim_qk": 512, "head_dim_vo": 512}, []),
        ("0.7.0", "fa2", {"num_qo_heads": 32}, ["flashinfer-python 0.7.1 or later for 16 query heads a KV head"]),
        ("0.6.13", "trtllm-native", {"s_qo": 4}, ["flashinfer-python 0.6.16 or later for more than one query token a request"]),
        ("0.5.3", "fa2", {"routine": "ragged_prefill", "s_qo": 200, "kv_dtype": "fp8_e4m3"},
         ["flashinfer-python 0.7.0 or later for FP8 caches (older releases ignore their scale)"]),
        ("0.6.18", "merge_state_chain", {"routine": "merge_states", "num_states": 4, "window": 9},
         ["flashinfer-python 0.7.0 or later for two states without a key (a window, or fewer keys than states)"]),
    ],
)  # fmt: skip
def test_a_rule_follows_the_release(release: str, backend: str, keys: dict[str, Any], sentences: list[str]):
    assert unmet(release, backend, **keys) == sentences


def test_without_versions_a_rule_is_that_of_the_release_that_was_read():
    adapter, problem = registry.get("paged_decode", "fa2_tc"), make(s_qo=4)

    assert adapter.unmet(problem, H200) == adapter.for_versions({FI: "0.7.2.post1"}).unmet(problem, H200) == []
    assert adapter.for_versions({}) is adapter
    assert adapter.for_versions({FI: "0.6.0"}).for_versions({FI: None}) == adapter


def test_flash_attention_3_has_sinks_since_its_second_release():
    first, second = ("3.0.0.post20251110", "3.0.0.post20260408")

    assert unmet(second, "flash_attn_3", library=FA3, sinks=True) == unmet(first, "flash_attn_3", library=FA3) == []
    assert unmet(first, "flash_attn_3", library=FA3, sinks=True) == [f"tokenspeed-fa3 {second} or later for attention sinks"]


def test_a_version_that_is_no_number_is_not_known_and_a_build_of_a_release_is_that_release():
    assert not meets("mine>=1,<2", "from-source")
    assert meets("mine>=1,<2", "1.5+cu130")
    assert meets("mine>=1,<2", "1.5rc1")
    assert is_from("0.6.10", "0.6.9")
    assert not is_from("0.6.0rc1", "0.6.0")


@pytest.mark.parametrize(
    ("release", "kernel"),
    [("0.5.3", "fa2"), ("0.6.0", "fa3"), ("0.6.3", "fa3"), ("0.6.4", "fa2"), ("0.7.2.post1", "fa2")],
)
def test_auto_of_paged_decode_loads_the_module_of_the_kernel_that_its_release_takes_on_hopper(release: str, kernel: str):
    (module,) = at(release, "auto").modules(make(), H200)

    assert (module.args[0] == "fa3") == (kernel == "fa3")
    assert at(release, "auto").takes_pdl_in(make(), H200) == (kernel == "fa2")
    assert at(release, "auto").modules(make(), B200)[0].args[0] == "fa2"
    under_16_bits = unmet(release, "auto", kv_dtype="fp8_e4m3")
    assert under_16_bits == (["queries, keys and values of one dtype"] if kernel == "fa3" else [])


@pytest.mark.parametrize(("release", "kernel"), [("0.6.3", "fa3"), ("0.6.4", "fa2")])
def test_auto_of_prefill_takes_fa3_for_an_fp8_cache_before_0_6_4(release: str, kernel: str):
    adapter = at(release, "auto", "paged_prefill")

    assert adapter.modules(make("paged_prefill", s_qo=4, kv_dtype="fp8_e4m3"), H200)[0].args[0] == kernel
    assert adapter.modules(make("paged_prefill", s_qo=4), H200)[0].args[0] == "fa3"


def test_a_split_follows_the_release_in_both_of_its_calls():
    split = registry.get("paged_decode", "fa2_tc+fa2@4").for_versions({FI: "0.6.0"})
    assert isinstance(split, Split)
    assert [part.installed for part in (split.decode, split.prefill)] == [((FI, "0.6.0"),)] * 2


BACKENDS = [
    ("paged_decode", "auto"), ("paged_prefill", "fa3"), ("ragged_prefill", "fa2"), ("cascade", "two_calls_fa2"),
    ("paged_decode", "flash_attn_3"),
]  # fmt: skip  # those whose range begins with the first release; tools/releases.py tries all backends in all releases


@pytest.mark.parametrize(("routine", "backend"), BACKENDS)
def test_what_a_rule_allows_the_signatures_of_the_release_take(routine: str, backend: str):
    adapter = registry.get(routine, backend)
    library = adapter.distributions[0]
    listed = releases.releases_of(library)
    with torch.no_grad():
        assert releases.contradictions(adapter, library, (listed[0],)) == []


def test_a_rule_that_allows_too_much_is_found():
    careless = replace(registry.get("mla", "fa2"), rules_hold_for=())
    drafts = type("Careless", (type(registry.get("paged_decode", "fa2_tc")),), {"since": lambda *_: ()})
    wrong = replace(registry.get("paged_decode", "fa2_tc"))
    object.__setattr__(wrong, "__class__", drafts)

    assert releases.contradictions(careless, FI, ("0.7.0",)) == []  # its call is adapted there
    assert any("drafts" in words for words in releases.contradictions(wrong, FI, ("0.6.12",)))


def test_an_argument_that_changes_nothing_is_left_out_and_another_one_is_an_error():
    def run(q: int, *, k_scale: float = 1.0) -> tuple[int, float]:
        return q, k_scale

    assert bound(run, 3, k_scale=2.0, enable_pdl=None)() == (3, 2.0)
    assert fitted(run, {"uniform_q_len": 4}) == {}
    with pytest.raises(TypeError, match="run of this release of FlashInfer has no argument enable_pdl, which would be True"):
        bound(run, 3, enable_pdl=True)
    assert takes(lambda **keys: keys) is None


@pytest.mark.parametrize(
    ("release", "asked", "kernel"),
    [
        ("0.5.3", "fa3", "fa2"),
        ("0.5.3", "auto", "fa2"),
        ("0.6.0", "fa3", "fa3"),
        ("0.6.0", "cudnn", "cudnn"),
        ("0.7.2", "fa3", "fa3"),
    ],
)
def test_the_kernel_of_a_decode_wrapper_is_read_in_every_release(release: str, asked: str, kernel: str):
    with releases.standing_in(FI, release):
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        assert resolved_decode_backend(BatchDecodeWithPagedKVCacheWrapper(None, backend=asked)) == kernel


def test_generators_of_modules_get_what_their_release_takes():
    class Old:
        @staticmethod
        def gen_batch_prefill_module(*args: object) -> tuple[object, ...]:
            return args

        @staticmethod
        def gen_xqa_module(dtype: str, page_size: int) -> tuple[str, int]:
            return dtype, page_size

    class Prefill(Old):
        gen_batch_prefill_module = staticmethod(lambda backend, dtype: (backend, dtype))

    assert module_spec(Prefill, "_gen_batch_prefill_primary_module", ["fa2", "bf16"]) == ("fa2", "bf16")
    assert module_spec(Old, "gen_xqa_module", ["bf16", 16, 1, False]) == ("bf16", 16)
    with pytest.raises(TypeError, match="gen_xqa_module of this release of FlashInfer takes 2 arguments, and not 4, False"):
        module_spec(Old, "gen_xqa_module", ["bf16", 16, 4, False])


@dataclass(frozen=True, kw_only=True)
class Mine(Adapter):
    """A plugin's backend of two libraries."""

    distributions: tuple[str, ...] = ("mine", "helper")
    rules_hold_for: tuple[str, ...] = ("mine>=2", "helper==1.0")

    def since(self, problem: Problem, device: Any) -> tuple[Since, ...]:
        return (Since("2.5", "windows", problem.window is not None),)

    def needs(self, problem: Problem, device: Any) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Any, device: Any) -> Runner:
        raise NotImplementedError


def test_each_library_of_a_backend_has_its_own_range():
    mine = Mine(routine="paged_decode", name="mine", query_lengths="varlen", takes_window=True)

    def sentences(**installed: str) -> list[str]:
        return mine.for_versions(installed).unmet(make(window=9), H200)

    assert sentences() == sentences(mine="2.5", helper="1.0") == []
    assert sentences(mine="2.4", helper="1.0") == ["mine 2.5 or later for windows"]
    assert sentences(mine="1.9", helper="1.1") == ["mine>=2 (not known for mine 1.9)", "helper==1.0 (not known for helper 1.1)"]


def planned(settings: Callable[..., Settings], machine: dict[str, str | None], *more: str) -> tuple[str, str]:
    asked = settings("+sweep=smoke", "sweep.backend=[fa2]", "sweep.batch_size=[1]", "sweep.s_kv=[8192]", *more)
    (found,) = {(decision.kind, decision.reason) for decision in make_plan(expand(asked)[:1], [H200], asked, [machine]).decisions}
    return found


def test_a_plan_says_that_a_release_is_not_known_and_a_forced_one_finds_out(settings: Callable[..., Settings]):
    words = "fa2 on NVIDIA H200 needs: flashinfer-python>=0.5.3,<0.8 (not known for flashinfer-python 0.4.1)"

    assert planned(settings, {FI: "0.6.1"}) == ("run", "")
    assert planned(settings, {FI: "0.4.1"}) == ("unsupported", words)
    assert planned(settings, {FI: "0.4.1"}, "check.force_unsupported=true") == ("run", words)


def test_machines_that_differ_share_the_rule_of_the_release_that_was_read():
    assert libraries.shared((FI,), [{FI: "0.6.0"}, {FI: "0.7.0"}]) == {}
    assert libraries.shared((FI,), [{FI: "0.6.0"}, {FI: "0.6.0"}]) == {FI: "0.6.0"}
    assert libraries.shared((FI,), []) == {}


def test_the_page_of_releases_has_every_backend_of_its_libraries():
    text = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    missing = [one for library in (FI, FA3) for one in releases.backends_of(library) if f"|{one.routine}|{one.name}|" not in text]

    assert missing == []
