"""The page of columns is what the dictionary says, and anyone can ask for it without a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.errors import UserError
from orchestrator.reporting import columns_page
from orchestrator.reporting.columns_page import columns_there
from orchestrator.reporting.screen import WIDTH
from orchestrator.storage.columns import COLUMNS
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import RESULTS


def test_the_committed_page_is_made_of_the_dictionary():
    assert (ROOT / "docs" / "columns.md").read_text() == columns_page.page(), "type make docs"


def test_the_tables_have_every_column_once_with_unit_and_meaning():
    cells = [line for grid in columns_page.grids() for line in grid.cells]

    assert [line[0] for line in cells] == list(COLUMNS)
    assert ("median_us", "double", "µs", "if ok", COLUMNS["median_us"].meaning) in cells
    assert ("point_id", "string", "", "always", COLUMNS["point_id"].meaning) in cells
    assert ("host_us", "double", "µs", "maybe", COLUMNS["host_us"].meaning) in cells


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["columns=[median_us,point_id]"], ["point_id", "median_us"]),
        (["columns=[check_*]"], [name for name in COLUMNS if name.startswith("check_")]),
        (["where={section: energy}"], [name for name, column in COLUMNS.items() if column.section == "energy"]),
        (["columns=[*_us]", "where={section: [time, energy], type: double}"], [
            name for name, column in COLUMNS.items()
            if column.section in ("time", "energy") and name.endswith("_us") and column.type == "double"
        ]),
    ],
)  # fmt: skip
def test_columns_can_be_chosen_by_name_and_section(invoke: Invoke, typed: list[str], found: list[str]):
    done = invoke("mode=report", "question=columns", "format=json", *typed)

    assert (done.returncode, done.stderr) == (0, "")
    assert [row[0] for grid in json.loads(done.stdout) for row in grid["rows"]] == found and len(found) > 1


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("columns=[median]", "columns: unknown 'median'; did you mean 'median_us'?"),
        ("where={section: times}", "did you mean 'time'"),
        ("where={s_qo: 1}", "where of question=columns: unknown 's_qo'; allowed: section, type, unit"),
    ],
)
def test_a_choice_that_no_column_has_is_told(typed: str, words: str):
    keys = {"columns": ("median",)} if typed.startswith("columns") else {"where": dict([typed[7:-1].split(": ")])}
    with pytest.raises(UserError) as caught:
        columns_page.grids(keys.get("columns", ()), keys.get("where"))  # type: ignore[arg-type]

    assert words in str(caught.value)


@pytest.mark.parametrize("format_", ["terminal", "markdown", "svg"])
def test_the_question_needs_no_sweep_and_no_dataset(invoke: Invoke, format_: str):
    done = invoke("mode=report", "question=columns", f"format={format_}")

    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COLUMNS)
    assert (done.stdout == columns_page.page()) == (format_ == "markdown")


def test_with_a_dataset_columns_that_it_lacks_and_that_are_always_null_are_marked(invoke: Invoke):
    path = RESULTS / "h200_prefill/cascade"
    rows = pd.read_parquet(f"{path}.parquet")
    done = invoke("mode=report", "question=columns", f"results.path={path}", "format=json")
    tables = json.loads(done.stdout)
    there = {line[0]: line[4] for table in tables for line in table["rows"]}

    assert {table["columns"][4] for table in tables} == {str(path)}
    lacking = {name for name, words in there.items() if words == "not in this dataset"}
    assert lacking == set(COLUMNS) - set(rows.columns) and lacking
    empty = {name for name, words in there.items() if words == f"null in all {len(rows)} rows"}
    assert empty == {name for name in rows.columns if rows[name].isna().all()} and empty
    assert {words for name, words in there.items() if name not in lacking | empty} == {""}


def test_columns_that_are_typed_have_their_values_and_an_answer_without_them_says_so(invoke: Invoke):
    path = RESULTS / "h200_main/specdec_long_ctx"
    rows = pd.read_parquet(f"{path}.parquet")
    there = columns_there(path, ["driver", "device_uuid", "median_us", "samples_us"])
    wrong = invoke("mode=report", "question=best", "columns=[driver]", f"results.path={path}")

    assert there["driver"] == f"{rows['driver'].dropna().iloc[0]} ({rows['driver'].count():,} rows)"
    assert there["torch_version"] == ""
    assert there["device_uuid"].count("rows") == rows["device_uuid"].nunique()
    assert there["median_us"] == f"{rows['median_us'].min():,.6g} to {rows['median_us'].max():,.6g}"
    assert wrong.returncode == 2 and "its values are in question=columns 'columns=[driver]' results.path=DIR" in wrong.stderr


def test_of_several_datasets_a_column_may_be_in_some():
    there = columns_there(f"{RESULTS / 'h200_prefill/cascade'},{RESULTS / 'h200_main/specdec_long_ctx'}")
    held = [
        set(pd.read_parquet(RESULTS / f"{name}.parquet").columns) for name in ("h200_prefill/cascade", "h200_main/specdec_long_ctx")
    ]

    assert {name for name, words in there.items() if "in 1 of 2 files" in words} == held[0] ^ held[1]


def test_a_sweep_without_a_dataset_gets_the_columns_as_they_are(invoke: Invoke, tmp_path: Path):
    plain, typed = (
        invoke("mode=report", "question=columns", "format=json", *more)
        for more in (("+sweep=smoke",), (f"results.path={tmp_path / 'none'}",))
    )

    assert plain.returncode == 0 and all(len(table["columns"]) == 5 for table in json.loads(plain.stdout))
    assert typed.returncode == 2 and "no rows there" in typed.stderr


def test_a_terminal_gets_a_line_for_each_column_the_most_used_first_and_stars_where_a_dataset_has_no_value(invoke: Invoke):
    alone, beside, typed, full = (
        invoke("mode=report", "question=columns", *words).stdout
        for words in (
            [],
            [f"results.path={RESULTS / 'h200_prefill/cascade'}"],
            ["columns=[check_min_tokens,own_us]"],
            ["columns=[own_us]", "full=true"],
        )
    )
    lines = alone.splitlines()

    assert max(map(len, [*lines, *beside.splitlines(), *typed.splitlines()])) <= WIDTH
    assert "median_us: Median of the samples: the time of the point" in lines[:20] and "full, prefix" in lines[14]
    assert sorted(line.partition(":")[0] for line in lines[: len(COLUMNS)]) == sorted(COLUMNS)
    assert "*" not in alone.replace("check_*", "") and "\nenergy_j*: " in beside and "\nmedian_us: " in beside
    whole = [
        f"{name} ({about}): {COLUMNS[name].meaning}"
        for name, about in (("own_us", "double, µs, if ok"), ("check_min_tokens", "int64, tokens, maybe"))
    ]
    assert " ".join(typed.split()) == " ".join(whole)
    assert "━ column" not in typed and "┃ column" in full
