"""Benchmarks that read committed data print their figures beside a target, and the docs give the same figures."""

from __future__ import annotations

import pytest

from benchmarks import decided_run, gate_table, published_fa3, scaling, seconds_per_point
from orchestrator import ROOT
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR

RESULTS = ROOT / "results"


def test_the_leads_of_two_committed_runs_are_those_that_the_page_on_precision_gives():
    """One run in full and one with timing.precision=decide: small leads differ by no more than noise."""
    change, near = decided_run.changes(decided_run.both(*map(decided_run.rows, decided_run.DATASETS))[0])

    assert f"- {decided_run.sentence(change, near)}\n" in (ROOT / "docs" / "precision.md").read_text()
    assert near.max() < 100 * DEFAULT_NOISE_FLOOR


def test_the_efficiency_of_two_gpus_is_printed_beside_its_target(capsys: pytest.CaptureFixture[str]):
    seconds_per_point.main(*(str(RESULTS / name) for name in ("h100_specdec_one_gpu", "h100_specdec_long_ctx")))
    said = "efficiency of 2 devices against 1, from the first point to the last: 0.94; at least 0.95: ratio 0.99"

    assert capsys.readouterr().out.splitlines()[-1] == said
    page = (ROOT / "docs" / "performance.md").read_text()
    assert "| from the first point to the last | 212.0 s | 112.7 s | 0.94 | 0.95 |" in page


def test_the_least_simulated_efficiency_is_printed_beside_its_target(capsys: pytest.CaptureFixture[str]):
    scaling.main(["h200_specdec_paged_decode"])
    said = "the least efficiency in the plan's order, simulated: 0.9953; at least 0.95: ratio 1.05"

    assert capsys.readouterr().out.splitlines()[-1] == said


def test_the_worst_lines_of_the_gate_are_printed_beside_their_targets(capsys: pytest.CaptureFixture[str]):
    lines = [
        gate_table.Rates("one card", 0.0, 1.0, {"s_kv": 0.99, "s_qo": 0.97}, 0.88),
        gate_table.Rates("heavy tails", 0.02, 0.98, {"s_kv": 0.94}, 0.99),
        gate_table.Rates("one point", 0.001, None, {}, 1.0),
    ]
    gate_table.show_targets(lines)

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


def test_published_times_agree_with_ours_as_far_as_the_page_on_flash_attention_3_says():
    found = published_fa3.compared()
    vllm, sglang = (found[name] / found["own_us"] - 1 for name in ("vLLM 0.24.0", "SGLang 0.5.14"))
    beside_launch = (found["SGLang 0.5.14"] / found["median_us"] - 1).loc["fp8_e4m3"]

    assert len(found) == 10
    assert found.notna().all(axis=None)
    assert sglang.loc["bf16"].abs().max() < 0.085
    assert vllm.loc["bf16"].iloc[1:].between(0.075, 0.23).all()
    assert vllm.loc["fp8_e4m3", 8:].abs().max() < 0.075
    assert sglang.loc["fp8_e4m3", 8:].between(0.175, 0.215).all()
    assert beside_launch.loc[8:].between(0.115, 0.155).all()


def test_published_times_of_an_h200_beside_the_builds_of_each_engine():
    found = published_fa3.compared()
    vllm, sglang = (
        found[name] / published_fa3.of_build(published_fa3.ON_H200, build).reindex(found.index) - 1
        for name, build in (("vLLM 0.24.0", "flash_attn_3_vllm"), ("SGLang 0.5.14", "flash_attn_3_sglang"))
    )
    by_pages = published_fa3.by_pages("H200")["flash_attn_3_sglang"]
    pages = by_pages.loc["fp8_e4m3"].unstack("pages").loc[8:]
    cost = (pages["1 sequential"] / pages["64 sequential"] - 1).loc[[(8, 8192), (8, 32768), (32, 8192)]]
    same_pages = found["SGLang 0.5.14"] / by_pages.xs("1 sequential", level="pages").reindex(found.index) - 1
    more = (found["SGLang 0.5.14"] - by_pages.xs("1 sequential", level="pages").reindex(found.index)).loc["fp8_e4m3"].loc[8:]

    assert vllm.loc["fp8_e4m3"].loc[8:].between(0.015, 0.115).all()
    assert vllm.loc["bf16"].iloc[1:].between(0.065, 0.165).all()
    assert sglang.loc["fp8_e4m3"].loc[8:].between(0.405, 0.475).all()
    assert cost.between(0.335, 0.385).all()
    assert same_pages.loc["bf16"].loc[8:].between(0.005, 0.075).all()
    assert same_pages.loc["fp8_e4m3"].loc[8:].between(0.025, 0.105).all()
    assert more.between(6, 10).all()
    assert same_pages.xs(1, level="batch_size").between(-0.065, 0.275).all()


def test_published_times_of_an_h100_agree_with_the_same_build_and_pages():
    found = published_fa3.same_builds()
    vllm, sglang = (found[name] / found[f"ours, {name.split()[0]}"] - 1 for name in ("vLLM 0.24.0", "SGLang 0.5.14"))
    more = found["vLLM 0.24.0"] - found["vLLM 0.19.0"]
    more_on_an_h200 = found["vLLM 0.24.0 on an H200"] - found["vLLM 0.19.0 on an H200"]
    old = found["vLLM 0.19.0 on an H200"] / published_fa3.compared()["own_us"] - 1

    assert len(found) == 10
    assert found[["ours, vLLM", "ours, SGLang", "vLLM 0.24.0", "SGLang 0.5.14"]].notna().all(axis=None)
    for engine in (vllm, sglang):
        assert engine.loc["bf16"].loc[8:].abs().max() < 0.03
    fp8 = found.loc["fp8_e4m3"].loc[8:]
    assert (fp8["vLLM 0.24.0"] - fp8["ours, vLLM"]).max() < 10
    assert (fp8["SGLang 0.5.14"] - fp8["ours, SGLang"]).max() < 10
    assert vllm.loc["fp8_e4m3"].loc[8:][fp8["vLLM 0.24.0"] > 200].abs().max() < 0.01
    assert sglang.loc["fp8_e4m3"].loc[8:][fp8["SGLang 0.5.14"] > 200].abs().max() < 0.04
    assert more.dropna().between(0.85, 5.05).all()
    assert more_on_an_h200[("bf16", 8, 8192)] > 9
    assert old[("bf16", 8, 8192)] < 0.05
