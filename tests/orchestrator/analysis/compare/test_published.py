"""Published times beside measured ones: the same workloads, no verdict, and what differs is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.analysis.compare import published
from orchestrator.analysis.keys import GRAPH_REPLAY
from orchestrator.config.settings import load
from orchestrator.errors import UserError
from orchestrator.storage.row import Row, to_table
from tests.helpers.command_line import Invoke, composed
from tests.helpers.noted import noted
from tests.helpers.timed_rows import made

SHAPE: Row = {"routine": "paged_decode", "mask": "causal", "page_size": 64, "num_qo_heads": 64, "num_kv_heads": 8, "twin": 0}


def stored(folder: Path, *rows: Row) -> str:
    folder.mkdir()
    pq.write_table(to_table(rows), folder / "rows.parquet")
    return str(folder)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    """An imported dataset with one kernel at pages of one token, and a measured one with two kernels."""
    there = {
        **SHAPE,
        "orchestrator_version": "aiconfigurator",
        "l2": "warm",
        "page_size": 1,
        "resolved_backend": "fa3",
        "cluster": "aic",
    }
    here = {**SHAPE, "orchestrator_version": "0.1.0", "l2": "clean"}
    theirs = stored(tmp_path / "theirs", made("flash_attn_3", 100.0, **there), made("flash_attn_3", 50.0, **{**there, "s_kv": 77}))
    times = {"flash_attn_3": 120.0, "fa2_tc": 90.0, "torch_sdpa": 1.0}
    return theirs, stored(tmp_path / "ours", *(made(backend, us, **here) for backend, us in times.items()))


@pytest.mark.parametrize("turned", [False, True])
def test_a_published_workload_stands_beside_its_own_backend_and_the_fastest(sides: tuple[str, str], turned: bool, invoke: Invoke):
    a, b = reversed(sides) if turned else sides
    summary, shapes = published.published_grids(load(composed("mode=compare", f"baseline={a}", f"candidate={b}")))

    assert summary.cells == (("fa3", "paged_decode", "bf16", "bf16", "1", "1.20 at 1", "0.90", "aic", "H200", "H200"),)
    assert "not judged: l2 warm there, clean here; page_size 1 there, 64 here" in summary.title
    assert shapes.cells == (("8", "1", "8,192", "flash_attn_3 100.0", "120.0", "fa2_tc 90.0", "bf16", "bf16", "paged_decode"),)
    assert turned or invoke("mode=compare", f"baseline={a}", f"candidate={b}").returncode == 0


def test_a_time_of_others_stands_beside_ours_without_the_launch_of_the_graph(tmp_path: Path):
    """As every other ratio: 74.9 µs with 3.8 of launch are 71.1 of the kernel, which is what a profiler shows."""
    theirs = stored(tmp_path / "theirs", made("my_fa", 70.0, **SHAPE, orchestrator_version="flashinfer_benchmark"))
    here = {**SHAPE, "orchestrator_version": "0.1.0", "timer": GRAPH_REPLAY, "launch_us": 4.3}
    ours = stored(tmp_path / "ours", made("flash_attn_3", 74.9, own_us=71.1, **here), made("my_fa", 87.75, **here))
    summary, shapes = published.published_grids(load(composed("mode=compare", f"baseline={theirs}", f"candidate={ours}")))

    assert summary.cells[0][5:7] == ("1.20 at 1", "1.02")
    assert shapes.cells[0][3:6] == ("my_fa 70.0", "84.0", "flash_attn_3 71.1")
    assert shapes.title == "by workload, without the launch of the graph (own_us)"


def test_what_a_file_does_not_say_has_no_partner_or_another_unit_is_told(tmp_path: Path):
    """Times of a kernel of one's own, of which the file says no more than the workload."""
    own = {**SHAPE, "orchestrator_version": "flashinfer_benchmark", "timer": None, "l2": None, "cuda_graph": None}
    rows = [made("mine", 70_000.0, **{**own, "s_kv": s_kv, "point_id": str(s_kv)}) for s_kv in (8192, 10_000, 20_000)]
    ours = stored(tmp_path / "ours", made("fa2_tc", 70.0, **{**SHAPE, "orchestrator_version": "0.1.0", "l2": "clean"}))
    settings = load(composed("mode=compare", f"baseline={stored(tmp_path / 'theirs', *rows)}", f"candidate={ours}"))
    (summary, shapes), said = noted(lambda: published.published_grids(settings))

    assert summary.cells[0][0] == "mine" and len(shapes.cells) == 1
    assert "l2 not stated there, clean here" in summary.title
    assert not any(word in summary.title for word in ("None", "nan", "<NA>"))
    assert "without a measured one of their workload: 2 of 3, such as batch_size 8, s_qo 1, s_kv 10,000" in said
    assert "differ by a factor of 1,000: is median_time in ms?" in said


def test_published_times_beside_measured_ones_are_a_screen_and_full_has_each(tmp_path: Path, invoke: Invoke):
    there = {**SHAPE, "orchestrator_version": "aiconfigurator", "l2": "warm"}
    lengths = [{"s_kv": 1024 * number, "point_id": f"{number}"} for number in range(1, 59)]
    theirs = stored(tmp_path / "theirs", *(made("flash_attn_3", 100.0, **{**there, **one}) for one in lengths))
    ours = stored(
        tmp_path / "ours", *(made("fa2_tc", 90.0, **{**SHAPE, "orchestrator_version": "0.1.0", **one}) for one in lengths)
    )
    asked = ("mode=compare", f"baseline={theirs}", f"candidate={ours}")
    short, full = invoke(*asked), invoke(*asked, "full=true")
    lines = short.stdout.splitlines()

    assert (short.returncode, full.returncode) == (0, 0), short.stderr
    assert len(lines) <= 60 and max(map(len, lines)) <= 80 and lines[-1] == "every line of every table: full=true"
    assert "by workload" in short.stdout and "the first 40 of 58" in " ".join(lines)
    assert full.stdout.count("flash_attn_3 100.0") == 58


@pytest.mark.parametrize("turned", [False, True])
def test_published_times_of_another_gpu_stand_beside_ours_without_a_ratio(tmp_path: Path, turned: bool):
    """It would be read as the ratio of the GPUs, and holds the timer and the state of the caches as well."""
    there = {**SHAPE, "orchestrator_version": "aiconfigurator", "l2": "warm", "device_name": "NVIDIA H100"}
    h100 = stored(tmp_path / "h100", made("fa2_tc", 140.0, **there))
    h200 = stored(tmp_path / "h200", made("fa2_tc", 100.0, **{**SHAPE, "orchestrator_version": "0.1.0", "l2": "clean"}))
    a, b = (h200, h100) if turned else (h100, h200)
    summary, shapes = published.published_grids(load(composed("mode=compare", f"baseline={a}", f"candidate={b}")))

    assert [cells[5:7] for cells in summary.cells] == [("none: other GPU", "none: other GPU")]
    assert not any(ratio in str([summary, shapes]) for ratio in ("1.4 ", "1.40", "0.71"))
    assert "No ratio of NVIDIA H100 and H200: it would mix the GPUs with how each was timed" in summary.title
    assert shapes.cells[0][3:6] == ("fa2_tc 140.0", "100.0", "fa2_tc 100.0")


def table_of(folder: Path, device: str, times: dict[int, tuple[float, float]], **keys: object) -> str:
    """An imported dataset with the times of two kernels at each context."""
    given = {**SHAPE, "orchestrator_version": "aiconfigurator", "l2": "warm", "device_name": device, "cluster": "aic", **keys}
    rows = [
        made(backend, us, **{**given, "s_kv": s_kv})
        for s_kv, both in times.items()
        for backend, us in zip(("flash_attn_3", "trtllm-native"), both, strict=True)
    ]
    return stored(folder, *rows)


def test_two_imported_tables_are_compared_best_against_best_by_a_wide_rule_and_no_test(tmp_path: Path, invoke: Invoke):
    a = table_of(tmp_path / "h100", "NVIDIA H100", {1024: (104.0, 200.0), 2048: (150.0, 130.0), 4096: (10.0, 20.0)})
    b = table_of(
        tmp_path / "h200", "NVIDIA H200", {1024: (96.0, 300.0), 2048: (100.0, 200.0), 4096: (8.8, 20.0)}, libraries="vllm 1"
    )
    counts, lines, changed, differing = published.published_grids(load(composed("mode=compare", f"baseline={a}", f"candidate={b}")))

    # 104 over 96 is within 10%; 10 over 8.8 is not, but 1.2 µs is no more than the noise of a short kernel
    assert counts.cells == (("NVIDIA H200 takes less time", "1"), ("cannot be told apart", "2"))
    assert "no noise floor of published times is known, so this is no test; times within 10%" in counts.title
    assert lines.cells[0][2:] == ("1.08 to 1.30", "3")
    assert [cells[1:] for cells in changed.cells if cells[-1]] == [
        ("8", "1", "2,048", "1.30", "trtllm-native 130.0 unchecked", "flash_attn_3 100.0 unchecked", "100%")
    ]
    assert "keeping the baseline's costs more than 10% at 1" in changed.title
    assert ("libraries", "–", "vllm 1") in differing.cells
    done = invoke("mode=compare", f"baseline={a}", f"candidate={b}")
    assert done.returncode == 0
    assert not any(word in done.stdout for word in ("regression", "significant", "slower", "faster", "suspect"))


def test_imported_sides_that_are_the_same_rows_or_share_no_workload_are_refused(sides: tuple[str, str], tmp_path: Path):
    theirs, _ = sides
    other = stored(tmp_path / "other", made("fa2", 1.0, **{**SHAPE, "orchestrator_version": "0.1.0", "s_kv": 5}))
    third = table_of(tmp_path / "third", "NVIDIA H100", {7: (1.0, 2.0)})
    for a, b, words in (
        (theirs, f"[{theirs},device:H200]", "both select the same rows"),
        (theirs, third, "no (workload|problem) is in both; .* type tables of one framework"),
        (theirs, other, "no (workload|problem) is in both"),
    ):
        with pytest.raises(UserError, match=words):
            published.published_grids(load(composed("mode=compare", f"baseline={a}", f"candidate={b}")))
    with pytest.raises(UserError, match="were not checked; leave it out"):
        published.published_grids(
            load(composed("mode=compare", f"baseline={theirs}", f"candidate={third}", "best.max_rel_err=0.1"))
        )


def test_where_chooses_published_rows_too(sides: tuple[str, str]):
    theirs, ours = sides
    with pytest.raises(UserError, match="where="):
        published.published_grids(load(composed("mode=compare", f"baseline={theirs}", f"candidate={ours}", "where={s_kv: 9}")))


def test_two_measured_sides_are_compared_as_before(sides: tuple[str, str]):
    _, ours = sides
    assert published.published_grids(load(composed("mode=compare", f"baseline={ours}", f"candidate={ours}"))) == []
