"""The checks of mode=conformance: right backends pass, and each kind of wrong one fails the check that is about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from kernels import registry
from kernels.adapter import Adapter, Module, Need, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.conformance import isolation
from kernels.conformance.isolation import MAX_DEATHS, Isolated
from kernels.conformance.problems import changed, changes_of, find_closest
from kernels.conformance.purity import impure_backends
from kernels.conformance.suite import BUILD_SPECS, Result, Trial, conformance, execute
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.problem.features import FEATURES
from orchestrator.machines import known_devices
from tests.helpers.forked import CONTEXT
from tests.helpers.planned import Planned

CPU = known_devices()["cpu"]
FAULTY = "tests.backends.faulty"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Problems are small: more threads cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def results_of(adapter: Adapter, impure: str = "", device: Device = CPU) -> dict[str, Result]:
    """The result of each check, run in this process."""
    found = conformance(adapter, device, list(known_devices().values()), impure, partial(execute, adapter))
    return {result.check: result for result in found}


def named(results: dict[str, Result], verdict: str) -> set[str]:
    return {result.check for result in results.values() if result.verdict == verdict}


@pytest.fixture(scope="module")
def impure() -> dict[tuple[str, str], str]:
    return impure_backends((FAULTY,), list(known_devices().values()), registry.adapters((FAULTY,)))


# Rules that say what holds on a GPU, or how much memory a CPU may spend: small mixed problems are right on a CPU all the same.
STRICT_ON_A_CPU = {
    "flex_attention": {
        "rule: keys, values and output of the query's dtype",
        "rule: on a CPU a small problem, since nothing is fused there",
    }
}
SLOW_ON_A_CPU = {("paged_decode", "flex_attention"), ("paged_prefill", "flex_attention")}  # half a minute or more each
ALL = sorted(item for item in registry.adapters().items() if item[0] not in SLOW_ON_A_CPU)


@pytest.mark.parametrize(("key", "adapter"), ALL, ids=["-".join(key) for key, _ in ALL])
def test_every_backend_of_the_project_fails_no_check(key: tuple[str, str], adapter: Adapter, impure: dict[tuple[str, str], str]):
    results = results_of(adapter, impure[key])

    strict = named(results, "too strict") - STRICT_ON_A_CPU.get(key[1], set())
    assert {name: results[name].words for name in named(results, "failed") | strict} == {}
    of_torch = {"sdpa", "chunks", "merge", "two_calls", "indexed", "delta", "write"}
    on_a_cpu = {"flex_attention", *(f"torch_{name}" for name in of_torch)}
    assert ("answers: batches" in named(results, "passed")) == (key[1] in on_a_cpu)
    assert len(named(results, "passed")) >= 5


def faulty(name: str) -> Adapter:
    return registry.get("paged_decode", name, (FAULTY,))


def trial(check: str = "answers: ", **keys: object) -> Trial:
    """A check on a small problem that the backends of these tests serve."""
    small, lacking = find_closest(Changed(), CPU)
    assert lacking == []
    problem = changed(small, keys)
    assert problem is not None
    return Trial(check, problem, CPU)


@pytest.mark.parametrize(
    ("backend", "check", "words"),
    [
        ("wrong", "answers: ", "4 of 16 rows are off by more than"),
        ("raises", "answers: ", "RuntimeError: no kernel for a group of 8 on this day"),
        ("unwritten", "answers: ", "rows hold NaN"),
        ("writes_once", "every call writes the same output", "rows hold NaN"),
        ("remembers", "other queries after prepare", "are off by more than"),
        ("spoils_later", "right after many calls", "after 20 calls: 4 of"),
        ("skips_unused_it_says", "unused slots are skipped", "rows hold NaN"),
        ("reads_unused", "unused slots are skipped", "are off by more than"),
    ],
)
def test_each_kind_of_wrong_backend_fails_its_check(backend: str, check: str, words: str):
    finding = execute(faulty(backend), trial(check))

    assert finding.verdict == "failed"
    assert words in finding.words


IMPORTS_TORCH = {
    "when_imported": ("import torch\n", "", "importing its module imports torch; import it in prepare"),
    "in_its_rule": ("", "import torch", "needs(), modules() or workspace_bytes() imports torch"),
    "with_a_rule_that_raises": ("", "1 / 0", "needs(), modules() or workspace_bytes() raises ZeroDivisionError: division by zero"),
}
PLUGIN = """
{at_import}
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.check.oracle import reference

class Mine(TorchSdpa):
    def needs(self, problem, device):
        {in_rule}
        return super().needs(problem, device)

ADAPTERS = (Mine(routine="paged_decode", name="{name}"),)
"""


def test_a_plugin_that_imports_torch_for_planning_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch.py").touch()  # the name alone counts, and PyTorch takes a second to import
    for name, (at_import, in_rule, _) in IMPORTS_TORCH.items():
        text = PLUGIN.format(name=name, at_import=at_import, in_rule=in_rule or "pass")
        (tmp_path / f"plugin_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, (_, _, words) in IMPORTS_TORCH.items():
        assert impure_backends((f"plugin_{name}",), [CPU], [("paged_decode", name)]) == {("paged_decode", name): words}


def test_a_backend_whose_name_says_its_splits_is_judged_where_nobody_lists_it():
    asked = [("ragged_prefill", "flash_attn_3_vllm_32_splits"), ("paged_decode", "torch_sdpa")]

    assert impure_backends((), [CPU], asked) == dict.fromkeys(asked, "")


def test_what_planning_imports_is_a_verdict():
    result = results_of(faulty("nothing"), "importing its module imports torch")["planning imports no torch"]

    assert result == Result("planning imports no torch", "failed", "importing its module imports torch")


@dataclass(frozen=True, kw_only=True)
class Changed(TorchSdpa):
    """A right backend, of which each subclass breaks one part of the contract."""

    routine: str = "paged_decode"
    name: str = "changed"


class TooStrict(Changed):
    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return (*super().needs(problem, device), Need("at most 4 requests", problem.batch_size <= 4))


class IgnoresMask(Changed):
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        full = inputs.problem.model_copy(update={"mask": "full", "tree": None})
        return super().prepare(replace(inputs, problem=full), device)


class Narrow(Changed):
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return replace(super().prepare(inputs, device), compute_dtype="fp8_e4m3")


class NoName(Changed):
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return replace(super().prepare(inputs, device), resolved_backend="")


class Reordered(Changed):
    """Lays its rows out backwards, and says so in the runner alone."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = super().prepare(inputs, device)
        rows = torch.arange(len(right.out)).flip(0)
        out = torch.empty_like(right.out)

        def launch() -> None:
            right()
            out[rows] = right.out

        return replace(right, launch=launch, out=out, rows=rows)


class Reallocates(Changed):
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        right = super().prepare(inputs, device)
        written = right.out.detach()  # the same memory, under another name

        def launch() -> None:
            right()
            right.out.set_(written.clone())

        return replace(right, launch=launch)


class ListOfModules(Changed):
    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return [Module("a:b", ())]  # type: ignore[return-value]


class NewModules(Changed):
    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return (Module("a:b", (object(),)),)  # type: ignore[arg-type]


class NegativeBytes(Changed):
    def workspace_bytes(self, problem: Problem) -> int:
        return -problem.batch_size


class RaisingRule(Changed):
    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        raise ZeroDivisionError("a rule of thumb")


@pytest.mark.parametrize(
    ("kind", "check", "verdict", "words"),
    [
        (TooStrict, "rule: at most 4 requests", "too strict", "forbids batch_size=5, which ran and was right"),
        (partial(Changed, takes_sinks=True), "answers: attention sinks", "failed", "are off by more than"),
        (IgnoresMask, "follows its mask", "failed", "mask=causal"),
        (Narrow, "what the Runner says", "failed", "compute_dtype=fp8_e4m3 is narrower than bf16"),
        (NoName, "what the Runner says", "failed", "resolved_backend is empty"),
        (Reordered, "what the Runner says", "failed", "sets Runner.rows and does not declare `reorders`"),
        (Reallocates, "every call writes the same output", "failed", "moved the output to other memory"),
        (ListOfModules, "modules() is data", "failed", "return a tuple of Module"),
        (NewModules, "modules() is data", "failed", "differs after pickling"),
        (NegativeBytes, "workspace_bytes is a number of bytes", "failed", "return a whole number, 0 or more"),
        (RaisingRule, "the rule answers", "failed", "ZeroDivisionError: a rule of thumb"),
    ],
)
def test_each_part_of_the_contract_is_checked(kind: Callable[[], Adapter], check: str, verdict: str, words: str):
    result = results_of(kind())[check]

    assert result.verdict == verdict, result
    assert words in result.words


def test_both_sides_of_every_condition_of_a_rule_are_run():
    results = results_of(Changed())
    rules = {name.removeprefix("rule: "): results[name] for name in results if name.startswith("rule: ")}

    assert {sentence for sentence, result in rules.items() if result.verdict == "passed"} == {
        "keys, values and output of the query's dtype",
    }
    assert ", run all the same: " in rules["keys, values and output of the query's dtype"].words


def test_an_edge_that_the_kernel_is_not_told_of_shows_nothing():
    """A mismatch with sinks that were never handed over is no evidence that the kernel has none."""
    results = results_of(Changed())
    told = results_of(Changed(passes=frozenset(FEATURES)))["rule: no attention sinks"]
    untold = {name for name, result in results.items() if result.words.endswith("not passed to the kernel")}

    assert results["rule: no attention sinks"] == Result(
        "rule: no attention sinks",
        "not run",
        "right at sinks=False; sinks=True would show nothing: attention sinks not passed to the kernel",
    )
    assert {name.removeprefix("rule: ") for name in untold} >= {
        "no attention sinks",
        "the same KV length for every request",
        "the same number of query tokens for every request",
    }
    assert told.verdict == "passed"
    assert told.words.startswith("right at sinks=False; at sinks=True, run all the same: ")


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "passed", "right after 5 other plans, by masked and plain"),
        ({"lengths": False}, "failed", "planned again: "),
        ({"resolve": False}, "failed", "planned again it is plain, and a new wrapper is masked"),
    ],
)
def test_a_wrapper_that_is_planned_again_is_right_and_chooses_anew(changes: dict[str, bool], verdict: str, words: str):
    finding = execute(Planned(**changes), prefill_trial("planned again"))

    assert (finding.verdict, words in finding.words) == (verdict, True), finding


def prefill_trial(check: str) -> Trial:
    shape = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32, "head_dim_vo": 32, "page_size": 16}
    return Trial(check, Problem.model_validate({"routine": "paged_prefill", "batch_size": 2, "s_qo": 3, "s_kv": 77, **shape}), CPU)


def test_a_backend_without_a_wrapper_is_not_planned_again():
    result = results_of(Changed())["planned again"]

    assert (result.verdict, "Runner.plan_again" in result.words) == ("not run", True)


def test_what_needs_a_gpu_or_another_device_is_not_passed():
    on_cpu, elsewhere = results_of(Changed()), results_of(registry.get("paged_decode", "fa2_tc"))

    assert on_cpu["a CUDA graph captures the call"] == Result(
        "a CUDA graph captures the call", "not run", "needs a CUDA device; this one is cpu"
    )
    assert "no host synchronisation" in named(on_cpu, "not run")
    assert "lacks: a CUDA device of SM80 or later" in elsewhere["all checks that run it"].words


def test_a_crash_and_a_hang_cost_their_own_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAULTY_MARKS", str(tmp_path))
    with Isolated((FAULTY,), trial_seconds=60) as process:
        right, crash = (process.run("paged_decode", name, trial()) for name in ("nothing", "segfaults"))
        # In a new process, and no fork of a server: one that an earlier test started does not have this test's environment.
        assert process.run("paged_decode", "nothing", trial()) == right
        process.trial_seconds = 1.0
        hang = process.run("paged_decode", "hangs", trial())

    assert right.verdict == "passed"
    assert (crash.verdict, crash.words) == ("failed", "the process died of SIGSEGV")
    assert (hang.verdict, hang.words) == ("failed", "no answer within 1 s")


def test_a_backend_that_dies_each_time_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "CONTEXT", CONTEXT)  # its processes have imported torch
    with Isolated((FAULTY,), trial_seconds=60) as process:
        found = [process.run("paged_decode", "exits", trial()) for _ in range(MAX_DEATHS + 1)]

    assert {finding.words for finding in found[:-1]} == {"the process ended with exit code 3"}
    assert found[-1].verdict == "not run"


def test_a_specification_for_a_gpu_is_asked_for_where_there_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "CONTEXT", CONTEXT)  # its process has imported torch
    on_h200 = Trial(BUILD_SPECS, trial().problem, known_devices()["h200"])
    with Isolated((FAULTY,), trial_seconds=60) as process:
        finding = process.run("paged_decode", "nothing", on_h200)

    assert (finding.verdict, finding.words) == ("passed", "it needs none")


@pytest.mark.parametrize(
    ("key", "mask"),
    [("softmax_scale", None), ("soft_cap", None), ("mask_prefix", "prefix"), ("window", "causal"), ("window", "full"),
     ("s_qo", "full"), ("kv_memory", None), ("batch_spec", "causal"), ("return_lse", None)],
)  # fmt: skip
@pytest.mark.parametrize("routine", ["paged_decode", "paged_prefill"])
def test_answers_are_checked_on_more_than_one_value_of_each_axis(routine: str, key: str, mask: str | None):
    keys = [change for changes in changes_of(routine, "families").values() for change in changes]

    assert len({one[key] for one in keys if key in one and mask in (None, one.get("mask"))}) > 1
