"""How often a verdict is wrong and what is found: on synthetic blocks with known noise, and on the committed twins of an H200."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orchestrator import datafile
from orchestrator.compare.comparison import compare
from orchestrator.compare.noise_floor import IN_TURNS, Floor, Floors, from_twins
from orchestrator.compare.pairs import pair
from orchestrator.compare.verdicts import judge
from orchestrator.dataset import ENOUGH_TWINS, open_dataset
from tests.conftest import ROOT
from tests.orchestrator.compared import table, timed

NOISE = ROOT / "results" / "h200_specdec_long_ctx_noise"
POINTS = 500


def synthetic(draw: np.random.Generator, *, within: float, between: float, floor: float, factor: float = 1.0) -> pd.DataFrame:
    """Rows of 6 blocks of 5 samples: a sample is off by `within`, a block by `between`, a row by `floor` of its time."""
    rows = []
    for s_kv, us in enumerate(np.geomspace(100, 5000, POINTS), start=1):
        of_row, of_blocks = draw.normal(0, floor), draw.normal(0, between, (6, 1))
        samples = factor * us * np.exp(of_row + of_blocks + draw.normal(0, within, (6, 5)))
        rows.append(timed("a", us, s_kv=s_kv, samples_us=samples.ravel().tolist(), block_sizes=[5] * 6, samples_mhz=None))
    return table(*rows)


def verdicts(a: pd.DataFrame, b: pd.DataFrame, floors: Floors) -> pd.Series:
    return judge(pair(a, b), floors, 0.02)["verdict"].value_counts(normalize=True)


@pytest.mark.parametrize(("within", "between", "floor"), [(0.01, 0.0, 0.0002), (0.003, 0.006, 0.0002), (0.003, 0.003, 0.003)])
def test_at_most_one_in_a_hundred_is_flagged_where_nothing_changed_and_99_are_where_3_percent_did(
    within: float, between: float, floor: float
):
    draw = np.random.default_rng(7)
    floors = Floors({"NVIDIA H200": Floor(0.01, floor * 2**0.5)})
    noise = {"within": within, "between": between, "floor": floor}
    baseline, again = (synthetic(draw, **noise) for _ in range(2))
    slower, faster = (synthetic(draw, **noise, factor=factor) for factor in (1.03, 1 / 1.03))

    assert verdicts(baseline, again, floors).reindex(["slower", "faster"]).sum() <= 0.01
    assert verdicts(baseline, slower, floors)["slower"] >= 0.99
    assert verdicts(baseline, faster, floors)["faster"] >= 0.99


def test_noise_as_large_as_the_change_is_undecided():
    draw = np.random.default_rng(8)
    baseline, slower = (synthetic(draw, within=0.02, between=0.06, floor=0.0, factor=factor) for factor in (1.0, 1.03))

    assert verdicts(baseline, slower, Floors({}))["undecided"] >= 0.95


def test_a_block_is_the_unit_where_blocks_differ():
    """30 samples in 6 blocks that hang together are 6: taken for independent they would claim half of the error there is."""
    draw = np.random.default_rng(9)
    pairs = pair(*(synthetic(draw, within=0.001, between=0.01, floor=0.0) for _ in range(2)))
    claimed = np.sqrt((pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2).mean())
    error = (pairs["log_us_b"] - pairs["log_us_a"]).std()

    assert error <= claimed <= 1.5 * error


def test_a_change_of_few_is_found_among_many_that_did_not():
    draw = np.random.default_rng(10)
    noise = {"within": 0.005, "between": 0.002, "floor": 0.0}
    baseline, again = (synthetic(draw, **noise) for _ in range(2))
    changed = again["s_kv"] <= 10
    again["samples_us"] = again["samples_us"].where(~changed, again["samples_us"] * 1.03)
    rows = judge(pair(baseline, again), Floors({}), 0.02)

    assert set(rows.loc[rows["s_kv"] <= 10, "verdict"]) == {"slower"}
    assert not rows.loc[rows["s_kv"] > 10, "verdict"].isin(["slower", "faster"]).any()


@pytest.fixture(scope="module")
def twins() -> pd.DataFrame:
    rows = datafile.read(NOISE).to_pandas()
    return rows[rows["status"] == "ok"]


def halves(twins: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, Floors]:
    """Twins of one half of the groups, which is which at random, and the floor of the other half."""
    draw = np.random.default_rng(seed)
    points, groups = twins["group_id"] + twins["backend"], twins["group_id"].unique()
    swapped = points.isin(points.unique()[draw.random(points.nunique()) < 0.5])
    labelled = twins.assign(twin=twins["twin"].where(~swapped, 1 - twins["twin"]))
    fitted = labelled["group_id"].isin(draw.permutation(groups)[: len(groups) // 2])
    a, b = (labelled[~fitted & (labelled["twin"] == twin)] for twin in (0, 1))
    return a, b, from_twins(labelled[fitted], "the other half")


def test_twins_of_an_h200_are_told_apart_in_at_most_1_percent_and_found_3_percent_slower_in_99(twins: pd.DataFrame):
    found = []
    for seed in range(8):
        a, b, floors = halves(twins, seed)
        planted = {factor: b.assign(samples_us=b["samples_us"] * factor) for factor in (1.0, 1.03, 1 / 1.03)}
        found.append({factor: verdicts(a, rows, floors) for factor, rows in planted.items()})

    false = [share[1.0].reindex(["slower", "faster"]).sum() for share in found]
    assert max(false) <= 0.01
    assert np.mean([share[1.03]["slower"] for share in found]) >= 0.99
    assert np.mean([share[1 / 1.03]["faster"] for share in found]) >= 0.99


@pytest.mark.parametrize("first", [0, 1])
def test_the_default_floor_holds_both_figures_on_all_twins_either_way(twins: pd.DataFrame, first: int):
    a, b = (twins[twins["twin"] == twin] for twin in (first, 1 - first))

    assert verdicts(a, b, Floors({})).reindex(["slower", "faster"]).sum() <= 0.01
    assert verdicts(a, b.assign(samples_us=b["samples_us"] * 1.03), Floors({}))["slower"] >= 0.99
    assert verdicts(a, b.assign(samples_us=b["samples_us"] / 1.03), Floors({}))["faster"] >= 0.99


def test_the_default_floor_is_the_twins_floor_rounded_up(twins: pd.DataFrame):
    """Its share of the time is another H200's, whose twins gave 0.04%: too little to be told from none."""
    (found,) = from_twins(twins, "all").by_device.values()

    assert found.us <= IN_TURNS.us <= 1.25 * found.us
    assert found.rel <= IN_TURNS.rel <= found.rel + 0.0005


def test_no_group_of_twins_is_slower():
    found = compare(["twin:0"], ["twin:1"], str(NOISE))

    assert set(found.groups["verdict"]) == {"same"}
    assert not found.regressed


def test_the_percentile_that_a_report_calls_noise_is_what_this_model_expects_of_the_same_twins():
    """docs/report.md has the table. Where a range of times has twins enough for a percentile of its own, within a quarter."""
    table = datafile.read(NOISE).to_pandas()
    twins = pair(table[table["twin"] == 0], table[table["twin"] == 1])
    twins = twins[twins["log_us_a"].notna() & twins["log_us_b"].notna()]
    time = np.exp((twins["log_us_a"] + twins["log_us_b"]) / 2)
    us, rel = from_twins(table, "").of(twins["device_name_a"])
    sigma = np.sqrt(twins["log_se_a"] ** 2 + twins["log_se_b"] ** 2 + (us / time) ** 2 + rel**2)
    draws = np.abs(np.random.default_rng(5).standard_normal((2000, 1)))
    ratios = []
    for found in open_dataset(str(NOISE).removesuffix("_noise")).records("FROM noise"):
        here = sigma[(time > found["from_us"]) & (time <= found["to_us"])]
        if len(here) >= ENOUGH_TWINS:
            ratios.append(np.quantile(draws * here.to_numpy(), 0.99) / found["noise_floor"])

    assert len(ratios) == 3
    assert all(1 / 1.25 < ratio < 1.25 for ratio in ratios), ratios
