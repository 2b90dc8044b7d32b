"""The history of a point: its times over dates and versions, where several runs measured it. One page for each GPU and backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.names import shown
from orchestrator.analysis.rough import mark
from orchestrator.reporting.site import markup
from orchestrator.reporting.site.chart import Mark, chart
from orchestrator.reporting.site.datasets import POINT_KEYS, VERSIONS, Listed, slug

if TYPE_CHECKING:
    import pandas as pd

MAX_POINTS = 300  # on a page
MAX_MEASUREMENTS = 100  # of a point
# By which a point is named, and the other keys if they vary among the points of a page.
ALWAYS = ("routine", "model", "q_dtype", "kv_dtype", "batch_size", "s_kv", "s_qo")
MARKED = ("device_uuid", *(name for name in VERSIONS if name != "orchestrator_version"))  # which differs from run to run
LISTED_COLUMNS = ("kernel", "measured_as", "device_uuid", *VERSIONS)  # of each measurement; below its chart if they vary
SAME_RUN = ("dataset", "run_id")
LEGEND = (
    "The bar is from the 5th to the 95th percentile of the samples (in a step: the 95% interval; "
    "~ of a time that was only measured until its backend was certainly not the best: the whole interval); "
    "a dashed line: other versions, or another GPU of the kind."
)


@dataclass(frozen=True)
class HistoryPage:
    """A page of history: a GPU and a backend. `points` of them changed by `most`, as a share of the first time, at most."""

    address: str
    gpu: str
    backend: str
    points: int
    most: float
    body: tuple[str, ...]


def gather(datasets: Sequence[Listed]) -> pd.DataFrame:
    """The measurements of all datasets, the oldest first; a row that several datasets hold counts once. `dataset` is a number."""
    import pandas as pd

    frames = [one.measured.assign(dataset=number) for number, one in enumerate(datasets) if len(one.measured)]
    if not frames:
        return pd.DataFrame(columns=[*POINT_KEYS, "device_name", "dataset", "us"])
    whole = pd.concat(frames, ignore_index=True).sort_values(["finished_at", "dataset"], kind="stable")
    same_row = [*POINT_KEYS, "device_name", "run_id", "finished_at"]
    return whole.drop_duplicates(same_row, keep="first", ignore_index=True)


def pages(measured: pd.DataFrame, datasets: Sequence[Listed]) -> Iterator[HistoryPage]:
    """A page for each GPU and backend that has points which several runs measured."""
    if measured.empty:
        return
    point = measured.groupby([*POINT_KEYS, "device_name"], dropna=False, sort=False).ngroup()
    runs = measured.assign(point=point).drop_duplicates(["point", *SAME_RUN]).groupby("point").size()
    several = measured.assign(point=point)[point.isin(runs[runs > 1].index)]
    taken: dict[str, int] = {}
    for (gpu, backend), part in several.groupby(["device_name", "backend"], sort=True):
        plain = slug(f"{gpu} {backend}") or "history"
        number = taken[plain] = taken.get(plain, 0) + 1
        yield _page(f"{plain}.html" if number == 1 else f"{plain}.{number}.html", str(gpu), str(backend), part, datasets)


def _page(address: str, gpu: str, backend: str, part: pd.DataFrame, datasets: Sequence[Listed]) -> HistoryPage:
    """The points of a page, those first whose last time differs most from the first one."""
    import numpy as np

    varying = [key for key in POINT_KEYS if key not in (*ALWAYS, "backend") and part[key].nunique(dropna=False) > 1]
    named = [*(key for key in ALWAYS if key in ("batch_size", "s_kv", "s_qo") or part[key].nunique() > 1), *varying]
    first, last = (getattr(part.groupby("point", sort=False)["us"], which)() for which in ("first", "last"))
    change = np.log(last / first).sort_values(key=abs, ascending=False, kind="stable")
    by_point = dict(list(part.groupby("point", sort=False)))
    shown_points = [_point(by_point[point], named, datasets) for point in change.index[:MAX_POINTS]]
    more = f"{MAX_POINTS} of {len(change):,} points, those that changed most. " if len(change) > MAX_POINTS else ""
    fixed = ", ".join(f"{key} {_word(part[key].iloc[0])}" for key in ALWAYS if key not in named)
    most = float(np.exp(change.iloc[0]) - 1)
    words = f"{more}{fixed + '. ' if fixed else ''}The point that changed most comes first. {LEGEND}"
    body = (markup.paragraph(words), f'<div class="points">{"".join(shown_points)}</div>')
    return HistoryPage(f"history/{address}", gpu, shown(backend), len(change), most, body)


def _point(rows: pd.DataFrame, named: Sequence[str], datasets: Sequence[Listed]) -> str:
    """A chart of a point, and its numbers below it."""
    newest = rows.tail(MAX_MEASUREMENTS)
    title = ", ".join(f"{key} {_word(rows[key].iloc[0])}" for key in named)
    first, last = (float(rows["us"].iloc[end]) for end in (0, -1))
    left_out = f"; the newest {MAX_MEASUREMENTS} of {len(rows):,} measurements" if len(rows) > MAX_MEASUREMENTS else ""
    rough = [bool(rows["rough"].iloc[end]) for end in (0, -1)]
    change = f"{mark(*rough)}{last / first - 1:+.1%}"
    words = f"{mark(rough[0])}{first:,.1f} µs, then {mark(rough[1])}{last:,.1f} µs ({change}){left_out}"
    records = newest.to_dict("records")
    marks = [_mark(record, before, datasets) for record, before in zip(records, [None, *records], strict=False)]
    several = [column for column in LISTED_COLUMNS if newest[column].nunique(dropna=False) > 1]
    listed_once = [column for column in LISTED_COLUMNS if column not in (*several, *_not_credited(newest))]
    alike = (f"{column} {_word(newest[column].iloc[0])}" for column in listed_once)
    cells = [_cells(record, several, datasets) for record in records]
    table = markup.table(f"all with {', '.join(alike)}", ("date", "dataset", "µs", "from", "to", *several), cells)
    numbers = f"<details><summary>{len(cells)} measurements</summary>{table}</details>"
    return (
        f'<section class="point"><h2>{markup.text(title)}</h2><p>{markup.text(words)}</p>{chart(marks, title)}{numbers}</section>'
    )


def _not_credited(rows: pd.DataFrame) -> tuple[str, ...]:
    """The column that says whose time a row has, if each has its own."""
    return ("measured_as",) if rows["measured_as"].isna().all() else ()


def _mark(record: dict[Any, Any], before: dict[Any, Any] | None, datasets: Sequence[Listed]) -> Mark:
    changed = before is not None and any(_word(record[name]) != _word(before[name]) for name in MARKED)
    time = f"{mark(record['rough'])}{record['us']:,.2f} µs"
    tooltip = f"{_date(record)} · {datasets[record['dataset']].name} · {time} · {_word(record['libraries'])}"
    at = 0.0 if _missing(record["finished_at"]) else record["finished_at"].timestamp()
    low, high = (record["us"] if _missing(record[name]) else float(record[name]) for name in ("low_us", "high_us"))
    return Mark(at, float(record["us"]), low, high, tooltip, changed)


def _cells(record: dict[Any, Any], several: Sequence[str], datasets: Sequence[Listed]) -> list[str]:
    of = datasets[record["dataset"]]
    marks = {"us": mark(record["rough"])}
    times = ("–" if _missing(record[name]) else f"{marks.get(name, '')}{record[name]:,.2f}" for name in ("us", "low_us", "high_us"))
    named = (shown(_word(record[name])) if name == "kernel" else _word(record[name]) for name in several)
    return [
        markup.whole(_date(record)),
        markup.link(f"../datasets/{of.slug}.html", of.name),
        *map(markup.text, times),
        *map(markup.text, named),
    ]


def _date(record: dict[Any, Any]) -> str:
    return "–" if _missing(record["finished_at"]) else record["finished_at"].strftime("%Y-%m-%d %H:%M UTC")


def _missing(value: Any) -> bool:
    return value is None or value != value  # noqa: PLR0124  # NaN and NaT


def _word(value: Any) -> str:
    """A value of a column as a person reads it: pandas makes whole numbers of a column with gaps floating."""
    if _missing(value):
        return "–"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
