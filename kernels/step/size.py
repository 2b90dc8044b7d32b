"""How many layers a step has, the memory that it takes, and which problems it cannot model. Pure Python, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.problem import Problem
from kernels.problem.routine import routine_of
from kernels.step.shapes import WEIGHT_BYTES, LayerShape, weight_bytes

# A replay's own jitter is shared by its layers. So many microseconds of it may remain for one layer, or this part of a call.
JITTER_US, PRECISION_US, PRECISION_REL = 2.4, 0.2, 0.005
FEW_LAYERS, MIN_LAYERS, MAX_LAYERS = 4, 2, 64  # the first layer follows a launch and not a layer: it is a quarter at most
L2_BYTES = 2 * 128 * 2**20  # twice the largest L2 of today's GPUs
RESERVED_BYTES = 8 * 2**30  # for a backend's workspaces in every layer, which must not decide how many layers there are


@dataclass(frozen=True)
class StepSize:
    """The layers of a step, and bytes of device memory: what all backends of a problem share, and one layer's part of it."""

    layers: int
    shared_bytes: int
    layer_bytes: int
    weight_bytes: int  # of one layer


def unmet(problem: Problem) -> list[str]:
    """Why `timing.context=step` cannot model a problem, as sentences of what it needs; empty if it can."""
    needs = {
        "attention that reads the queries of its layer, and no states that are given (merge_states)": problem.num_states is None,
        "a routine of attention over keys and values": routine_of(problem.routine) is None,
        "keys and values of 8 bits or more, since its KV append does not pack nvfp4": problem.kv_dtype != "nvfp4",
        "no padded requests (graph_batch=null)": problem.graph_batch is None,
        "a key of its own for every query token, since a step writes it": problem.s_qo <= problem.s_kv and not problem.lacks_keys,
        "an even head_dim, for its rotary embedding": (problem.head_dim_kpe or problem.head_dim_qk) % 2 == 0,
    }
    return [sentence for sentence, met in needs.items() if not met]


def size_of(problem: Problem, shape: LayerShape, tb_per_sec: float, room_bytes: int, layers: int | None = None) -> StepSize:
    """The step of a problem on a device that reads `tb_per_sec` and has `room_bytes` of usable memory.

    `layers`, if given, is how many there are. Otherwise they are as many as the precision needs (`wanted_layers`), fewer if the
    memory has no room for them, but no fewer than `least_layers`: such a step does not fit, as `shared_bytes` shows.
    """
    weights = weight_bytes(problem, shape)
    a_layer = weights + problem.input_bytes
    fixed = _activation_bytes(problem, shape)
    if layers is None:
        wanted = wanted_layers(problem, shape, tb_per_sec)
        fitting = (room_bytes - fixed - RESERVED_BYTES) // a_layer
        layers = max(min(wanted, fitting), min(wanted, least_layers(problem, tb_per_sec)))
    return StepSize(layers, fixed + layers * a_layer, a_layer, weights)


def wanted_layers(problem: Problem, shape: LayerShape, tb_per_sec: float) -> int:
    """The layers that a step should have, if memory allows.

    Enough that `JITTER_US`, divided by them, is at most `PRECISION_US` or `PRECISION_REL` of the call: 12 for short calls and
    `FEW_LAYERS` for long ones. If the weights and caches of all layers but one fit into the L2, a step would find its own data
    there; then there are so many that they do not fit, up to `MAX_LAYERS`. Never more than the model has.
    """
    enough = max(FEW_LAYERS, _for_precision(problem, tb_per_sec))
    past_l2 = 1 + math.ceil(L2_BYTES / (weight_bytes(problem, shape) + problem.kv_bytes))
    return min(max(enough, past_l2), MAX_LAYERS, shape.num_layers or MAX_LAYERS)


def least_layers(problem: Problem, tb_per_sec: float) -> int:
    """The fewest layers that are timed at all: `FEW_LAYERS`, or `MIN_LAYERS` if the call is so long that they are precise."""
    return max(MIN_LAYERS, min(FEW_LAYERS, _for_precision(problem, tb_per_sec)))


def _for_precision(problem: Problem, tb_per_sec: float) -> int:
    call_us = problem.unshared_bytes / (tb_per_sec * 1e6)
    return math.ceil(JITTER_US / max(PRECISION_US, PRECISION_REL * call_us))


def _activation_bytes(problem: Problem, shape: LayerShape) -> int:
    """What lies between the products of a layer, with room for what their libraries take. All layers share it."""
    p = problem
    inner = 3 * shape.of_mlp(shape.intermediate_size, p.tp) + 2 * shape.hidden_size
    experts = p.num_q_tokens * (shape.experts_per_token or 1) + shape.active_experts(p.num_q_tokens)
    rows = experts * inner + p.num_q_tokens * (6 * shape.hidden_size + 4 * p.num_qo_heads * (p.key_dim + p.value_dim))
    return 2 * WEIGHT_BYTES * rows + 2**28
