"""Makes a site: a page for each dataset and document, comparisons, histories, and the index last, so that its links lead on."""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from orchestrator import ROOT
from orchestrator.analysis.dataset import open_dataset
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.sources import name_of
from orchestrator.analysis.sql import Where
from orchestrator.code_version import own_version
from orchestrator.errors import NoRows, UserError
from orchestrator.reporting.dashboard import data as page_data
from orchestrator.reporting.dashboard import packing
from orchestrator.reporting.dashboard.page import Asset, assets, hashed, linked
from orchestrator.reporting.document import html_body
from orchestrator.reporting.site import datasets, history, pairs
from orchestrator.reporting.site.datasets import Facts, Listed, Make, Names, Page, link, table
from orchestrator.reporting.site.target import Target
from orchestrator.untrusted.files import read_text
from orchestrator.untrusted.text import for_line, for_markdown, for_markdown_cell

MAX_PARQUET = 10**8  # bytes of one file: what hosts of Git repositories take
ASSETS, INDEX, TITLE = "assets", "index.html", "Attention benchmarks"
LINK = re.compile(r"!?\[((?:`[^`]*`|[^`\]])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
POLICY = "default-src 'none'; style-src 'self' file:; img-src data:; base-uri 'none'; form-action 'none'"


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
    shared: Mapping[str, Asset]
    css: str
    about: str

    def page(self, address: str, title: str, key: str, make: Make) -> Facts:
        """The facts of a page that an earlier run has made of the same key, else of one that is made and written now."""
        if (facts := self.target.kept(address, key)) is None:
            text, facts = make()
            if text:
                self.write(address, title, text, key, facts)
        return facts

    def write(self, address: str, title: str, text: str, key: str, facts: Facts) -> None:
        """Writes a page without a dashboard, of Markdown. `address` is relative to the site; the rest is as for `Target.write`."""
        up, title = "../" * address.count("/"), html.escape(for_line(title))
        back = f'<nav aria-label="Site"><a href="{up}index.html">all datasets and comparisons</a></nav>\n' if up else ""
        body = "<body>\n" if up else '<body class="index">\n'
        page = (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
            f'<link rel="icon" href="data:,">\n<link rel="stylesheet" href="{up}{self.css}">\n</head>\n{body}{back}<main>\n'
            f"<h1>{title}</h1>\n{html_body(text)}</main>\n<footer>{html.escape(self.about)}</footer>\n</body>\n</html>\n"
        )
        self.target.write(address, page, key, facts)


def build(
    path: str, where: Where, folder: str, say: Callable[[str], None] = lambda words: None, document: str | None = None
) -> SiteContent:
    """Writes the site of the datasets under `path`, a folder or a pattern, to `folder`; `say` gets what is being done.

    The Markdown files below the folder `document` are pages too. Raises UserError if there are no rows, or no such files, if the
    folder is not a site's or cannot be written, and as `open_dataset` does.
    """
    texts = _texts(document)
    places = [place for place in datasets.find(path) if Path(folder).resolve() not in Path(place).resolve().parents]
    if not any(map(datasets.exists, places)):
        raise NoRows(f"results.path={path!r}: no dataset there; type results.path=DIR, or a pattern such as 'results/*'")
    _require_outside(folder, places)
    target = Target(folder)
    target.claim(folder)
    try:
        return _built(target, path, places, where, say, texts=texts)
    except UserError:
        target.abandon()
        raise


def _built(
    target: Target, path: str, places: Sequence[str], where: Where, say: Callable[[str], None], *, texts: Mapping[str, str]
) -> SiteContent:
    code, names = _code(), Names("dataset")
    slugs = {place: names.new(name_of(Path(place))) for place in places}
    keys = {place: datasets.digest(place, where, code) if datasets.exists(place) else "" for place in places}
    whole = datasets.joined([*keys.values(), *(f"{name} {text}" for name, text in texts.items())])
    if (known := target.all_kept(INDEX, whole)) is not None:
        return SiteContent(**known, bytes=target.size)
    shared = assets()
    style = hashed("site", "css", files(__package__).joinpath("static", "site.css").read_text("utf-8"))
    for asset in (*shared.values(), style):
        target.write(f"{ASSETS}/{asset.name}", asset.content)
    site = Site(target, shared, f"{ASSETS}/{style.name}", f"made by attention-orchestrator {own_version()}")
    listed = []
    for number, one in enumerate(_datasets(site, slugs, keys, where), 1):
        listed.append(one)
        say(f"{number} of {len(places)} datasets: {one.name}")
        if target.is_new:  # there is something to open from the first dataset on
            site.write(INDEX, TITLE, _index(listed, [], 0, [], []), "", {})
    if not listed:
        raise NoRows(f"results.path={path!r}: no dataset there has {'rows with these values of where' if where else 'rows'}")
    say("histories and comparisons")
    measured = history.gather(listed)
    histories = list(history.pages(measured, listed, site.page))
    found = pairs.find(measured)
    compared = list(pairs.pages(found, listed, where, site.page))
    index = _index(listed, compared, len(found) - len(compared), histories, _documents(texts, code, site.page))
    count = {"datasets": len(listed), "without_rows": len(places) - len(listed), "histories": len(histories)}
    count["comparisons"] = sum(bool(one.address) for one in compared)
    site.write(INDEX, TITLE, index, whole, count)
    return SiteContent(**count, bytes=target.finish())


def _texts(folder: str | None) -> dict[str, str]:
    """The Markdown files below a folder, by their paths in it. Raises UserError if there are none."""
    if folder is None:
        return {}
    found = {path.relative_to(folder).as_posix(): read_text(path, "document") for path in sorted(Path(folder).rglob("*.md"))}
    if not found:
        raise UserError(f"document={folder!r}: mode=site takes a folder with Markdown files, such as document=docs")
    return found


def _documents(found: Mapping[str, str], code: str, page: Page) -> list[list[str]]:
    """Writes a page for each text. Returns the cells of the index's lines: a link to each, and how its text begins."""
    cells = []
    for path, text in found.items():
        title, _, rest = text.partition("\n")
        title, key = title.lstrip("# "), datasets.joined([code, *found, text])
        body = LINK.sub(partial(_relinked, path=path, found=found), rest)
        page(_address(path), title, key, lambda body=body: (body, {}))  # type: ignore[misc]
        begins = LINK.sub(r"\1", rest.strip().partition("\n")[0])
        cells.append([link(_address(path), title), for_markdown_cell(begins)])
    return cells


def _address(path: str) -> str:
    return f"documents/{path.removesuffix('.md').replace('/', '-')}.html"


def _relinked(link: re.Match[str], path: str, found: Mapping[str, str]) -> str:
    """A link to another page of the site, or elsewhere on the web; of any other file, or of a picture, its text alone."""
    words, to, section = link[1], link[2], link[3] or ""
    if link[0].startswith("!"):
        return words
    if "://" in to or not to:
        return link[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(path), to))
    return f"[{words}]({Path(_address(there)).name}{section})" if there in found else words


def _code() -> str:
    """A digest of what pages are made with: every file of the packages."""
    found = hashlib.sha256(own_version().encode())
    for package in ("orchestrator", "kernels", "conf"):
        for file in sorted(path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            found.update(file.read_bytes())
    return found.hexdigest()


def _require_outside(folder: str, places: Sequence[str]) -> None:
    """Raises UserError for a folder in a dataset, whose own files are there, or with the name of one that is a file."""
    above = (Path(folder).resolve(), *Path(folder).resolve().parents)
    inside = [place for place in places if Path(place.removesuffix(".parquet")).resolve() in above]
    if inside:
        raise UserError(f"export={folder!r}: it is in the dataset {inside[0]}; type export=DIR with a folder elsewhere")


def _datasets(site: Site, slugs: Mapping[str, str], keys: Mapping[str, str], where: Where) -> Iterator[Listed]:
    """Writes the dashboard and the Parquet file of each dataset that has rows, unless an earlier run has, of the same key."""
    for place, slug in slugs.items():
        page, file, key = f"datasets/{slug}.html", f"data/{slug}.parquet", keys[place]
        known = site.target.kept(page, key)
        if known is not None and (not known["has_file"] or site.target.kept(file, key) is not None):
            with (data := open_dataset(place, where=where)).con:
                yield Listed(path=place, slug=slug, key=key, measured=datasets.measured(data), **known)
            continue
        try:
            data = open_views(place, where=where)
        except NoRows:
            continue
        with data.con:
            whole = page_data.parquet_of(data)
            has_file = len(whole) <= MAX_PARQUET
            listed = datasets.describe(data, place, slug, key, has_file=has_file)
            drawn, header = page_data.rows_and_header(data, place)
            listed = replace(listed, servers=datasets.servers(header["deployments"], page))
        if has_file:
            site.target.write(file, whole, key)
        about = {"title": listed.name, "path": listed.name, **header, "parquet": f"../{file}" if has_file else None}
        packed = packing.pack(drawn, {**about, "embedded": False})
        facts = {name: getattr(listed, name) for name in ("name", "facts", "rows", "ok", "answer", "has_file", "servers")}
        html_page = linked(packed, listed.name, site.shared, f"../{ASSETS}", "../index.html")
        site.target.write(page, html_page, key, facts)
        yield listed


def _index(
    listed: Sequence[Listed],
    compared: Sequence[pairs.ComparisonPage],
    left_out: int,
    histories: Sequence[history.HistoryPage],
    written: Sequence[Sequence[str]],
) -> str:
    gpus = sorted({gpu for one in listed for gpu in one.facts["GPU"]})
    rows, newest = sum(one.rows for one in listed), max(map(_last, listed), default="")
    words = f"{len(listed)} datasets, {rows:,} rows, on {', '.join(gpus) or 'no GPU'}"
    words += newest and f"; the newest row is of {newest}"
    by_name = sorted(listed, key=lambda one: one.name)
    pairs_said = "GPUs and versions with common points" + (f"; {left_out} more pairs have fewer common points" if left_out else "")
    named = (link(one.address, one.what) if one.address else for_markdown_cell(one.what) for one in compared)
    ones = [[name, for_markdown_cell(one.answer)] for name, one in zip(named, compared, strict=True)]
    over_time = [[for_markdown_cell(of.gpu), link(of.address, of.backend), f"{of.points:,}", f"{of.most:+.1%}"] for of in histories]
    sections: list[tuple[str, str, Sequence[str], Sequence[Sequence[str]]]] = [
        ("Servers", SERVERS, OF_SERVER, datasets.distinct(one for of in listed for one in of.servers)),
        ("Datasets", OPENS, OF_DATASET, [_of_dataset(one) for one in sorted(by_name, key=_last, reverse=True)]),
        ("Comparisons", pairs_said, ("pair", "answer"), ones),
        ("History", "Points that several runs measured.", OF_HISTORY, over_time),
        ("Documents", "What was found, and how to use it.", ("document", "how it begins"), written),
    ]
    parts = (f"## {title}\n\n{said}\n\n{table(header, lines)}" for title, said, header, lines in sections if lines)
    return "\n\n".join([for_markdown(words), *parts])


OPENS = "The dashboard of each is behind its name."
SERVERS = (
    "For each engine its best flag, with its time over the fastest backend's in the geometric mean. "
    "The link opens the dataset that measured most of it; `custom` are heads that were typed."
)
OF_SERVER = ("model", "GPU", "KV cache", "decode", "drafts")
OF_DATASET = ("dataset", "fastest", "GPU", "model", "versions", "measured", "rows", "file")
OF_HISTORY = ("GPU", "backend", "points", "the largest change, last over first")


def _last(one: Listed) -> str:
    """The day of its last row; empty if none has ended."""
    return "".join(one.facts["measured"])[-10:]


def _of_dataset(one: Listed) -> list[str]:
    words = (one.answer, *(", ".join(one.facts[key]) or "–" for key in ("GPU", "model", "with", "measured")))
    file = link(f"data/{one.slug}.parquet", "Parquet") if one.has_file else "too large"
    name = link(f"datasets/{one.slug}.html", one.name)
    return [name, *map(for_markdown_cell, words), f"{one.rows:,} rows, {one.ok:,} ok", file]
