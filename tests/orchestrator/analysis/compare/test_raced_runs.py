"""Two runs of the same true times whose races stop at different points: rough times make no verdict, no suspect and no red run."""

from __future__ import annotations

import statistics

import numpy as np
import pandas as pd
import pytest

from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.comparison import GROUP_COLUMNS
from orchestrator.analysis.compare.gate import GateDecision, decide_gate, evidence
from orchestrator.analysis.compare.pairs import pair
from orchestrator.analysis.compare.verdicts import judge
from orchestrator.analysis.noise import SAME, NoiseFloors
from tests.helpers.compared import MORNING, NIGHT, table, timed
from tests.helpers.simulated_races import TRUE, disturbed_blocks, group, long_first_blocks, race

GROUPS, BEST_US = 24, np.geomspace(30, 3000, 4)


def run(seed: int, when: str, *, slower: float = 1.0) -> pd.DataFrame:
    """Groups of six backends, three of them 5 to 50% slower than the best, as a race leaves them. In half of the groups a block
    in 32 is off by 16 to 60%, and in the others the first block by up to 100%. `slower` is what one point takes longer."""
    draw, rows = np.random.default_rng(seed), []
    for number in range(GROUPS):
        us = float(BEST_US[number % len(BEST_US)])
        runners = group(draw, disturbed_blocks if number % 2 else long_first_blocks, us, tails=4)
        race(runners)
        for one, true in zip(runners, TRUE, strict=True):
            by = slower if (number, true) == (7, 1.5) else 1.0
            blocks = [[sample * by for sample in block] for block in one.blocks[: one.taken]]
            samples = [sample for block in blocks for sample in block]
            taken = {"samples_us": samples, "samples_mhz": [1800] * len(samples), "block_sizes": [len(block) for block in blocks]}
            reason = one.stop_reason or "max_samples"
            rows.append(
                timed(
                    one.name, statistics.median(samples), when, batch_size=number, p05_us=min(samples), **taken, stop_reason=reason
                )
            )
    return table(*rows)


@pytest.fixture(scope="module")
def runs() -> tuple[pd.DataFrame, pd.DataFrame]:
    return run(1, NIGHT), run(2, MORNING)


def compared(baseline: pd.DataFrame, candidate: pd.DataFrame) -> tuple[pd.DataFrame, GateDecision]:
    pairs = judge(pair(baseline, candidate), NoiseFloors({}), SAME)
    by = [name for name in GROUP_COLUMNS if pairs.loc[pairs["counted"], name].nunique(dropna=False) > 1]
    return pairs, decide_gate(evidence(pairs, by, NoiseFloors({}), Cards()))


def rough_ones(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[(pairs["stop_reason_a"] == "decided") | (pairs["stop_reason_b"] == "decided")]


def test_unchanged_runs_have_no_rough_point_that_is_slower_and_are_green(runs: tuple[pd.DataFrame, pd.DataFrame]):
    for baseline, candidate in (runs, runs[::-1]):
        pairs, gate = compared(baseline, candidate)
        stops = baseline["block_sizes"].map(len).to_numpy() != candidate["block_sizes"].map(len).to_numpy()

        assert stops.any()  # the races stopped at different points
        assert len(rough_ones(pairs)) >= GROUPS  # whoever is 50% slower is decided
        assert not (rough_ones(pairs)["verdict"] == "slower").any()
        assert not gate.points.any() and not gate.by_group.any()


def test_a_rough_point_that_is_10_percent_slower_is_found(runs: tuple[pd.DataFrame, pd.DataFrame]):
    pairs, gate = compared(runs[0], run(2, MORNING, slower=1.1))
    (slower,) = rough_ones(pairs).query("verdict == 'slower'").to_dict("records")

    assert (slower["batch_size"], slower["backend"]) == (7, "5") and gate.points.sum() == 1
    assert slower["change"] == pytest.approx(0.1, abs=0.02)
