"""Question 2 on a terminal: where an FP8 cache, and FP8 queries, pay, and where they are slower."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.dataset import Dataset, Record
from orchestrator.grid import Grid
from orchestrator.questions import SAME
from orchestrator.questions.tables import across_contexts, at, fetch, named

KINDS = {"fp8_kv": "FP8 keys and values", "fp8_q": "FP8 queries, keys and values"}


def grids(data: Dataset) -> list[Grid]:
    """How many times faster than over a 16-bit cache, each at its best backend; under 1 it is slower."""
    found = []
    for kind, words in KINDS.items():
        records = fetch(data, "fp8", ("device_name", "model", "dtype"), where=f"{kind}_gain IS NOT NULL")
        for name, part in named(records, ("s_qo", "batch_size", "s_kv", "dtype"), ("device_name", "model")):
            title = f"{words}: time of a 16-bit cache over theirs, each at its best (its backend) · {name}"
            found.append(across_contexts(title, part, _cell(kind)))
    return found


def _cell(kind: str) -> Callable[[Record], str]:
    return lambda record: f"{record[f'{kind}_gain']:.2f} {record[f'{kind}_backend']}"


def short(data: Dataset) -> str | None:
    """Where each kind pays, where it is slower, and the worst of it."""
    said = []
    for kind, words in KINDS.items():
        gain = f"{kind}_gain"
        count, pays, slower, middle = data.one(f"""
            SELECT count({gain}), count_if({gain} > 1 + {SAME}), count_if({gain} < 1 / (1 + {SAME})), median({gain}) FROM fp8""")
        if not count:
            continue
        said.append(
            f"{words} pay at {pays:,} of {count:,} shapes ({middle:.2f} times as fast at the median), are slower at {slower:,}"
        )
        if slower:
            worst = data.records(
                f"SELECT *, 'bf16' AS q_dtype, 'bf16' AS kv_dtype FROM fp8 ORDER BY {gain}, s_kv, batch_size LIMIT 1"
            )[0]
            said[-1] += f", at worst {worst[gain]:.2f} ({at(worst).rpartition(',')[0]})"
    return "; ".join(said) or None
