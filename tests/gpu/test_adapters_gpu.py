"""Tests that need a GPU: the mask decides the answer, times are plausible, inputs are drawn on the device.

Run with `pytest -m gpu` on a machine with a CUDA device. Missing kernel modules are compiled first. `test_rules_gpu.py` tests which
backend serves what.
"""

from __future__ import annotations

import math
import statistics
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from kernels import registry
from kernels.adapter import Runner
from kernels.check import oracle
from kernels.conformance.on_cuda import largest_cpu_tensor, replay
from kernels.device import Device
from kernels.inputs.generate import draw
from kernels.problem import Problem
from kernels.timing import ceilings, energy
from kernels.timing.caches import Caches, flush_of, l2_bytes
from kernels.timing.config import Timing
from kernels.timing.nvml import DeviceMonitor, NvmlMonitor
from kernels.timing.pacing import Pacer
from kernels.timing.series import Series, measure_interleaved
from kernels.timing.timers import TimerName, timer_for
from orchestrator.machines import describe
from tests.helpers.command_line import run_from_scratch

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

    assert oracle.judge(runner.out, oracle.reference(x), p, runner.arithmetic).passed
    assert not oracle.judge(runner.out, full, p, runner.arithmetic).passed


@pytest.mark.parametrize(("routine", "backend"), [("paged_decode", "trtllm-native"), ("paged_prefill", "fa2")])
@pytest.mark.parametrize("given", ["causal", "full", "binary"])
@pytest.mark.parametrize("meant", ["causal", "full", "binary"])
def test_a_kernel_follows_the_mask_it_is_given(routine: str, backend: str, given: str, meant: str, gpu: Device):
    """The kernel's answer under one mask passes against the reference of that mask only."""
    tree = (-1, 0, 0, 1, 1, 2, 2)
    keys = {**SHAPE, "routine": routine, "batch_size": 2, "s_kv": 8192, "s_qo": 7}
    make = {m: Problem.model_validate({**keys, "mask": m, "tree": tree if m == "binary" else None}) for m in (given, meant)}
    x = draw(make[meant], "cuda")
    runner = registry.get(routine, backend).prepare(replace(x, problem=make[given]), gpu)
    runner()
    verdict = oracle.judge(runner.out, oracle.reference(x), make[meant], runner.arithmetic)

    assert verdict.passed == (given == meant)


@pytest.mark.parametrize("backend", ["fa2_tc", "trtllm-native"])
def test_an_fp8_cache_is_right_with_scales_that_are_not_one(backend: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 3, "s_kv": 50000, "s_qo": 4, "kv_dtype": "fp8_e4m3"})
    x = draw(p, "cuda")

    assert (x.k_scale, x.v_scale) != (1.0, 1.0)
    assert replay(registry.get("paged_decode", backend), gpu, x).passed


LATENT = {"num_qo_heads": 16, "num_kv_heads": 16, "head_dim_qk": 192, "head_dim_vo": 128, "head_dim_ckv": 512, "head_dim_kpe": 64}


@pytest.mark.parametrize("lens", ["15q4s8k_q1s8k", "q512s8k_15q4s4k", "3q4s300_q9s77_q2s500_4q4s4k"])
@pytest.mark.parametrize(
    ("routine", "backend"),
    [
        *(("paged_decode", name) for name in ("fa2_tc+fa2@4", "fa2_tc+fa3@4", "trtllm-native+fa2@4", "fa2_tc+torch_sdpa@4")),
        *(("mla", name) for name in ("fa2+fa2@4", "fa3+fa2@4")),
    ],
)
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
def test_a_batch_in_two_calls_is_captured_as_one_and_right(routine: str, backend: str, lens: str, kv_dtype: str, gpu: Device):
    shape = SHAPE if routine == "paged_decode" else LATENT
    p = Problem.model_validate({**shape, "routine": routine, "batch_spec": lens, "kv_dtype": kv_dtype})
    adapter = registry.get(routine, backend)
    if unmet := adapter.unmet(p, gpu):
        assert any(sentence.startswith(("fa3 ", "torch_sdpa ")) for sentence in unmet), unmet
        return
    verdict = replay(adapter, gpu, draw(p, "cuda"))

    assert verdict.passed, verdict.reason


DEFAULT = Caches()


def timed(runner: Runner, timer: TimerName = "graph", caches: Caches = DEFAULT) -> tuple[str, float, float]:
    """Name of the timer, median µs, µs of the CPU."""
    series = Series(timer_for(runner, timer, 3, caches), Timing())
    measure_interleaved([series], Pacer(DeviceMonitor()), 0)
    samples = sorted(sample for block in series.result().blocks_us for sample in block)
    return series.timer.name, samples[len(samples) // 2], series.timer.host_us


@pytest.fixture
def short_decode(gpu: Device) -> Runner:
    """33 MB of keys and values, which fit in the L2."""
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 8192, "s_qo": 1})
    assert p.bytes < l2_bytes()
    return registry.get("paged_decode", "fa2_tc").prepare(draw(p, "cuda"), gpu)


def test_a_warm_cache_is_faster_than_a_clean_one_and_that_than_a_dirty_one(short_decode: Runner):
    _, clean, host_us = timed(short_decode)

    assert clean > 1.1 * timed(short_decode, caches=Caches(l2="warm"))[1]
    assert clean < 0.95 * timed(short_decode, caches=Caches(l2="dirty"))[1]
    assert 5 < host_us < 5000


@dataclass(frozen=True)
class WrittenThenRead(Caches):
    def restore(self) -> None:
        flush = flush_of(0, self.l2_flush_factor)
        flush.write()
        flush.read()


def test_a_read_puts_back_what_was_written_before_it(short_decode: Runner):
    """If lines stayed dirty under a read, the kernel would pay for them as it does after a write."""
    clean, after_both, dirty = (timed(short_decode, caches=c)[1] for c in (Caches(), WrittenThenRead(), Caches(l2="dirty")))

    assert after_both == pytest.approx(clean, rel=0.03)
    assert after_both < 0.95 * dirty


def test_a_read_of_the_whole_buffer_takes_as_long_as_memory_needs_for_it(gpu: Device):
    """A reduction that the compiler or a library cut short would be faster than memory."""
    flush = flush_of(0, 2.0)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    start.record()
    for _ in range(10):
        flush.read()
    end.record()
    torch.cuda.synchronize()
    tb_per_sec = 10 * flush.buffer.numel() / start.elapsed_time(end) / 1e9

    assert 0.5 * gpu.tb_per_sec < tb_per_sec < 1.5 * gpu.tb_per_sec


def test_a_long_enough_block_tells_the_energy_of_a_call(short_decode: Runner):
    counter = NvmlMonitor(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    timer = timer_for(short_decode, "graph", 3, Caches())
    found = None
    for _ in range(3):  # beside compilations the host reads the counter late, and says that it knows too little
        with suppress(energy.EnergyUnknown):
            flush = energy.measure(lambda cycles: timer.issue(cycles, with_call=False), 40e-6, counter)
            found = energy.energy_of(energy.measure(timer.issue, 65e-6, counter), flush)
            break
    assert found is not None
    watts = found.energy_j / found.energy_us * 1e6

    assert 100 < watts < 1000
    assert 10 < found.energy_us < 40
    assert found.energy_rel < 0.1


def test_other_code_makes_a_long_kernel_slower(gpu: Device):
    """XQA's kernel for drafts has 128 KB of code, its Hopper kernel 24 KB. A flush that reads displaces them too (docs/timing.md).

    Beside compilations the host is late at times, which lengthens some samples of both. So they are taken in turns, and the shorter
    ones are compared.
    """

    def ratio(s_qo: int) -> float:
        p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 8192, "s_qo": s_qo, "kv_dtype": "fp8_e4m3"})
        runner = registry.get("paged_decode", "trtllm-native").prepare(draw(p, "cuda"), gpu)
        states = Caches("dirty", icache="cold"), Caches("dirty", icache="warm")
        both = [Series(timer_for(runner, "graph", 3, caches), Timing()) for caches in states]
        measure_interleaved(both, Pacer(DeviceMonitor()), 0)
        samples = ([sample for block in series.result().blocks_us for sample in block] for series in both)
        cold, warm = (statistics.quantiles(each, n=10)[0] for each in samples)
        return cold / warm

    assert ratio(4) > 1.2
    assert 0.95 < ratio(1) < 1.1


def test_each_timer_has_a_name_and_adds_no_more_than_its_events(short_decode: Runner):
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


def test_a_graph_of_a_first_call_is_captured_after_another_call(gpu: Device):
    calls: list[bool] = []
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 1024, "s_qo": 1})
    right = registry.get("paged_decode", "fa2_tc").prepare(draw(p, "cuda"), gpu)

    def launch() -> None:
        calls.append(torch.cuda.is_current_stream_capturing())
        right()

    timer_for(replace(right, launch=launch), "graph", 0, Caches())

    assert calls[:2] == [False, True]


def test_nvml_reports_the_clock_and_other_processes():
    properties = torch.cuda.get_device_properties(0)
    nvml = NvmlMonitor(f"GPU-{properties.uuid}")
    torch.zeros(1, device="cuda")
    nvml.note_own_processes()
    (telemetry,) = nvml.read()

    assert telemetry.sm_clock_mhz > 0 and telemetry.mem_clock_mhz > 0 and telemetry.power_w > 0
    assert nvml.other_processes() == []


def test_a_device_is_measured_within_its_datasheet(gpu: Device):
    found = ceilings.measure()

    assert 0.8 * gpu.tb_per_sec < found.tb_per_sec <= gpu.tb_per_sec
    assert all(0.5 * gpu.peak_tflops(d) < found.tflops[d] <= gpu.peak_tflops(d) for d in ("fp16", "bf16", "fp8_e4m3"))
    assert 1 < found.launch_us < 10
    assert found.call_launch_us is not None and abs(found.call_launch_us - found.launch_us) < 2
    assert found.call_launch_spread_us is not None and found.call_launch_spread_us < 1


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8_e4m3"])
def test_no_cpu_tensor_of_the_cache_exists_at_any_time(kv_dtype: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "batch_size": 64, "s_kv": 8192, "s_qo": 4, "kv_dtype": kv_dtype})
    with largest_cpu_tensor() as seen:
        x = draw(p, "cuda")
        oracle.reference(x)
        registry.get("paged_decode", "trtllm-native").prepare(x, gpu)()
        registry.get("paged_decode", "fa2_tc").prepare(x, gpu)()

    # FlashInfer's plan pins 8 MiB for its own tables; a tensor of the cache would be over a hundred times that.
    assert 0 < seen[0] <= 2**23 < p.kv_bytes / 100


@pytest.mark.parametrize("capture", ["lost_device", "dies"])
def test_a_lost_device_or_a_dead_worker_costs_its_own_point(capture: str, tmp_path: Path):
    done = run_from_scratch(
        "+sweep=smoke", "adapters=[tests.backends.faulty]", f"sweep.backend=[torch_sdpa,{capture},nothing]", "timing=quick",
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


@pytest.mark.timeout(3600)  # most of it compiles kernel modules
def test_every_backend_keeps_its_contract_on_this_gpu():
    done = run_from_scratch("mode=conformance", "format=markdown", timeout=3500)

    assert [line for line in done.stdout.splitlines() if "| failed |" in line] == []
    assert done.returncode == 0, done.stderr
