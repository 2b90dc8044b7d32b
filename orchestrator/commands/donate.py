"""mode=donate: may the rows of a sweep be published? They are complete, checked, of known versions, and name no person or machine.

`into` gets a copy whose hosts are host-1 and so on, and whose texts name no folder, address or user of a machine.
"""

from __future__ import annotations

import io
import os
import platform
import re
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.commands.invocation import BAD_POINTS, OK, Invocation
from orchestrator.config.settings import DonateSettings
from orchestrator.errors import UserError
from orchestrator.planning.replay import points_of
from orchestrator.storage import access, checksum
from orchestrator.storage.columns import COLUMNS
from orchestrator.storage.exported import save_file

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES = 2_000_000  # of a dataset that lies in the repository
TEXTS = [name for name, column in COLUMNS.items() if column.type == "string"]
VERSIONS = {"torch_version": False, "orchestrator_version": False, "driver": True, "cuda": True}  # whether only a GPU has it
COMMIT = re.compile(r"\+g[0-9a-f]{7,40}(?=$|\.)(?!.*dirty)")  # in orchestrator_version, of files that nobody changed since
ANYBODY = {"vm", "localhost", "root", "ray", "ubuntu", "user", "app", "runner", "nobody"}  # names that tell nothing
KNOWN = r"(?:[\w-]+\.)*(?:github\.com|nvidia\.com|pytorch\.org|pypi\.org|huggingface\.co)\b"
HOME = re.compile(r"/(?:home|Users)/([\w.-]+)")
REPLACED = (  # in a text, in this order
    (HOME, "~"),
    (re.compile(rf"\b([a-z0-9+]+)://(?!{KNOWN})[^\s'\",\])}}]+"), r"\1://ADDRESS"),
    (re.compile(r"[\w.-]+@[\w-]+(?:\.[\w-]+)+"), "USER@HOST"),
    (re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"), "ADDRESS"),
    (re.compile(r"(?<![\w.:/~-])(?:~|/[\w.@+-]+)(?:/[\w.@+-]+)*/([\w.@+-]+)"), r".../\1"),
)


def execute(invocation: Invocation[DonateSettings]) -> int:
    """Says what changes and what is in the way, and writes the copy if nothing is. Returns 1 if something is.

    Raises UserError if there are no rows, or if the copy is too large, is there already, or cannot be written.
    """
    settings, path = invocation.settings, invocation.settings.results.path
    table = access.read(path)
    if not table.num_rows:
        raise UserError(f"results.path={path!r}: it has no rows; type the command of a run that has ended, with mode=donate")
    cleaned, changes = without_names(table)
    asked, there = {point.point_id for point in points_of(settings)}, {*table.column("point_id").to_pylist()}
    of_all = f"of the {len(asked):,} points of this command have no row"
    counts = {of_all: asked - there, "points that have a row are not of this command": there - asked}
    todo = "type mode=donate behind the whole command of the run, or run it to its end"
    incomplete = [f"{len(of):,} {words}; {todo}" for words, of in counts.items() if of]
    wrong = [*incomplete, *_unknown(table), *_names_left(table, cleaned)]
    for text in (*changes, *(f"in the way: {words}" for words in wrong)):
        invocation.say(text)
    if wrong or settings.into is None:
        invocation.say("not yet to be published" if wrong else "nothing is in the way; into=FILE.parquet writes what to publish")
        return BAD_POINTS if wrong else OK
    checksum.write(cleaned, file := io.BytesIO())
    size = len(file.getvalue())
    if Path(settings.into).exists() or size > MAX_BYTES:
        why = "it is too large; choose a part of it by where=" if size > MAX_BYTES else "it is there already; type a new file"
        raise UserError(f"into={settings.into!r}: {why} ({size:,} of {MAX_BYTES:,} bytes)")
    save_file(settings.into, file.getvalue(), "into")
    invocation.say(f"{settings.into}: {table.num_rows:,} rows, {size:,} bytes; CONTRIBUTING.md says what goes with it")
    return OK


def without_names(table: pa.Table) -> tuple[pa.Table, list[str]]:
    """The rows without names of hosts, folders, addresses and users, and a sentence for each column that changes."""
    import pyarrow as pa

    hosts = sorted({*table.column("host").to_pylist()} - {None, *ANYBODY})
    changes = []
    for at, name in ((at, name) for at, name in enumerate(table.column_names) if name in TEXTS):
        before = table.column(name).to_pylist()
        # Four numbers may be a version.
        rules = [rule for rule in REPLACED if rule[1] != "ADDRESS" or not name.endswith(("version", "libraries", "driver"))]
        known = {text: text and reduce(lambda so_far, rule: rule[0].sub(rule[1], so_far), rules, text) for text in {*before}}
        if name == "host":
            known |= {host: f"host-{number}" for number, host in enumerate(hosts, 1)}
        if changed := [text for text in before if known[text] != text]:
            pair = (changed[0], known[changed[0]])
            differ = next((i for i, signs in enumerate(zip(*pair, strict=False)) if len({*signs}) == 2), 0)
            example = " to ".join(repr(text[max(0, differ - 20) :][:100]) for text in pair)
            changes.append(f"{name}: {len(changed):,} rows change, such as {example}")
            table = table.set_column(at, table.schema.field(at), pa.array(map(known.get, before), type=pa.string()))
    return table, changes


def _names_left(table: pa.Table, cleaned: pa.Table) -> list[str]:
    """A sentence for each column that still has the name of a host or a user of these rows, or of this machine."""
    users = {user for name in TEXTS for text in {*table.column(name).to_pylist()} if text for user in HOME.findall(text)}
    names = {*table.column("host").to_pylist(), *users, platform.node(), os.environ.get("USER")} - {None, "", *ANYBODY}
    named = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(names))) or '(?!)'})(?!\w)")
    found = {name: [one for one in cleaned.column(name).to_pylist() if one and named.search(one)] for name in TEXTS}
    said = "run these points again where nothing has that name"
    return [f"{name}: {len(of):,} rows name a host or user: {of[0][:100]!r}; {said}" for name, of in found.items() if of]


def _unknown(table: pa.Table) -> list[str]:
    """What is not known of the rows: whether answers are right, and which versions ran."""
    rows = table.select(["status", "check", "context", "attempt", "compute_capability", *VERSIONS]).to_pandas()
    ran = rows[rows["attempt"].gt(0)]
    unchecked = ran["status"].eq("ok") & ran["check"].ne("passed") & ran["context"].ne("engine")
    lacking = {name: ran[name].isna() & (ran["compute_capability"].notna() | (not of_gpu)) for name, of_gpu in VERSIONS.items()}
    found = [f"{name}: {of.sum():,} rows that ran do not have it; run them again" for name, of in lacking.items() if of.any()]
    if unchecked.any():
        found.append(f"{unchecked.sum():,} rows are ok and were not checked; run them again with check.enabled=true")
    code = sorted(ran["orchestrator_version"].dropna().unique())
    commits = {match and match[0] for match in map(COMMIT.search, code)}
    if None in commits or len(commits) > 1:
        found.append(f"orchestrator_version: {', '.join(code)}; allowed: one commit, without changed files; run it again there")
    return found
