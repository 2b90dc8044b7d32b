"""Each finding prints what its page says: the command that a page names is run on the committed rows."""

from __future__ import annotations

import re
from functools import cache

import pytest

from benchmarks import referee
from orchestrator import ROOT
from orchestrator.cli import composed
from orchestrator.config.settings import DocumentSettings, load
from orchestrator.reporting.document import Shelf, read
from tests.helpers.command_line import Invoke
from tools import docs

NAMES = docs.names()
SHELF = Shelf()


@cache
def settings() -> DocumentSettings:
    return load(composed(["mode=document", f"document={docs.SOURCES}"]))


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_is_what_its_page_and_the_lists_say(name: str):
    source, rendered = docs.finding(name, settings(), SHELF)
    page, readme = ((ROOT / page).read_text() for page in (f"{docs.PAGES}/README.md", docs.README))
    index = [item.replace("\0", "\n  ") for item in page.replace("\n  ", "\0").split("\n")]  # a verdict stands on a line of its own
    lines = [*docs.decisions(name, rendered), f"- [{source.head.title}]({name}.md)\n  {rendered.verdict}"]

    assert (ROOT / docs.PAGES / f"{name}.md").read_text() == rendered.text, "type make docs"
    assert sorted(line for line in index if f"]({name}.md)" in line) == sorted(lines), "type make docs"
    in_readme = f"|[{source.head.title}]({docs.PAGES}/{name}.md)|{rendered.verdict}|" in readme.splitlines()
    assert in_readme == (name in docs.IN_README), "type make docs"


def test_the_command_that_measures_a_finding_again_names_a_sweep_that_is_there():
    named = {name: re.findall(r"\+sweep=(\w+)", read(str(ROOT / docs.SOURCES / f"{name}.md")).head.measure or "") for name in NAMES}

    there = {path.stem for path in (ROOT / "conf/sweep").glob("*.yaml")}
    commands = [read(str(ROOT / docs.SOURCES / f"{name}.md")).head.measure or "" for name in NAMES]
    environments = [env for one in commands for of in re.findall(r"sweep\.env=\[(.*?)\]", one) for env in of.split(",")]

    assert [env for env in environments if env != "null" and not re.fullmatch(r"[a-z]+:[\w.]+", env)] == []
    assert {name: of for name, of in named.items() if not {*of} <= there} == {}
    assert sum(map(len, named.values())) > len(NAMES) / 2


def test_readme_takes_the_first_table_of_a_finding_that_it_has_a_place_for():
    page = "# A\n\n**Title**\n\n| GPU | error |\n| --- | --- |\n| H200 | 1.1% |\n\nText.\n\n| b |\n"
    text = "before\n<!-- a -->\nold\n<!-- /a -->\nafter\n"

    assert docs.filled(text, "a", docs.first_table(page)) == (
        "before\n<!-- a -->\n|GPU|error|\n|---|---|\n|H200|1.1%|\n<!-- /a -->\nafter\n"
    )
    assert docs.filled(text, "b", ["x"]) == text


def test_readme_marks_a_server_without_decode():
    line = "|{}|{}|H100|bf16|{}|1 to 32|–|9|`a/b`|\n"
    table = f"|model|TP|GPU|cache|drafted tokens|requests|builds|points|in|\n{'|-' * 9}|\n"
    lines = "".join(line.format(*of) for of in (("m", 1, "0, 10"), ("m", 2, "10, 20"), ("n", 8, "1")))

    assert docs.servers(f"{table}{lines}\n{docs.dataset_page.ALIKE}\n\n{table}")[2:] == [
        "|m|1,2*|bf16|", "|n|8*|bf16|", "", "0 more models have the same heads; *: drafts only.",
    ]  # fmt: skip


def test_every_page_has_a_document():
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


def test_the_referee_s_table_says_what_its_commands_print(invoke: Invoke):
    """The gate's rates take a minute: docs/timing.md has them."""
    timing = (ROOT / "docs/timing.md").read_text()
    printed = {"python -m benchmarks.referee": referee.tables(), "python -m benchmarks.gate": timing}
    lines = [line.split("|")[1:-1] for line in (ROOT / "docs/referee.md").read_text().splitlines() if line.endswith("`|")]

    assert len(lines) == 15
    for *cells, command in lines:
        name = command.strip("`")
        if name.startswith("document="):
            printed[name] = (ROOT / docs.PAGES / f"{name.removeprefix('document=')}.md").read_text()
        if name not in printed:
            printed[name] = invoke(*name.removeprefix("python -m orchestrator ").split()).stdout
        bold = re.findall(r"\*\*(.+?)\*\*", cells[-1])
        assert bold and [one for one in bold if one not in printed[name]] == [], name
