"""The tables of question=best: the fastest backend of each problem, and whether it leads by more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.keys import ORIGINS
from orchestrator.analysis.questions.exactness import error, named
from orchestrator.analysis.questions.tables import across_contexts, fetch, formatted, lead, percent, split_by_title
from orchestrator.analysis.rough import legend, mark
from orchestrator.analysis.sources import few
from orchestrator.analysis.sql import query
from orchestrator.tables import Grid

NEEDS = "a point that is ok"
EACH = "workloads"
PAGED = ("paged_decode", "paged_prefill")  # ranked together: each takes a draft


def grids(data: Dataset) -> list[Grid]:
    """The winner of each workload; then wrong answers, and the references that were right beside others: no engine has them."""
    wrong = ("GPU", "model", "tp", "wrong", "q", "kv", "s_kv", "points")
    beside = ("GPU", "a reference", "workloads", "µs", "faster than every ranked backend at")
    others = (
        formatted("wrong answers, not ranked; question=odd says why", wrong, data.execute(query("wrong_answers"))),
        formatted("references, not ranked", beside, data.execute(query("references_beside_others"))),
    )
    return [*fastest_grids(data), *(grid for grid in others if grid.cells)]


def fastest_grids(data: Dataset) -> list[Grid]:
    """The winner of each workload; one table for each combination of the other axes. The signs are explained once."""
    found, told = [], set()
    for name, part in by_title(data):
        what, signs = _title(data, part)
        found.append(across_contexts(" ".join(filter(None, (what, "" if signs in told else signs, f"· {name}"))), part, _cell))
        told.add(signs)
    return found


def by_title(data: Dataset) -> Iterator[tuple[str, list[Record]]]:
    """The winners of each table of this question, by its title, which does not name what comes with a winner."""
    with_winner = {"out_dtype": None} | ({"q_dtype": None} if data.scalar("SELECT getvariable('by_flag')") else {})
    every = [r | with_winner | {"routine": "paged" if r["routine"] in PAGED else r["routine"]} for r in fetch(data, "best")]
    yield from split_by_title(every, ("s_qo", "batch_size", "s_kv"))


def _title(data: Dataset, part: Sequence[Record]) -> tuple[str, str]:
    """What a table shows, and what its signs mean. All records of it are of one device and one state of the L2."""
    time = "µs in a step" if part[0]["context"] == "step" else "median µs"
    over = _other_states(data, part[0]["device_name"], part[0]["l2"])
    noise = f"noise, measured over {over}" if over else "noise"
    rough = legend(*(r[which] for r in part for which in ("rough", "runner_up_rough")))
    signs = f"(ahead of the next by; ≈ no more than {noise}{rough}), err: relative error of its worst row"
    return f"fastest backend, {time}", signs


def _cell(record: Record) -> str:
    time = f"{mark(record['rough'])}{record['median_us']:,.1f}"
    lead = f" ({ahead(record)})" if ahead(record) else ""
    return f"{named(record['backend'], record['kernel'])} {time}{lead} {error(record['rel_err'], record['err_ratio'])}"


def ahead(record: Record) -> str | None:
    """How far the winner is ahead of the next: `+3.1%`, or `≈3.1%` if that is no more than noise; None if it is alone."""
    sign, of_both = "+" if record["above_noise"] else "≈", (record["rough"], record["runner_up_rough"])
    return None if record["margin"] is None else lead(record["margin"], sign, *of_both)


def summary(data: Dataset) -> str | None:
    contested, clear, floor = data.single_row("SELECT count(margin), count_if(above_noise), max(noise_floor) FROM best")
    told = [_imported(data)]
    if contested:
        measured = data.scalar("SELECT count(*) FROM noise")
        default = "a default of 2%, more for short calls: no noise dataset lies beside"
        source = f"measured{_over_other_states(data)}" if measured else default
        told = [f"{clear:,} of {contested:,} winners are ahead by more than noise (up to {percent(floor)}, {source})", *told]
    return "; ".join(filter(None, told)) or None


def _imported(data: Dataset) -> str:
    """Why imported times are not ranked beside measured ones, and what compares them; empty if there are none."""
    files = data.execute(f"SELECT DISTINCT cluster FROM current WHERE orchestrator_version IN {ORIGINS} ORDER BY ALL")
    return (
        f"times of others ({few([name for (name,) in files])}) have tables of their own, since how they were timed is not known: "
        "mode=compare baseline=DIR candidate=DIR puts them beside yours"
    ) * bool(files)


def _over_other_states(data: Dataset) -> str:
    """Over which states of the L2 the noise of a device was measured, if its times are of others; else empty."""
    times = data.execute("SELECT DISTINCT device_name, l2 FROM current WHERE status = 'ok' AND l2 IS NOT NULL ORDER BY ALL")
    devices = {device: over for device, l2 in times if (over := _other_states(data, device, l2))}
    several = len({device for device, _ in times}) > 1
    words = [f"over {over}{f' on {device}' if several else ''}" for device, over in devices.items()]
    return f" {', '.join(words)}" if words else ""


def _other_states(data: Dataset, device: str | None, l2: str | None) -> str:
    """`a dirty L2`, if the noise of a device was measured over that, or over that too, and a time over another; else empty."""
    states = [state for (state,) in data.execute("SELECT l2 FROM noise_states WHERE device_name = ? ORDER BY l2", [device])]
    return f"{' and '.join(f'a {state}' for state in states)} L2" if l2 is not None and states and states != [l2] else ""
