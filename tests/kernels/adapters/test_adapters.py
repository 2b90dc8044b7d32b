"""Every registered adapter: its rule is pure and has a sentence for each condition, and what it serves on a CPU is right."""

from __future__ import annotations

import importlib
import inspect
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from typing import ClassVar

import pytest

from kernels import registry
from kernels.adapter import Adapter, Module, Need, QueryLengths, Runner
from kernels.conformance.checks import ALL_ARCHITECTURES, ARCHITECTURES
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.libraries.flashinfer_modules import FLASHINFER
from kernels.problem import Problem
from orchestrator import ROOT
from orchestrator.machines import known_devices
from tests.helpers.problems import SMALL

ALL = sorted(registry.adapters().items())
HEADS = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "batch_size": 8, "s_kv": 8192}
DTYPES = {"16": ("bf16", "bf16"), "kv8": ("bf16", "fp8_e4m3"), "8": ("fp8_e4m3", "fp8_e4m3")}


def make(s_qo: int = 1, dtypes: str = "16", **keys: object) -> Problem:
    q, kv = DTYPES[dtypes]
    return Problem.model_validate({**HEADS, "s_qo": s_qo, "q_dtype": q, "kv_dtype": kv, **keys})


def served(device: str, adapter: Adapter, **keys: object) -> set[tuple[str, int]]:
    """(dtypes, s_qo) that a backend serves on a device."""
    gpu = known_devices()[device]
    return {(d, q) for d, q in product(DTYPES, (1, 4)) if not adapter.unmet(make(q, d, **keys), gpu)}


LSE_OF_ONE_TOKEN = {"routine": "paged_prefill", "s_qo": 1, "return_lse": True}
NEED_CUDA = ("fa2", "fa2_tc", "auto", "cudnn", "trtllm-native", "trtllm-gen")

# What flashinfer-python 0.7.2.post1 serves of Llama-3.1-70B's shape at page size 64; the H200 column was run, not read.
GOLDEN = {
    "h200": {
        "fa2": {("16", 1), ("kv8", 1), ("8", 1)},
        "fa2_tc": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4)},
        "auto": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4), ("8", 1)},
        "cudnn": {("16", 1), ("16", 4)},
        "trtllm-native": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4)},
        "trtllm-gen": set(),
        "torch_sdpa": {("16", 1), ("16", 4)},
    },
    "b200": {
        "auto": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4)},
        "trtllm-native": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4), ("8", 1), ("8", 4)},
        "trtllm-gen": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4), ("8", 1), ("8", 4)},
    },
    "rtx5090": {"trtllm-native": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4)}, "trtllm-gen": set()},
    "a100": {"trtllm-native": set(), "auto": {("16", 1), ("16", 4), ("kv8", 1), ("kv8", 4)}},
    "cpu": {name: set() for name in NEED_CUDA} | {"torch_sdpa": {("16", 1), ("16", 4)}},
}


@pytest.mark.parametrize(("device", "backend"), [(d, b) for d, backends in GOLDEN.items() for b in backends])
def test_a_backend_serves_what_the_golden_plan_says(device: str, backend: str):
    assert served(device, registry.get("paged_decode", backend)) == GOLDEN[device][backend]


@pytest.mark.parametrize(
    ("backend", "keys", "sentence"),
    [
        ("fa2", {"s_qo": 4}, "one query token a request"),
        ("fa2", {"num_qo_heads": 40}, "1, 2, 3, 4, 6, 8 or 16 query heads a KV head"),
        ("fa2_tc", {"dtypes": "8"}, "fp16 or bf16 queries"),
        ("fa2_tc", {"s_qo": 4, "mask": "full"}, "causal drafts"),
        ("auto", {"s_qo": 4, "dtypes": "8"}, "with FP8 queries, one query token a request (fa3)"),
        ("trtllm-native", {"page_size": 1}, "page_size 16, 32, 64 or 128"),
        ("trtllm-gen", {}, "the SM100 family (10.0 or 10.3)"),
        ("torch_sdpa", {"seq_lens": "random"}, "the same KV length for every request"),
        ("cudnn", LSE_OF_ONE_TOKEN, "more than one query token, or no grouped heads, with a log-sum-exp"),
    ],
)
def test_an_unmet_rule_is_a_sentence(backend: str, keys: dict[str, object], sentence: str):
    problem = make(**keys)  # type: ignore[arg-type]

    assert registry.get(problem.routine, backend).unmet(problem, known_devices()["h200"]) == [sentence]


@dataclass(frozen=True, kw_only=True)
class Ruled(Adapter):
    """A backend with the rule that a test gives it."""

    rule: tuple[Need, ...] | dict[str, bool] = ()
    routine: str = "paged_decode"
    name: str = "ruled"
    query_lengths: QueryLengths = "single"

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return self.rule  # type: ignore[return-value]

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        raise NotImplementedError


CPU = known_devices()["cpu"]


@pytest.mark.parametrize("met", [True, False])
@pytest.mark.parametrize("rule", [["page_size 16", "page_size 16"], ["one query token a request"]])
def test_two_conditions_with_one_sentence_raise(rule: list[str], met: bool):
    with pytest.raises(ValueError, match=f"'ruled' has two conditions '{rule[0]}'"):
        Ruled(rule=tuple(Need(sentence, met) for sentence in rule)).unmet(make(), CPU)


def test_conditions_that_every_backend_answers_come_from_its_fields():
    problem = make(4, window=9, sinks=True, min_s_qo=2)
    able = Ruled(query_lengths="varlen", takes_window=True, takes_sinks=True)

    assert able.unmet(problem, CPU) == []
    assert Ruled(rule=(Need("a", False), Need("b", True))).unmet(problem, CPU) == [
        "one query token a request",
        "the same number of query tokens for every request",
        "no sliding window",
        "no attention sinks",
        "a",
    ]


def test_padding_safety_may_depend_on_the_problem():
    class Depends(Ruled):
        def skips_unused_in(self, problem: Problem) -> bool:
            return problem.s_qo == 1

    assert [Depends().skips_unused_in(make(s_qo)) for s_qo in (1, 4)] == [True, False]
    assert (Ruled().skips_unused_in(make()), Ruled(skips_unused=True).skips_unused_in(make(4))) == (False, True)


def test_a_rule_from_before_needs_were_objects_still_works():
    assert Ruled(rule={"a": False, "b": True}).unmet(make(), CPU) == ["a"]


def test_declared_names_that_are_no_fields_are_refused():
    class Property(Ruled):
        @property
        def skips_unused(self) -> bool:
            return True

    class Attribute(Ruled):
        takes_window = True

    for kind, name in ((Property, "skips_unused"), (Attribute, "takes_window")):
        with pytest.raises(TypeError, match=f"{kind.__name__}.{name} is not a field: decorate the class with @dataclass"):
            kind()


def test_class_variables_of_older_plugins_still_declare():
    @dataclass(frozen=True)
    class Older(Ruled):
        routine: ClassVar[str] = "mla"
        takes_window: ClassVar[bool] = True

    assert (Older().routine, Older().unmet(make(window=9), CPU)) == ("mla", [])


@pytest.mark.parametrize("plugins", [(), ("kernels.mutants",)])
def test_every_adapter_names_the_packages_of_its_kernel(plugins: tuple[str, ...]):
    named = {key: adapter.distributions for key, adapter in registry.adapters(plugins).items()}
    extra = {key: adapter.extra for key, adapter in registry.adapters(plugins).items()}

    assert all(named.values())
    engines = {"vllm", "triton", "sglang", "sglang-kernel"}  # each pins a torch of its own, with its triton: no extra installs them
    for package in {package for key, packages in named.items() for package in packages if not extra[key]} - engines:
        assert version(package), package  # raises PackageNotFoundError for an unknown one
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for key, packages in named.items():
        if extra[key]:
            assert {requirement.partition("==")[0] for requirement in declared[extra[key]]} >= set(packages)
    assert named["paged_decode", "fa2"] == ("flashinfer-python",)
    assert named["paged_decode", "torch_sdpa"] == ("torch",)


def test_what_an_adapter_imports_is_loaded_ahead_and_is_of_its_own_library():
    imports = {key: adapter.imports for key, adapter in ALL}

    attention = {"", "flashinfer", "flash_attn_3", "flash_attn.cute", "vllm", "sglang", "sgl_kernel", "flash_mla", "tokenspeed_mla"}
    assert set(imports.values()) == attention | {"fla.ops.gated_delta_rule"}
    for key, adapter in ALL:
        assert (imports[key] == "flashinfer") == ("flashinfer-python" in adapter.distributions)


def test_modules_are_named_by_what_makes_them_distinct():
    xqa, h200 = registry.get("paged_decode", "trtllm-native"), known_devices()["h200"]
    modules = {m for batch in (1, 8) for s_kv in (64, 128) for m in xqa.modules(make(4, batch_size=batch, s_kv=s_kv), h200)}

    assert [str(m) for m in modules] == ["gen_xqa_module(bf16, bf16, 64, 128, 8, False, bf16, 4, False)"]


@pytest.mark.parametrize("backend", ["fa2", "fa2_tc", "auto", "trtllm-native"])
@pytest.mark.parametrize("dtypes", DTYPES)
def test_every_module_is_one_that_flashinfer_makes(backend: str, dtypes: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ARCHITECTURES, ALL_ARCHITECTURES)  # FlashInfer reads it once in a process
    adapter, h200 = registry.get("paged_decode", backend), known_devices()["h200"]
    problem = make(1, dtypes)
    for module in adapter.modules(problem, h200) if not adapter.unmet(problem, h200) else ():
        assert module.spec().name


@pytest.mark.parametrize("dtypes", DTYPES)
def test_modules_name_the_library_that_compiles_them(dtypes: str):
    """Without its toolchain a module of FlashInfer would be compiled for a wrong GPU, and no archive would know its version."""
    problem = make(4, dtypes)
    problems = [
        problem,
        problem.model_copy(update={"tree": (-1, 0, 0, 1), "mask": "binary"}),
        make(1, dtypes, window=100, sinks=True),
    ]
    modules = {
        (module, adapter.distributions_for(p)): adapter
        for (_, adapter), device, p in product(ALL, known_devices().values(), problems)
        for module in adapter.modules(p, device)
    }

    assert {str(module).partition("(")[0] for module, _ in modules} >= {"gen_xqa_module", "gen_cascade_module"}
    for (module, distributions), adapter in modules.items():
        assert module.toolchain == FLASHINFER, module  # every module is FlashInfer's so far
        assert module.generator.startswith("flashinfer."), module
        assert module.toolchain.library in distributions, adapter


def test_dtype_names_reach_a_generator_as_torch_dtypes():
    import torch

    assert Module("tests.kernels.adapters.test_adapters:echo", ("fa2", "bf16", "int32", 64, False)).spec() == (
        "fa2",
        torch.bfloat16,
        torch.int32,
        64,
        False,
    )


def echo(*args: object) -> tuple[object, ...]:
    return args


def test_an_unknown_backend_names_those_there_are():
    with pytest.raises(
        registry.UnknownBackend, match="paged_decode has no backend 'einsun'; it has auto, batch_attention, batch_pod, cudnn"
    ):
        registry.get("paged_decode", "einsun")


def test_two_adapters_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two adapters of paged_decode are called 'torch_sdpa'"):
        registry.adapters(("kernels.adapters.torch_sdpa",))


def test_a_device_knows_its_compiler_architecture():
    assert [known_devices()[name].arch for name in ("a100", "h200", "b300", "cpu")] == ["8.0", "9.0a", "10.3a", "cpu"]
    assert isinstance(known_devices()["h200"], Device)


@pytest.mark.parametrize(
    ("entry", "routine", "backend", "device"),
    [
        ("flashinfer.decode.xqa_batch_decode_with_kv_cache", "paged_decode", "trtllm-native", "h200"),
        ("flashinfer.decode.trtllm_batch_decode_with_kv_cache", "paged_decode", "trtllm-native", "b200"),
        ("flashinfer.prefill.trtllm_fmha_v2_prefill", "paged_prefill", "trtllm-fmha-v2", "h200"),
        ("flashinfer.prefill.trtllm_fmha_v2_prefill", "ragged_prefill", "trtllm-fmha-v2", "h200"),
        ("flashinfer.prefill.trtllm_batch_context_with_kv_cache", "paged_prefill", "trtllm-context", "b200"),
    ],
)
@pytest.mark.parametrize("keys", [{}, {"min_s_qo": 1}, {"kv_dtype": "fp8_e4m3"}, {"window": 9}])
def test_a_call_fits_flashinfer_s_signature(
    entry: str, routine: str, backend: str, device: str, keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    """Without such a GPU: the arguments bind to the real signature, and the output has the right shape."""
    module, _, name = entry.rpartition(".")
    takes = inspect.signature(inspect.unwrap(getattr(importlib.import_module(module), name)))
    given: list[dict[str, object]] = []
    monkeypatch.setattr(entry, lambda **call: given.append(takes.bind(**call).arguments))
    shape = {"batch_size": 3, "s_kv": 300, "num_qo_heads": 16, "num_kv_heads": 2, "head_dim_qk": 64, "head_dim_vo": 64}
    p = Problem.model_validate({**shape, "routine": routine, "s_qo": 4, **keys})
    runner = registry.get(routine, backend).prepare(draw(p, "cpu"), known_devices()[device])
    runner()

    (call,) = given
    assert call["out"] is runner.out
    assert runner.out.shape == (p.num_q_tokens, 16, 64)
    assert (call["bmm1_scale"], call["bmm2_scale"]) == ((0.0625, 0.75) if "kv_dtype" in keys else (0.125, 1.0))
    assert call["window_left"] == (8 if "window" in keys else -1)


def test_who_copies_the_cache_says_so():
    """On a CPU: what a backend that is no split reads a copy of is the cache."""
    inputs = draw(Problem(**SMALL), "cpu")
    cpu = known_devices()["cpu"]
    able = [a for (routine, _), a in registry.adapters().items() if routine == "paged_decode" and not a.unmet(inputs.problem, cpu)]

    found = {adapter.name for adapter in able if adapter.prepare(inputs, cpu).copies}

    assert found == {adapter.name for adapter in able if adapter.copies_cache}
    assert len(able) > len(found)
