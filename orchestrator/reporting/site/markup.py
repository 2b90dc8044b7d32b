"""What the pages of a site have in common: the document around them, links, tables. Text of datasets is escaped here alone."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files

from orchestrator.tables import Grid
from orchestrator.untrusted.text import for_line

POLICY = "default-src 'none'; style-src 'self' file:; img-src data:; base-uri 'none'; form-action 'none'"


def text(words: object) -> str:
    """Words as text of a page: no markup comes of them, and nothing that hides or reorders them stays."""
    return html.escape(for_line(str(words)))


def style() -> str:
    """The style sheet of the pages without a dashboard."""
    return files(__package__).joinpath("static", "site.css").read_text(encoding="utf-8")


def document(title: str, body: Sequence[str], *, css: str, home: str | None = None, about: str = "") -> str:
    """A page. `css` and `home` are relative addresses, of the style sheet and of the index; `about` is the line at its end."""
    back = f'<nav aria-label="Site"><a href="{html.escape(home)}">all datasets</a></nav>\n' if home else ""
    foot = f"<footer>{text(about)}</footer>\n" if about else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{text(title)}</title>\n'
        f'<link rel="icon" href="data:,">\n<link rel="stylesheet" href="{html.escape(css)}">\n</head>\n<body>\n'
        f"{back}<main>\n<h1>{text(title)}</h1>\n{''.join(f'{part}{chr(10)}' for part in body)}</main>\n{foot}</body>\n</html>\n"
    )


def paragraph(words: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{text(words)}</p>"


def listed(sentences: Sequence[str]) -> str:
    """A list of plain sentences; nothing if there are none."""
    return f"<ul>{''.join(f'<li>{text(sentence)}</li>' for sentence in sentences)}</ul>" if sentences else ""


def link(address: str, words: str) -> str:
    """A link. `address` is made of names of this site's own files."""
    return f'<a href="{html.escape(address)}">{text(words)}</a>'


def whole(words: str) -> str:
    """Text that no line break divides, such as a day."""
    return f'<span class="whole">{text(words)}</span>'


def of_grid(grid: Grid) -> str:
    """A table of plain text; nothing if it has no rows."""
    return table(grid.title, grid.header, [[text(cell) for cell in cells] for cells in grid.cells]) if grid.cells else ""


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are markup. It scrolls by itself if the window is narrow, with the keyboard too."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in header)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    label = html.escape(for_line(caption))
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
