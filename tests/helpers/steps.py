"""Small models with layers, for steps on a CPU."""

from __future__ import annotations

from typing import Any

import torch

from kernels.adapter import Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.inputs import Inputs
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.step.graph import Step
from kernels.step.layer import Layer, make_layers
from kernels.step.layer_inputs import inputs_of_layer
from kernels.step.shapes import LayerShape
from orchestrator.machines import cpu

DENSE = LayerShape(hidden_size=32, intermediate_size=48)
EXPERTS = LayerShape(hidden_size=32, intermediate_size=16, num_experts=8, experts_per_token=2, shared_intermediate_size=24)
MLA = {"routine": "mla", "num_kv_heads": 8, "head_dim_qk": 24, "head_dim_vo": 16, "head_dim_ckv": 32, "head_dim_kpe": 8}


def layers_of(problem: Problem, shape: LayerShape = DENSE, count: int = 3) -> list[Layer]:
    first = draw(problem, "cpu")
    return make_layers([first, *(inputs_of_layer(first, number) for number in range(1, count))], shape)


def sdpa(inputs: Inputs) -> Runner:
    return TorchSdpa(routine=inputs.problem.routine).prepare(inputs, cpu())


def step_of(layers: list[Layer], shape: LayerShape = DENSE) -> tuple[Step, list[Runner]]:
    runners = [sdpa(layer.inputs) for layer in layers]
    return Step(layers, shape.hidden_size, [(runner, runner.out) for runner in runners]), runners


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a.contiguous().view(torch.uint8) == b.contiguous().view(torch.uint8)).all())


def step_problem(**keys: Any) -> Problem:
    base = {"batch_size": 2, "s_qo": 3, "s_kv": 100, "num_qo_heads": 8, "num_kv_heads": 2, "head_dim_qk": 16, "head_dim_vo": 16}
    return Problem.model_validate({**base, "page_size": 16, **keys})
