"""One version of the libraries in two processes on one GPU: an environment that exists, of the tests' own interpreter."""

from __future__ import annotations

import sys

import pytest
import torch

from kernels import registry
from kernels.device import Device
from kernels.problem import Problem
from kernels.timing.config import Timing
from orchestrator.config.environment import Environment
from orchestrator.machines import describe
from orchestrator.point import Point
from orchestrator.worker.messages import Task, WorkerConfig
from orchestrator.worker.point_runner import PointRunner

TWICE = Environment(name="twice", python=sys.executable)
SHAPE = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128, "page_size": 64}
DECODE = {**SHAPE, "batch_size": 8, "s_qo": 4, "s_kv": 8192}
SAME = 0.02  # of two medians of one kernel, measured interleaved


@pytest.fixture(scope="module")
def gpu() -> Device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return describe().devices[0]


def test_one_version_in_two_processes_gives_one_time(gpu: Device):
    problem = Problem.model_validate(DECODE)
    backends = [name for name in ("fa2_tc", "trtllm-native") if not registry.get("paged_decode", name).unmet(problem, gpu)]
    worker = PointRunner.create(WorkerConfig(Timing(), True, (), {}, environments=(TWICE,), point_seconds=600), gpu)
    points = [Point(problem, name, "how", env=env) for name in backends for env in (None, "twice")]
    results = [worker.prepare(Task(point, "replay")) for point in points]
    rows = {(row["backend"], row["env"]): row for result in (*results, worker.measure()) for row in result.rows}
    free_before = torch.cuda.mem_get_info()[0]
    worker.environments.close()

    assert {key: row["reason"] for key, row in rows.items() if row["status"] != "ok"} == {}
    for name in backends:
        here, there = rows[name, None], rows[name, "twice"]
        assert there["rel_err"] == here["rel_err"] and there["resolved_backend"] == here["resolved_backend"]
        assert (there["timer"], there["cuda_graph"], there["l2"]) == (here["timer"], True, here["l2"])
        assert there["sm_clock_mhz"] and there["samples_mhz"] and there["peak_mem_bytes"] > 0
        assert there["other_processes"] is None and here["other_processes"] is None
        assert abs(there["median_us"] / here["median_us"] - 1) < SAME
    assert torch.cuda.mem_get_info()[0] > free_before  # the process has given its memory back


def test_an_illegal_access_in_an_environment_leaves_the_worker_whole(gpu: Device):
    config = WorkerConfig(Timing(), True, ("tests.backends.faulty",), {}, environments=(TWICE,), point_seconds=600)
    worker = PointRunner.create(config, gpu)
    problem = Problem.model_validate({**DECODE, "batch_size": 1})
    names = (("nothing", None), ("nothing", "twice"), ("lost_device", "twice"), ("nothing", "twice"))
    results = [worker.prepare(Task(Point(problem, name, "how", twin=i, env=env), "replay")) for i, (name, env) in enumerate(names)]
    measured = worker.measure()
    worker.environments.close()

    assert [row["status"] for result in results for row in result.rows] == ["failed"]
    assert "illegal memory access" in results[2].rows[0]["reason"] or "device-side assert" in results[2].rows[0]["reason"]
    assert measured.healthy and [row["twin"] for row in measured.rows] == [0, 3]  # the second was lost with its process
