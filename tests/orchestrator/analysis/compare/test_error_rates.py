"""How often a verdict is wrong and which changes are found, on synthetic blocks and on the committed A/A pairs of an H200."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.analysis.compare.comparison import compare
from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.compare.verdicts import judge
from orchestrator.analysis.noise import NoiseFloor, NoiseFloors, fitted_floors
from orchestrator.storage import parquet
from tests.helpers.compared import table, timed

NOISE = ROOT / "results" / "h200_main/specdec_long_ctx_noise"
POINTS = 500


def synthetic(draw: np.random.Generator, *, within: float, between: float, floor: float, factor: float = 1.0) -> pd.DataFrame:
    """Rows of 6 blocks of 5 samples. A sample is off by `within` of its time, a block by `between`, a row by `floor`."""
    rows = []
    for s_kv, us in enumerate(np.geomspace(100, 5000, POINTS), start=1):
        of_row, of_blocks = draw.normal(0, floor), draw.normal(0, between, (6, 1))
        samples = factor * us * np.exp(of_row + of_blocks + draw.normal(0, within, (6, 5)))
        rows.append(timed("a", us, s_kv=s_kv, samples_us=samples.ravel().tolist(), block_sizes=[5] * 6, samples_mhz=None))
    return table(*rows)


def verdicts(a: pd.DataFrame, b: pd.DataFrame, floors: NoiseFloors) -> pd.Series:
    return judge(pair(a, b), floors, 0.02)["verdict"].value_counts(normalize=True)


@pytest.mark.parametrize(("within", "between", "floor"), [(0.01, 0.0, 0.0002), (0.003, 0.006, 0.0002), (0.003, 0.003, 0.003)])
def test_1_percent_false_alarms_at_most_and_99_of_100_changes_found(within: float, between: float, floor: float):
    draw = np.random.default_rng(7)
    floors = NoiseFloors({"NVIDIA H200": NoiseFloor(0.01, floor * 2**0.5)})
    noise = {"within": within, "between": between, "floor": floor}
    baseline, again = (synthetic(draw, **noise) for _ in range(2))
    slower, faster = (synthetic(draw, **noise, factor=factor) for factor in (1.03, 1 / 1.03))

    assert verdicts(baseline, again, floors).reindex(["slower", "faster"]).sum() <= 0.01
    assert verdicts(baseline, slower, floors)["slower"] >= 0.99
    assert verdicts(baseline, faster, floors)["faster"] >= 0.99


def test_noise_as_large_as_the_change_is_undecided():
    draw = np.random.default_rng(8)
    baseline, slower = (synthetic(draw, within=0.02, between=0.06, floor=0.0, factor=factor) for factor in (1.0, 1.03))

    assert verdicts(baseline, slower, NoiseFloors({}))["undecided"] >= 0.95


def test_blocks_count_as_samples_if_blocks_differ():
    """30 samples in 6 blocks that differ are worth 6. As 30 independent samples they would show half of the true error."""
    draw = np.random.default_rng(9)
    pairs = pair(*(synthetic(draw, within=0.001, between=0.01, floor=0.0) for _ in range(2)))
    claimed = np.sqrt((pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2).mean())
    error = (pairs["log_us_b"] - pairs["log_us_a"]).std()

    assert error <= claimed <= 1.5 * error


def test_a_few_changes_are_found_among_many_unchanged_points():
    draw = np.random.default_rng(10)
    noise = {"within": 0.005, "between": 0.002, "floor": 0.0}
    baseline, again = (synthetic(draw, **noise) for _ in range(2))
    changed = again["s_kv"] <= 10
    again["samples_us"] = again["samples_us"].where(~changed, again["samples_us"] * 1.03)
    rows = judge(pair(baseline, again), NoiseFloors({}), 0.02)

    assert set(rows.loc[rows["s_kv"] <= 10, "verdict"]) == {"slower"}
    assert not rows.loc[rows["s_kv"] > 10, "verdict"].isin(["slower", "faster"]).any()


@pytest.fixture(scope="module")
def paired_rows() -> pd.DataFrame:
    rows = parquet.read(NOISE).to_pandas()
    return rows[rows["status"] == "ok"]


def halves(paired_rows: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, NoiseFloors]:
    """A/A pairs of one half of the groups, their sides swapped at random, and the floor fitted to the other half."""
    draw = np.random.default_rng(seed)
    points, groups = paired_rows["group_id"] + paired_rows["backend"], paired_rows["group_id"].unique()
    swapped = points.isin(points.unique()[draw.random(points.nunique()) < 0.5])
    labelled = paired_rows.assign(twin=paired_rows["twin"].where(~swapped, 1 - paired_rows["twin"]))
    fitted = labelled["group_id"].isin(draw.permutation(groups)[: len(groups) // 2])
    a, b = (labelled[~fitted & (labelled["twin"] == twin)] for twin in (0, 1))
    return a, b, fitted_floors(labelled[fitted], "the other half")


def test_the_same_rates_on_the_aa_pairs_of_an_h200(paired_rows: pd.DataFrame):
    found = []
    for seed in range(8):
        a, b, floors = halves(paired_rows, seed)
        changed_rows = {factor: b.assign(samples_us=b["samples_us"] * factor) for factor in (1.0, 1.03, 1 / 1.03)}
        found.append({factor: verdicts(a, rows, floors) for factor, rows in changed_rows.items()})

    false = [share[1.0].reindex(["slower", "faster"]).sum() for share in found]
    assert max(false) <= 0.01
    assert np.mean([share[1.03]["slower"] for share in found]) >= 0.99
    assert np.mean([share[1 / 1.03]["faster"] for share in found]) >= 0.99


@pytest.mark.parametrize("first", [0, 1])
def test_the_same_rates_with_the_default_floor_in_either_direction(paired_rows: pd.DataFrame, first: int):
    a, b = (paired_rows[paired_rows["twin"] == twin] for twin in (first, 1 - first))

    assert verdicts(a, b, NoiseFloors({})).reindex(["slower", "faster"]).sum() <= 0.01
    assert verdicts(a, b.assign(samples_us=b["samples_us"] * 1.03), NoiseFloors({}))["slower"] >= 0.99
    assert verdicts(a, b.assign(samples_us=b["samples_us"] / 1.03), NoiseFloors({}))["faster"] >= 0.99


def test_no_group_of_aa_pairs_is_slower():
    found = compare(["twin:0"], ["twin:1"], str(NOISE))

    assert set(found.groups["verdict"]) == {"same"}
    assert not found.regressed
