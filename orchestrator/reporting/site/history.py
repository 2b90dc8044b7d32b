"""The history of a point: its times over dates and versions, where several runs measured it. One page for each GPU and backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.connection import Record
from orchestrator.analysis.names import shown
from orchestrator.analysis.rough import mark
from orchestrator.grouped import grouped
from orchestrator.reporting.site.datasets import POINT_KEYS, VERSIONS, Facts, Listed, Names, Page, joined, link, table
from orchestrator.untrusted.text import for_markdown, for_markdown_cell

MAX_POINTS = 300  # on a page
MAX_MEASUREMENTS = 100  # of a point
# By which a point is named, and the other keys if they vary among the points of a page.
ALWAYS = ("routine", "model", "q_dtype", "kv_dtype", "batch_size", "s_kv", "s_qo")
OF_EACH = ("kernel", "measured_as", "device_uuid", *VERSIONS)  # of a measurement; in the table if they vary, else above it
OF_LINE = ("us", "low_us", "high_us", "rough", "finished_at", "dataset")  # of each measurement, too
SAME_RUN = ("dataset", "run_id")
OF_RELEASE = r"[:_]\d.*$"  # what an environment's name ends in: its points are one, with a time for each release
LEGEND = (
    "The largest change comes first, rough times last. `from` and `to` are the 5th and 95th percentile of the samples; in a step "
    "the 95% interval; of a rough time (~: its backend was stopped once it could not be the fastest) the whole interval."
)


@dataclass(frozen=True)
class HistoryPage:
    """A page of history: a GPU and a backend. `points` of them changed by `most`, as a share of the first time, at most."""

    address: str
    gpu: str
    backend: str
    points: int
    most: float


def gather(datasets: Sequence[Listed]) -> pd.DataFrame:
    """The measurements of all datasets, the oldest first; a row that several datasets hold counts once. `dataset` is a number."""
    frames = [one.measured.assign(dataset=number) for number, one in enumerate(datasets) if len(one.measured)]
    if not frames:
        return pd.DataFrame(columns=[*POINT_KEYS, "device_name", "dataset", "us"])
    whole = pd.concat(frames, ignore_index=True).sort_values(["finished_at", "dataset"], kind="stable")
    same_row = [*POINT_KEYS, "device_name", "run_id", "finished_at"]
    return whole.drop_duplicates(same_row, keep="first", ignore_index=True)


def pages(measured: pd.DataFrame, datasets: Sequence[Listed], page: Page) -> Iterator[HistoryPage]:
    """A page for each GPU and backend that has points which several runs measured."""
    if measured.empty:
        return
    measured = measured.assign(env=measured["env"].astype("string").str.replace(OF_RELEASE, "", regex=True))
    point = measured.groupby([*POINT_KEYS, "device_name"], dropna=False, sort=False).ngroup()
    runs = measured.assign(point=point).drop_duplicates(["point", *SAME_RUN]).groupby("point").size()
    several = measured.assign(point=point)[point.isin(runs[runs > 1].index)]
    names = Names("history")
    for (gpu, backend), part in several.groupby(["device_name", "backend"], sort=True):
        address, words = f"history/{names.new(f'{gpu} {backend}')}.html", shown(str(backend))
        of = [datasets[number] for number in sorted(part["dataset"].unique())]
        key = joined([f"{gpu} {backend}", *(f"{one.slug} {one.key}" if one.key else "" for one in of)])
        facts = page(address, f"History of {words} on {gpu}", key, partial(_page, part, datasets))
        yield HistoryPage(address, str(gpu), words, **facts)


def _page(part: pd.DataFrame, datasets: Sequence[Listed]) -> tuple[str, Facts]:
    """The points of a page, those first whose last time differs most from the first one; those of a rough time last."""
    varying = [key for key in POINT_KEYS if key not in (*ALWAYS, "backend") and part[key].nunique(dropna=False) > 1]
    named = [*(key for key in ALWAYS if key in ("batch_size", "s_kv", "s_qo") or part[key].nunique() > 1), *varying]
    several = [column for column in OF_EACH if part[column].nunique(dropna=False) > 1]
    points = part.groupby("point", sort=False)[["us", "rough"]]
    ends = points.first().join(points.last(), lsuffix="_first", rsuffix="_last")
    ends["change"] = np.log(ends["us_last"] / ends["us_first"])
    ends["is_rough"] = ends["rough_first"] | ends["rough_last"]
    change = ends.assign(size=-ends["change"].abs()).sort_values(["is_rough", "size"], kind="stable")["change"]
    by_point = grouped(zip(part["point"], part[[*named, *several, *OF_LINE]].to_dict("records"), strict=True))
    lines = [line for point in change.index[:MAX_POINTS] for line in _lines(by_point[point], named, several, datasets)]
    alike = (f"{key} {_word(part[key].iloc[0])}" for key in (*ALWAYS, *OF_EACH) if key not in (*named, *several))
    more = f"{MAX_POINTS} of {len(change):,} points, those that changed most. " if len(change) > MAX_POINTS else ""
    header = ("point", "change", "date", "dataset", "µs", "from", "to", *several)
    text = f"{more}All with {for_markdown(', '.join(alike))}. {LEGEND}\n\n{table(header, lines)}\n"
    return text, {"points": len(change), "most": float(np.exp(change.iloc[0]) - 1)}


def _lines(
    rows: Sequence[Record], named: Sequence[str], several: Sequence[str], datasets: Sequence[Listed]
) -> Iterator[Sequence[str]]:
    """A line for each of the newest measurements of a point. The first line names it and how far it changed in all."""
    ends = [rows[0], rows[-1]]
    point = for_markdown_cell(", ".join(f"{key} {_word(ends[0][key])}" for key in named))
    change = f"{mark(*(bool(end['rough']) for end in ends))}{ends[1]['us'] / ends[0]['us'] - 1:+.1%}"
    for number, record in enumerate(rows[-MAX_MEASUREMENTS:]):
        of = datasets[record["dataset"]]
        times = ("–" if pd.isna(record[name]) else f"{record[name]:,.2f}" for name in ("us", "low_us", "high_us"))
        date = "–" if pd.isna(record["finished_at"]) else f"{record['finished_at']:%Y-%m-%d %H:%M UTC}"
        told = (shown(_word(record[name])) if name == "kernel" else _word(record[name]) for name in several)
        us, *interval = times
        cells = (*map(for_markdown_cell, (f"{mark(record['rough'])}{us}", *interval, *told)),)
        yield [*((point, change) if number == 0 else ("", "")), date, link(f"../datasets/{of.slug}.html", of.name), *cells]


def _word(value: Any) -> str:
    """A value of a column as a person reads it: pandas makes whole numbers of a column with gaps floating."""
    if pd.isna(value):
        return "–"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
