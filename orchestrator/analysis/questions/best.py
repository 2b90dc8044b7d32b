"""The tables of question=best: the fastest backend of each shape, and whether it leads by more than noise."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import across_contexts, fetch, percent, split_by_title
from orchestrator.analysis.rough import legend, mark
from orchestrator.tables import Grid


def grids(data: Dataset) -> list[Grid]:
    """The winner of each shape; one table for each combination of the other axes."""
    title = f"(ahead of the next by; ≈ no more than noise{_other_state(data, 'of')}{{}}), err: relative error of its worst row"
    return [
        across_contexts(f"fastest backend, {_time(part[0])} {title.format(legend(*_rough_ones(part)))} · {name}", part, _cell)
        for name, part in split_by_title(fetch(data, "best"), ("s_qo", "batch_size", "s_kv"))
    ]


def _rough_ones(records: Sequence[Record]) -> list[bool]:
    """Whether winner and runner-up are rough, one after the other."""
    return [bool(r[which]) for r in records for which in ("rough", "runner_up_rough")]


def _time(record: Record) -> str:
    """What the backends of a table are ranked by."""
    return "µs in a step" if record["context"] == "step" else "median µs"


def _cell(record: Record) -> str:
    time = f"{mark(record['rough'])}{record['median_us']:,.1f}"
    winner, margin = f"{named(record['backend'], record['kernel'])} {time}", record["margin"]
    rough = mark(record["rough"], record["runner_up_rough"])
    ahead = "" if margin is None else f" ({'+' if record['above_noise'] else '≈'}{rough}{percent(margin)})"
    return f"{winner}{ahead} {error(record['rel_err'], record['err_ratio'])}"


def summary(data: Dataset, shown: int) -> str | None:
    """How many winners lead by more than noise. `shown` is the number of shapes in the tables above."""
    query = "SELECT count(*), count(margin), count_if(above_noise), max(noise_floor) FROM best"
    shapes, contested, clear, floor = data.single_row(query)
    if not contested:
        return None
    measured = data.scalar("SELECT count(*) FROM noise")
    source = f"measured{_other_state(data, 'over')}" if measured else "a default: no noise dataset lies beside this one"
    more = f"; {shown:,} of {shapes:,} shapes are above" if shapes > shown else ""
    return f"{clear:,} of {contested:,} winners are ahead by more than noise (up to {percent(floor)}, {source}){more}"


def _other_state(data: Dataset, word: str) -> str:
    """` of a dirty L2`, if the noise was measured over another state of the L2 than the times; else empty."""
    noise = {l2 for (l2,) in data.execute("FROM noise_states")}
    times = {l2 for (l2,) in data.execute("SELECT DISTINCT l2 FROM current WHERE status = 'ok' AND l2 IS NOT NULL")}
    return f" {word} a {' and '.join(sorted(noise))} L2" if noise and times and noise != times else ""
