"""What a step adds to the cost of a point: layers of weights and caches, and a runner in each of them. Pure."""

from __future__ import annotations

from kernels.device import Device
from kernels.problem import Problem
from kernels.step.size import StepSize
from kernels.timing.config import MIN_SAMPLES, Timing
from orchestrator.planning.cost import Cost

UNTIMED_STEPS, PREPARE_S = 12, 0.02  # steps of warm-up and check; seconds to prepare a runner


def with_step(alone: Cost, problem: Problem, device: Device, timing: Timing, size: StepSize) -> Cost:
    """The cost of a point that is timed alone and in a step of this size, from that of being timed alone."""
    bytes_s = device.tb_per_sec * 1e12
    attention_s = max(problem.unshared_bytes / bytes_s, problem.flops / (device.peak_tflops(problem.q_dtype) * 1e12))
    products = 2 * problem.num_q_tokens * size.weight_bytes / 2  # of bf16 weights, each multiplied with every token
    rest_s = max(size.weight_bytes / bytes_s, products / (device.peak_tflops("bf16") * 1e12))
    pair_s = size.layers * (attention_s + 2 * rest_s)
    pairs = min(max(timing.max_seconds / pair_s, 2 * MIN_SAMPLES), timing.max_samples)
    logs = 3 * 4 * problem.num_q_tokens * problem.num_qo_heads * problem.value_dim  # fp32 copies of a layer's output
    own = size.layers * (alone.own_bytes + logs)
    shared = alone.memory_bytes - alone.own_bytes - problem.input_bytes + size.shared_bytes
    return Cost(
        setup_s=alone.setup_s + 10 * size.shared_bytes / bytes_s,
        point_s=alone.point_s + size.layers * PREPARE_S + (pairs + UNTIMED_STEPS) * pair_s,
        memory_bytes=shared + own,
        own_bytes=own,
    )
