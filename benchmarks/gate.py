"""How often the gate of mode=compare is red though nothing changed, and what it finds, over all committed datasets.

    python -m benchmarks.gate                                  # prints the table and what is red; about four minutes
    python -m benchmarks.gate h200_main/specdec_long_ctx h200_studies/specdec_full    # two datasets or more alone

Every two datasets of one kind of GPU, of the same torch and FlashInfer and timed alike, are compared in either direction. Then each
backend in turn takes 3% longer, or 10% less, and points drawn at random 10%. Last, each point's sides are exchanged at random.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.figures import at_least, at_most
from orchestrator import ROOT
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.compare.comparison import GROUP_COLUMNS
from orchestrator.analysis.compare.gate import MIN_POINTS, Gate, GateDecision, evidence
from orchestrator.analysis.compare.pairs import LIST_COLUMNS, MEMORY, POINT_COLUMNS, TIMING_SETTINGS, Flags, Floats, pair, summary
from orchestrator.analysis.compare.verdicts import judge
from orchestrator.analysis.keys import TIMING_KEYS
from orchestrator.analysis.noise import SAME, NoiseFloors
from orchestrator.storage import parquet

LEFT_OUT = ("check_power", "bisect", "rule_edges")  # datasets that time nothing, or what was forced or changed on purpose
ALIKE = ["device_name", "torch_version", "flashinfer_version", *TIMING_KEYS]
# What a comparison reads; frames of all columns take five times as long.
READ = [
    *dict.fromkeys((*POINT_COLUMNS, *TIMING_SETTINGS, *LIST_COLUMNS, *ALIKE, MEMORY)),
    *("twin", "env", "status", "resolved_backend", "measured_as", "median_us", "in_step_us", "own_us", "launch_us", "p05_us"),
    *("num_samples", "num_set_aside", "stop_reason", "throttle_reasons", "reason", "bimodal", "bound", "frac_of_peak"),
    *("device_uuid", "started_at", "finished_at"),
]
MIN_PAIRS = 30  # of two datasets
DRAWN = 40  # points of a comparison that take longer, one at a time
BY_BACKEND, BY_POINT, FASTER = 0.03, 0.10, 0.10
MAX_RED, FOUND_GROUPS, FOUND_POINTS = 0.01, 0.95, 0.90  # targets: unchanged runs that are red; changes that are found
COUNTS = ("red", "one backend faster, red", "sides exchanged, red", "backends", "found", "points", "points found")
HEADER = ("GPUs", "comparisons", *COUNTS[:3], "a backend 3% slower: found", "one point 10% slower: found")


@dataclass(frozen=True)
class Compared:
    """The pairs of two datasets that count, and what they are called."""

    names: tuple[str, str]
    pairs: pd.DataFrame

    @property
    def gpus(self) -> str:
        other = self.pairs["device_uuid_a"] != self.pairs["device_uuid_b"]
        which = "another" if other.all() else "partly another" if other.any() else "the same"
        return f"{which} {self.pairs['device_name_a'].iloc[0].split()[1]}"

    def exchanged(self, which: Flags) -> Compared:
        """With the sides of some pairs exchanged; of all, the comparison in the other direction."""
        (a, b), names = self.names, [c[:-2] for c in self.pairs if c.endswith("_a") and f"{c[:-2]}_b" in self.pairs]
        found = self.pairs.rename(columns={f"{name}_{x}": f"{name}_{y}" for name in names for x, y in ("ab", "ba")})
        found["log_ratio"] = -found["log_ratio"]
        if not which.all():
            found = pd.concat([self.pairs, found]).iloc[np.arange(len(which)) + len(which) * which].reset_index(drop=True)
        return Compared((b, a) if which.all() else (a, b), found)


def committed(names: Sequence[str] = ()) -> list[Compared]:
    """All comparisons of committed datasets, `FOLDER/NAME` each, in one direction."""
    files = [ROOT / "results" / f"{name}.parquet" for name in names] or sorted((ROOT / "results").glob("*/*.parquet"))
    sides: dict[tuple[object, ...], list[tuple[str, pd.DataFrame]]] = {}
    for file in files:
        for key, rows in [] if any(word in file.name for word in LEFT_OUT) else _timed(file):
            sides.setdefault(key, []).append((f"{file.parent.name}/{file.stem}", rows))
    found = (_compared(*two) for alike in sides.values() for two in combinations(alike, 2))
    return [one for one in found if one is not None]


def _timed(file: Path) -> Iterator[tuple[tuple[object, ...], pd.DataFrame]]:
    rows = parquet.read(file).select([*READ, "engine"]).to_pandas()
    rows = rows.astype({name: object for name, kind in rows.dtypes.items() if kind == "str"}).copy()  # Arrow's texts are slow
    rows = rows[(rows["status"] == "ok") & rows["env"].isna() & rows.pop("engine").isna()]
    rows = summary(rows).assign(point=pd.util.hash_pandas_object(rows[list(POINT_COLUMNS)].astype(str), index=False))
    return iter(rows.fillna({"icache": "warm", "context": "isolated", "pace": "bursts"}).groupby(ALIKE))


def _compared(a: tuple[str, pd.DataFrame], b: tuple[str, pd.DataFrame]) -> Compared | None:
    shared = np.intersect1d(a[1]["point"], b[1]["point"])
    if len(shared) < MIN_PAIRS:
        return None
    judged = judge(pair(*(rows[rows["point"].isin(shared)] for _, rows in (a, b))), NoiseFloors({}), SAME)
    return Compared((a[0], b[0]), judged[judged["counted"]].reset_index(drop=True))


def rates(one: Compared, draw: np.random.Generator, every: bool) -> dict[str, float]:
    """How often it is red: unchanged, and with `every` if a backend is faster and its sides are exchanged; and changes found."""
    gate, log_ratio = _gate(one)
    backends = [at for at in one.pairs.groupby("backend").indices.values() if len(at) >= MIN_POINTS]
    drawn = draw.choice(len(log_ratio), min(DRAWN, len(log_ratio)), replace=False)

    def reds(changed: Sequence[object], by: float) -> int:
        changes = (np.log1p(by) * np.isin(np.arange(len(log_ratio)), at) for at in changed)
        return sum(is_red(gate.decide(log_ratio + change)) for change in changes)

    red = {"red": is_red(gate.decide(log_ratio))}
    if every:
        shuffled, its_ratio = _gate(one.exchanged(draw.random(len(log_ratio)) < 0.5))
        faster = reds(backends, -FASTER) / len(backends) if backends else 0
        red |= dict(zip(COUNTS[1:3], (faster, is_red(shuffled.decide(its_ratio))), strict=True))
    return red | dict(zip(COUNTS[3:], (len(backends), reds(backends, BY_BACKEND), len(drawn), reds(drawn, BY_POINT)), strict=True))


def _gate(one: Compared) -> tuple[Gate, Floats]:
    by = [name for name in GROUP_COLUMNS if one.pairs[name].nunique(dropna=False) > 1]
    given = evidence(one.pairs, by, NoiseFloors({}), Cards())
    return Gate(given), given.log_ratio


def is_red(decided: GateDecision) -> bool:
    return bool(decided.points.any() or decided.by_group.any())


def all_rates(compared: Sequence[Compared], every: bool = True) -> pd.DataFrame:
    """A line for each comparison in each direction, with its names, GPUs and rates. What is drawn depends on its names alone."""
    both_ways = (way for there in compared for way in (there, there.exchanged(np.full(len(there.pairs), True))))
    draws = ((one, np.random.default_rng(list(" ".join(one.names).encode()))) for one in both_ways)
    return pd.DataFrame(
        {"baseline": one.names[0], "candidate": one.names[1], "gpus": one.gpus, **rates(one, draw, every)} for one, draw in draws
    )


def cells(name: str, part: pd.DataFrame) -> tuple[str, ...]:
    of = part[list(COUNTS)].sum()
    reds = (f"{of[count]:.0f} ({of[count] / len(part):.1%})" for count in COUNTS[:3])
    return (name, str(len(part)), *reds, f"{of['found'] / of['backends']:.1%}", f"{of['points found'] / of['points']:.1%}")


def main(names: list[str]) -> None:
    lines = all_rates(committed(names))
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for name, part in [*lines.groupby("gpus"), ("all", lines)]:
        print(f"| {' | '.join(cells(str(name), part))} |")
    for line in lines[lines["red"] > 0].to_dict("records"):
        print(f"red: baseline={line['baseline']} candidate={line['candidate']}")
    of = lines[list(COUNTS)].sum()
    at_most(HEADER[2], [100 * of["red"] / len(lines)], 100 * MAX_RED, "%")
    at_least(HEADER[5], [100 * of["found"] / of["backends"]], 100 * FOUND_GROUPS, "%")
    at_least(HEADER[6], [100 * of["points found"] / of["points"]], 100 * FOUND_POINTS, "%")


if __name__ == "__main__":
    main(sys.argv[1:])
