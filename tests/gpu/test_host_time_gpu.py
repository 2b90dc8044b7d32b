"""The host's time and what it asks of the GPU: counts in real profiles, and plans that bring a captured call to new lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import registry
from kernels.conformance.suite import Trial, execute
from kernels.device import Device
from kernels.inputs.generate import draw
from kernels.inputs.step_lengths import host_lengths
from kernels.problem import Problem
from kernels.timing.config import Timing
from kernels.timing.profiled import Work, profile, work_of
from orchestrator import libraries
from orchestrator.machines import describe, versions
from orchestrator.point import Point
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner

SHAPE = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64}
BACKENDS = (
    "fa2",
    "fa2_tc",
    "fa3",
    "auto",
    "cudnn",
    "trtllm-native",
    "flash_attn_3",
    "flash_attn_3_unplanned",
    "flash_attn_3_32_splits",
)


@pytest.fixture(scope="module")
def gpu() -> Device:
    return describe().devices[0]


def served(gpu: Device, **keys: Any) -> tuple[Problem, list[str]]:
    """A problem of paged decode, and the backends that serve it on this machine."""
    p = Problem.model_validate({**SHAPE, "batch_size": 8, "s_kv": 8192, "s_qo": 1, **keys})
    adapters = [registry.get("paged_decode", name) for name in BACKENDS]
    able = [a for a in adapters if not a.unmet(p, gpu) and not libraries.missing(a, versions(a.distributions))]
    return p, [a.name for a in able]


def counted(part: Callable[[], object]) -> Work:
    part()
    return work_of(profile([part]), 1)[0]


@pytest.mark.parametrize(
    ("what", "syncs", "d2h", "h2d", "kernels"),
    [
        ("nothing", 0, 0, 0, 0),
        ("cpu", 1, 1, 0, 0),
        ("item", 1, 1, 0, 0),
        ("pinned", 0, 0, 1, 0),
        ("pinned, waiting", 1, 0, 1, 0),
        ("fill", 0, 0, 0, 1),
        ("within", 0, 0, 0, 1),
        ("synchronize", 1, 0, 0, 0),
    ],
)
def test_a_profile_counts_what_torch_asks_of_the_gpu(what: str, syncs: int, d2h: int, h2d: int, kernels: int):
    there, other = (torch.arange(64, dtype=torch.int32, device="cuda") for _ in range(2))
    here = torch.arange(64, dtype=torch.int32).pin_memory()
    parts: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "cpu": there.cpu,
        "item": there[3].item,
        "pinned": lambda: there.copy_(here, non_blocking=True),
        "pinned, waiting": lambda: there.copy_(here),
        "fill": lambda: there.fill_(7),
        "within": lambda: there.copy_(other),
        "synchronize": torch.cuda.synchronize,
    }
    work = counted(parts[what])

    assert (work.syncs, work.d2h_copies, work.h2d_copies, work.kernels) == (syncs, d2h, h2d, kernels)
    assert (work.device_us > 0) == bool(d2h or h2d or kernels)


@pytest.mark.parametrize("s_qo", [1, 4])
@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("bf16", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3")])
def test_a_captured_call_follows_each_plan(s_qo: int, dtypes: tuple[str, str], gpu: Device):
    """Of requests that became shorter, and of the first ones again; a backend without a plan follows the tensors."""
    p, backends = served(gpu, s_qo=s_qo, q_dtype=dtypes[0], kv_dtype=dtypes[1])
    found = {name: execute(registry.get("paged_decode", name), Trial("planned for a step", p, gpu)) for name in backends}

    assert {name: finding.words for name, finding in found.items() if finding.verdict != "passed"} == {}
    assert found


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
def test_a_captured_call_over_a_latent_follows_each_plan(backend: str, gpu: Device):
    latent = {"head_dim_qk": 192, "head_dim_ckv": 512, "head_dim_kpe": 64, "num_qo_heads": 16, "num_kv_heads": 16}
    p = Problem.model_validate({**SHAPE, **latent, "routine": "mla", "batch_size": 8, "s_kv": 2048, "s_qo": 2})
    adapter = registry.get("mla", backend)
    if adapter.unmet(p, gpu):
        assert backend == "fa3" and not gpu.is_sm(9)
        return
    finding = execute(adapter, Trial("planned for a step", p, gpu))

    assert finding.verdict == "passed", finding.words


@pytest.mark.parametrize("backend", ["fa2", "fa3", "auto", "cudnn"])
def test_a_captured_call_of_prefill_follows_each_plan(backend: str, gpu: Device):
    p = Problem.model_validate({**SHAPE, "routine": "paged_prefill", "batch_size": 4, "s_kv": 2048, "s_qo": 16})
    adapter = registry.get("paged_prefill", backend)
    if adapter.unmet(p, gpu):
        assert backend == "fa3" and not gpu.is_sm(9)
        return
    finding = execute(adapter, Trial("planned for a step", p, gpu))

    assert finding.verdict == "passed", finding.words


def test_lengths_on_the_host_spare_a_plan_its_copies_to_the_host(gpu: Device):
    """FlashInfer's wrapper asks for lengths on the host, and fetches them if they are on the device."""
    inputs = draw(served(gpu)[0], "cuda")
    runner = registry.get("paged_decode", "fa2_tc").prepare(inputs, gpu)
    assert runner.plan_step is not None
    plan, host = runner.plan_step, host_lengths(inputs)
    on_device = type(host)(inputs.qo_indptr, inputs.kv_lens, inputs.kv_indptr, inputs.last_page_len, host.num_pages)
    spared, fetching = counted(lambda: plan(host)), counted(lambda: plan(on_device))

    assert (spared.d2h_copies, fetching.d2h_copies) == (0, 2)
    assert fetching.syncs >= spared.syncs + 2


def test_rows_hold_the_host_s_time_and_are_right_after_all_plans(gpu: Device):
    p, backends = served(gpu)
    worker = PointRunner.create(WorkerConfig(Timing(host=True), True, (), {}), gpu)
    prepared = [worker.prepare(Task(Point(p, name, "how"), "replay")) for name in backends]
    rows = {row["backend"]: row for result in (*prepared, worker.measure()) for row in result.rows}

    assert {name: row["reason"] for name, row in rows.items() if row["status"] != "ok"} == {}
    for row in rows.values():
        assert row["host_note"] is None
        assert row["plan_host_us"] is not None and row["call_host_us"] is not None and row["call_kernels"] is not None
        assert (row["cuda_graph"], row["call_syncs"]) == (True, 0)
        assert row["call_host_us"] > 1 and row["call_kernels"] > 0
    assert 10 < rows["fa2_tc"]["plan_host_us"] < 5000
    assert (rows["trtllm-native"]["plan_host_us"], rows["trtllm-native"]["plan_kernels"]) == (0, 0)
    if "flash_attn_3" in rows:
        assert rows["flash_attn_3"]["plan_kernels"] > 0 and rows["flash_attn_3"]["plan_host_us"] > 1
        assert rows["flash_attn_3_unplanned"]["plan_host_us"] == 0
        assert rows["flash_attn_3_unplanned"]["call_kernels"] >= rows["flash_attn_3"]["call_kernels"]
