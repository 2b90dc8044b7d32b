"""Benchmarks that read committed data print their figures beside a target, and the docs give the same figures."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from benchmarks import gate, planning, seconds_per_point
from orchestrator import ROOT

RESULTS = ROOT / "results"


def test_the_efficiency_of_two_gpus_is_printed_beside_its_target(capsys: pytest.CaptureFixture[str]):
    seconds_per_point.main(*(str(RESULTS / name) for name in ("h100_main/specdec_one_gpu", "h100_main/specdec_long_ctx")))
    said = "efficiency of 2 devices against 1, from the first point to the last: 0.94; at least 0.95: ratio 0.99"

    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_plan_of_many_points_prints_its_time_and_memory(capsys: pytest.CaptureFixture[str]):
    planning.plan(2_000)

    wall, cpu, memory = map(float, capsys.readouterr().out.split())
    assert cpu > 0 and 0 < wall < 60 and 0 < memory < 4_000


def test_the_worst_lines_of_the_gate_are_printed_beside_their_targets(capsys: pytest.CaptureFixture[str]):
    lines = [
        gate.Rates("one card", 0.0, 1.0, {"s_kv": 0.99, "s_qo": 0.97}, 0.88),
        gate.Rates("heavy tails", 0.02, 0.98, {"s_kv": 0.94}, 0.99),
        gate.Rates("one point", 0.001, None, {}, 1.0),
    ]
    gate.show_targets(lines)

    assert [line.cells() for line in lines[1:]] == [
        ("heavy tails", "2.00%", "98.0%", "94.0% (s_kv)", "99.0%"),
        ("one point", "0.10%", "–", "–", "100.0%"),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "red, nothing changed (2 of 3 hold; the worst: heavy tails): 2 %; at most 1 %: ratio 0.50",
        "a backend 3% slower (2 of 2 hold; the worst: heavy tails): 98 %; at least 95 %: ratio 1.03",
        "another group 3% slower (the worst) (1 of 2 hold; the worst: heavy tails): 94 %; at least 95 %: ratio 0.99",
        "one point 10% slower (2 of 3 hold; the worst: one card): 88 %; at least 90 %: ratio 0.98",
    ]


def test_a_check_seldom_waits_for_the_device(monkeypatch: pytest.MonkeyPatch):
    """Neither for each request nor for each launch: that is what a small point costs on a GPU."""
    typed = "+sweep=smoke sweep.backend=[torch_sdpa] sweep.batch_size=[1,8] sweep.s_kv=[1000] sweep.s_qo=[4] timing=quick"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "tests.helpers.waits", *typed.split(), "model=llama_3_1_8b", "sweep.tp=[8]"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    waits = ast.literal_eval(said.splitlines()[-1]).values()

    assert len(waits) == 2  # of each size
    assert max(waits) < 15
