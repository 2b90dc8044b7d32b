"""Each finding prints what its page says: the command that a page names is run on the committed rows."""

from __future__ import annotations

import re
from functools import cache

import pytest

from orchestrator import ROOT
from orchestrator.cli import composed
from orchestrator.config.settings import DocumentSettings, load
from orchestrator.reporting.document import Document, Rendered, Shelf
from tests.helpers.command_line import Invoke
from tools import docs

NAMES = docs.names()
SHELF = Shelf()


@cache
def settings() -> DocumentSettings:
    return load(composed(["mode=document", f"document={docs.SOURCES}"]))


@cache
def found(name: str) -> tuple[Document, Rendered]:
    return docs.finding(name, settings(), SHELF)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_is_what_its_page_says(name: str):
    assert (ROOT / docs.PAGES / f"{name}.md").read_text() == found(name)[1].text, "type make docs"


def test_the_page_of_decisions_is_made_of_all_findings():
    pages = {name: found(name) for name in NAMES}

    assert (ROOT / docs.PAGES / "README.md").read_text() == docs.index(pages), "type make docs"
    assert {path.stem for path in (ROOT / docs.PAGES).glob("*.md")} == {*NAMES, "README"}


def test_the_command_of_a_finding_prints_its_page(invoke: Invoke):
    page = (ROOT / docs.PAGES / "auto.md").read_text()
    (command,) = re.findall(r"Reproduce: `python -m orchestrator (.*?)`", page)

    assert invoke(*command.split()).stdout == page


def test_a_finding_is_short_and_checks_its_verdict():
    for name in NAMES:
        text = (ROOT / docs.SOURCES / f"{name}.md").read_text()
        assert "```expect" in text, f"{name}: nothing fails if its verdict is no longer true"
        assert len((ROOT / docs.PAGES / f"{name}.md").read_text().split()) < 1_000, f"{name}: a finding is a screen"
