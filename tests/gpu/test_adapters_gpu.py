"""Every adapter on the GPU that is here: what its rule allows is right, what it forbids was tried, and timing is honest.

Run with `pytest -m gpu` on a machine with a CUDA device; modules that are not compiled yet are compiled first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import oracle, registry
from kernels.adapter import Adapter
from kernels.device import Device
from kernels.inputs import Inputs, draw
from kernels.problem import Problem
from kernels.timing import GraphReplay, Timing, timer_for
from orchestrator.machines import describe
from tests.conftest import run

pytestmark = pytest.mark.gpu

SHAPE = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
DTYPES = (("bf16", "bf16"), ("bf16", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"))
BACKENDS = sorted(name for _, name in registry.adapters())


@pytest.fixture(scope="module")
def gpu() -> Device:
    return describe().devices[0]


def problems(backend: str, device: Device) -> Iterator[tuple[Adapter, Problem]]:
    adapter = registry.get("paged_decode", backend)
    for (q, kv), s_qo, (batch, s_kv) in product(DTYPES, (1, 2, 4, 8), ((1, 8192), (3, 1000), (8, 50000))):
        p = Problem.model_validate({**SHAPE, "q_dtype": q, "kv_dtype": kv, "s_qo": s_qo, "batch_size": batch, "s_kv": s_kv})
        if not adapter.unmet(p, device):
            yield adapter, p


def verdict_of(adapter: Adapter, x: Inputs) -> oracle.Verdict:
    runner = adapter.prepare(x)
    timer = timer_for(runner, Timing())
    runner.out.fill_(math.nan)
    timer.replay()
    return oracle.judge(runner.out, oracle.reference(x), x.problem, runner.compute_dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_rule_allows_is_right_through_a_graph(backend: str, gpu: Device):
    wrong = {
        (p.q_dtype, p.kv_dtype, p.s_qo, p.s_kv): v
        for a, p in problems(backend, gpu)
        if not (v := verdict_of(a, draw(p, "cuda"))).passed
    }

    assert not wrong


@pytest.mark.parametrize(("layout", "order", "lens"), product(("HND", "NHD"), ("random", "sequential"), ("fixed", "random")))
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "trtllm-gen"])
def test_every_layout_and_ragged_lengths(backend: str, layout: str, order: str, lens: str, gpu: Device):
    adapter = registry.get("paged_decode", backend)
    s_qo = 1 if adapter.query_lengths == "single" else 4
    keys = {"batch_size": 5, "s_kv": 3000, "s_qo": s_qo, "kv_layout": layout, "page_order": order, "seq_lens": lens}
    p = Problem.model_validate({**SHAPE, **keys})
    if adapter.unmet(p, gpu):
        assert (backend, lens) == ("torch_sdpa", "random")
    else:
        assert verdict_of(adapter, draw(p, "cuda")).passed


@pytest.mark.parametrize("backend", ["fa2_tc", "auto", "cudnn", "torch_sdpa"])
def test_a_causal_kernel_given_a_full_mask_to_match_is_caught(backend: str):
    """The mask decides the answer: the causal kernels against the reference of full visibility."""
    p = Problem.model_validate({**SHAPE, "batch_size": 2, "s_kv": 131072, "s_qo": 4})
    x = draw(p, "cuda")
    runner = registry.get("paged_decode", backend).prepare(x)
    runner()
    full = oracle.reference(replace(x, visible=torch.ones_like(x.visible)))

    assert not oracle.judge(runner.out, full, p, runner.compute_dtype).passed


def test_xqa_follows_the_mask_it_is_given():
    p = Problem.model_validate({**SHAPE, "batch_size": 2, "s_kv": 8192, "s_qo": 4, "mask": "full"})
    adapter = registry.get("paged_decode", "trtllm-native")
    full, causal = draw(p, "cuda"), draw(p.model_copy(update={"mask": "causal"}), "cuda")

    assert verdict_of(adapter, full).passed
    wrong = adapter.prepare(replace(full, visible=causal.visible))
    wrong()
    assert not oracle.judge(wrong.out, oracle.reference(full), p, wrong.compute_dtype).passed


def test_a_graph_replay_runs_what_was_captured_over_a_cold_cache():
    p = Problem.model_validate({**SHAPE, "batch_size": 1, "s_kv": 8192, "s_qo": 1})  # 33 MB: fits the L2
    runner = registry.get("paged_decode", "fa2_tc").prepare(draw(p, "cuda"))
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
def test_no_cpu_tensor_of_the_cache_exists_at_any_time(kv_dtype: str):
    p = Problem.model_validate({**SHAPE, "batch_size": 64, "s_kv": 8192, "s_qo": 4, "kv_dtype": kv_dtype})
    with CpuTensors() as seen:
        x = draw(p, "cuda")
        oracle.reference(x)
        registry.get("paged_decode", "trtllm-native").prepare(x)()
        registry.get("paged_decode", "fa2_tc").prepare(x)()

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
