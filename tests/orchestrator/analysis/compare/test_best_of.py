"""Best against best: another device, another version, patterns, and rows chosen by `where`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator.analysis.compare import best_of as module
from orchestrator.analysis.compare.best_of import BestOfSides, best_of, by_batch, grids, headline, not_counted
from orchestrator.analysis.compare.comparison import compare
from orchestrator.analysis.compare.selection import Selection, select
from orchestrator.errors import UserError
from orchestrator.reporting.screen import OF_TWO, WIDTH
from orchestrator.storage.row import Row
from tests.helpers.command_line import Invoke
from tests.helpers.compared import dataset, table, timed

OTHER: Row = {"device_name": "NVIDIA H100", "device_uuid": "GPU-2"}
BATCHES = (1, 8, 32)
GPUS = ("h100", "h200")


def at(backend: str, us: float, batch: int, kv_dtype: str = "bf16", **keys: Any) -> Row:
    found = timed(backend, us, batch_size=batch, q_dtype="bf16", kv_dtype=kv_dtype, rel_err=0.003, **keys)
    return {**found, "point_id": f"{backend}-{batch}-{kv_dtype}"}


def sides() -> tuple[list[Row], list[Row]]:
    """On the H100 XQA is the best at batch 1 and fa2_tc elsewhere; on the H200 fa2_tc is everywhere."""
    h100 = [at("fa2_tc", us, batch, **OTHER) for us, batch in zip((30.0, 143.0, 572.0), BATCHES, strict=True)]
    h100 += [
        at("trtllm-native", us, batch, resolved_backend="xqa", **OTHER)
        for us, batch in zip((22.0, 200.0, 900.0), BATCHES, strict=True)
    ]
    h200 = [at("fa2_tc", us, batch) for us, batch in zip((20.0, 100.0, 400.0), BATCHES, strict=True)]
    h200 += [at("trtllm-native", 25.0, 1, resolved_backend="xqa"), at("auto", 19.9, 1, resolved_backend="fa2_tc")]
    h200 += [at("torch_sdpa", 1.0, batch) for batch in BATCHES]
    fp8 = [[at("fa2_tc", us, batch, "fp8_e4m3", **keys) for batch in BATCHES] for us, keys in ((105.0, OTHER), (100.0, {}))]
    return [*h100, *fp8[0]], [*h200, *fp8[1]]


@pytest.fixture(scope="module")
def devices() -> BestOfSides:
    h100, h200 = (Selection("x", "nowhere", table(*rows)) for rows in sides())
    return best_of(h100, h200)


def test_it_is_one_line_a_dtype_in_words_that_favour_no_side(devices: BestOfSides):
    words = headline(devices)

    assert words == (
        "NVIDIA H200 over NVIDIA H100, best against best: q bf16, kv bf16 1.10 at batch 1, 1.43 at batch 8 and up; "
        "q bf16, kv fp8_e4m3 1.05"
    )
    assert not any(word in str(grids(devices)) + words for word in ("regression", "slower", "faster", "better", "worse"))


def test_each_problem_has_the_best_of_each_side_whichever_it_is(devices: BestOfSides):
    one = devices.problems.query("batch_size == 1 and kv_dtype == 'bf16'").iloc[0]

    assert (one["backend_a"], one["backend_b"]) == ("trtllm-native", "fa2_tc")  # not `auto`, which ran fa2_tc, and not torch_sdpa
    assert one["speed_up"] == pytest.approx(22.0 / 20.0)


def test_a_winner_that_changed_says_what_keeping_the_first_costs(devices: BestOfSides, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FEW", 5)
    _, changed = grids(devices)

    assert changed.title.startswith("another kernel is best at 1 of 6 workloads; keeping the baseline's costs more than 2% at 1")
    (line,) = changed.cells
    assert line[0].endswith("batch_size 1 · s_qo 1 · s_kv 8192")
    assert line[1:] == ("1.10", "trtllm-native (xqa) 22.0 err 0.3%", "fa2_tc 20.0 err 0.3%", "25%")


@pytest.mark.parametrize(("few", "full"), [(5, True), (6, False)])
def test_each_workload_has_a_line_with_both_bests_if_they_are_few_or_all_are_asked_for(
    few: int, full: bool, devices: BestOfSides, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "FEW", few)
    _, each = grids(devices, full=full)

    assert each.title.startswith("the best backend of each workload; another kernel is best at 1 of 6 workloads; keeping")
    assert each.header[:5] == ("workload", "batch_size", "s_qo", "s_kv", "times as fast")
    assert [cells[:5] for cells in each.cells] == [
        (f"q bf16, kv {kv}", str(batch), "1", "8,192", ratio)
        for kv, ratios in (("bf16", ("1.10", "1.43", "1.43")), ("fp8_e4m3", ("1.05", "1.05", "1.05")))
        for batch, ratio in zip(BATCHES, ratios, strict=True)
    ]
    assert each.cells[1][5:] == ("fa2_tc 143.0 err 0.3%", "fa2_tc 100.0 err 0.3%", "")


def test_workloads_that_differ_in_more_than_lengths_say_in_what():
    rows = [
        [{**at("fa2_tc", us, 8, page_size=size, **keys), "point_id": f"{size}"} for size in (16, 64)]
        for us, keys in ((20.0, OTHER), (10.0, {}))
    ]
    _, each = grids(best_of(*(Selection("x", "nowhere", table(*side)) for side in rows)))

    assert [cells[0] for cells in each.cells] == ["q bf16, kv bf16 · page_size 16", "q bf16, kv bf16 · page_size 64"]
    assert each.title == "the best backend of each workload; another kernel is best at 0 of 2 workloads"


def test_layers_are_apart_and_a_workload_has_one_best_whichever_wrapper_serves_it():
    times = {(None, "paged_decode"): 20.0, (None, "paged_prefill"): 10.0, (128, "paged_decode"): 6.0, (128, "paged_prefill"): 8.0}

    def side(faster: float, **keys: Any) -> Selection:
        rows = [
            {
                **at(f"fa{routine[-1]}", us / faster, 8, s_qo=4, window=window, routine=routine, **keys),
                "point_id": f"{window}{routine}",
            }
            for (window, routine), us in times.items()
        ]
        return Selection("x", "nowhere", table(*rows))

    found = best_of(side(1.0, **OTHER), side(1.5))
    lines, each = grids(found)

    assert len(found.problems) == 2 and found.lacking.empty
    assert [cells[0] for cells in lines.cells] == [
        f"m · q bf16, kv bf16 · {kind} · dirty L2" for kind in ("full layers", "sliding layers (128)")
    ]
    assert [cells[5].split(" err")[0] for cells in each.cells] == ["fae 6.0", "fal 10.0"]
    one_side = best_of(side(1.0, **OTHER), Selection("x", "nowhere", side(1.5).rows.query("routine == 'paged_decode'")))
    assert one_side.problems["window"].tolist() == ["128"] and one_side.lacking["lacks_b"].tolist() == ["fal"]


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ((2, 4), " (common points have 1, 3 drafts only)"),
        ((1, 4), ""),
        ((4, 2048), ", s_qo 4 and up"),
        ((4,), " (common points have 3 drafts only)"),
    ],
)
def test_without_single_tokens_the_lengths_are_told_once(lengths: tuple[int, ...], told: str):
    def side(name: str, **keys: Any) -> Selection:
        rows = [{**at("fa2_tc", 10.0, 8, s_qo=s_qo, **keys), "point_id": f"{s_qo}"} for s_qo in lengths]
        return Selection(name, "p", table(*rows))

    of_gpus, of_releases = best_of(side("a", **OTHER), side("b")), best_of(side("a"), side("b"))

    assert headline(of_gpus).startswith(f"NVIDIA H200 over NVIDIA H100, best against best{told}: ")
    assert (
        grids(of_gpus)[0].title == "NVIDIA H200 over NVIDIA H100, the best backend of each: how many times as fast, geometric mean"
    )
    assert grids(of_releases)[0].title.startswith(f"b over a, the best backend of each{told}: how many")


def test_the_times_beside_a_ratio_are_those_that_it_is_of():
    """With 4 µs of launch each, 22 and 20 µs are 18 and 16 µs of kernel."""
    rows = [[at("fa2_tc", 22.0, 1, own_us=18.0, **OTHER), at("cudnn", 90.0, 1, own_us=86.0, **OTHER)]]
    rows += [[at("fa2_tc", 30.0, 1, own_us=26.0), at("cudnn", 20.0, 1, own_us=16.0)]]
    _, changed = grids(best_of(*(Selection("x", "nowhere", table(*side)) for side in rows)))

    assert changed.header[4:7] == ("times as fast", "NVIDIA H100, own_us", "NVIDIA H200, own_us")
    assert [cell.split(" err")[0] for cell in changed.cells[0][4:7]] == ["1.12", "fa2_tc 18.0", "cudnn 16.0"]


def test_what_no_gpu_can_hold_comes_last_and_is_named(monkeypatch: pytest.MonkeyPatch):
    """70B's cache of 1,024 tokens is 336 MB, and that of 1,024 requests 344 GB."""
    sizes = {"model": "llama_3_1_70b", "num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
    rows = [
        [at(name, us, batch, s_kv=1024, **sizes, **keys) for batch in (1, 1024) for name, us in (("fa2_tc", a), ("cudnn", b))]
        for a, b, keys in ((10.0, 20.0, OTHER), (20.0, 10.0, {}))
    ]
    monkeypatch.setattr(module, "FEW", 0)
    _, changed = grids(best_of(*(Selection("x", "nowhere", table(*side)) for side in rows)))

    assert "costs more than 2% at 1, and at 1 with a cache larger than the GPU" in changed.title
    assert [cells[-1] for cells in changed.cells] == ["100%", "100%, cache larger than the GPU"]


def test_two_versions_are_named_as_they_were_typed_and_other_states_of_the_caches_do_not_meet():
    old, new = table(at("fa2_tc", 10.0, 8)), table(at("fa2_tc", 8.0, 8))
    found = best_of(Selection("flashinfer:0.7", "p", old), Selection("flashinfer:0.8", "p", new))

    assert headline(found) == "flashinfer:0.8 over flashinfer:0.7, best against best: q bf16, kv bf16 1.25"
    assert not found.of_devices
    assert grids(best_of(Selection("a", "p", old), Selection("b", "p", new.assign(l2="clean")))) == []


def test_too_coarse_answers_are_no_winners():
    rows = [at("fa2_tc", 10.0, 8), {**at("trtllm-native", 5.0, 8), "rel_err": 0.1}]
    side = Selection("a", "p", table(*rows))

    assert best_of(side, side).problems["backend_b"].tolist() == ["trtllm-native"]
    assert best_of(side, side, max_rel_err=0.01).problems["backend_b"].tolist() == ["fa2_tc"]


def test_a_best_that_the_other_side_has_no_row_of_is_not_counted_unless_it_failed_there():
    both, lost = [at("fa2_tc", 10.0, 8), at("fa2_tc", 20.0, 32)], at("cudnn", 5.0, 8)
    sides = [Selection(name, "p", table(*both, *more)) for name, more in (("a", [lost]), ("b", []))]
    found = best_of(*sides)
    failed = best_of(sides[0], Selection("b", "p", table(*both, {**lost, "status": "failed", "median_us": None})))

    assert found.problems["batch_size"].tolist() == [32]
    assert headline(found).endswith("q bf16, kv bf16 1.00")
    assert not_counted(found) == ["not counted, since a side has no row of the other's best: 1 of 2 workloads; b lacks cudnn at 1"]
    assert sorted(failed.problems["speed_up"]) == [0.5, 1.0] and not_counted(failed) == []


def test_batches_that_are_alike_are_one_range():
    part = pd.DataFrame({"batch_size": [1, 2, 4, 8], "speed_up": [1.0, 1.01, 1.4, 1.42]})

    assert [(one.first, one.last, round(one.mean, 2)) for one in by_batch(part)] == [(1, 2, 1.0), (4, 8, 1.41)]


def test_a_pattern_names_several_datasets_and_where_keeps_some_rows(tmp_path: Path):
    for batch in BATCHES:
        dataset(tmp_path / f"b{batch}", [at("fa2_tc", 10.0, batch)])
    pattern = str(tmp_path / "b*")

    assert sorted(select("baseline", [pattern], "nowhere").rows["batch_size"]) == [1, 8, 32]
    assert select("baseline", [pattern], "nowhere", {"batch_size": (1, 8), "kv_dtype": "bf16"}).rows["batch_size"].tolist() == [
        1,
        8,
    ]
    with pytest.raises(UserError, match="no row of"):
        compare([pattern], [pattern], "nowhere", where={"batch_size": 5})
    with pytest.raises(UserError, match=r"no row of .* s_kv: 8192; tp: "):
        compare([pattern], [pattern], "nowhere", where={"batch_size": 5, "s_kv": 8192, "tp": 1})
    with pytest.raises(UserError, match="unknown 'batch'"):
        compare([pattern], [pattern], "nowhere", where={"batch": 5})


def test_the_command_begins_with_it(tmp_path: Path, invoke: Invoke):
    h100, h200 = (dataset(tmp_path / name, rows) for name, rows in zip(("h100", "h200"), sides(), strict=True))
    done = invoke("mode=compare", f"baseline={h100}", f"candidate={h200}", "format=markdown", "where={kv_dtype: bf16}")

    assert done.stdout.startswith("**NVIDIA H200 over NVIDIA H100, best against best: q bf16, kv bf16 1.10 at batch 1, 1.43")
    assert "fp8_e4m3" not in done.stdout


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_gpus_are_a_screen_without_an_exit_code_for_points_that_have_a_reason(order: tuple[int, int], invoke: Invoke):
    paths = [f"results/{gpu}_main/specdec_long_ctx" for gpu in ("h100", "h200")]
    baseline, candidate = (paths[number] for number in order)
    done = invoke("mode=compare", f"baseline={baseline}", f"candidate={candidate}")

    assert done.returncode == 0 and len(done.stdout.splitlines()) <= 60
    told = " ".join(done.stdout.split())
    assert "two kinds of GPU, no gate: " in told and "full=true" in told and "by median_us (best against best: own_us)" in told
    assert ("4 missing" in told) is (order == (1, 0))  # an H100 skipped them: too big
    fits = [told.count(f"llama_3_1_70b at tp 1 does not fit one {gpu}") for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")]
    assert fits == [1, 1]


@pytest.mark.parametrize("sides", [[GPUS[0], GPUS[1]], [f"results/{gpu}_mla/sparse_and_dense" for gpu in GPUS]])
def test_few_workloads_are_each_on_the_first_screen(sides: list[str], invoke: Invoke):
    asked = ("model=deepseek_v3_2", "tp=16", "where={batch_size: 64, s_kv: 32768}")
    lines = invoke("mode=compare", f"baseline={sides[0]}", f"candidate={sides[1]}", *asked).stdout.splitlines()
    _, _, told = " ".join(" ".join(lines).split()).partition("the best backend of each workload; another kernel is best at ")

    assert len(lines) <= OF_TWO and max(map(len, lines)) <= WIDTH
    assert told.startswith("1 of 4 workloads; keeping the baseline's costs more than 2% at 0 · batch_size 64 · s_kv 32,768")
    assert [line.split()[3:6] for line in lines if line.startswith("q bf16, kv")][-4:] == [
        ["1", "1.31", "fa3"], ["4", "1.23", "fa3"], ["1", "1.04", "flash_mla"], ["4", "1.02", "flash_mla"]
    ]  # fmt: skip


def test_two_gpus_are_a_screen_even_if_a_problem_needs_many_words(invoke: Invoke):
    done = invoke("mode=compare", "baseline=results/h100_rules/rule_edges", "candidate=results/h200_rules/rule_edges")
    lines = done.stdout.splitlines()

    assert len(lines) <= OF_TWO and max(map(len, lines)) <= WIDTH and "another kernel is best at" in done.stdout


def test_weights_and_traffic_weigh_the_best_of_both(tmp_path: Path, invoke: Invoke):
    h100, h200 = (dataset(tmp_path / name, rows) for name, rows in zip(("h100", "h200"), sides(), strict=True))
    (tmp_path / "steps.jsonl").write_text('{"s_kv": 8192, "batch_size": 8}\n')
    given = ([], ["weights=[{batch_size: 8, weight: 2}]"], [f"traffic={tmp_path / 'steps.jsonl'}"])
    plain, ruled, mixed = (
        " ".join(invoke("mode=compare", f"baseline={h100}", f"candidate={h200}", "where={kv_dtype: bf16}", *keys).stdout.split())
        for keys in given
    )

    assert "by your weights" not in plain and "1.10 at batch 1, 1.43" in plain
    assert all("best against best by your weights: q bf16, kv bf16 1.43 NVIDIA H200" in told for told in (ruled, mixed))


def test_traffic_far_from_the_rows_is_told_as_the_flag_of_a_server_tells_it(tmp_path: Path, invoke: Invoke):
    h100, h200 = (dataset(tmp_path / name, rows) for name, rows in zip(("h100", "h200"), sides(), strict=True))
    (tmp_path / "steps.jsonl").write_text("".join(f'{{"s_kv": {s_kv}, "batch_size": 8}}\n' for s_kv in (8192, 1024, 1024, 8192)))
    given = f"traffic={tmp_path / 'steps.jsonl'}"
    compared = ("mode=compare", f"baseline={h100}", f"candidate={h200}", given)
    screen, full, asked = (
        " ".join(invoke(*words).stdout.replace("│", " ").split())
        for words in (compared, (*compared, "full=true"), ("mode=report", "question=one_backend", f"results.path={h200}", given))
    )

    assert all("warning: no measured workload is near this part of your traffic" in told for told in (screen, full, asked))
    assert all("50%" in told and "sweep.batch_size=[8] sweep.s_kv=[1024]" in told for told in (screen, full, asked))
    assert screen.endswith("how the verdicts were reached: full=true")
