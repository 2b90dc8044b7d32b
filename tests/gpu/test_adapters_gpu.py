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

from kernels import ceilings, oracle, registry
from kernels.adapter import Runner
from kernels.caches import Caches, l2_bytes
from kernels.device import Device
from kernels.drawing import draw
from kernels.inputs import Inputs
from kernels.pace import Pace
from kernels.problem import Problem
from kernels.timers import TimerName, timer_for
from kernels.timing import Series, Timing, measure_in_turns
from kernels.witness import Nvml, Witness
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
    timer = timer_for(runner, "graph", 3, Caches())
    runner.out.fill_(math.nan)
    timer.replay()
    return oracle.judge(runner.out, oracle.reference(x), x.problem, runner.compute_dtype, runner.caller_scale)


@pytest.mark.parametrize("backend", ["fa2_tc", "trtllm-native"])
def test_an_fp8_cache_is_right_with_scales_that_are_not_one(backend: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 3, "s_kv": 50000, "s_qo": 4, "kv_dtype": "fp8_e4m3"})
    x = draw(p, "cuda")

    assert (x.k_scale, x.v_scale) != (1.0, 1.0)
    assert replayed(x, "paged_decode", backend, gpu).passed


AS_EVER = Caches()


def timed(runner: Runner, timer: TimerName = "graph", caches: Caches = AS_EVER) -> tuple[str, float, float]:
    """Name of the timer, median µs, µs of the CPU."""
    series = Series(timer_for(runner, timer, 3, caches), Timing())
    measure_in_turns([series], Pace(Witness()), 0)
    samples = sorted(sample for block in series.result().blocks_us for sample in block)
    return series.timer.name, samples[len(samples) // 2], series.timer.host_us


@pytest.fixture
def short_decode(gpu: Device) -> Runner:
    """33 MB of keys and values: they fit the L2."""
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 8192, "s_qo": 1})
    assert p.bytes < l2_bytes()
    return registry.get("paged_decode", "fa2_tc").prepare(draw(p, "cuda"), gpu)


def test_a_warm_cache_is_faster_than_a_cold_one(short_decode: Runner):
    _, cold, host_us = timed(short_decode)

    assert cold > 1.1 * timed(short_decode, caches=Caches(l2="warm"))[1]
    assert 5 < host_us < 5000


def test_code_of_others_costs_a_long_kernel_its_own(gpu: Device):
    """XQA's kernel of drafts has 128 KB of code, its Hopper kernel 24."""

    def ratio(s_qo: int) -> float:
        p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 8192, "s_qo": s_qo, "kv_dtype": "fp8_e4m3"})
        runner = registry.get("paged_decode", "trtllm-native").prepare(draw(p, "cuda"), gpu)
        return timed(runner, caches=Caches(icache="cold"))[1] / timed(runner)[1]

    assert ratio(4) > 1.2
    assert 0.95 < ratio(1) < 1.1


def test_each_timer_says_its_name_and_none_holds_more_than_the_events_about_it(short_decode: Runner):
    (graph, replay, _), (eager, call, _), (cupti, kernels, _) = (timed(short_decode, t) for t in ("graph", "eager", "cupti"))

    assert (graph, eager, cupti) == ("cuda_graph_events", "cuda_events", "cupti_graph_kernels")
    assert kernels < replay < kernels + 10  # µs
    assert call > 0.95 * kernels


def test_a_kernel_that_the_graph_did_not_capture_leaves_the_poison(gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 1024, "s_qo": 1})
    right = registry.get("paged_decode", "fa2_tc").prepare(draw(p, "cuda"), gpu)

    def launch() -> None:
        if not torch.cuda.is_current_stream_capturing():
            right()

    with pytest.warns(UserWarning, match="graph is empty|Graph is empty"):
        timer = timer_for(replace(right, launch=launch), "graph", 3, Caches())
    right.out.fill_(math.nan)
    timer.replay()

    assert bool(right.out.isnan().all())


def test_nvml_tells_the_clock_and_who_else_is_there():
    properties = torch.cuda.get_device_properties(0)
    nvml = Nvml(f"GPU-{properties.uuid}")
    torch.zeros(1, device="cuda")
    nvml.learn_own()
    (reading,) = nvml.read()

    assert reading.sm_clock_mhz > 0 and reading.mem_clock_mhz > 0 and reading.power_w > 0
    assert nvml.others() == []


def test_a_device_is_measured_within_its_datasheet(gpu: Device):
    found = ceilings.measure()

    assert 0.8 * gpu.tb_per_sec < found.tb_per_sec <= gpu.tb_per_sec
    assert all(0.5 * gpu.peak_tflops(d) < found.tflops[d] <= gpu.peak_tflops(d) for d in ("fp16", "bf16", "fp8_e4m3"))
    assert 1 < found.launch_us < 10


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
