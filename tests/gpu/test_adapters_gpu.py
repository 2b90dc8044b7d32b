"""What only a GPU can show of a kernel: that the mask decides the answer, that timing is honest, that nothing is drawn on a CPU.

Run with `pytest -m gpu` on a machine with a CUDA device; modules that are not compiled yet are compiled first. Which backend
serves what, and rightly, is `test_rules_gpu.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import oracle, registry
from kernels.device import Device
from kernels.drawing import draw
from kernels.inputs import Inputs
from kernels.problem import Problem
from kernels.timing import GraphReplay, Timing, timer_for
from orchestrator.machines import describe
from tests.conftest import run

pytestmark = pytest.mark.gpu

SHAPE = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}


@pytest.fixture(scope="module")
def gpu() -> Device:
    return describe().devices[0]


@pytest.mark.parametrize(
    ("routine", "backend"),
    [
        *(("paged_decode", name) for name in ("fa2_tc", "auto", "cudnn", "torch_sdpa")),
        *(("paged_prefill", name) for name in ("fa2", "fa3", "cudnn", "trtllm-fmha-v2")),
    ],
)
def test_a_causal_kernel_measured_against_full_visibility_is_caught(routine: str, backend: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "routine": routine, "batch_size": 2, "s_kv": 131072, "s_qo": 4})
    x = draw(p, "cuda")
    adapter = registry.get(routine, backend)
    if adapter.unmet(p, gpu):
        assert backend in ("fa3", "trtllm-fmha-v2") and not gpu.is_sm(9)
        return
    runner = adapter.prepare(x, gpu)
    runner()
    full = oracle.reference(replace(x, problem=p.model_copy(update={"mask": "full"})))

    assert oracle.judge(runner.out, oracle.reference(x), p, runner.compute_dtype, runner.caller_scale).passed
    assert not oracle.judge(runner.out, full, p, runner.compute_dtype, runner.caller_scale).passed


@pytest.mark.parametrize(("routine", "backend"), [("paged_decode", "trtllm-native"), ("paged_prefill", "fa2")])
@pytest.mark.parametrize("told", ["causal", "full", "binary"])
@pytest.mark.parametrize("meant", ["causal", "full", "binary"])
def test_a_kernel_follows_the_mask_it_is_given(routine: str, backend: str, told: str, meant: str, gpu: Device):
    """Bit by bit: the kernel's answer under one mask passes against the reference of that mask alone."""
    tree = (-1, 0, 0, 1, 1, 2, 2)
    keys = {**SHAPE, "routine": routine, "batch_size": 2, "s_kv": 8192, "s_qo": 7}
    make = {m: Problem.model_validate({**keys, "mask": m, "tree": tree if m == "binary" else None}) for m in (told, meant)}
    x = draw(make[meant], "cuda")
    runner = registry.get(routine, backend).prepare(replace(x, problem=make[told]), gpu)
    runner()
    verdict = oracle.judge(runner.out, oracle.reference(x), make[meant], runner.compute_dtype, runner.caller_scale)

    assert verdict.passed == (told == meant)


def replayed(x: Inputs, routine: str, backend: str, gpu: Device) -> oracle.Verdict:
    runner = registry.get(routine, backend).prepare(x, gpu)
    timer = timer_for(runner, Timing())
    runner.out.fill_(math.nan)
    timer.replay()
    return oracle.judge(runner.out, oracle.reference(x), x.problem, runner.compute_dtype, runner.caller_scale)


@pytest.mark.parametrize("backend", ["fa2_tc", "trtllm-native"])
def test_an_fp8_cache_is_right_with_scales_that_are_not_one(backend: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 3, "s_kv": 50000, "s_qo": 4, "kv_dtype": "fp8_e4m3"})
    x = draw(p, "cuda")

    assert (x.k_scale, x.v_scale) != (1.0, 1.0)
    assert replayed(x, "paged_decode", backend, gpu).passed


def test_a_graph_replay_runs_what_was_captured_over_a_cold_cache(gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 8192, "s_qo": 1})  # 33 MB: fits the L2
    runner = registry.get("paged_decode", "fa2_tc").prepare(draw(p, "cuda"), gpu)
    cold, warm = (timer_for(runner, Timing(l2=l2)) for l2 in ("cold", "warm"))
    assert isinstance(cold, GraphReplay) and cold.name == "cuda_graph_events"
    medians = [sorted(t.measure().samples_us)[25] for t in (cold, warm)]

    assert medians[0] > 1.1 * medians[1]
    assert 5 < cold.host_us < 5000


class CpuTensors(TorchDispatchMode):
    """Remembers the largest CPU tensor that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor) and t.device.type == "cpu":
                self.largest = max(self.largest, t.numel() * t.element_size())
        return out


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
def test_no_cpu_tensor_of_the_cache_exists_at_any_time(kv_dtype: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 64, "s_kv": 8192, "s_qo": 4, "kv_dtype": kv_dtype})
    with CpuTensors() as seen:
        x = draw(p, "cuda")
        oracle.reference(x)
        registry.get("paged_decode", "trtllm-native").prepare(x, gpu)()
        registry.get("paged_decode", "fa2_tc").prepare(x, gpu)()

    # FlashInfer's plan pins 8 MiB for its own tables; a tensor of the cache would be over a hundred times that.
    assert 0 < seen.largest <= 2**23 < p.kv_bytes / 100


@pytest.mark.parametrize("capture", ["lost_device", "dies"])
def test_a_lost_device_or_a_dead_worker_costs_its_own_point(capture: str, tmp_path: Path):
    done = run(
        "+sweep=smoke", "adapters=[tests.faulty]", f"sweep.backend=[torch_sdpa,{capture},nothing]", "timing=quick",
        "sweep.batch_size=[1]", f"results.path={tmp_path}",
    )  # fmt: skip
    table = pd.read_parquet(tmp_path)

    assert done.returncode == 1, done.stderr
    assert {b: set(s) for b, s in table.groupby("backend")["status"]} == {
        "torch_sdpa": {"ok"},
        capture: {"failed"},
        "nothing": {"ok"},
    }
    assert len(table) == table["point_id"].nunique() == 12
