"""The page of one of many datasets. Style, ECharts and the app are files beside it, which all pages share.

A browser that opens a file from a disk runs no module from another file. So the app is a plain script here, and waits for the
document (`defer`). The page's policy admits scripts and styles of its own place alone, whatever a dataset's text says.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.reporting.dashboard import page
from orchestrator.untrusted.text import for_line

POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
# The way back is a row above the page's own.
WAY_BACK = """
#site { grid-column: 1 / -1; padding: 8px 16px 0; }
#site a { color: var(--mark); }
@media (min-width: 761px) { body { grid-template-rows: auto auto auto 1fr; } }
@media print { #site { display: none; } }
"""


class Asset(NamedTuple):
    """A shared file. Its name changes with what is in it, so that no cache shows an old one."""

    name: str
    content: str


def assets() -> dict[str, Asset]:
    """The shared files of all pages. Raises UserError if ECharts is not the release that was reviewed."""
    script = f'"use strict";\n(async () => {{\n{page.script()}\n}})();\n'
    style = named("page", "css", page.static("style.css") + WAY_BACK)
    return {"style": style, "echarts": named("echarts", "js", page.echarts()), "app": named("app", "js", script)}


def named(name: str, suffix: str, content: str) -> Asset:
    """A file under a name with a hash of its content."""
    return Asset(f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}.{suffix}", content)


def make(packed: bytes, title: str, shared: Mapping[str, Asset], folder: str, home: str) -> str:
    """The page. `folder` and `home` are relative addresses: of the shared files, and of the page that lists all datasets."""
    address = {name: f"{folder}/{asset.name}" for name, asset in shared.items()}
    template = page.static("page.html")
    way_back = f'<nav id="site" aria-label="Site"><a href="{html.escape(home)}">all datasets and comparisons</a></nav>'
    for inline, linked in (
        ("<style>\n{{STYLE}}\n</style>", f'<link rel="stylesheet" href="{address["style"]}">'),
        ("<script>{{ECHARTS}}</script>", f'<script defer src="{address["echarts"]}"></script>'),
        ('<script type="module">{{APP}}</script>', f'<script defer src="{address["app"]}"></script>'),
        ("<body>\n", f"<body>\n{way_back}\n"),
    ):
        if template.count(inline) != 1:
            raise AssertionError(f"page.html: {inline!r} is there {template.count(inline)} times, and linked.py replaces it once")
        template = template.replace(inline, linked)
    parts = {"POLICY": POLICY, "TITLE": html.escape(for_line(title)), "DATA": base64.b64encode(packed).decode(), "PARQUET": ""}
    return page.placed(template, parts)
