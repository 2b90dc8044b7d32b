"""Steps as captured graphs: attention in them is right, waits for its queries, and costs about what it takes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml

from kernels.device import Device
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.step.graph import Step, stand_in
from kernels.step.layer import make_layers
from kernels.step.layer_inputs import inputs_of_layer
from kernels.step.shapes import LayerShape
from kernels.timing.config import Timing
from kernels.timing.graphs import capture
from orchestrator import ROOT
from orchestrator.config.model import Model
from orchestrator.machines import describe
from orchestrator.point import Point
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner
from tests.backends.in_steps import _prepared

LLAMA = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "model": "llama_3_1_70b"}
SHAPE = LayerShape(hidden_size=1024, intermediate_size=2048, num_experts=8, experts_per_token=2)


def layer_of(name: str) -> LayerShape:
    model = Model.model_validate(yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text()))
    assert model.layer is not None
    return model.layer


def ran(
    device: Device, shape: LayerShape, problem: Problem, *backends: str, layers: int | None = None
) -> dict[str, dict[str, Any]]:
    _prepared.clear()
    timing = Timing.model_validate({"context": "step", "step_layers": layers})
    worker = PointRunner.create(WorkerConfig(timing, True, ("tests.backends.in_steps",), {}, layer=shape), device)
    prepared = [worker.prepare(Task(Point(problem, backend, "how"), "replay")) for backend in backends]
    return {row["backend"]: dict(row) for result in (*prepared, worker.measure()) for row in result.rows}


@pytest.fixture(scope="module")
def gpu() -> Device:
    return describe().devices[0]


@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("bf16", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3")])
def test_a_captured_step_writes_what_attention_reads(dtypes: tuple[str, str]):
    q, kv = dtypes
    problem = Problem.model_validate({**LLAMA, "batch_size": 4, "s_qo": 2, "s_kv": 1000, "q_dtype": q, "kv_dtype": kv})
    first = draw(problem, "cuda")
    layers = make_layers([first, inputs_of_layer(first, 1)], SHAPE)
    known = [[t.view(torch.uint8).clone() for t in (one.inputs.q, one.inputs.kv[0].contiguous())] for one in layers]
    step = Step(layers, SHAPE.hidden_size, [stand_in(layer) for layer in layers])
    for layer in layers:
        layer.planted.poison()
    step()
    torch.cuda.synchronize()

    for layer, tensors in zip(layers, known, strict=True):
        now = [t.view(torch.uint8) for t in (layer.inputs.q, layer.inputs.kv[0].contiguous())]
        assert all(torch.equal(a, b) for a, b in zip(now, tensors, strict=True))
    assert step.residual.isfinite().all()


def test_attention_in_a_step_costs_about_what_it_takes_alone(gpu: Device):
    problem = Problem.model_validate({**LLAMA, "batch_size": 8, "s_qo": 1, "s_kv": 8192})
    rows = ran(gpu, layer_of("llama_3_1_70b"), problem, "fa2_tc", "torch_sdpa")
    row = rows["fa2_tc"]

    assert (row["status"], row["timer"]) == ("ok", "cuda_graph_events"), row["reason"]
    assert 0.6 < row["in_step_us"] / row["median_us"] < 1.2
    assert row["in_step_high_us"] - row["in_step_low_us"] < 5


def test_mla_in_a_step(gpu: Device):
    heads = {"routine": "mla", "num_qo_heads": 16, "num_kv_heads": 16, "head_dim_qk": 192, "head_dim_vo": 128, "tp": 8}
    latent = {"head_dim_ckv": 512, "head_dim_kpe": 64, "model": "deepseek_v3"}
    problem = Problem.model_validate({**heads, **latent, "batch_size": 8, "s_qo": 2, "s_kv": 8192})
    row = ran(gpu, layer_of("deepseek_v3"), problem, "fa2")["fa2"]

    assert row["status"] == "ok", row["reason"]
    assert row["in_step_low_us"] > 0


def test_a_backend_that_is_wrong_in_one_layer_of_a_graph_is_caught(gpu: Device):
    problem = Problem.model_validate({**LLAMA, "batch_size": 2, "s_qo": 3, "s_kv": 1000})
    rows = ran(gpu, SHAPE, problem, "right", "wrong_in_layer_2", "reads_queries_too_early", layers=3)
    found = {name: row["status"] for name, row in rows.items()}
    reasons = {name: row["reason"] for name, row in rows.items()}

    assert found == {"right": "ok", "wrong_in_layer_2": "mismatch", "reads_queries_too_early": "mismatch"}, reasons


def test_graphs_that_share_memory_take_no_more_of_it():
    x = torch.ones(2**26, device="cuda")

    def call() -> None:
        torch.add(x, 1).mul_(2)  # of 256 MiB, which the graph keeps

    call()
    first = capture(call)
    before = torch.cuda.memory_reserved()
    second = capture(call, shares_with=first)
    shared = torch.cuda.memory_reserved() - before
    third = capture(call)
    alone = torch.cuda.memory_reserved() - before - shared
    for graph in (first, second, third):
        graph.replay()
    torch.cuda.synchronize()

    assert shared == 0 and alone > 0
