"""Which batches and drafts `draft.rest` says nothing about, since it has no step with as many query tokens; what to run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from orchestrator import PROGRAM
from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.tables import group_by

STEPS = "results/steps"  # where the command writes
PLACE = ("model", "device_name", "tp")


class WithoutRest(NamedTuple):
    """What `draft.rest` leaves out for a model on a device, in words, and the command that measures it."""

    words: str
    command: str


def without_rest(data: Dataset, source: str) -> list[WithoutRest]:
    """What has no answer since draft.rest, `source`, has no step with as many query tokens; an entry for each model and device.

    The command measures all batches and drafts of the dataset, since the dataset that it writes takes the place of `source`.
    """
    records = _records(data)
    steps = dict(
        ((model, device, tp), of)
        for model, device, tp, *of in data.execute("""
        SELECT model, device_name, tp, min(tokens), max(tokens) FROM measured_steps GROUP BY ALL""")
    )
    return [
        WithoutRest(f"{place[0]} on {place[1]}: {_left_out(part, steps.get(place), source)}", _command(part))
        for place, part in group_by(records, PLACE).items()
        if any(record["lacks"] for record in part)
    ]


def drafts_without_rest(data: Dataset) -> dict[tuple[object, ...], list[int]]:
    """The drafted tokens that were measured but have no answer for lack of a step, by `PLACE` and batch size."""
    left: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for record in _records(data):
        if record["lacks"]:
            left[*(record[key] for key in PLACE), record["batch_size"]].append(record["s_qo"] - 1)
    return dict(left)


def _records(data: Dataset) -> list[Record]:
    """Each batch and draft of each place, and whether the rest of its step is missing."""
    return data.records(f"""
        SELECT {", ".join(PLACE)}, batch_size, s_qo, routine = 'mla' AS is_mla, min(s_kv) AS s_kv,
               any_value(rest_layer_us) IS NULL AS lacks
        FROM fastest LEFT JOIN measured_rest USING ({", ".join(PLACE)}, batch_size, s_qo)
        WHERE mask = 'causal' AND min_s_qo IS NULL AND batch_spec IS NULL AND routine <> 'ragged_prefill'
        GROUP BY ALL
        ORDER BY ALL""")


def _left_out(part: list[Record], tokens: list[int] | None, source: str) -> str:
    """`batch 32: 3, 7 drafted; batch 64: no line` behind what was measured."""
    if tokens is None:
        return f"no step of it was measured (draft.rest={source}), so it is left out"
    left: dict[int, set[int]] = defaultdict(set)
    kept: dict[int, set[int]] = defaultdict(set)
    for record in part:
        (left if record["lacks"] else kept)[record["batch_size"]].add(record["s_qo"])
    told = (
        f"batch {batch}: {_listed(q - 1 for q in lengths)} drafted" + ("" if len(kept[batch]) > 1 else ", so it has no line")
        for batch, lengths in sorted(left.items())
    )
    return f"steps of {tokens[0]} to {tokens[1]} query tokens were measured (draft.rest={source}); left out: {'; '.join(told)}"


def _command(part: list[Record]) -> str:
    axes = {
        "batch_size": {r["batch_size"] for r in part},
        "s_qo": {r["s_qo"] for r in part},
        "s_kv": {min(r["s_kv"] for r in part)},
        "tp": {part[0]["tp"] or 1},
    }
    call = "sweep.routine=mla sweep.backend=[flash_attn_3]" if part[0]["is_mla"] else "sweep.backend=[fa2_tc]"
    given = " ".join(f"'sweep.{name}=[{_listed(values, ',')}]'" for name, values in axes.items())
    return (
        f"python -m {PROGRAM} +sweep=in_step timing.context=step model={part[0]['model']} 'sweep.include=[]' {call} {given} "
        f"results.path={STEPS}"
    )


def _listed(numbers: Iterable[int], between: str = ", ") -> str:
    return between.join(map(str, sorted(numbers)))
