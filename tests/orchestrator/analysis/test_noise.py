"""A/A pairs and the two noise floors that come from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.dataset import open_dataset
from orchestrator.analysis.noise import (
    INTERLEAVED,
    MIN_PAIRS_OF_RANGE,
    NoiseFloor,
    aa_pairs,
    first_of_aa_pairs,
    fitted_floor,
    fitted_floors,
)
from orchestrator.storage import parquet
from orchestrator.storage.row import Row
from tests.helpers.compared import MORNING, table, timed

NOISE = ROOT / "results" / "h200_main/specdec_long_ctx_noise"


def half_of_pair(number: int, backend: str, us: float, *args: Any, **keys: Any) -> Row:
    return timed(backend, us, *args, twin=number, **keys)


def test_an_aa_pair_is_the_newest_two_rows_of_a_point_side_by_side():
    rows = [half_of_pair(0, "a", 10.0), half_of_pair(1, "a", 99.0), half_of_pair(1, "a", 11.0, MORNING), half_of_pair(0, "b", 20.0)]
    (found,) = aa_pairs(table(*rows)).to_dict("records")

    assert (found["backend_a"], found["backend_b"]) == ("a", "a")
    assert (found["median_us_a"], found["median_us_b"]) == (10.0, 11.0)
    assert found["samples_us_b"].tolist() == pytest.approx([11.0 * x for x in (0.9995, 1.0005, 1.0005, 0.9995)])
    assert found["rel_diff"] == pytest.approx(0.1)


def test_of_aa_pairs_the_first_rows_stay_unless_only_second_ones_were_selected():
    first, second, plain = half_of_pair(0, "a", 10.0), half_of_pair(1, "a", 11.0), timed("b", 20.0, twin=None)

    assert first_of_aa_pairs(table(first, second, plain))["median_us"].tolist() == [10.0, 20.0]
    assert first_of_aa_pairs(table(second))["median_us"].tolist() == [11.0]


@pytest.mark.parametrize(
    "keys",
    [
        *({"status": "failed"}, {"libraries": "flashinfer-python 0.8.0"}, {"device_name": "NVIDIA B200"}, {"s_kv": 1}, {"twin": 0}),
        *({"stop_reason": "decided"}, {"measured_as": "b"}, {"run_id": "another"}, {"attempt": 2}),
    ],
)
def test_half_of_an_aa_pair_is_no_noise(keys: dict[str, Any]):
    second = timed("a", 11.0, **{"twin": 1, **keys})

    assert aa_pairs(table(half_of_pair(0, "a", 10.0), second, half_of_pair(0, "b", 10.0))).empty


def test_a_floor_is_fitted_to_pairs_that_were_drawn_with_it():
    draw = np.random.default_rng(0)
    time, samples = np.geomspace(10, 10_000, 4000), np.full(4000, 1e-6)
    known = NoiseFloor(0.5, 0.002)
    found = fitted_floor(draw.normal(0, np.sqrt(known.variance(time) + samples)), samples, time)

    assert found.us == pytest.approx(0.5, rel=0.1)
    assert found.rel == pytest.approx(0.002, rel=0.1)


@pytest.fixture(scope="module")
def committed() -> pd.DataFrame:
    return parquet.read(NOISE).to_pandas()


def test_the_default_floor_is_the_fitted_floor_rounded_up(committed: pd.DataFrame):
    """Its share of the time is that of another H200, whose pairs gave 0.04%: too little to tell from none."""
    (found,) = fitted_floors(committed, "all").by_device.values()

    assert found.us <= INTERLEAVED.us <= 1.25 * found.us
    assert found.rel <= INTERLEAVED.rel <= found.rel + 0.0005


def test_the_percentile_floor_is_what_the_fitted_floor_predicts(committed: pd.DataFrame):
    """Within a quarter, for every range of times with enough pairs for its own percentile. docs/report.md has the three."""
    pairs = pair(committed[committed["twin"] == 0], committed[committed["twin"] == 1])
    pairs = pairs[pairs["log_us_a"].notna() & pairs["log_us_b"].notna()]
    time = np.exp((pairs["log_us_a"] + pairs["log_us_b"]) / 2)
    us, rel = fitted_floors(committed, "").parts(pairs["device_name_a"])
    sigma = np.sqrt(pairs["log_se_a"] ** 2 + pairs["log_se_b"] ** 2 + (us / time) ** 2 + rel**2)
    draws = np.abs(np.random.default_rng(5).standard_normal((2000, 1)))
    ratios = []
    for found in open_dataset(str(NOISE).removesuffix("_noise")).records("FROM noise"):
        here = sigma[(time > found["from_us"]) & (time <= found["to_us"])]
        if len(here) >= MIN_PAIRS_OF_RANGE:
            ratios.append(np.quantile(draws * here.to_numpy(), 0.99) / found["noise_floor"])

    known = {
        found["from_us"]: found["noise_floor"] for found in open_dataset(str(NOISE).removesuffix("_noise")).records("FROM noise")
    }
    said = f"it is {known[20]:.2%} from 20 µs, {known[100]:.2%} from 100 µs, and {known[1000]:.2%} from 1 ms on."

    assert said in (ROOT / "docs" / "report.md").read_text()
    assert len(ratios) == 3
    assert all(1 / 1.25 < ratio < 1.25 for ratio in ratios), ratios
