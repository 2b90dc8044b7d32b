"""mode=compare as a person types it: what is selected, exit codes, tables, and words for what cannot be compared."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.analysis.compare import selection, tables
from orchestrator.analysis.compare.comparison import Comparison, compare
from orchestrator.analysis.compare.selection import select
from orchestrator.commands import compare as commands
from orchestrator.config.settings import CompareSettings
from orchestrator.errors import UserError
from orchestrator.reporting.screen import OF_TWO, WIDTH
from orchestrator.storage.row import Row
from tests.helpers.command_line import Invoke
from tests.helpers.compared import MORNING, NIGHT, dataset, timed

NOISE = str(ROOT / "results" / "h200_main/specdec_long_ctx_noise")
UPGRADED: Row = {"flashinfer_version": "0.8.0", "run_id": "r2"}


def upgrade(path: Path, us: float = 1000, **keys: object) -> str:
    """A dataset that holds one point under two versions of FlashInfer."""
    return dataset(path, [timed("fa2", 1000), timed("fa2", us, MORNING, **{**UPGRADED, **keys})])


@pytest.mark.parametrize(
    "condition", ["run:r2", "flashinfer:0.8.0", "flashinfer:0.8", "flashinfer: 0.8", "0.8", "r2", ["r2", "device:h200", "lab"]]
)
def test_a_side_is_selected_by_run_version_device_or_cluster(condition: str | list[str], tmp_path: Path):
    conditions = [condition] if isinstance(condition, str) else condition

    assert select("candidate", conditions, upgrade(tmp_path / "d")).rows["run_id"].tolist() == ["r2"]


def test_a_side_may_be_another_dataset_with_conditions_on_it(tmp_path: Path):
    path = upgrade(tmp_path / "d")
    chosen = select("baseline", [path, "run:r1"], "nowhere")

    assert (chosen.path, chosen.rows["run_id"].tolist()) == (path, ["r1"])


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([], ["candidate: mode=compare needs one", "run: r1, r2", "flashinfer: 0.7.2.post1, 0.8.0"]),
        (["rn:r1"], ["candidate=rn:r1: unknown 'rn'", "did you mean 'run'?"]),
        (["run:r9"], ["candidate=run:r9: no row has it", "run: r1, r2"]),
        (["r"], ["candidate=r: it may mean", "candidate=run:r1, candidate=run:r2"]),
        (["flashinfer:0"], ["candidate=flashinfer:0: it may mean 2 things", "candidate=flashinfer:0.8.0"]),
        (["r1", "flashinfer:0.8.0"], ["candidate=flashinfer:0.8.0: no row has it"]),
    ],
)
def test_an_unknown_or_ambiguous_condition_lists_the_choices(conditions: list[str], words: list[str], tmp_path: Path):
    with pytest.raises(UserError) as error:
        select("candidate", conditions, upgrade(tmp_path / "d"))

    assert all(word in str(error.value) for word in words), error.value


def test_two_datasets_on_a_side_are_too_many(tmp_path: Path):
    a, b = (upgrade(tmp_path / name) for name in "ab")

    with pytest.raises(UserError, match="2 datasets; allowed: one"):
        select("baseline", [a, b], "nowhere")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"s_kv": 4096}, ["no point that the baseline has a time for is in both; no s_kv is in both"]),
        ({"timer": "cupti"}, ["none of 1 points can be compared: measured differently: timer cuda_graph_events and cupti"]),
        ({"l2": "warm"}, ["measured differently: l2 dirty and warm"]),
        ({"samples_us": None}, ["no samples stored"]),
    ],
)
def test_sides_without_a_common_point_are_refused(keys: Row, words: list[str], tmp_path: Path):
    with pytest.raises(UserError) as error:
        compare(["r1"], ["r2"], upgrade(tmp_path / "d", **keys))

    assert all(word in str(error.value) for word in words), error.value


def test_two_releases_without_a_common_point_are_told_what_is_there_and_what_measures_both(tmp_path: Path, invoke: Invoke):
    ran = [("0.25.1", "flash_attn_3_vllm", 8), ("0.25.1", "vllm_triton", 1), ("0.33.0", "vllm_triton", 1), ("0.33.0", "fa2", 8)]
    rows = [{**timed(name, 100, tp=tp), "sweep": "servers", "libraries": f"vllm {release}"} for release, name, tp in ran]
    path = dataset(tmp_path / "d", rows)
    done = invoke("mode=compare", f"results.path={path}", "baseline=vllm:0.25.1", "candidate=vllm:0.33.0", "where={tp: 8}")
    first, *sides, both, measure, _ = done.stderr.strip().splitlines()
    _, _, *words = shlex.split(measure.removeprefix("to measure both: "))

    assert done.returncode == 2 and first.endswith("no backend is in both; type others")
    assert [line.partition(":")[0] for line in sides] == ["vllm", "vllm"]
    assert "tp: 8; " in sides[0] and sides[0].endswith("backend: flash_attn_3_vllm") and sides[1].endswith("backend: fa2")
    assert both.startswith("both, without where: ") and "tp: 1; " in both and both.endswith("backend: vllm_triton")
    assert words[1:] == ["+sweep=servers", "sweep.env=[vllm:0.25.1, vllm:0.33.0]", "where={backend: [flash_attn_3_vllm], tp: 8}"]
    assert invoke("mode=plan", "device=h200", *words[1:]).returncode == 0


@pytest.mark.parametrize("changed", ["baseline", "candidate"])
def test_a_median_that_is_not_that_of_its_own_samples_is_refused(changed: str, tmp_path: Path, invoke: Invoke):
    """One row of three was changed by hand: no verdict is given, not even on the others."""
    paths = {
        side: dataset(tmp_path / side, [timed(name, 1000, when) for name in ("fa2", "fa2_tc", "cudnn")])
        for side, when in (("baseline", NIGHT), ("candidate", MORNING))
    }
    by_hand = [timed("fa2", 1000), {**timed("fa2_tc", 1000), "median_us": 900.0}, timed("cudnn", 1000)]
    paths[changed] = dataset(tmp_path / "by_hand", by_hand)
    done = invoke("mode=compare", *(f"{side}={path}" for side, path in paths.items()))

    assert (done.returncode, done.stdout) == (2, "")
    assert f"1 rows of {paths[changed]} have a median that is not that of their own samples" in done.stderr
    assert "(fa2_tc): median_us 900, samples 1000; such a row is not as it was measured" in done.stderr


def test_a_missing_side_is_asked_for_by_its_name(tmp_path: Path):
    path = upgrade(tmp_path / "d")

    with pytest.raises(UserError, match=r"^candidate: mode=compare needs one; type candidate=DIR with a folder"):
        compare([path], [], str(tmp_path / "none"))


def test_the_same_rows_twice_and_noise_without_aa_pairs_are_refused(tmp_path: Path):
    path = upgrade(tmp_path / "d")

    with pytest.raises(
        UserError, match=r"it selects the same rows as baseline=run:r1; type candidate=KIND:VALUE [^\n]*\n  run: r1, r2"
    ):
        compare(["run:r1"], ["r1"], path)
    with pytest.raises(UserError, match="fewer than 20 points measured twice"):
        compare(["r1"], ["r2"], path, noise=path)


def test_the_floor_is_that_of_the_noise_dataset_beside_or_the_named_one(tmp_path: Path):
    path = upgrade(tmp_path / "d")
    pairs = [timed("a", 1000 * (1 + off), s_kv=s_kv, twin=twin) for s_kv in range(1, 41) for twin, off in ((0, 0.0), (1, 0.01))]

    assert compare(["r1"], ["r2"], path).floors.by_device == {}
    beside = dataset(tmp_path / "d_noise", pairs)
    assert compare(["r1"], ["r2"], path).floors.source == beside
    assert compare(["r1"], ["r2"], path, noise=NOISE).floors.source == NOISE


def compared(path: Path, us: float) -> Comparison:
    return compare(["r1"], ["r2"], upgrade(path, us))


def test_the_tables_name_the_slower_point_its_group_and_what_differs(tmp_path: Path):
    found = compared(tmp_path / "d", 1100)
    summary, differs, slower, *_ = tables.grids(found)

    assert summary.cells == (("slower", "1", "slower in the candidate, beyond its own noise: red, or a suspect"),)
    assert ("flashinfer_version", "0.7.2.post1", "0.8.0") in differs.cells
    assert slower.cells[0][:5] == ("fa2", "8", "1", "8192", "+10.00%") and slower.cells[0][6:8] == ("1,000.00", "1,100.00")
    assert tables.headline(found) == "regression: 1 slower"


def test_the_answer_names_the_worst_of_several_red_points(tmp_path: Path):
    slower = [timed("fa2", 1000 + us, MORNING, s_kv=s_kv, **UPGRADED) for s_kv, us in ((1024, 200), (2048, 300))]
    path = dataset(tmp_path / "d", [*(timed("fa2", 1000, s_kv=s_kv) for s_kv in (1024, 2048)), *slower])

    words = "regression: 2 slower; the worst of 2 red points: fa2, batch_size 8, s_qo 1, s_kv 2048 (+30.0%)"
    assert tables.headline(compare(["r1"], ["r2"], path)).startswith(words)


@pytest.mark.parametrize(("us", "code", "words"), [(1100, 1, "**regression: 1 slower"), (1000, 0, "**no regression: 1 same**")])
def test_a_regression_exits_with_1_and_markdown_has_the_table(us: float, code: int, words: str, tmp_path: Path, invoke: Invoke):
    path = upgrade(tmp_path / "d", us)
    done = invoke(
        "mode=compare", f"results.path={path}", "baseline=flashinfer:0.7.2", "candidate=[run:r2,NVIDIA H200]", "format=markdown"
    )

    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(words)
    assert "| verdict | points | meaning |" in done.stdout and "| flashinfer_version | 0.7.2.post1 | 0.8.0 |" in done.stdout


def other_kind(path: Path, *rows: Row) -> tuple[str, str]:
    """Two points on an H200, and what an H100 has of them."""
    base = dataset(path / "h200", [timed("a", 1000), timed("b", 1000)])
    h100 = {"device_name": "NVIDIA H100", "device_uuid": "GPU-2", "command": "python -m orchestrator +sweep=smoke"}
    return base, dataset(path / "h100", [timed(**{"when": MORNING, **row, **h100}) for row in rows])


@pytest.mark.parametrize("form", ["terminal", "markdown", "json", "csv"])
def test_two_kinds_of_gpu_have_no_gate_and_no_suspects(form: str, tmp_path: Path, invoke: Invoke):
    base, other = other_kind(tmp_path, {"backend": "a", "us": 1500}, {"backend": "b", "us": 1500})
    done = invoke("mode=compare", f"baseline={base}", f"candidate={other}", f"format={form}")

    assert done.returncode == 0, done.stdout
    assert "two kinds of GPU, so there is no gate: a slower point does not change the exit code" in " ".join(done.stdout.split())
    assert not any(word in done.stdout for word in ("suspect", "red,", "unchanged run", "gate whether"))


def test_a_point_that_fails_or_has_no_row_on_another_kind_of_gpu_is_exit_code_1(tmp_path: Path, invoke: Invoke):
    base, absent = other_kind(tmp_path, {"backend": "a", "us": 1000})
    (tmp_path / "2").mkdir()
    failing = {"backend": "b", "us": 1000, "status": "failed", "reason": "CUDA error"}
    _, fails = other_kind(tmp_path / "2", {"backend": "a", "us": 1000}, failing)

    assert compare([base], [absent], "nowhere").regressed
    assert not compare([base], [absent], "nowhere", missing="allow").regressed
    done = invoke("mode=compare", f"baseline={base}", f"candidate={fails}", "format=markdown")
    assert done.returncode == 1
    assert "points of the baseline that failed in the candidate: 1, which is exit code 1" in done.stdout


def test_suspects_of_two_kinds_of_gpu_are_refused(tmp_path: Path, invoke: Invoke):
    base, other = other_kind(tmp_path, {"backend": "a", "us": 1500}, {"backend": "b", "us": 1500})
    done = invoke("+sweep=smoke", f"baseline={base}", f"candidate={other}", "rerun=suspects", "cluster=inline")

    assert done.returncode == 2
    assert "are of two kinds of GPU, where a slower point is no suspect; type a baseline" in done.stderr


def test_auto_is_shown_with_the_kernel_it_chose(tmp_path: Path):
    sides = [dataset(tmp_path / name, [timed("auto", us, resolved_backend="fa2_tc")]) for name, us in (("a", 1000), ("b", 1100))]
    found = compare([sides[0]], [sides[1]], "nowhere")
    listed = {cell for grid in tables.grids(found) for cells in grid.cells for cell in cells}

    assert "auto(fa2_tc)" in listed and "auto" not in listed


def test_a_candidate_whose_points_all_failed_is_compared(tmp_path: Path, invoke: Invoke):
    base = dataset(tmp_path / "base", [timed("fa2", 10)])
    later = dataset(tmp_path / "later", [timed("fa2", 10, MORNING, "failed", "it broke", median_us=None)])
    done = invoke("mode=compare", f"baseline={base}", f"candidate={later}")

    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "regression: 1 failing" in done.stdout


def test_what_was_not_measured_on_a_side_is_in_no_ratio_and_no_regression(tmp_path: Path, invoke: Invoke):
    new = {"run_id": "r2", "flashinfer_version": "0.8.0"}
    base = dataset(tmp_path / "base", [timed("fa2_tc", 10), timed("cudnn", 8)])
    later = dataset(tmp_path / "later", [timed("fa2_tc", 10, MORNING, **new), timed("fa3", 5, MORNING, **new)])
    lacks = "1 of 1 workloads; {0} lacks fa3 (FlashInfer) at 1; {1} lacks cudnn at 1"
    folders = invoke("mode=compare", f"baseline={base}", f"candidate={later}", "full=true")
    both = ("mode=compare", f"results.path=[{base},{later}]", "baseline=flashinfer:0.7.2", "candidate=flashinfer:0.8.0")
    listed = invoke(*both)
    told = [" ".join(done.stdout.split()) for done in (folders, listed)]

    assert folders.returncode == 1 and told[0].startswith("incomplete: 1 undecided, 1 missing (1 compared, 1 on one side only)")
    assert listed.returncode == 0 and told[1].startswith("no regression: 1 undecided (1 compared, 2 on one side only)")
    assert lacks.format(base, later) in told[0] and lacks.format("flashinfer:0.7.2", "flashinfer:0.8.0") in told[1]
    assert not any("best backend of each" in words for words in told)


def test_what_the_candidate_has_no_row_of_is_told_by_columns_and_values_the_largest_groups_first(tmp_path: Path, invoke: Invoke):
    long = [timed("fa2", 10, s_kv=32768, batch_size=size) for size in (1, 8, 16)]
    others = [timed("cudnn", 10, batch_size=16), timed("fa2", 10, batch_size=16, s_qo=4)]
    base = dataset(tmp_path / "base", [timed("fa2", 10), *long, *others])
    later = dataset(tmp_path / "later", [timed("fa2", 10, MORNING), timed("fa2", 10, MORNING, batch_size=1)])
    sides = f"baseline={base}", f"candidate={later}"
    screen, full = (invoke(*sides, *more).stdout for more in ((), ("full=true",)))
    told = "points without a time in the candidate, which has no s_kv 32768 (3), no batch_size 16 (3), no backend cudnn (1)"

    assert f"{told} and 1 more" in " ".join(screen.split())
    assert f"\n{told}, no s_qo 4 (1)\n" in full
    _, at, end = screen.partition("points without a time")
    assert at and [line.startswith("  ") for line in end.splitlines()[1:3]] == [True, False]  # two lines
    assert "points without a time" not in invoke(f"baseline={later}", f"candidate={base}").stdout


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("trtllm-native", "flags measured on both sides: triton; in the baseline only: trtllm_mha; in the candidate only: fa3"),
        ("flash_attn_3", "flags measured on both sides: triton; in the candidate only: fa3"),  # another build of it
        ("flash_attn_3_sglang", "flags measured on both sides: fa3, triton"),
    ],
)
def test_flags_of_an_engine_that_one_side_lacks_are_told(before: str, told: str, tmp_path: Path, invoke: Invoke):
    def rows(release: str, when: str, backend: str) -> list[Row]:
        keys = {"libraries": f"sglang {release}", "compute_capability": "9.0", "kv_dtype": "bf16"}
        return [timed(one, 10, when, **keys) for one in ("sglang_triton", backend)]

    base = dataset(tmp_path / "base", rows("0.5.12.post1", NIGHT, before))
    later = dataset(tmp_path / "later", rows("0.5.23", MORNING, "flash_attn_3_sglang"))
    lacks = "" if before == "flash_attn_3_sglang" else "the default, fa3, is not on both sides: this says nothing of a server that "
    for full in ("full=false", "full=true"):
        words = " ".join(invoke("mode=compare", f"baseline={base}", f"candidate={later}", full).stdout.split())
        assert f" {told} " in words
        assert words.startswith(lacks or "no regression")


def test_a_comparison_of_many_columns_warns_of_nothing():
    found = compare(["results/h200_engines/beside_vllm"], ["results/h200_engines/beside_vllm_0_33"], "nowhere")

    assert tables.headline(found).startswith("incomplete: ")  # and any warning of pandas is an error in tests


def test_pairs_that_share_samples_are_counted_in_a_sentence(tmp_path: Path):
    shared = {"measured_as": "fa2_tc"}
    base = dataset(tmp_path / "base", [timed("fa2_tc", 10), timed("auto", 10, **shared)])
    later = dataset(tmp_path / "later", [timed("fa2_tc", 10, MORNING), timed("auto", 10, MORNING, **shared)])
    alone = dataset(tmp_path / "alone", [timed("fa2_tc", 10, MORNING)])

    assert "pairs that are aliases of another backend's call, whose samples group tests and the gate count once: 1" in " ".join(
        tables.notes(compare([base], [later], "nowhere"))
    )
    assert "share the samples" not in " ".join(tables.notes(compare([base], [alone], "nowhere")))


def test_a_newly_failing_point_is_a_regression(tmp_path: Path):
    a, b = timed("a", 10), timed("b", 10)
    base = dataset(tmp_path / "base", [a, b])
    fails = dataset(tmp_path / "fails", [timed("a", 10, MORNING), timed("b", 10, MORNING, "failed", "CUDA error")])
    misses = dataset(tmp_path / "misses", [timed("a", 10, MORNING)])

    assert compare([base], [fails], "nowhere").regressed
    assert compare([base], [misses], "nowhere").regressed
    assert not compare([base], [misses], "nowhere", missing="allow").regressed
    assert "CUDA error" in str(tables.grids(compare([base], [fails], "nowhere")))


def test_a_candidate_without_any_time_is_a_regression(tmp_path: Path):
    base = dataset(tmp_path / "base", [timed("a", 10)])
    found = compare([base], [dataset(tmp_path / "fails", [timed("a", 10, MORNING, "oom", "no memory")])], "nowhere")

    assert tables.headline(found) == "regression: 1 failing"
    assert tables.notes(found)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mode=compare"], ["baseline: mode=compare needs one", "type baseline=DIR"]),
        (["mode=compare", "baseline=/no/such", "candidate=x"], ["baseline=/no/such: no rows there"]),
        (["mode=compare", "baseline=torch:2.11", "candidate=x"], ["baseline=torch:2.11: of which datasets? add 'results.path="]),
        (["mode=compare", "baseline=vllm:0.25.1", "candidate=vllm:0.33.0"], ["of which datasets? add 'results.path="]),
        (["mode=compare", f"baseline={NOISE}", "same=3"], ["same=3"]),
    ],
)
def test_wrong_input_ends_with_code_2_and_words(args: list[str], words: list[str], invoke: Invoke):
    done = invoke(*args)

    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_the_committed_aa_pairs_are_no_regression_on_a_terminal(invoke: Invoke):
    done = invoke("mode=compare", f"results.path={NOISE}", "baseline=twin:0", "candidate=twin:1", "full=true")

    assert done.returncode == 0, done.stderr
    assert "no regression: " in done.stdout and "576 of 576 pairs were interleaved" in done.stdout


UPGRADE = ("results.path=results/h200_releases/flashinfer_0_6_16", "baseline=flashinfer:0.6.16", "candidate=env:default")


def test_a_red_group_has_one_change_in_the_first_line_in_the_last_and_in_the_table(invoke: Invoke):
    done = invoke("mode=compare", *UPGRADE, "full=true")
    first, *_, last = done.stdout.splitlines()
    red = re.findall(r"│ (\S+ \S+) +│[^\n]* │ red, (\+\d\.\d\d%) │", done.stdout)

    assert (done.returncode, first) == (1, last)
    assert len(red) == 2 and all(f"{name} ({change})" in last for name, change in red)


def once(compared: Callable[[CompareSettings], Comparison]) -> Callable[[CompareSettings], Comparison]:
    """The same comparison for settings that differ in how much is printed."""
    known: dict[str, Comparison] = {}

    def found(settings: CompareSettings) -> Comparison:
        key = repr(settings.model_copy(update={"full": False}))
        if key not in known:
            known[key] = compared(settings)
        return known[key]

    return found


@pytest.mark.parametrize(
    ("sides", "changes"),
    [
        (UPGRADE, ("+10.06%", "+4.53%", "-3.98%")),
        (("baseline=results/h200_studies/specdec_full", "candidate=results/h200_main/specdec_long_ctx"), ("+1.90%",)),
        (("baseline=results/h200_releases/auto_routing_0_6_16", "candidate=results/h200_releases/auto_routing"), ("+17.29%",)),
    ],
)
def test_one_kind_of_gpu_is_one_screen_with_the_verdict_first(
    sides: tuple[str, ...], changes: tuple[str, ...], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commands, "compared", once(commands.compared))
    screen, whole = (invoke("mode=compare", *sides, *keys) for keys in ((), ("full=true",)))
    lines, told = screen.stdout.splitlines(), " ".join(screen.stdout.split())
    suspects = [line for line in lines if line.startswith("to measure the suspects")]

    assert sum(max(1, math.ceil(len(line) / WIDTH)) for line in lines) <= OF_TWO < len(whole.stdout.splitlines())
    assert max(len(line) for line in lines if line not in suspects) <= WIDTH
    assert screen.returncode == whole.returncode and told.startswith(whole.stdout.splitlines()[0])
    assert suspects == [line for line in whole.stdout.splitlines() if line.startswith("to measure the suspects")]
    assert "how the verdicts were reached: full=true" in told and "; the first 5 of " in told
    assert all(change in told for change in changes)


def test_rows_of_a_running_engine_are_not_compared(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    inside = "results/h200_engines/vllm_decode"
    done = invoke("mode=compare", f"baseline={inside}", "candidate=results/h200_engines/vllm_0_33")
    rows = selection.read(inside)
    alone = rows.head(1).assign(engine=None)
    notes: list[str] = []
    monkeypatch.setattr(selection, "read", lambda path: pd.concat([alone, rows]))
    monkeypatch.setattr(selection, "note_once", notes.append)

    assert done.returncode == 2 and f"type mode=report question=in_engine results.path={inside}" in done.stderr
    assert len(selection.select("baseline", ["device:NVIDIA H200"], inside).rows) == 1
    assert notes == ["rows of a running engine are not compared here: type question=in_engine"]


def test_the_verdicts_of_a_headline_add_up_to_the_points_that_it_compares(tmp_path: Path, invoke: Invoke):
    base = dataset(tmp_path / "base", [timed("fa2_tc", 10), timed("cudnn", 8)])
    later = dataset(tmp_path / "later", [timed("fa2_tc", 10, MORNING), timed("cudnn", 8, MORNING, cuda_graph=False)])
    told = " ".join(invoke("mode=compare", f"baseline={base}", f"candidate={later}").stdout.split())

    assert told.startswith("no regression: 1 undecided (1 compared, 1 not alike: other settings, or throttled)")
