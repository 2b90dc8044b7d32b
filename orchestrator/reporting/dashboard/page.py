"""One HTML page with everything in it: markup, style, scripts, ECharts, the dataset. It loads nothing, from nowhere.

What comes from a dataset enters the page as gzip in base64 and reaches the document as text only. The page's policy admits the
scripts whose hashes it names, so that no text of a dataset can become one. Of the many pages of a site, style, ECharts and the app
are files beside them; their policy admits scripts and styles of their own place alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from orchestrator.analysis.questions import open_views
from orchestrator.analysis.sources import SIGNS, local_datasets, name_of
from orchestrator.analysis.sql import Where
from orchestrator.errors import UserError
from orchestrator.reporting.dashboard import data, packing
from orchestrator.storage.access import in_objects
from orchestrator.storage.exported import save_file
from orchestrator.untrusted.text import for_line

ECHARTS_SHA256 = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
EMBEDDED_PARQUET = 2 * 10**6  # bytes of a dataset that travel in an exported page as they are
# A module may use those before it.
VIEWS = ("best", "answer", "lines", "roofline", "crossover", "compare", "table")
PARTS = ("columns", "numbers", "select", "state", "theme", "dom", "card", "share", "panels", "head", "filters")
MODULES = (*PARTS, *VIEWS, "app")
IMPORT = re.compile(r"^import \{[^}]*\} from \"\./[a-z]+\.js\";\n", re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)

LINKED_POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
WAY_BACK = """
#site { grid-column: 1 / -1; padding: 8px 16px 0; }
#site a { color: var(--mark); }
@media (min-width: 761px) { body { grid-template-rows: auto auto auto 1fr; } }
@media print { #site { display: none; } }
"""


def make(path: str | Path, where: Where, *, served: bool) -> str:
    """The page of a dataset, with its Parquet if it is not served and that is small. Raises UserError: no rows, or too many."""
    table, header = data.rows_and_header(opened := open_views(path, where=where), path)
    if not served:  # a page that is passed on names no folder of this machine
        table["again"] = table["again"].str.replace(r"results\.path='?/.*/", "results.path=", regex=True)
    whole = b"" if served else data.parquet(path) if where else data.parquet_of(opened)
    parquet = whole if 0 < len(whole) <= EMBEDDED_PARQUET else None
    places = str(path) if served else ",".join(Path(one).name if one.startswith("/") else one for one in str(path).split(","))
    title, of_file = title_of(str(path)), {"parquet": "rows.parquet" if served else None, "embedded": parquet is not None}
    return fill(packing.pack(table, {"title": title, "path": places, **header, **of_file}), parquet, title)


def title_of(path: str) -> str:
    """The name of a dataset; of several that a list or a pattern names, the names of up to three, else how many there are."""
    if in_objects(path) or not any(sign in path for sign in f"{SIGNS},"):
        return Path(path).name
    places = local_datasets(path)
    names = [place.name.removesuffix(".parquet") for place in places]
    if len({*names}) < len(names):
        names = [name_of(place) for place in places]
    return " + ".join(names) if len(names) <= 3 else f"{len(names)} datasets of {path}"


def export(path: str | Path, where: Where, target: str) -> int:
    """Writes the page to a file and returns its size in bytes. Raises UserError where it cannot be written."""
    if not target.endswith(".html"):
        raise UserError(f"export={target!r}: mode=dashboard writes a page; type export=NAME.html")
    text = make(path, where, served=False).encode()
    save_file(target, text)
    return len(text)


def fill(packed: bytes, parquet: bytes | None, title: str) -> str:
    library, app = echarts(), script()
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(app)}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    data = {"DATA": base64.b64encode(packed).decode(), "PARQUET": base64.b64encode(parquet or b"").decode()}
    parts = {"POLICY": policy, "TITLE": html.escape(title), "STYLE": static("style.css"), "ECHARTS": library, "APP": app}
    return placed(static("page.html"), {**parts, **data})


def placed(template: str, parts: Mapping[str, str]) -> str:
    """A template with its parts in the places of their names. What a part holds is never taken for a place."""
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: parts[found[1]], template)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def script() -> str:
    """The modules as one module: each a function that returns what it exports, so that what it imports is there before it."""
    *libraries, app = (IMPORT.sub("", static(f"{name}.js")) for name in MODULES)
    return "\n".join([*map(_enclosed, libraries), app])


def _enclosed(module: str) -> str:
    names = ", ".join(name for _, name in EXPORT.findall(module))
    body = EXPORT.sub(r"\1", module)
    return f"const {{ {names} }} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"


def echarts() -> str:
    """Apache ECharts as released. Raises UserError where the file is not the one that was reviewed."""
    script = files(__package__).joinpath("vendor", "echarts.min.js").read_bytes()
    if hashlib.sha256(script).hexdigest() != ECHARTS_SHA256:
        raise UserError("orchestrator/dashboard/vendor/echarts.min.js: not the release that vendor/README.md names; put that back")
    return script.decode("utf-8")


class Asset(NamedTuple):
    """A shared file. Its name changes with what is in it, so that no cache shows an old one."""

    name: str
    content: str


def assets() -> dict[str, Asset]:
    """The shared files of all pages. The app is no module, which a file of a disk cannot load, so it waits (`defer`)."""
    app = f'"use strict";\n(async () => {{\n{script()}\n}})();\n'
    style = hashed("page", "css", static("style.css") + WAY_BACK)
    return {"style": style, "echarts": hashed("echarts", "js", echarts()), "app": hashed("app", "js", app)}


def hashed(name: str, suffix: str, content: str) -> Asset:
    """A file under a name with a hash of its content."""
    return Asset(f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}.{suffix}", content)


def linked(packed: bytes, title: str, shared: Mapping[str, Asset], folder: str, home: str) -> str:
    """The page of one of many datasets. `folder` and `home` are relative addresses, of the shared files and of the index."""
    address = {name: f"{folder}/{asset.name}" for name, asset in shared.items()}
    template = static("page.html")
    way_back = f'<nav id="site" aria-label="Site"><a href="{html.escape(home)}">all datasets and comparisons</a></nav>'
    for inline, link in (
        ("<style>\n{{STYLE}}\n</style>", f'<link rel="stylesheet" href="{address["style"]}">'),
        ("<script>{{ECHARTS}}</script>", f'<script defer src="{address["echarts"]}"></script>'),
        ('<script type="module">{{APP}}</script>', f'<script defer src="{address["app"]}"></script>'),
        ("<body>\n", f"<body>\n{way_back}\n"),
    ):
        if template.count(inline) != 1:
            raise AssertionError(f"page.html: {inline!r} is there {template.count(inline)} times, and `linked` replaces it once")
        template = template.replace(inline, link)
    parts = {
        "POLICY": LINKED_POLICY,
        "TITLE": html.escape(for_line(title)),
        "DATA": base64.b64encode(packed).decode(),
        "PARQUET": "",
    }
    return placed(template, parts)
