"""The sweeps of mixed query lengths: what they plan, and one run on a CPU from the command line to its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from tests.helpers.command_line import Invoke

SMALL = ["timing=quick", "cluster=inline", "model.num_qo_heads=8", "model.num_kv_heads=1"]
SPLITS = ["torch_sdpa+torch_sdpa@4", "right_parts", "decode_lengths", "last_forgotten", "unordered"]


@pytest.mark.parametrize(
    ("sweep", "device", "runs"),
    [
        ("mixed_q_len", "h200", {"fa2_tc+fa2@4", "fa2_tc+fa2@1", "fa2_tc+fa3@4", "trtllm-native+fa2@4", "trtllm-native+fa3@4"}),
        ("mixed_q_len", "cpu", {"torch_sdpa+torch_sdpa@4"}),
        ("mixed_q_len_mla", "h200", {"fa2+fa2@4", "fa3+fa3@4", "fa3+fa3@1"}),
        ("mixed_q_len_mla", "b200", {"fa2+fa2@4", "trtllm-native+fa2@4", "cutlass+fa2@1"}),
    ],
)
def test_a_sweep_runs_each_split_beside_one_call(sweep: str, device: str, runs: set[str], settings: Callable[..., Settings]):
    asked = settings(f"+sweep={sweep}")
    plan = make_plan(expand(asked), [known_devices()[device]], asked)

    assert runs <= {decision.point.backend for decision in plan.decisions_of("run")}
    for decision in plan.decisions_of("run"):
        problem = decision.point.problem
        assert "+" not in decision.point.backend or problem.min_s_qo is not None, "a split of equal requests"


def test_thresholds_share_the_inputs_and_the_reference(settings: Callable[..., Settings]):
    points = [p for p in expand(settings("+sweep=mixed_q_len")) if p.problem.s_qo == 8 and p.backend.startswith("fa2_tc+fa2@")]

    assert {p.backend for p in points} == {"fa2_tc+fa2@1", "fa2_tc+fa2@4", "fa2_tc+fa2@8"}
    assert len({p.point_id for p in points}) == 3 * len({p.group_id for p in points})


def test_a_split_is_measured_on_a_cpu_and_a_wrong_one_is_caught(invoke: Invoke, tmp_path: Path):
    """Hydra takes the name without quotes. The requests of the second batch change places for the two calls."""
    specs = "3q4s64_q9s96,2q4s64_q9s96_q4s64"
    asked = ["+sweep=mixed_q_len", *SMALL, "adapters=[tests.backends.splitting]", "sweep.include=[]"]
    asked += ["sweep.dtype=[{q: bf16, kv: bf16}]"]
    axes = [f"sweep.batch=[{', '.join(f'{{batch_spec: {spec}}}' for spec in specs.split(','))}]"]
    axes += [f"sweep.kernel=[{', '.join(f'{{routine: paged_decode, backend: {name}}}' for name in SPLITS)}]"]
    done = invoke(*asked, *axes, f"results.path={tmp_path / 'rows'}")
    rows = pd.read_parquet(tmp_path / "rows").set_index(["backend", "batch_spec"])

    assert done.returncode == 1, done.stderr
    first, second = specs.split(",")
    right = {("torch_sdpa+torch_sdpa@4", spec) for spec in (first, second)} | {("right_parts", spec) for spec in (first, second)}
    right |= {("unordered", first)}  # which has the engine's order already
    assert {key for key, status in rows["status"].items() if status == "ok"} == right
    assert {*rows["status"]} == {"ok", "mismatch"}
    assert rows.loc[("last_forgotten", first), "reason"].endswith("rows hold NaN, infinity or unwritten values")
    assert rows.loc[("torch_sdpa+torch_sdpa@4", second), "libraries"].startswith("torch ")
