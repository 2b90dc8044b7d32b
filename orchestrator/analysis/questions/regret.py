"""The tables of question=regret: the regret of `auto`, worst points first, with the commands that reproduce them."""

from __future__ import annotations

from orchestrator.analysis.dataset import Dataset, again
from orchestrator.analysis.names import all_shown, shown
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import describe_point, formatted, percent
from orchestrator.analysis.rough import legend, mark
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

NEEDS = "the backend auto beside others: sweep.backend=[auto,fa2_tc]"
MAX_REGRETS = 10  # points in the list


def grids(data: Dataset) -> list[Grid]:
    """The time of `auto` over that of the best backend, by routine and dtypes, and the worst points."""
    by_kind = data.records(query("regret_by_kind", same=SAME))
    if not by_kind:
        return []
    told = [{**r, "ran": all_shown(r["ran"]), "worst": f"{mark(r['worst_rough'])}{r['worst']:.2f}"} for r in by_kind]
    of_auto = ("points", "auto resolved to", f"within {SAME:.0%} of the best|.0%", "median|.2f", "worst")
    worst = data.records(query("worst_regrets", least=1 + SAME, most=MAX_REGRETS))
    listed = []
    for r in worst:
        best = named(r["best"], r["best_kernel"]), f"{r['best_us']:,.1f}", error(r["best_rel_err"])
        regret, ran = f"{mark(r['rough'])}{r['regret']:.2f}", shown(r["auto_ran"])
        listed.append((regret, ran, f"{r['auto_us']:,.1f}", *best, again(data, r)))
    title = f"regret of auto: its time over the best backend's{legend(*(r['worst_rough'] for r in by_kind))}"
    of_list = ("regret", "auto ran", "own_us", "best", "own_us of it", "its err", "again")
    return [
        formatted(title, ("routine", "q", "kv", "device", "L2", *of_auto), ([*r.values()][:-1] for r in told)),
        Grid(f"where auto costs most{legend(*(r['rough'] for r in worst))}", of_list, tuple(listed)),
    ]


def summary(data: Dataset) -> str | None:
    """How often `auto` is close to the best, and its worst point."""
    count, right = data.single_row(f"SELECT count(*), avg((regret <= 1 + {SAME})::INT) FROM regret")
    if not count:
        return None
    (worst,) = data.records("FROM regret ORDER BY regret DESC, row LIMIT 1")
    sentence = f"auto is within {SAME:.0%} of the best at {percent(right)} of {count:,} problems"
    if worst["regret"] <= 1 + SAME:
        return sentence
    kernels = f"{shown(worst['auto_ran'])} for {shown(worst['best'])}"
    regret = f"{mark(worst['rough'])}{worst['regret']:.2f}"
    return f"{sentence}; at worst it takes {regret} times as long: {kernels} at {describe_point(worst)}"
