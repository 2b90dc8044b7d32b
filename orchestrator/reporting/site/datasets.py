"""The datasets of a site: where they are, and what the index and the history say about each. Each is opened once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from kernels.problem import Problem
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.keys import RANKED_US, TIMING_KEYS
from orchestrator.analysis.names import shown
from orchestrator.analysis.sources import find_sources, local_datasets, name_of
from orchestrator.analysis.sql import Where, query, quoted
from orchestrator.config.model import CUSTOM
from orchestrator.errors import UserError
from orchestrator.reporting import quality
from orchestrator.reporting.dashboard.data import HIGH_US, IS_ROUGH, LOW_US, facts
from orchestrator.storage import access
from orchestrator.storage.parquet import DATA, JOURNAL
from orchestrator.untrusted.files import open_to_read
from orchestrator.untrusted.text import for_markdown_cell

Facts = dict[str, Any]  # of a page: what the index says of it, as JSON
Server = dict[str, Any]  # a line of the index, with what tells it apart and how much was measured of it, as JSON
Make = Callable[[], tuple[str, Facts]]  # makes a page of Markdown: empty if it cannot be made
Page = Callable[[str, str, str, Make], Facts]  # as `Site.page`
MAX_DATASETS = 500
MAX_NAME = 80  # characters of a file's name
# What identifies a point whatever the machine, the run and the versions; `tree` is text.
POINT_KEYS = (*(field for field in Problem.model_fields if field != "tree"), "tree", *TIMING_KEYS, "env", "backend")
VERSIONS = ("torch_version", "libraries", "cuda", "driver", "orchestrator_version")
KEYS = ", ".join(quoted(key) for key in POINT_KEYS if key != "tree")
MEASURED = query("of_a_site", keys=KEYS, versions=", ".join(VERSIONS), us=RANKED_US, is_rough=IS_ROUGH, low=LOW_US, high=HIGH_US)


@dataclass(frozen=True)
class Listed:
    """A dataset as the index lists it. `measured` has a line for each `ok` row, without samples; none if it is about quality."""

    name: str
    slug: str
    path: str
    facts: dict[str, list[str]]  # as on its dashboard
    rows: int
    ok: int
    answer: str
    has_file: bool  # whether the site has its Parquet file, which may be too large
    measured: pd.DataFrame
    servers: list[Server] = field(default_factory=list)
    key: str = ""  # a digest of its files, and of the code; empty if it lies elsewhere than in files here


def find(path: str) -> list[str]:
    """The datasets under a path or pattern, all those of a folder. Raises UserError for too many."""
    if access.in_objects(path):
        return [path]
    places = local_datasets(path)
    if places == [Path(path)] and Path(path).is_dir() and not access.exists(path):
        places = [
            place for place in local_datasets(f"{path.rstrip('/')}/*") if place.suffix == ".parquet" or (place / DATA).exists()
        ]
    if len(places) > MAX_DATASETS:
        raise UserError(f"results.path={path!r}: {len(places):,} datasets; a site holds {MAX_DATASETS}; type a narrower pattern")
    return [str(place) for place in places] or [path]


def exists(place: str) -> bool:
    """Whether there is a dataset, or a Parquet file that may be one."""
    return Path(place).is_file() or access.exists(place) or (Path(place) / JOURNAL).exists()


class Names:
    """Names of files and parts of addresses, all different, also where upper and lower case are the same."""

    def __init__(self, otherwise: str) -> None:
        """`otherwise` stands for words of which no character can be in a name."""
        self._otherwise = otherwise
        self._taken: dict[str, int] = {}

    def new(self, words: str) -> str:
        """The next name. Words make no dot, so that a number behind one makes names that differ."""
        plain = re.sub(r"[^a-z0-9_-]+", "-", words.lower()).strip("-_")[:MAX_NAME] or self._otherwise
        number = self._taken[plain] = self._taken.get(plain, 0) + 1
        return plain if number == 1 else f"{plain}.{number}"


def link(address: str, words: str) -> str:
    """A link in a cell of Markdown. `address` is made of names of this site's own files."""
    plain = re.sub(r"([][])", r"\\\1", for_markdown_cell(words))
    return f"[{plain}]({address})"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of cells that are Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *lines))


def digest(place: str, where: Where, code: str) -> str:
    """A digest of dataset, A/A pairs, chosen rows and code; empty if rows come from a journal or an object store."""
    sources, noise = find_sources(place)
    found = hashlib.sha256(f"{code} {place} {where!r} {len(sources)}".encode())
    for file in (*sources, *noise):
        if not isinstance(file, str):
            return ""
        with open_to_read(file) as opened:
            found.update(hashlib.sha256(opened.read()).digest())
    return found.hexdigest()


def joined(keys: Sequence[str]) -> str:
    """The key of what is made of several; empty if one of them has none."""
    return hashlib.sha256(" ".join(keys).encode()).hexdigest() if all(keys) else ""


def measured(data: Dataset) -> pd.DataFrame:
    """A line for each `ok` row of an open dataset; none if it is about quality."""
    return data.to_arrow(MEASURED + (" LIMIT 0" if quality.is_about_quality(data) else "")).to_pandas()


def describe(data: Dataset, path: str, of_slug: str, key: str, *, has_file: bool) -> Listed:
    """What the index says of an open dataset, which has the views of all questions."""
    name = name_of(Path(path))
    about_quality = quality.is_about_quality(data)
    rows, ok = data.single_row("SELECT count(*), count_if(status = 'ok') FROM rows")
    answer = _answer(data)
    if about_quality:
        pairs = data.scalar("SELECT count(*) FROM rows WHERE twin > 0")
        what = f"{pairs:,} points measured twice" if pairs else "deliberately wrong kernels"
        answer = f"{what}: how far times and checks can be trusted"
    return Listed(name, of_slug, path, facts(data), rows, ok, answer, has_file, measured(data), key=key)


def _answer(data: Dataset) -> str:
    """What is fastest most often."""
    winners = data.execute("SELECT backend, count(*) FROM best GROUP BY backend ORDER BY count(*) DESC, backend LIMIT 2")
    if not winners:
        return "no point has a time"
    problems = data.scalar("SELECT count(*) FROM best")
    return ", ".join(f"{shown(backend)} at {count:,} of {problems:,} workloads" for backend, count in winners)


def servers(deployments: Iterable[dict[str, Any]], page: str) -> list[Server]:
    """Those of a dashboard's deployments that were timed as a server's are, for decode or drafts."""
    found = []
    for one in deployments:
        place, told = one["place"], {of["name"]: "; ".join(of["brief"]) for of in one["phases"]}
        if one["usual"] and told.keys() & {"decode", "drafts"}:
            query = urlencode({f"f.{key}": "null" if value is None else value for key, value in place.items()})
            count = sum(int(engine["workloads"].replace(",", "")) for of in one["phases"] for engine in of["engines"])
            words = (place["device_name"], f"{place['kv_dtype']} cache", *(told.get(phase, "–") for phase in ("decode", "drafts")))
            cells = [link(f"{page}#{query}", one["name"]), *map(for_markdown_cell, words)]
            found.append({"workloads": count, "key": " ".join((one["name"], *map(str, place.values()))), "cells": cells})
    return found


def distinct(found: Iterable[Server]) -> list[list[str]]:
    """The cells of each server, of the dataset that has most workloads of it; named models first."""
    best = {one["key"]: one["cells"] for one in sorted(found, key=lambda one: one["workloads"])}
    return [cells for _, cells in sorted(best.items(), key=lambda pair: (pair[0].startswith(CUSTOM), pair[0]))]
