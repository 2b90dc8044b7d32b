"""Two planned calls have one key only if nothing but outputs and workspaces differs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.contract.runner import Runner
from kernels.inputs.generate import draw
from kernels.libraries.same_call import planned_call, with_key
from kernels.problem import Problem
from orchestrator.machines import known_devices

MODULE, QUERIES = SimpleNamespace(), torch.zeros(2**15)  # larger than what is compared by content


class Planned:
    """What FlashInfer's wrappers leave after their plan, as far as a key reads it."""

    def __init__(self, backend: str, plan: tuple[int, ...] = (1, 2), module: object = MODULE, **settings: Any) -> None:
        self._backend = self._requested_backend = backend
        self._cached_module, self._plan_info, self._workspace = module, list(plan), torch.empty(4)
        self._sm_scale, self._names = 0.5, ["a"]
        vars(self).update(settings)

    def run(self, *_args: object, **_keys: object) -> None: ...


def key(wrapper: Planned, kernel: str = "fa2", q: torch.Tensor = QUERIES, **keys: object) -> object:
    out = torch.empty(3)
    launch = partial(wrapper.run, q, (q, q), out=out, scales=torch.ones(2), enable_pdl=None, **keys)
    return planned_call(wrapper, kernel, launch, (out, None))


def test_a_name_that_resolves_to_a_kernel_makes_its_call():
    assert key(Planned("auto")) == key(Planned("fa2")) is not None
    assert key(Planned("auto"), sinks=torch.ones(3)) == key(Planned("fa2"), sinks=torch.ones(3))


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(Planned("auto", plan=(1, 3))),
        lambda: key(Planned("auto", module=SimpleNamespace())),
        lambda: key(Planned("auto", _sm_scale=0.25)),
        lambda: key(Planned("auto", _helper=object())),  # nothing is known of it
        lambda: key(Planned("auto"), kernel="fa3"),
        lambda: key(Planned("auto"), q=torch.zeros(2**15)),  # equal values in other memory
        lambda: key(Planned("auto"), k_scale=0.5),
        lambda: key(Planned("auto"), sinks=torch.zeros(3)),
    ],
)
def test_whatever_else_differs_makes_another_call(other: Any):
    assert other() != key(Planned("fa2")) is not None


def test_what_cannot_be_compared_has_no_key():
    assert planned_call(Planned("auto"), "fa2", print, ()) is None
    assert key(Planned("auto"), callback=object()) is None
    assert planned_call(SimpleNamespace(), "fa2", partial(print), ()) is None


class Module:
    """A compiled module of MLA, as far as a plan calls it."""

    def plan_with_staged_workspace_bytes(self, *args: object) -> tuple[list[int], int]:
        return [int(args[6]), int(args[7])], 0  # type: ignore[call-overload]


@pytest.fixture
def planned_mla(monkeypatch: pytest.MonkeyPatch, problem: Callable[..., Problem]) -> Callable[..., Runner]:
    """FlashInfer's own wrapper of MLA, planned on a CPU that it takes for an H200: without compiling, and without its checks."""
    from flashinfer.mla._batch_mla import _auto_policy
    from flashinfer.mla._batch_mla._backends import _fa_common, fa2_backend, fa3_backend

    modules = {name: Module() for name in ("fa2", "fa3")}
    for of in (fa2_backend, fa3_backend):
        monkeypatch.setattr(of, "get_batch_mla_module", lambda name, *_: modules[name])
        monkeypatch.setattr(of, "_validate_generated_fa_plan", lambda **_: None)
    monkeypatch.setattr(_fa_common, "_validate_generated_fa_plan", lambda **_: None)
    monkeypatch.setattr(_fa_common, "_validate_fa_plan_workload", lambda *_: None)
    monkeypatch.setattr(_auto_policy, "_get_compute_capability", lambda _: (9, 0))
    monkeypatch.setattr(_auto_policy, "is_sm90a_supported", lambda _: True)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **keys: empty(*shape, **{**keys, "pin_memory": False}))
    latent = {"routine": "mla", "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}
    inputs = draw(problem(num_qo_heads=8, s_qo=2, s_kv=40, **latent), "cpu")
    return lambda name: registry.get("mla", name).prepare(inputs, known_devices()["h200"])


def test_auto_makes_the_call_of_the_backend_of_mla_that_it_chose(planned_mla: Callable[..., Runner]):
    auto, fa3, fa2 = (planned_mla(name) for name in ("auto", "fa3", "fa2"))

    assert auto.resolved_backend == "fa3"
    assert auto.call == fa3.call is not None
    assert fa2.call not in (None, fa3.call)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("wrapper", "_input_contract", None),
        ("planned", "_causal", False),
        ("planned", "_sm_scale", 0.25),
        ("planned", "_plan_info", [1, 2]),
        ("planned", "_cached_module", Module()),
        ("planned", "_helper", object()),  # nothing is known of it
    ],
)
def test_a_call_of_mla_that_was_planned_otherwise_is_another(
    planned_mla: Callable[..., Runner], where: str, name: str, value: object
):
    auto, fa3 = planned_mla("auto"), planned_mla("fa3")
    wrapper = auto.launch.func.__self__  # type: ignore[attr-defined]
    setattr(wrapper if where == "wrapper" else wrapper._planned_backend, name, value)

    assert with_key(auto, wrapper).call != fa3.call is not None
