"""Every sweep, model and kind of device: a plan that runs nothing says why, and one include does not cost the others."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from kernels.adapter import Device
from orchestrator import ROOT
from orchestrator.config.base import own_files
from orchestrator.config.settings import AskSettings, Settings, load
from orchestrator.errors import UserError
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.model_words import with_typed
from orchestrator.reporting.plan_tables import why_nothing_runs
from tests.helpers.command_line import composed

MODELS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf" / "model").glob("*.yaml"))}
SHAPE = ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "sinks", "index_topk", "kinds", "tp")


@cache
def config_of(sweep: str) -> dict[str, Any]:
    return composed(f"+sweep={sweep}")


def asked(sweep: str, model: str, **axes: Any) -> Settings:
    config = config_of(sweep)
    return load(with_typed({**config, "model": MODELS[model], "sweep": {**config["sweep"], **axes}}, [f"model={model}"]))


def ends(sweep: str) -> dict[str, Any]:
    """The shortest and the longest of what only makes more of the same points."""
    axes = {name: config_of(sweep)["sweep"][name] for name in ("batch_size", "s_kv")}
    return {
        name: values[:: len(values) - 1] if isinstance(values, list) and len(values) > 2 else values
        for name, values in axes.items()
    }


def alike() -> list[str]:
    """One model of each shape: others plan the same."""
    return list({str([model.get(key) for key in SHAPE]): name for name, model in MODELS.items()}.values())


def devices() -> list[Device]:
    """The one with the least memory of each family: others plan the same, or more."""
    by_memory = sorted(known_devices().values(), key=lambda device: -device.memory_bytes)
    return list({(device.kind, device.major, device.compute_capability == (8, 9)): device for device in by_memory}.values())


# A typed model takes the place of the heads of `servers` and `servers_more`, which differ in nothing else.
@pytest.mark.parametrize("sweep", [name for name in own_files("sweep") if name != "servers_more"])
def test_a_plan_runs_something_or_says_why(sweep: str):
    for model in alike()[:: 4 if sweep.startswith("rule_edges") else 1]:  # edges are of kernels, with heads of their own
        settings = asked(sweep, model, **ends(sweep))
        try:
            points = expand(settings)
        except UserError as error:  # of which no point can be this model's
            assert str(error).startswith((f"model {model}", "sweep.tp="))
            assert "type " in str(error)
            continue
        assert any(not point.refused for point in points)
        distinct = list({(p.problem.routine, p.backend, p.problem.q_dtype, p.problem.s_qo, p.refused): p for p in points}.values())
        for device in devices():
            plan = make_plan(distinct, [device], settings)
            assert plan.decisions_of("run") or "no point runs on" in why_nothing_runs(plan, settings.sweep)


@pytest.mark.parametrize(
    ("typed", "layers"),
    [
        (["model=deepseek_v3", "draft.rest_us=20000"], 61),
        (["model=qwen3_next_80b_a3b", "draft.cost_us=400"], 12),  # those that attend
        (["model=deepseek_v3", "draft.layers=8", "draft.cost_us=400"], 8),
        (["model=deepseek_v3", "draft.rest=preset", "draft.cost_us=400"], None),  # of each model of the rows
        (["model=deepseek_v3"], None),  # attention alone
    ],
)
def test_costs_of_a_step_take_the_layers_of_the_typed_model(typed: list[str], layers: int | None):
    settings = load(with_typed(composed("mode=report", "question=draft", "results.path=results/mine", *typed), typed))

    assert isinstance(settings, AskSettings) and settings.draft.layers == layers


@pytest.mark.parametrize("server", ["llama_3_1_70b 8", "gpt_oss_120b 2", "qwen3_next_80b_a3b 1"])
def test_a_sweep_of_several_models_has_the_points_of_each(server: str):
    model, tp = server.split()
    of_all = [point for point in expand(load(config_of("servers"))) if (point.problem.model, point.problem.tp) == (model, int(tp))]
    alone = load(
        {
            **config_of("servers"),
            "model": MODELS[model],
            "sweep": {**config_of("servers")["sweep"], "heads": ["model"], "tp": [int(tp)]},
        }
    )

    assert [point for point in of_all if not point.problem.window] == [
        p for p in expand(alone) if p.backend in {q.backend for q in of_all}
    ]


def test_a_typed_model_takes_the_place_of_a_sweep_s_models():
    assert {point.problem.model for point in expand(asked("servers", "qwen3_14b"))} == {"qwen3_14b"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("sweep.heads=[{model: llama_3_1_80b}]", "llama_3_1_70b"),
        ("timing.context=step", "model=llama_3_1_70b 'sweep.heads=[model]'"),
    ],
)
def test_models_of_a_sweep_that_cannot_be_are_refused(typed: str, said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        expand(load(composed("+sweep=servers", typed)))
