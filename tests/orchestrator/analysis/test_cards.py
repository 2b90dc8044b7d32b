"""Offsets of cards: learned from points that several of them measured, and used by a comparison and a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from orchestrator.analysis.cards import BETWEEN_RUNS, learn, learn_from
from orchestrator.analysis.compare import tables
from orchestrator.analysis.compare.comparison import compare
from orchestrator.errors import UserError
from orchestrator.reporting.report import gpu_grids
from orchestrator.storage.row import Row
from tests.helpers.compared import MORNING, dataset, table, timed
from tests.helpers.timed_rows import views_of

OFFSETS = {"GPU-a": -0.01, "GPU-b": 0.0, "GPU-c": 0.01}


def rows(uuid: str, offset: float, count: int = 40, **keys: object) -> list[Row]:
    """Points of one card, each with a time of its own."""
    draw, times = np.random.default_rng(len(uuid) + count), np.geomspace(100, 4000, count)
    off = np.exp(offset + draw.normal(0, 0.001, count))
    given = {"device_uuid": uuid, "bound": "memory", "frac_of_peak": 0.95, **keys}
    return [timed("fa2", us * of, s_kv=i + 1, **given) for i, (us, of) in enumerate(zip(times, off, strict=True))]


def several(*cards: list[Row]) -> pd.DataFrame:
    return table(*(row for card in cards for row in card))


def test_each_card_has_its_offset_from_the_mean_with_an_error():
    found = learn(several(*(rows(*of) for of in OFFSETS.items()))).by_uuid

    assert {uuid: card.offset for uuid, card in found.items()} == pytest.approx(OFFSETS, abs=0.001)
    assert all(BETWEEN_RUNS <= card.se < 2 * BETWEEN_RUNS and card.points == 40 for card in found.values())


def test_points_that_changed_on_one_card_do_not_move_its_offset():
    slower = [timed("fa2", 2 * 100, s_kv=i + 1, device_uuid="GPU-b", bound="memory", frac_of_peak=0.95) for i in range(8)]
    found = learn(several(rows("GPU-a", 0.0), slower + rows("GPU-b", 0.02)[8:]))

    assert found.difference("GPU-a", "GPU-b") == pytest.approx((0.02, 0.0043), abs=0.002)


@pytest.mark.parametrize(
    "keys",
    [
        {"flashinfer_version": "0.8.0", "libraries": "flashinfer-python 0.8.0"},
        {"l2": "clean"},
        {"bound": "launch"},
        {"frac_of_peak": 0.8},
        {"device_name": "NVIDIA B200"},
        {"driver": "600"},
        {"stop_reason": "throttled"},
    ],
)
def test_rows_that_differ_in_more_than_the_card_teach_nothing(keys: Row):
    assert not learn(several(rows("GPU-a", 0.0), rows("GPU-b", 0.02, **keys))).by_uuid


def test_a_card_with_few_points_in_common_has_no_offset():
    assert not learn(several(rows("GPU-a", 0.0), rows("GPU-b", 0.02)[:19])).by_uuid


def test_cards_without_a_common_point_are_not_compared_and_others_over_a_third_are():
    apart = {"batch_size": 64}
    chain = [rows("GPU-a", 0.0), rows("GPU-b", 0.01), rows("GPU-b", 0.01, **apart), rows("GPU-c", 0.03, **apart)]
    lone = [rows(uuid, offset, q_dtype="fp8_e4m3") for uuid, offset in (("GPU-x", 0.0), ("GPU-y", 0.05))]
    found = learn(several(*chain, *lone))

    assert found.difference("GPU-a", "GPU-c") == pytest.approx((0.03, 0.0043), abs=0.002)
    assert found.difference("GPU-a", "GPU-x") is None
    assert found.difference("GPU-a", "GPU-a") is None and found.difference(None, "GPU-a") is None


def test_a_comparison_takes_off_what_the_cards_were_learned_to_differ_by_and_says_so(tmp_path: Path):
    learned = dataset(tmp_path / "cards", [*rows("GPU-a", 0.0, batch_size=1), *rows("GPU-b", 0.04, batch_size=1)])
    base = dataset(tmp_path / "base", rows("GPU-a", 0.0))
    later = dataset(tmp_path / "later", rows("GPU-b", 0.04, flashinfer_version="0.8.0", started_at=MORNING.format(0)))

    known = compare([base], [later], "nowhere", cards=learned)
    slower = dataset(tmp_path / "slower", rows("GPU-b", 0.07, started_at=MORNING.format(0)))

    assert not known.regressed
    assert any("points that both measured" in note and "+4.08% ± 0.4" in note for note in tables.notes(known))
    assert compare([base], [slower], "nowhere", cards=learned).red_groups.keys() == {"all"}


def test_a_comparison_does_not_learn_cards_from_its_own_change():
    """Each side has one card only. Were their rows repeats of each other, a slowdown would pass for a slower card."""
    both = several(rows("GPU-a", 0.0), rows("GPU-b", 0.05))

    assert learn(both).by_uuid
    assert not learn(both, separate=np.repeat([0, 1], 40)).by_uuid


def test_a_report_ranks_times_of_two_gpus_as_the_mean_gpu_takes_them_and_says_so():
    """cudnn took 101 µs on a GPU that is 4% slower, fa2_tc 100 µs on the other."""
    offset = 0.04
    shared = [*rows("GPU-a", 0.0), *rows("GPU-b", offset)]
    shared = [{**row, "point_id": f"{row['device_uuid']}{row['s_kv']}"} for row in shared]
    asked = {"bound": "memory", "frac_of_peak": 0.95, "batch_size": 64}
    a = timed("fa2_tc", 100, device_uuid="GPU-a", **asked)
    b = timed("cudnn", 101, device_uuid="GPU-b", **asked)
    data = views_of(table(*shared, a, b))
    found = data.records("SELECT backend, median_us FROM best WHERE batch_size = 64")

    assert [one["backend"] for one in found] == ["cudnn"]
    taken = data.execute("SELECT median_us FROM points WHERE backend <> 'fa2' ORDER BY 1")
    mean = np.exp(offset / 2)
    assert [us for (us,) in taken] == pytest.approx(sorted([100 * mean, 101 / mean]), abs=0.1)
    (grid,) = gpu_grids(data)
    assert {cells[-1] for cells in grid.cells} == {"taken off"}


def test_an_offset_within_its_error_is_not_taken_off():
    certain = learn(several(rows("GPU-a", 0.0), rows("GPU-b", 0.002))).certain()

    assert certain == {"GPU-a": 0.0, "GPU-b": 0.0}


def test_datasets_without_rows_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"cards=.*no rows there"):
        learn_from(str(tmp_path / "none"))
