"""Makes a site: a page for each dataset, comparisons, histories, and the index last, so that its links always lead somewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.analysis.questions import open_views
from orchestrator.analysis.sql import Where
from orchestrator.code_version import own_version
from orchestrator.errors import NoRows, UserError
from orchestrator.reporting.dashboard import data as page_data
from orchestrator.reporting.dashboard import linked, packing
from orchestrator.reporting.site import datasets, history, markup, pairs
from orchestrator.reporting.site.datasets import Listed
from orchestrator.reporting.site.target import Target

MAX_PARQUET = 10**8  # bytes of one file: what hosts of Git repositories take
ASSETS = "assets"


class SiteContent(NamedTuple):
    """What a site holds."""

    datasets: int
    without_rows: int  # datasets of which `where` chose nothing
    comparisons: int
    histories: int
    bytes: int


class Site(NamedTuple):
    """The folder, and the addresses that all pages name."""

    target: Target
    shared: linked.Assets
    css: str
    about: str

    def write(self, address: str, title: str, body: Sequence[str]) -> None:
        """Writes a page without a dashboard. `address` is relative to the site."""
        up = "../" * address.count("/")
        home = f"{up}index.html" if up else None
        self.target.write(address, markup.document(title, body, css=f"{up}{self.css}", home=home, about=self.about))


def build(path: str, where: Where, folder: str) -> SiteContent:
    """Writes the site of the datasets under `path`, a folder or a pattern, to `folder`.

    Raises UserError if there are no rows, if the folder is not a site's or cannot be written, and as `open_dataset` does.
    """
    places = [place for place in datasets.find(path) if Path(folder).resolve() not in Path(place).resolve().parents]
    if not any(map(datasets.exists, places)):
        raise NoRows(f"results.path={path!r}: no dataset there; type results.path=DIR, or a pattern such as 'results/*'")
    _require_outside(folder, places)
    target = Target(folder)
    target.claim(folder)
    site = _with_assets(target)
    listed = list(_datasets(site, places, where))
    if not listed:
        raise NoRows(f"results.path={path!r}: no dataset there has {'rows with these values of where' if where else 'rows'}")
    measured = history.gather(listed)
    histories = list(_histories(site, listed, history.pages(measured, listed)))
    found = pairs.find(measured)
    compared = list(_comparisons(site, pairs.pages(found, listed, where)))
    left_out = len(found) - len(compared)
    site.write("index.html", "Attention benchmarks", _index(listed, compared, left_out, histories))
    size = target.finish()
    return SiteContent(len(listed), len(places) - len(listed), sum(bool(one.address) for one in compared), len(histories), size)


def _require_outside(folder: str, places: Sequence[str]) -> None:
    """Raises UserError for a folder in a dataset, whose own files are there, or with the name of one that is a file."""
    above = (Path(folder).resolve(), *Path(folder).resolve().parents)
    inside = [place for place in places if Path(place.removesuffix(".parquet")).resolve() in above]
    if inside:
        raise UserError(f"export={folder!r}: it is in the dataset {inside[0]}; type export=DIR with a folder elsewhere")


def _with_assets(target: Target) -> Site:
    """Writes the shared files."""
    shared, style = linked.assets(), linked.named("site", "css", markup.style())
    for asset in (*shared, style):
        target.write(f"{ASSETS}/{asset.name}", asset.content)
    return Site(target, shared, f"{ASSETS}/{style.name}", f"made by attention-orchestrator {own_version()}")


def _datasets(site: Site, places: Sequence[str], where: Where) -> Iterator[Listed]:
    """Writes the dashboard and the Parquet file of each dataset that has rows."""
    for place, slug in zip(places, datasets.slugs(places), strict=True):
        try:
            data = open_views(place, where=where)
        except NoRows:
            continue
        with data.con:
            whole = page_data.parquet_of(data)
            has_file = len(whole) <= MAX_PARQUET
            listed = datasets.describe(data, place, slug, has_file=has_file)
            table, header = page_data.rows_and_header(data, place)
        if has_file:
            site.target.write(f"data/{slug}.parquet", whole)
        about = {"title": listed.name, "path": listed.name, **header, "parquet": f"../data/{slug}.parquet" if has_file else None}
        packed = packing.pack(table, {**about, "embedded": False})
        site.target.write(f"datasets/{slug}.html", linked.make(packed, listed.name, site.shared, f"../{ASSETS}", "../index.html"))
        yield listed


def _histories(site: Site, listed: Sequence[Listed], found: Iterator[history.HistoryPage]) -> Iterator[history.HistoryPage]:
    for page in found:
        site.write(page.address, f"History of {page.backend} on {page.gpu}", page.body)
        yield page


def _comparisons(site: Site, found: Iterator[pairs.ComparisonPage]) -> Iterator[pairs.ComparisonPage]:
    for page in found:
        if page.address:
            site.write(page.address, f"Comparison: {page.what}", page.body)
        yield page


def _index(
    listed: Sequence[Listed], compared: Sequence[pairs.ComparisonPage], left_out: int, histories: Sequence[history.HistoryPage]
) -> list[str]:
    """The body of the index."""
    newest = max((one.last for one in listed), default="")
    rows = sum(one.rows for one in listed)
    gpus = sorted({gpu for one in listed for gpu in one.gpus})
    words = f"{len(listed)} datasets, {rows:,} rows, on {', '.join(gpus) or 'no device'}" + (
        f"; the newest row is of {newest}" if newest else ""
    )
    return [
        markup.paragraph(words),
        "<h2>Datasets</h2>",
        _of_datasets(listed),
        *_of_comparisons(compared, left_out),
        *_of_histories(histories),
    ]


def _of_datasets(listed: Sequence[Listed]) -> str:
    """A line for each dataset, the newest first."""
    header = (
        "dataset",
        "one backend for all shapes: its time over the best (at worst), largest error",
        "GPU",
        "model",
        "versions",
        "measured",
        "rows",
        "ok",
        "file",
    )
    return markup.table("the dashboard of each is behind its name", header, [_of_dataset(one) for one in _newest_first(listed)])


def _newest_first(listed: Sequence[Listed]) -> list[Listed]:
    by_name = sorted(listed, key=lambda one: one.name)
    return sorted(by_name, key=lambda one: one.last, reverse=True)


def _of_dataset(one: Listed) -> list[str]:
    days = [markup.whole(day) for day in dict.fromkeys((one.first, one.last)) if day]
    words = (one.answer, ", ".join(one.gpus), ", ".join(one.models), ", ".join(one.versions))
    file = markup.link(f"data/{one.slug}.parquet", "Parquet") if one.has_file else "too large"
    name = markup.link(f"datasets/{one.slug}.html", one.name)
    return [name, *map(markup.text, words), " to ".join(days) or "–", f"{one.rows:,}", f"{one.ok:,}", file]


def _of_comparisons(compared: Sequence[pairs.ComparisonPage], left_out: int) -> list[str]:
    if not compared:
        return []
    cells = [
        [markup.link(one.address, one.what) if one.address else markup.text(one.what), markup.text(one.answer)] for one in compared
    ]
    more = f"; {left_out} more pairs have fewer common points" if left_out else ""
    return ["<h2>Comparisons</h2>", markup.table(f"GPUs and versions with common points{more}", ("pair", "answer"), cells)]


def _of_histories(histories: Sequence[history.HistoryPage]) -> list[str]:
    if not histories:
        return []
    cells = [
        [markup.text(one.gpu), markup.link(one.address, one.backend), f"{one.points:,}", f"{one.most:+.1%}"] for one in histories
    ]
    header = ("GPU", "backend", "points", "the largest change, last over first")
    return ["<h2>History</h2>", markup.table("points that several runs measured, over dates and versions", header, cells)]
