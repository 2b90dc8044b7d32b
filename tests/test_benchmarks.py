"""Benchmarks that read committed data print their figures beside a target, and the docs give the same figures."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import gate, judge_again, planning, referee
from kernels.problem import Problem
from orchestrator import ROOT
from orchestrator.storage import access
from tests.helpers.command_line import run_code

RESULTS = ROOT / "results"


def test_a_plan_of_many_points_prints_its_time_and_memory(capsys: pytest.CaptureFixture[str]):
    planning.plan(2_000)

    wall, cpu, memory = map(float, capsys.readouterr().out.split())
    assert cpu > 0 and 0 < wall < 60 and 0 < memory < 4_000


def test_the_rates_of_the_gate_are_printed_beside_their_targets(capsys: pytest.CaptureFixture[str]):
    gate.main(["h200_main/specdec_long_ctx_noise", "h200_studies/specdec_dirty"])
    said = capsys.readouterr().out.splitlines()

    assert said[2].startswith("| the same H200 | 2 | 0 (0.0%) | 0 (0.0%) | 0 (0.0%) | 100.0% |")
    assert said[-3] == "red: 0 %; at most 1 %: ratio 1000000000.00"
    assert said[-2] == "a backend 3% slower: found: 100 %; at least 95 %: ratio 1.05"


def test_intervals_miss_a_twentieth_of_aa_pairs_and_the_launch_leaves_a_tenth_of_a_microsecond():
    pairs = pd.concat([referee.outside(name) for name in referee.PAIRS])
    left = {name: referee.left_of_launch(name) for name in referee.LAUNCHES}

    assert len(pairs) > 700 and pairs["independent"].mean() > 0.05 > pairs["blocks"].mean()
    assert pairs.loc[pairs["us"] < referee.SHORT_US, "blocks"].mean() < 0.05
    assert all(len(of) > 20 and abs(of.median()) < 0.15 for of in left.values())


def test_a_check_seldom_waits_for_the_device():
    """Neither for each request nor for each launch: that is what a small point costs on a GPU."""
    typed = "+sweep=smoke sweep.backend=[torch_sdpa] sweep.batch_size=[1,8] sweep.s_kv=[1000] sweep.s_qo=[4] timing=quick"
    code = "import sys; from tests.helpers.waits import main; main(sys.argv[1:])"
    done = run_code(code, *typed.split(), "model=llama_3_1_8b", "sweep.tp=[8]")
    waits = ast.literal_eval(done.stdout.splitlines()[-1]).values()

    assert len(waits) == 2  # of each size
    assert max(waits) < 15


def test_committed_points_are_judged_again_and_those_called_wrong_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    heads = {"num_qo_heads": 2, "num_kv_heads": 1, "head_dim_qk": 64, "head_dim_vo": 64}
    problem = Problem(routine="paged_decode", s_qo=1, s_kv=300, batch_size=1, **heads)
    monkeypatch.setattr(judge_again, "committed", lambda: iter([(problem, "torch_sdpa"), (problem, "no_such_backend")]))

    judge_again.main(str(tmp_path / "rows"), "cluster=inline")
    rows = access.read(str(tmp_path / "rows")).to_pandas()
    counted = judge_again.grid(pd.concat([rows, rows.assign(status="mismatch"), rows.assign(status="failed")])).cells

    assert rows["command"].tolist() == [f"python -m benchmarks.judge_again {tmp_path / 'rows'} cluster=inline"]
    assert [cells[:5] for cells in counted] == [("paged_decode", "3", "1", "1", "1"), ("all", "3", "1", "1", "1")]
    assert "largest error, in tolerances" in capsys.readouterr().out


def test_the_page_has_the_launches_of_fa3_and_rows_that_are_off_are_such_as_four_warps_copy():
    runs = json.loads((ROOT / "benchmarks" / "data" / "h200_fa3_barrier.json").read_text(encoding="utf-8"))["runs"]
    page = (ROOT / "docs" / "correctness_numbers.md").read_text(encoding="utf-8")
    kinds: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        shape = " × ".join(f"{int(size):,}" for size in run["shape"].split(","))
        told = (run["kernel"].replace("_", " "), shape, run["beside"], f"{run['launches']:,}", str(run["wrong"]))
        kinds.setdefault(told, []).append(run["kind"].replace("_", " "))
    off = [launch for run in runs if run["kernel"] == "released" for launch in run["off"]]

    for (kernel, shape, beside, launches, wrong), names in kinds.items():
        named = "each kind" if len(names) == 4 else ", ".join(names)
        assert f"|{kernel}|{shape}|{beside}|{named}|{launches}|{wrong}|\n" in page
    assert f"In all {len(off)} launches of `released` that were off" in page
    assert all(len({row // 64 for row in launch["in_tile"]}) == 1 for launch in off)
    assert max(len({row % 16 // 2 for row in launch["in_tile"]}) for launch in off) == 4


def test_the_page_has_the_counts_of_the_committed_points_that_ran_again():
    rows = access.read(str(ROOT / "benchmarks" / "data" / "h200_judged_again.parquet")).to_pandas()
    page = (ROOT / "docs" / "correctness_numbers.md").read_text(encoding="utf-8").splitlines()

    assert [line for line in map("|{}|".format, map("|".join, judge_again.grid(rows).cells)) if line not in page] == []
