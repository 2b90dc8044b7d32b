"""Which features of a problem an adapter hands to its kernel: its declaration against what reaches the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.adapter import Adapter, Need, QueryLengths, Runner
from kernels.adapters.flashinfer_mla import Mla, fa2_needs
from kernels.adapters.trtllm_prefill import ADAPTERS, FmhaV2
from kernels.conformance import checks
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.problem import ROUTINES, Problem
from kernels.problem.features import FEATURES, Feature, features_of
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from tests.helpers.recorded_calls import recording, what_reaches

DEVICES = {name: known_devices()[name] for name in ("h200", "b200")}
CPU = known_devices()["cpu"]
SHAPE = {"batch_size": 3, "s_qo": 4, "s_kv": 100, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
LATENT = {"num_kv_heads": 4, "head_dim_ckv": 64, "head_dim_kpe": 64}
CHAIN, FORK = (-1, 0, 1, 1), (-1, 0, 0, 2)
EIGHT = "fp8_e4m3"
# What a problem must have so that it has a feature. The lengths of each request need the same number of pages of 16.
WITH: dict[Feature, dict[str, Any]] = {
    "attention sinks": {"sinks": True},
    "a soft cap of logits": {"soft_cap": 30.0},
    "a sliding window": {"window": 30},
    "a full mask": {"mask": "full"},
    "a prefix mask": {"mask": "prefix", "mask_prefix": 3},
    "a tree of drafts": {"mask": "fork", "tree": FORK},
    "query lengths that differ": {"batch_spec": "q4s100_q2s100_q3s100"},
    "KV lengths that differ": {"batch_spec": "2q4s100_q4s98"},
    "scales of keys and values": {"kv_dtype": EIGHT},
    "block scales": {"kv_dtype": "nvfp4"},
    "an output of another dtype": {"out_dtype": "fp16"},
    "padded requests": {"batch_size": 2, "graph_batch": 3, "graph_fill": 1},
}
# Of these the problem says all: other values of its keys.
OTHERS: dict[Feature, tuple[dict[str, Any], ...]] = {
    "a soft cap of logits": ({"soft_cap": None}, {"soft_cap": 31.0}),
    "a sliding window": ({"window": None}, {"window": 31}),
    "a full mask": ({"mask": "causal"},),
    "a prefix mask": ({"mask_prefix": 2},),
    "a tree of drafts": ({"mask": "chain", "tree": CHAIN},),
}
NO_SUCH_PROBLEM: dict[str, set[Feature]] = {
    "mla": {"block scales"},
    "cascade": {"a sliding window", "padded requests"},
    "merge_states": {"padded requests"},
    "ragged_prefill": {"padded requests"},
}
OF_KEYS = {key: adapter for key, adapter in registry.adapters().items() if key[0] in ROUTINES}  # a folder has inputs of its own
ON_GPUS = sorted((key, adapter) for key, adapter in OF_KEYS.items() if adapter.imports)
ON_CPU = sorted((key, adapter) for key, adapter in OF_KEYS.items() if not adapter.imports)


def problem_of(routine: str, **keys: Any) -> Problem:
    of_routine = {"mla": LATENT, "cascade": {"shared_prefix": 32}, "merge_states": {"num_states": 3}}.get(routine, {})
    shape = {**SHAPE, "routine": routine, "page_size": 16, **of_routine}
    if "batch_spec" in keys:
        shape = {key: value for key, value in shape.items() if key not in ("batch_size", "s_qo", "s_kv")}
    return Problem.model_validate({**shape, **keys})


def other_problem(inputs: Inputs, **keys: Any) -> Inputs:
    """The same tensors under another problem of the same shapes."""
    kept = inputs.problem.model_dump()
    return replace(inputs, problem=Problem.model_validate({**kept, **keys}))


def other_lengths(inputs: Inputs, spec: str) -> Inputs:
    """The same queries, keys and values as another batch, with its lengths."""
    batch = draw(problem_of(inputs.problem.routine, batch_spec=spec), "cpu")
    return replace(batch, q=inputs.q, kv=inputs.kv, page_table=inputs.page_table, kv_indices=inputs.kv_indices)


def pairs_of(routine: str, feature: Feature) -> Iterator[tuple[Inputs, Inputs]]:
    """Inputs that differ in this feature alone: each pair must reach the kernel as two, if the feature is passed."""
    x = draw(problem_of(routine, **WITH[feature]), "cpu")
    if feature == "attention sinks":
        assert x.sinks is not None
        yield x, replace(x, sinks=x.sinks + 1)
        yield x, replace(other_problem(x, sinks=False), sinks=None)
    elif feature in OTHERS:
        yield from ((x, other_problem(x, **keys)) for keys in OTHERS[feature])
    elif feature == "query lengths that differ":
        yield x, other_lengths(x, "q2s100_q4s100_q3s100")
    elif feature == "KV lengths that differ":
        yield x, other_lengths(x, "q4s98_2q4s100")
    elif feature == "scales of keys and values":
        for inputs in (x, draw(problem_of(routine, q_dtype=EIGHT, kv_dtype=EIGHT), "cpu")):
            both = {"k_scale": 0.25, "v_scale": 0.125}
            yield from (
                (inputs, replace(inputs, **keys)) for keys in ([both] if routine == "mla" else [{k: v} for k, v in both.items()])
            )
    elif feature == "block scales":
        assert x.kv_scales is not None
        k, v = (scale.view(torch.uint8) for scale in x.kv_scales)
        yield from (
            (x, replace(x, kv_scales=kv))
            for kv in (((k + 1).view(EIGHT_BITS), x.kv_scales[1]), (x.kv_scales[0], (v + 1).view(EIGHT_BITS)))
        )
    else:
        yield x, replace(other_problem(x, out_dtype="bf16"))


EIGHT_BITS = torch.float8_e4m3fn


def pairs_of_padding(routine: str) -> Iterator[tuple[Inputs, Inputs]]:
    """A padded batch beside the same one without padding, and beside one with padded requests of another length."""
    x = draw(problem_of(routine, **WITH["padded requests"]), "cpu")
    alone = replace(other_problem(x, graph_batch=None, graph_fill=0), padded=None)
    yield from ((x, other) for other in (alone, draw(problem_of(routine, **{**WITH["padded requests"], "graph_fill": 0}), "cpu")))


@cache
def drawn_pairs(routine: str, feature: Feature) -> tuple[tuple[Inputs, Inputs], ...]:
    """`pairs_of`, drawn once for all adapters: what reaches a library leaves them as they are."""
    return tuple(pairs_of_padding(routine) if feature == "padded requests" else pairs_of(routine, feature))


def reaching(adapter: Adapter, device: Device, feature: Feature) -> bool:
    """Whether the feature reaches the library. Raises AssertionError if only a part of it does."""
    pairs = drawn_pairs(adapter.routine, feature)
    try:
        found: dict[int, object] = {}
        for inputs in chain.from_iterable(pairs):  # one side is the same in several pairs
            if id(inputs) not in found:
                found[id(inputs)] = what_reaches(adapter, inputs, device)
        reached = [found[id(one)] != found[id(other)] for one, other in pairs]
    except RuntimeError:  # nvfp4 has no view that some layouts need
        return False
    assert len(set(reached)) == 1, f"only a part of {feature} reaches the library"
    return reached[0]


def misdeclared(adapter: Adapter, device: Device) -> list[Feature]:
    """The features whose declaration is not what reaches the library."""
    asked = [feature for feature in FEATURES if feature not in NO_SUCH_PROBLEM.get(adapter.routine, ())]
    return [feature for feature in asked if reaching(adapter, device, feature) != (feature in adapter.all_passed_on(device))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("key", "adapter"), ON_GPUS, ids=["-".join(key) for key, _ in ON_GPUS])
def test_what_an_adapter_says_it_passes_is_what_reaches_the_library(key: tuple[str, str], adapter: Adapter, device: str):
    assert misdeclared(adapter, DEVICES[device]) == []


def test_the_problems_have_the_features_they_are_for():
    assert {feature: feature in features_of(problem_of("paged_decode", **WITH[feature])) for feature in FEATURES} == dict.fromkeys(
        FEATURES, True
    )
    assert features_of(problem_of("paged_decode")) == ()


class DropsSinks(FmhaV2):
    """As the adapter was: it never heard of sinks, and its declaration says it did."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return super().prepare(replace(inputs, sinks=None), device)


class HalvesScales(FmhaV2):
    """Hands the scale of keys over, and forgets that of values."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return super().prepare(replace(inputs, v_scale=1.0), device)


class DropsPadding(FmhaV2):
    """Runs the batch without its padded requests, which would be timed as if they cost nothing."""

    def prepared(self, inputs: Inputs, device: Device) -> Runner:
        return self.prepare(inputs, device)


def test_a_declaration_alone_does_not_satisfy_the_check():
    right, h200 = ADAPTERS[0], DEVICES["h200"]
    paged = {"routine": right.routine, "reads_memory": right.reads_memory}
    assert right.passes is not None

    assert misdeclared(DropsSinks(**paged), h200) == ["attention sinks"]
    assert misdeclared(DropsPadding(**paged), h200) == ["padded requests"]
    assert misdeclared(replace(right, passes=right.passes | {"a tree of drafts"}), h200) == ["a tree of drafts"]
    assert misdeclared(replace(right, passes=right.passes - {"a full mask"}), h200) == ["a full mask"]
    with pytest.raises(AssertionError, match="only a part of scales of keys and values reaches the library"):
        misdeclared(HalvesScales(**paged), h200)


def test_a_backend_of_an_unknown_library_is_asked_for_its_entry_point():
    with pytest.raises(AssertionError, match="torch_sdpa of paged_decode calls no entry point"):
        what_reaches(registry.get("paged_decode", "torch_sdpa"), draw(problem_of("paged_decode"), "cpu"), CPU)


HERE = [
    pytest.param(adapter, feature, id="-".join((*key, feature)))
    for key, adapter in ON_CPU
    for feature in FEATURES
    # What a kernel makes of padded requests is in no answer; tests/kernels/adapters/test_padded_graphs.py runs these.
    if feature not in {*NO_SUCH_PROBLEM.get(adapter.routine, ()), "padded requests"}
]


@pytest.mark.parametrize(("adapter", "feature"), HERE)
def test_a_backend_that_runs_here_is_right_with_the_features_it_passes_and_wrong_without(adapter: Adapter, feature: Feature):
    p = problem_of(adapter.routine, **WITH[feature])
    try:
        verdict = checks.answer(adapter, CPU, p).verdict
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        verdict = "failed"

    assert (verdict == "passed") == (feature in adapter.passed_on(CPU))


@dataclass(frozen=True, kw_only=True)
class CpuMask(Adapter):
    """Another backend, which is told another mask than the problem's."""

    of: Adapter = field(default_factory=lambda: registry.get("mla", "torch_chunks"))
    mask: str = "causal"
    routine: str = "mla"
    name: str = "told_another_mask"
    query_lengths: QueryLengths = "varlen"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return self.of.prepare(other_problem(inputs, mask=self.mask), device)


@dataclass(frozen=True, kw_only=True)
class Plugin(Adapter):
    """A backend from before `passes` was a field."""

    routine: str = "paged_decode"
    name: str = "plugin"
    query_lengths: QueryLengths = "varlen"
    takes_window: bool = True

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return ()

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        raise NotImplementedError


def test_without_a_declaration_only_what_the_fields_say_counts_as_passed():
    p = problem_of("paged_decode", sinks=True, window=30, kv_dtype=EIGHT)

    assert Plugin().passed_on(CPU) == {"a sliding window", "query lengths that differ"}
    assert Plugin().not_passed(p, CPU) == ("attention sinks", "scales of keys and values")
    assert Plugin(takes_sinks=True, passes=frozenset({"attention sinks"})).not_passed(p, CPU) == (
        "a sliding window",
        "scales of keys and values",
    )


@pytest.mark.parametrize("device", [*DEVICES, "rtx5090"])
def test_a_call_gives_a_log_sum_exp_where_its_adapter_says_so(device: str):
    """A forced run of one that gives none would be called wrong whatever its kernel does."""
    on = known_devices()[device]
    asked = {key: problem_of(key[0], return_lse=True) for key, _ in ON_GPUS}
    found: dict[tuple[str, str], bool] = {}
    for key, adapter in ON_GPUS:
        with recording():
            found[key] = adapter.prepare(draw(asked[key], "cpu"), on).lse is not None
        assert (adapter.not_passed(asked[key], on) == ()) == found[key], key

    assert found == {key: adapter.gives_lse_in(asked[key], on) for key, adapter in ON_GPUS}
    assert found["paged_decode", "trtllm-native"] == (device == "b200")
    assert all(found["mla", name] for name in ("fa2", "cute-dsl", "trtllm-native"))


def test_a_forced_run_of_xqa_shows_nothing_of_its_log_sum_exp(settings: Callable[..., Settings]):
    asked = ("+sweep=smoke", "sweep.batch_size=1", "sweep.s_kv=256", "sweep.s_qo=1", "+sweep.return_lse=[true]")
    one = settings(*asked, "sweep.backend=[trtllm-native]", "check.force_unsupported=true", "sweep.dtype=[{q: bf16, kv: bf16}]")
    (decision,) = make_plan(expand(one), [DEVICES["h200"]], one).decisions

    assert decision.reason.endswith("needs: no log-sum-exp from XQA, which gives none")
    assert decision.not_passed == ("the wish for a log-sum-exp",)


CAUSAL = ("causal", "causal_mask", "is_causal")  # how libraries call it
BY_LENGTHS = ("triton_mla", "sglang_triton")  # whose kernel has no word for it: each query token, or the only one, has a length
MLA_ON_GPUS = [adapter for (routine, name), adapter in ON_GPUS if routine == "mla" and name not in BY_LENGTHS]


def told_causal(adapter: Adapter, device: Device, mask: str, s_qo: int) -> set[bool]:
    """What an MLA backend tells its kernel of the mask, in every argument that says it."""
    with recording() as log:
        adapter.prepare(draw(problem_of("mla", mask=mask, s_qo=s_qo), "cpu"), device)()
    return {bool(keys[name]) for _, keys in log for name in CAUSAL if name in keys}


class CausalWhateverTheMask(Mla):
    """As the adapter was: a draft was causal, whatever the problem's mask."""

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return super().prepare(other_problem(inputs, mask="causal"), device)


class NeverCausal(Mla):
    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        return super().prepare(other_problem(inputs, mask="full"), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("adapter", MLA_ON_GPUS, ids=[adapter.name for adapter in MLA_ON_GPUS])
def test_every_mla_backend_tells_its_kernel_the_mask_of_the_problem(adapter: Adapter, device: str):
    """Causal for causal drafts, not for full ones. One query sees every key either way."""
    told = {mask: told_causal(adapter, DEVICES[device], mask, 4) for mask in ("causal", "full")}

    assert told == {"causal": {True}, "full": {False}}


@pytest.mark.parametrize("kind", [CausalWhateverTheMask, NeverCausal])
def test_an_mla_backend_that_is_told_another_mask_is_found(kind: type[Mla]):
    wrong = kind(name="fa2", rule=fa2_needs)

    assert told_causal(wrong, DEVICES["h200"], "causal", 4) | told_causal(wrong, DEVICES["h200"], "full", 4) in ({True}, {False})


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("backend", ["torch_sdpa", "torch_chunks", "torch_sdpa+torch_sdpa@4"])
def test_mla_on_a_cpu_is_right_under_either_mask(backend: str, mask: str):
    p = problem_of("mla", mask=mask, batch_spec="2q4s100_q7s100") if "+" in backend else problem_of("mla", mask=mask)
    adapter = registry.get("mla", backend)
    told_another = replace(CpuMask(), of=adapter, copies_cache=True, mask="full" if mask == "causal" else "causal")

    assert checks.answer(adapter, CPU, p).verdict == "passed"
    assert checks.answer(told_another, CPU, p).verdict == "failed"


@pytest.mark.parametrize(("routine", "backend"), [("paged_prefill", "fa2"), ("paged_prefill", "auto"), ("ragged_prefill", "fa2")])
def test_a_tree_counts_as_not_passed_to_fa2s_variant_with_sinks(routine: str, backend: str):
    adapter = registry.get(routine, backend)
    tree, sinks = WITH["a tree of drafts"], WITH["attention sinks"]

    assert adapter.not_passed(problem_of(routine, **tree, **sinks), DEVICES["h200"]) == ("a tree of drafts",)
    assert adapter.not_passed(problem_of(routine, **tree), DEVICES["h200"]) == ()
    assert adapter.not_passed(problem_of(routine, **sinks), DEVICES["h200"]) == ()


@pytest.mark.parametrize("backend", ["fa3", "auto"])
@pytest.mark.parametrize("routine", ["paged_decode", "paged_prefill", "ragged_prefill"])
def test_fa3_serves_fp8_queries_of_heads_of_64(routine: str, backend: str):
    keys = {"q_dtype": EIGHT, "kv_dtype": EIGHT, "out_dtype": "bf16", "s_qo": 1}

    assert registry.get(routine, backend).unmet(problem_of(routine, **keys), DEVICES["h200"]) == []
