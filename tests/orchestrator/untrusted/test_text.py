"""Text of a dataset does nothing to a terminal and becomes no markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orchestrator.tables import Grid, draw, markdown, svg
from orchestrator.untrusted.text import for_markdown_cell, for_terminal

HOSTILE = "\x1b[2J\x1b]0;owned\x07 <img src=x onerror=alert(1)> [a](javascript:x) a|b\nnext \u202egnp.exe \udc80 &lt; \x9b31m"
GRID = Grid(HOSTILE, (HOSTILE,), ((HOSTILE,),))


@pytest.mark.parametrize("terminal", [True, False])
def test_no_control_character_reaches_a_terminal(terminal: bool):
    shown = io.StringIO()
    draw(Console(file=shown, force_terminal=terminal, color_system=None, width=200), [GRID])

    assert "\\x1b]0;owned\\x07" in shown.getvalue()
    styled = {"\x1b[1m", "\x1b[0m"} if terminal else set()  # rich's own bold of titles
    rest = shown.getvalue()
    for code in styled:
        rest = rest.replace(code, "")
    assert not set(rest) & {"\x1b", "\x07", "\x9b", "\u202e", "\udc80"}


def test_markdown_holds_one_line_a_row_without_html_and_links():
    title, _, header, _, row = markdown([GRID]).splitlines()

    for line in (title, header, row):
        assert "<img" not in line and "](" not in line and "&lt;img" in line
    assert row.replace("\\|", "").count("|") == 2
    assert "&amp;lt;" in row  # what said &lt; still does


def test_a_picture_holds_no_markup_of_a_dataset():
    picture = svg([GRID], HOSTILE)

    assert "<img" not in picture
    assert not set(picture) & {"\x1b", "\x07"}


@pytest.mark.parametrize("text", ["```<b>``", "\\`<b>`", "`a\\`<b>`", "`` ` <b>", "` a `<b>` `"])
def test_no_code_hides_markup(text: str):
    """What only looks like code in Markdown."""
    assert "<b>" not in for_markdown_cell(text)


def test_plain_text_stays_as_it_is():
    text = "fa2 µs ≈ 3 < 4 · R&D [x] a_b\tend"

    assert for_terminal(text) == text
    assert for_markdown_cell("a `list<int32>` <b>") == "a `list<int32>` &lt;b>"
    assert for_markdown_cell("fa2 < 4 · R&D [x] a_b") == "fa2 < 4 · R&D [x] a_b"
