"""What the documents say is what the project prints and holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import attention_orchestrator
from kernels.problem import Problem
from orchestrator import ROOT
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from orchestrator.storage import parquet
from orchestrator.storage.row import COLUMNS
from tests.helpers.command_line import Invoke
from tests.helpers.committed_rows import frame_of, problem_of, records_of
from tests.helpers.datasets import DATASETS, EVERY, MAIN, RESULTS, entry_of, names_point, rules_not_measured_yet
from tools import bounds

README = (ROOT / "README.md").read_text()
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "results/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)


@pytest.fixture(scope="module")
def h200() -> pd.DataFrame:
    return parquet.read(MAIN).to_pandas()


@pytest.mark.parametrize("name", DATASETS)
def test_a_committed_dataset_holds_every_point_of_its_sweep_once_and_every_supported_one_ok(name: str):
    """But for wrong answers of flags, whose finding names the dataset."""
    table = pd.read_parquet(RESULTS / f"{name}.parquet")
    wrong = table["status"] == "mismatch"

    assert set(table.columns) <= set(COLUMNS)  # a column that came later is read with its default
    assert table["point_id"].nunique() == len(table)
    assert wrong.any() == (f"results/{name}," in (ROOT / "findings/wrong_answers.md").read_text())
    table = table[~wrong]
    assert {"ok"} <= set(table["status"]) <= {"ok", "unsupported"}
    assert set(table["device_name"]) == {"NVIDIA H200"}
    assert {"passed"} <= set(table["check"]) <= {"passed", "not_checked: did not run"}


@pytest.mark.parametrize("name", DATASETS)
def test_a_committed_dataset_answers_today_s_sweep(name: str, settings: Callable[..., Settings]):
    """What is measured; `point_id` also hashes how, which has become stricter since some of them were.

    Points that came to the sweep later have no row, and datasets.yaml lists them.
    """
    asked = {(p.backend, _whole(p.problem)) for p in expand(settings(*shlex.split(entry_of(name)["command"])))}
    rows = records_of(frame_of(RESULTS / name))
    held, rules = {(row["backend"], _whole(problem_of(row))) for row in rows}, rules_not_measured_yet(name)

    assert held <= asked
    assert asked - held == {(backend, problem) for backend, problem in asked if names_point(rules, backend, problem)}


def _whole(problem: Problem) -> Problem:
    return problem.model_copy(update={"out_dtype": problem.output_dtype})


def test_every_dataset_is_small():
    assert [name for name in EVERY if (RESULTS / f"{name}.parquet").stat().st_size >= 2_000_000] == []


def test_the_sweep_with_cold_code_is_the_one_over_dirty_lines_but_for_that():
    warm, cold = (
        parquet.read(RESULTS / name).to_pandas() for name in ("h200_studies/specdec_dirty", "h200_studies/specdec_cold_code")
    )
    ran = [side[side["status"] == "ok"] for side in (warm, cold)]
    what = [{(row["backend"], _whole(problem_of(row))) for row in records_of(side)} for side in ran]

    assert [set(side["icache"]) for side in ran] == [{"warm"}, {"cold"}]
    assert set(ran[0]["device_uuid"]) == set(ran[1]["device_uuid"])
    assert what[0] == what[1]


def test_rows_name_the_pinned_versions_or_a_page_says_which_were_measured():
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    columns = {"torch_version": "torch", "flashinfer_version": "flashinfer-python", "ray_version": "ray"}
    measured = {
        (package, version)
        for name in EVERY
        for column, package in columns.items()
        for version in pd.read_parquet(RESULTS / f"{name}.parquet", columns=[column])[column].dropna().unique()
    }
    differ = {(package, version, pinned[package]) for package, version in measured if version != pinned[package]}
    told = re.findall(r"^\|([\w-]+)\|([\d.][^|]*)\|([\d.][^|]*)\|\S.*\|$", (RESULTS / "README.md").read_text(), re.MULTILINE)

    assert {package for package, _ in measured} == set(columns.values())
    assert sorted(told) == sorted(differ), "results/README.md: one line for each version that is not the pinned one, and no other"


def test_the_python_of_the_docs_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "commands.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)

    assert len(blocks) == 1
    assert all(len(names[table]) > 0 for table in ("best", "counts"))


def test_the_model_and_the_sweep_of_the_docs_can_be_planned(tmp_path: Path, invoke: Invoke):
    for path, text in re.findall(r"```yaml\n# mine/(\S+)\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    done = invoke("--config-dir", str(tmp_path), "+sweep=my_model", "model=mine", "mode=plan", "device=h200", "format=csv")

    assert done.returncode == 0, done.stderr
    assert "\nmine,1,40,8,128,128,64,108\n" in done.stdout and "\nrun,66\n" in done.stdout


def test_the_time_a_point_is_the_dataset_s():
    table = pd.read_parquet(MAIN)
    ran = table[table["attempt"] > 0]
    runs = ran.groupby("run_id")
    seconds = (runs["finished_at"].max() - runs["started_at"].min()).sum().total_seconds() / len(ran)

    assert f"({seconds:.3f} s of wall time a point)" in (ROOT / "docs/architecture.md").read_text()


def test_the_times_of_the_main_sweep_are_the_plan_s(invoke: Invoke):
    plan = invoke("+sweep=specdec_long_ctx", "mode=plan", "device=h200", "format=csv").stdout
    backends, architecture = ((ROOT / f"docs/{name}.md").read_text() for name in ("backends", "architecture"))
    (lasts,) = re.findall(r"estimated time, without compilation\W+([\w ]+),", plan)
    ((on_16, on_2),) = re.findall(r"about ([\w ]+) on 16 cores, about ([\w ]+) on 2 cores", plan)

    assert f"Main sweep on one GPU without compilation: {lasts} (" in README and f"{lasts} in a race" in architecture
    assert f"kernels: {on_16} on 16 cores" in README
    assert f"about {on_16} on 16 cores and about {on_2} on 2 cores" in backends


def test_own_us_of_an_older_file_is_computed_where_the_docs_say():
    data = attention_orchestrator.open(MAIN)

    assert "own_us" not in pd.read_parquet(MAIN)
    assert data.con.sql("SELECT count(own_us) FROM rows WHERE status = 'ok'").fetchall()[0][0] > 0


def test_the_cost_of_the_check_is_that_of_its_datasets():
    page = (ROOT / "docs/correctness_numbers.md").read_text().partition("### What it costs")[2]
    tables = [pd.read_parquet(RESULTS / f"h200_studies/{name}.parquet") for name in ("check_cost_before", "check_cost")]
    for line in page.partition("|---|")[2].partition("\n\n")[0].splitlines()[1:]:
        size, *told = line.strip("|").split("|")
        batch, _, s_kv = size.replace(",", "").partition(" x ")
        sizes = [t if not s_kv else t[(t["batch_size"] == int(batch)) & (t["s_kv"] == int(s_kv))] for t in tables]
        assert told == [f"{1e3 * value:.0f}" for t in sizes for value in (t["check_s"].mean(), t["check_s"].median())], size


def test_every_mapping_that_a_page_says_to_type_is_one_that_hydra_reads():
    """Such as "+env.mine={requirements: ['flashinfer-python==0.6.13']}": without the inner quotes it was none."""
    texts = [(ROOT / page).read_text() for page in (*PAGES, "conf/config.yaml")]
    typed = {one for text in texts for _, one in re.findall(r"""(["'])(\+?\w[\w.]*=\{.*?\})\1""", text) if "..." not in one}

    assert len(typed) >= 8 and any(one.startswith("+env.") for one in typed)
    for one in sorted(typed):
        assert isinstance(OverridesParser.create().parse_override(one).value(), dict), one


def test_every_file_and_page_that_is_named_is_there():
    for page in PAGES:
        text, here = (ROOT / page).read_text(), (ROOT / page).parent
        for link, path in re.findall(r"\]\((?!http)([^)]+)\)|`((?:conf|docs|kernels|orchestrator|tests|results)/[\w./]+)`", text):
            named = (
                (here / link.partition("#")[0],) if link else (ROOT / path, ROOT / f"{path}.parquet")
            )  # a dataset, without its suffix
            assert any(one.exists() for one in named) or "my_model" in path, (page, link, path)


def test_every_test_that_is_named_is_there():
    """Also inside a command, and without the folder of most tests, as docs/clusters.md names them."""
    folders = (ROOT, ROOT / "tests" / "orchestrator")
    texts = {page: (ROOT / page).read_text() for page in PAGES}
    named = {(page, name) for page, text in texts.items() for name in re.findall(r"tests/[\w./]*\w|[\w/]*test_\w+\.py", text)}
    named |= {("tools/bounds.py", name) for name in (*bounds.READING, *bounds.MEASURING)}

    assert len(named) > 20
    assert [(page, name) for page, name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []


def test_every_section_that_is_linked_is_there():
    def anchors(page: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}

    for page in (ROOT / name for name in PAGES):
        for path, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", page.read_text()):
            assert anchor in anchors(page.parent / path if path else page), (page.name, path, anchor)


def test_the_commands_at_the_top_are_targets():
    makefile = (ROOT / "Makefile").read_text()

    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in ("run", "test"))
    assert README.index("make run") < README.index("make test")


def test_pages_are_few_and_short_and_open_with_their_reader_s_question():
    """Findings are rendered, and open with a title that asks."""
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    beginnings = {name: text.partition("\n\n")[2].partition("\n\n")[0] for name, text in pages.items()}
    folders = ("docs", "findings", "results", "orchestrator")
    markdown = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]

    assert len(pages) <= 24
    assert {name for name, text in beginnings.items() if "?" not in text} == set()
    assert sum(len(path.read_text().split()) for path in markdown) <= 90_000


def test_a_line_of_prose_is_a_sentence():
    """Commands, output that is shown, lines of tables and the list of features are as long as they are."""
    texts = {page: (ROOT / page).read_text() for page in PAGES if "/findings/" not in page}
    lines = [(page, line) for page, text in texts.items() for line in text.splitlines()]
    prose = [(page, line) for page, line in lines if not line.startswith(("|", "    ", "  The features are"))]

    assert len(prose) > 1_000
    assert [(page, line) for page, line in prose if len(line) > 220 and "python -m" not in line] == []


def test_the_glossary_has_words_that_other_pages_use():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    others = " ".join((ROOT / page).read_text() for page in PAGES if page != "docs/glossary.md").casefold()
    words = [word for line in re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)[2:] for word in line.split(", ")]

    assert len(words) > 40
    assert [word for word in words if re.sub(r" \(.*", "", word).casefold() not in others] == []
