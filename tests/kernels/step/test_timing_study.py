"""The study over all candidates and shapes: its tables appear with its datasets, and compare only points that both sides have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks import longest_steps, step_seconds, timing_advice, timing_cupti, timing_study, timing_study_all
from benchmarks.measurement import TABLES, filled

COMMITTED = timing_study.RESULTS
Tables = Callable[..., None]
CLEAN, CUPTI = "clean, in the run of the steps", "clean, CUPTI, on another card"
DIRTY, COLD, OTHER = "dirty, on another card", "clean, cold code, on another card", "clean, on another card"
WORDS, ONE = {6: "six"}, {1: "one"}
NINE = {  # shapes of H200s whose first backend over dirty lines costs over 2% more over clean ones: PROBLEM
    (1, 8192, 1, "bf16", "bf16"),
    (1, 32768, 1, "bf16", "bf16"),
    (1, 32768, 4, "bf16", "fp8_e4m3"),
    (1, 32768, 8, "bf16", "fp8_e4m3"),
    (1, 50000, 1, "bf16", "bf16"),
    (1, 50000, 1, "bf16", "fp8_e4m3"),
    (1, 50000, 4, "bf16", "fp8_e4m3"),
    (1, 50000, 8, "bf16", "fp8_e4m3"),
    (8, 8192, 1, "bf16", "bf16"),
}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Adds a dataset of the study of all, with the rows of a committed one: of all batches, or of one."""
    monkeypatch.setattr(timing_study, "RESULTS", tmp_path)
    caches = (timing_study.ok_rows, timing_study.times)

    def add(setting: str, batch: int | None = None) -> None:
        source, folder = COMMITTED / f"h100_study_{setting}", tmp_path / f"h100_study_all_{setting}"
        rows = pq.read_table(source / "rows.parquet")
        folder.mkdir()
        kept = rows if batch is None else rows.filter(pc.equal(rows["batch_size"], batch))
        pq.write_table(kept.replace_schema_metadata(None), folder / "rows.parquet")
        for one in caches:
            one.cache_clear()

    yield add
    for one in caches:
        one.cache_clear()


def test_without_its_datasets_the_tables_are_empty(measured: Tables):
    names = [name for name in TABLES if name.startswith("study_all_")]

    assert len(names) == 14 and not any(TABLES[name]().cells for name in names)
    page = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in names)
    assert filled(page) == "".join(f"<!-- {name} -->\n\n<!-- /{name} -->\n" for name in names)


def test_a_setting_is_compared_at_the_points_that_both_have(measured: Tables):
    measured("in_step")
    measured("dirty")
    measured("cupti", batch=1)
    lines = {cells[0]: cells[1:] for cells in timing_study_all.settings().cells}

    assert set(lines) == {"dirty", CLEAN, CUPTI}
    assert lines["dirty"][:5] == ("112", "+2.6", "6.4", "10.8", "7.2%")
    assert lines[CLEAN][:5] == ("112", "-0.4", "1.3", "4.1", "1.5%")
    assert lines[CUPTI][0] == "56" and lines[CUPTI][6] == "0 of 16"


def test_dirty_lines_are_compared_on_the_card_of_the_step(measured: Tables, monkeypatch: pytest.MonkeyPatch):
    """Only the clean time of the step's own run is there, if dirty lines were measured on another card."""
    measured("in_step")
    measured("dirty")
    ok_rows = timing_study.ok_rows
    monkeypatch.setattr(
        timing_study,
        "ok_rows",
        lambda name: ok_rows(name).assign(device_uuid="GPU-other") if name.endswith("_dirty") else ok_rows(name),
    )
    lines = {cells[0]: cells[1] for cells in timing_study_all.settings().cells}

    assert lines == {CLEAN: "112"}
    assert timing_study_all.one_card().cells == ()


def test_batch_and_context_have_a_line_with_errors_and_other_choices(measured: Tables):
    measured("in_step")
    measured("dirty")
    measured("cupti", batch=1)
    grid = timing_study_all.by_shape()

    assert grid.header[3:9] == tuple(f"{what}, {of}" for what in ("error", "other choice") for of in ("dirty", CLEAN, CUPTI))
    assert [cells[:2] for cells in grid.cells] == [(f"{b} x {s_kv}", "28") for b in (1, 8) for s_kv in ("8,192", "32,768")]
    assert [cells[5] == "–" and cells[8] == "–" for cells in grid.cells] == [False, False, True, True]
    others = sum(int(cells[6].partition(" ")[0]) for cells in grid.cells)
    assert f"{others} of 32" == next(cells[7] for cells in timing_study_all.settings().cells if cells[0] == "dirty")


def test_the_longest_tables_show_their_worst_lines(measured: Tables, monkeypatch: pytest.MonkeyPatch):
    measured("in_step")
    monkeypatch.setattr(timing_study_all, "SHOWN", 3)
    grid = timing_study_all.misses()

    assert len(grid.cells) == 3 and "the worst 3 of" in grid.title and grid.cells[0][5] == "–"
    assert timing_study_all.other_choices().title.endswith(", all")
    assert len(timing_study_all.by_kernel().cells) == 15


def test_errors_of_short_calls_are_told_apart_by_the_queries():
    cells = timing_study.by_queries(("h100",)).cells

    assert [cell[:3] for cell in cells] == [("H100", "bf16", "55"), ("H100", "fp8_e4m3", "12")]
    assert float(cells[1][4]) - float(cells[0][4]) == pytest.approx(2.0)  # about what the copy of FP8 queries takes more


def test_cupti_and_replays_without_the_launch_agree_on_one_h200_as_the_page_on_timing_says():
    us, found = timing_cupti.both(), timing_cupti.firsts()
    short = us[us["replays"] < 100]["difference"]
    other = found[found["replays"] != found["cupti"]]

    assert timing_cupti.one_card() and (len(us), len(found)) == (496, 128)
    assert us["rel"].median() == pytest.approx(-0.0004, abs=0.00005)
    assert us["rel"].quantile([0.05, 0.95]).tolist() == pytest.approx([-0.014, 0.009], abs=0.0005)
    assert -0.2 < short.median() < -0.1
    assert len(other) == 4 and other[["cost_in_cupti", "cost_in_replays"]].to_numpy().max() < 0.0155


def test_the_page_says_what_the_steps_on_h200s_hold():
    us = timing_study.times("h200_all")
    steps = timing_study.ok_rows("h200_study_all_in_step").loc[us.index]
    clean, other = us[CLEAN], us["clean, on another card"]
    near = timing_study.is_near(clean - us["step"], us["step"])
    bf16 = us.index.get_level_values("kv_dtype") == "bf16"
    ours = us.index.get_level_values("backend") == "flash_attn_3"
    long, capped = bf16 & (us["step"] > 100), steps["step_stop_reason"] == "throttled"
    dearer = us["step"] / clean - 1
    mine, others = bf16 & ours, ~(bf16 & ours)
    slow, fast = (steps["sm_clock_mhz"][long & of] for of in (ours, ~ours))
    cards = steps.groupby("device_uuid").size().sort_values().tolist()
    free, held = (dearer[long & ours & (capped == kind)] for kind in (False, True))
    there = other.notna()
    elsewhere = timing_study.is_near(other - us["step"], us["step"])[there].mean()
    said = (
        f"on three H200s: {cards[1]} on the card of the small study, {cards[0]} on a second, and {cards[2]} on a third",
        f"near at {near.mean():.0%} of the points",
        f"near at {near[mine].sum()} of {mine.sum()} points, where the other kernels are at {near[others].mean():.0%}",
        f"cost {free.min():.1%} to {free.max():.1%} more in the step than alone, and {held.min():.1%} to {held.max():.1%} if",
        f"it runs at {slow.min():,.0f} to {slow.max():,.0f} MHz there, and the other kernels at {fast.min():,.0f} or more",
        f"at {elsewhere:.0%} of the {there.sum()} points, and those of the run at {near[there].mean():.0%}",
    )
    page = (COMMITTED.parent / "docs" / "timing.md").read_text()

    assert len(us) == 496
    assert [words for words in said if words not in page] == []


def test_isolated_times_of_h200s_are_of_other_cards_than_their_steps_if_their_name_says_so():
    us = timing_study.times("h200_all")
    step = timing_study.ok_rows("h200_study_all_in_step")["device_uuid"].reindex(us.index)
    elsewhere = [name for name in timing_study.settings_of(us) if name.endswith("on another card")]
    at = {name: timing_study.ok_rows(f"h200_{timing_study.OF_ALL['h200'][name]}")["device_uuid"] for name in elsewhere}
    cards = {name: card.reindex(us.index)[us[name].notna()] for name, card in at.items()}

    assert len(elsewhere) == 4 and [len(cards[name]) for name in (DIRTY, COLD)] == [496, 496]
    assert all(card.notna().all() and not card.eq(step.reindex(card.index)).any() for card in cards.values())
    assert set(cards[DIRTY]) == set(cards[COLD]) and not set(cards[DIRTY]) & set(step) and not set(cards[DIRTY]) & set(at[OTHER])


def test_the_page_says_what_dirty_lines_and_other_code_are_off_by_on_h200s():
    us = timing_study.times("h200_all")
    full = us.dropna()
    short = full["step"] < timing_study.SHORT_US
    near = {name: f"{timing_study.is_near(full[name] - full['step'], full['step']).mean():.0%}" for name in (DIRTY, COLD, OTHER)}
    apart = {(first, second): full[second] - full[first] for first, second in timing_study_all.PAIRS}
    rel = {pair: (us_apart / full[pair[0]]).abs() for pair, us_apart in apart.items()}
    others = {name: timing_study.other_choices(name, "h200_all").cells for name in (DIRTY, COLD)}
    first = {name: [cells[3] for cells in found] for name, found in others.items()}
    shapes = {name: {cells[:3] for cells in found} for name, found in others.items()}
    not_fa3 = [cells for cells in others[DIRTY] if cells[3] != "flash_attn_3"]
    right = sum(cells[:3] not in shapes[COLD] for cells in not_fa3)
    after, two_cards = apart[OTHER, COLD], apart[CLEAN, OTHER]
    errors = {name: (full[name] - full["step"]).abs().median() for name in (COLD, OTHER)}
    said = (
        f"clean times of two cards are {rel[CLEAN, OTHER][short].median():.1%} apart in the median, and dirty times are "
        f"{rel[COLD, DIRTY][short].median():.1%} off those after other code",
        f"A dirty time is near at {near[DIRTY]} of the {len(full)} points, one after other code at {near[COLD]}, "
        f"and a clean one of another card at {near[OTHER]}",
        f"costs over 2% more at {len(first[DIRTY])} of 144 shapes, that of one after other code at {len(first[COLD])}.",
        f"At {len(not_fa3)} of the {len(first[DIRTY])} XQA or `fa2_tc` is first over dirty lines",
        f"after other code on that card the choice costs over 2% more at {ONE[len(not_fa3) - right]} of them",
        f"At the other {first[DIRTY].count('flash_attn_3')} it is FlashAttention-3 over a bf16 cache",
        f"{WORDS[first[COLD].count('flash_attn_3')]} of the {len(first[COLD])} shapes after other code are such too",
        f"Those after other code are {rel[OTHER, COLD][short].median():.1%} off the clean ones of another card.",
        f"are {abs(two_cards[short].median()):.1f} and {abs(two_cards[~short].median()):.1f} µs apart in the median",
        f"are {after[short].median():.1f} µs longer in the median than clean ones of another card, "
        f"and calls of 100 µs and more {after[~short].median():.1f} µs",
    )
    warm = timing_study_all.warm_us()
    longer, is_short = us[COLD][warm.index] - warm, us["step"][warm.index] < timing_study.SHORT_US
    said += (
        f"at {len(warm)} points, with FlashAttention-3 and FP8 queries.",
        f"other code makes short calls {longer[is_short].median():.1f} µs longer, "
        f"and the others {longer[~is_short].median():.1f} µs ({(longer / warm)[~is_short].median():.1%}).",
    )
    page = (COMMITTED.parent / "docs" / "timing.md").read_text()
    evidence = (COMMITTED.parent / "docs" / "evidence" / "timing.md").read_text()
    bf16 = [cells[2] for name in others for cells in others[name] if cells[3] == "flash_attn_3"]

    assert [words for words in said if words not in page] == []
    assert f"At the {len(full)} points on H200s it is {errors[COLD]:.1f} µs, and {errors[OTHER]:.1f} for clean times" in evidence
    assert {cells[0].split()[0] for cells in not_fa3} == {"1", "8"} and set(bf16) == {"bf16, bf16"}
    launch = timing_study.ok_rows("h200_study_all_in_step").groupby("device_uuid")["launch_us"].min().sort_values()
    rest = [timing_study.ok_rows(f"h200_{name}")["launch_us"].min() for name in ("specdec_all_candidates", "study_all_dirty")]
    low, high = min(rest + list(launch)[:2]), max(rest + list(launch)[:2])
    assert f"{launch.iloc[-1]:.1f} µs on one of the steps' cards, and {low:.1f} to {high:.1f} on the others." in page
    of_card = timing_study.ok_rows("h200_study_all_in_step")["device_uuid"].reindex(full.index).eq(launch.index[-1])
    far, close = (rel[CLEAN, OTHER][short & of] for of in (of_card, ~of_card))
    assert (
        f"At the {len(far)} calls of that card it is {far.median():.1%}, and at the other {len(close)} it is {close.median():.1%}."
        in page
    )


@pytest.mark.parametrize("clean", ("specdec_long_ctx", "specdec_all_candidates", "study_all_cold_code"))
def test_what_clean_lines_changed_in_the_advice_does_not_depend_on_the_card(clean: str, monkeypatch: pytest.MonkeyPatch):
    """The page says that the H200's shapes are the same nine, all with one request or 8, and XQA at all but one of both cards."""
    monkeypatch.setitem(timing_advice.CLEAN, "h200", f"h200_{clean}")
    dear = {card: of[of["cost"] > timing_study.AHEAD] for card in ("h200", "h100") for of in (timing_advice.changes(card),)}
    firsts = [backend for of in dear.values() for backend in of["dirty"]]

    assert set(dear["h200"].index) == NINE
    assert all(set(of.index.get_level_values("batch_size")) <= {1, 8} for of in dear.values())
    assert firsts.count("trtllm-native") == len(firsts) - 1


def test_the_page_of_evidence_says_how_much_longer_a_point_in_a_step_takes():
    cells = {row[0]: row for row in step_seconds.table().cells}
    page = (COMMITTED.parent / "docs" / "evidence" / "timing.md").read_text()
    *_, times, without = cells["`h200_study_all_in_step`"]

    assert f"the fair figure is the H200's, {times} times, and {without} times without rests" in page
    stops = timing_study.ok_rows("h100_study_all_dirty")["stop_reason"]
    assert (stops == "decided").any() and not (timing_study.ok_rows("h200_specdec_long_ctx")["stop_reason"] == "decided").any()


def test_the_page_of_evidence_says_how_far_the_longest_steps_are_off():
    errors = longest_steps.errors()
    held = errors["step_stop_reason"] == "throttled"
    dearer = {card: (1 / (1 + errors[held].xs(card)["error"]) - 1).max() for card in ("H200", "H100")}
    page = (COMMITTED.parent / "docs" / "evidence" / "timing.md").read_text()

    assert f"alone and in step agree within {errors.loc[~held, 'error'].abs().max():.1%}." in page
    assert f"on an H200 costs up to {dearer['H200']:.0%} more than the isolated call; on an H100 up to {dearer['H100']:.0%}" in page
