"""mode=watch over a package index on this machine: each new release is measured in turns with the one before it, once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from orchestrator import ROOT
from orchestrator.analysis.compare.comparison import compare_rows, find_noise_floors
from orchestrator.analysis.compare.selection import Selection
from orchestrator.analysis.noise import SAME
from orchestrator.bisection.evidence import pairs_of
from orchestrator.cli import main
from orchestrator.commands.watch import Upgrade, may_follow
from orchestrator.composing import compose
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from orchestrator.storage import access
from tests.helpers import wheels as library
from tests.helpers.command_line import in_parts
from tests.helpers.committed_rows import problem_of, records_of
from tests.helpers.forked_environment import ForkedPopen
from tests.helpers.runs import SMALL

OF_RELEASES = {
    "1.0": "",
    "1.1": "",
    "1.2": "MICROSECONDS = 1200.0",
    "1.3": "raise ImportError('libkernel.so: undefined symbol')",
    "1.4": "run = lambda kernel, out: out.mul_(1.5)",
    "1.5": "MICROSECONDS, KERNEL = 1200.0, 'kernel_b'",
    "1.6rc1": "",
}
NEEDS_ANOTHER_TORCH, LATER = "1.6", "1.7"


class Index(SimpleHTTPRequestHandler):
    """A folder as an index: its list of files is HTML with a link to each."""

    def log_message(self, *_words: object) -> None:
        """Says nothing."""


def add(folder: Path, version: str, lines: str = "", requires: str = "") -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "SOURCE", f"{library.SOURCE}\nMICROSECONDS, KERNEL = 1000.0, 'kernel_a'\n{lines}\n")
        library.write_wheel(folder, version, requires)


class Watched:
    """What a watch over all releases said, and its dataset; `again` types the same command."""

    def __init__(self, folder: Path, index: Path) -> None:
        self.index, self.path, self.said = index, folder / "rows_watch", ""
        self.words = [*SMALL, "cluster=inline", "adapters=[tests.backends.clocked]", "sweep.backend=[clocked]", "mode=watch"]
        self.words += ["sweep.batch_size=[1]", "sweep.s_qo=[1]", f"results.path={folder / 'rows'}"]

    def again(self, since: str = "1.0") -> tuple[int, str]:
        """The same command: its exit code, and what it said."""
        with redirect_stdout(StringIO()) as said:
            return main([*self.words, f"watch.since=[{library.LIBRARY}:{since}]"]), said.getvalue()

    def report(self, release: str) -> str:
        return (self.path / f"{library.LIBRARY}_{release}" / "_watch.md").read_text(encoding="utf-8")

    @property
    def rows(self) -> pd.DataFrame:
        return pd.concat(map(pd.read_parquet, sorted(self.path.glob("*/rows.parquet"))))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("index")
    folder = root / "simple" / library.LIBRARY
    folder.mkdir(parents=True)
    for version, lines in OF_RELEASES.items():
        add(folder, version, lines)
    add(folder, NEEDS_ANOTHER_TORCH, requires="torch<1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=str(root)))
    Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            patch.delenv(name, raising=False)
        yield folder
    server.shutdown()


@pytest.fixture(scope="module")
def watched(index: Path, cache: Path, forked: list[ForkedPopen], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Each step runs in this process, which has imported the libraries already. Calls take what `tests.backends.clocked` says."""
    real, found = subprocess.run, Watched(tmp_path_factory.mktemp("watch"), index)

    def run(command: list[str], **keys: Any) -> Any:
        if command[2:3] != ["orchestrator"]:
            return real(command, **keys)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            patch.setenv("UV_DEFAULT_INDEX", keys["env"]["UV_DEFAULT_INDEX"])
            code = main(command[3:])
            return SimpleNamespace(returncode=code, stdout="", stderr=said.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(subprocess, "run", run)
        patch.setattr(compose, "_by_hydra", in_parts(compose._by_hydra))
        code, found.said = found.again()
        assert code == 1
        yield found


ALL = [
    ("1.1", "1.0", "nothing slower, wrong or another kernel", "Both were measured in turns"),
    ("1.2", "1.1", "slower", "- slower: regression: 1 slower\n"),
    ("1.3", "1.2", "failing", "- failing: 1 of 1 points are failed: ImportError: libkernel.so: undefined symbol\n"),
    ("1.4", "1.2", "wrong", "- wrong: 1 of 1 points are mismatch: "),
    ("1.5", "1.2", "another kernel", "- another kernel: kernel_a became kernel_b at 1 of 1\n"),
    ("1.6", "1.5", "cannot be measured", "needs torch<1, and here is torch"),
]


@pytest.mark.parametrize(("release", "beside", "what", "words"), ALL)
def test_each_release_is_measured_beside_the_last_one_that_ran(release: str, beside: str, what: str, words: str, watched: Watched):
    said = watched.report(release)

    assert said.startswith(f"### {library.LIBRARY} {release} beside {beside}: {what}\n\n")
    assert words.replace("_", "\\_") in said or words in said
    assert f"sweep.env=[{library.LIBRARY}:{beside},{library.LIBRARY}:{release}]" in said
    assert watched.said.count(said) == 1
    assert f"\n{library.LIBRARY} {release} beside {beside}: {what}\n" in watched.said.partition("index.html")[2]


@pytest.mark.parametrize(
    ("statuses", "may"),
    [
        (["ok", "ok", "ok"], True),
        (["mismatch", "ok", "ok"], False),  # beside it a release that is right and slower would only be fixed
        (["timeout", "ok", "ok"], False),
        (["unsupported", "ok", "ok"], True),
        (["ok", "ok", "failed"], True),  # as before
        (["unsupported", "unsupported", "failed"], False),  # nothing ran
    ],
)
def test_the_next_release_is_measured_beside_one_that_broke_no_point(statuses: list[str], may: bool):
    rows = pd.read_parquet(ROOT / "results/h200_releases/watch.parquet")
    old, new = (rows[(rows["env"] == f"flashinfer_python_{of}") & (rows["status"] == "ok")] for of in ("0_6_13", "0_7_0"))
    key = ["backend", "batch_size", "s_kv"]
    sides = [side[side["s_qo"] == 1].sort_values([*key, "finished_at"]).drop_duplicates(key).head(3) for side in (old, new)]
    both = pd.concat([sides[0].assign(status=["ok", "ok", "failed"]), sides[1].assign(status=statuses)])

    assert may_follow(both, "flashinfer_python_0_6_13", "flashinfer_python_0_7_0") is may


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [("0_5_3", "0_6_0", ["slower", "another kernel"]), ("0_6_0", "0_5_3", ["another kernel"])],
)
def test_a_release_that_made_an_h200_slower_is_called_slower(old: str, new: str, problems: list[str]):
    """The rows of 0.5.3 and 0.6.0 of one run, with which `auto` began to take fa3 in decode: 1.5 to 11 times the time."""
    path = str(ROOT / "results/h200_releases/bisect_fa3_begins")
    rows = access.read(path).to_pandas()
    rows = rows[rows["run_id"] == rows.loc[rows["env"] == "flashinfer_python_0_6_0", "run_id"].iloc[0]]
    sides = [rows[rows["env"] == f"flashinfer_python_{release}"] for release in (old, new)]
    found = compare_rows(*(Selection(release, path, side) for release, side in zip((old, new), sides, strict=True)))
    upgrade = Upgrade("flashinfer-python", old, new, found, pairs_of(*sides, find_noise_floors([path], None), SAME))

    assert list(upgrade.problems) == problems
    assert upgrade.problems.get("slower", "regression: 6 slower").startswith("regression: 6 slower")


def test_the_points_of_the_guard_show_what_upgrades_changed_in_xqa(settings: Callable[..., Settings]):
    """XQA's of one request, of which alone docs/findings/upgrade.md headlines a change, in rows of a larger sweep."""
    path = str(ROOT / "results/h200_releases/flashinfer_0_6_16")
    of_xqa = [p.problem for p in expand(settings("+sweep=auto_guard")) if p.backend == "trtllm-native"]
    asked = [problem.model_copy(update={"out_dtype": problem.output_dtype}) for problem in of_xqa]
    rows = access.read(path).to_pandas()
    rows = rows[[row["backend"] == "trtllm-native" and problem_of(row) in asked for row in records_of(rows)]]
    sides = [rows[rows["env"].notna()], rows[rows["env"].isna()]]
    found = compare_rows(*(Selection(name, path, side) for name, side in zip(("0.6.16", "0.7.2"), sides, strict=True))).points

    assert [len(side) for side in sides] == [len(asked)] * 2 == [8, 8]
    assert set(found.loc[found["red"], "kv_dtype"]) == {"bf16", "fp8_e4m3"}


def test_if_no_release_can_be_measured_the_exit_code_is_1_and_no_site_is_written(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    code, said = Watched(tmp_path, index).again(since="1.5")

    assert code == 1 and said.endswith(f"{NEEDS_ANOTHER_TORCH} beside 1.5: cannot be measured\n")
    assert "- cannot be measured: env.ao" in said and ": ao-fakekernel needs torch<1, and here is torch" in said


def test_rows_of_all_releases_stay_and_a_site_has_the_history_of_each_point(watched: Watched):
    (history,) = (Path(f"{watched.path}_site") / "history").iterdir()

    measured = watched.rows["env"].str.removeprefix(f"{library.LIBRARY}:")
    assert measured.value_counts().to_dict() == {"1.0": 1, "1.1": 2, "1.2": 4, "1.3": 1, "1.4": 1, "1.5": 1}
    assert [f"{library.LIBRARY} {release}" in history.read_text() for release in ("1.0", "1.1", "1.2", "1.5")] == [True] * 4
    assert f"{library.LIBRARY} 1.6rc1 is left out: a pre-release\n" in watched.said


def test_what_is_new_is_measured_alone_and_what_could_not_be_installed_again(watched: Watched):
    before = watched.rows["run_id"]
    add(watched.index, LATER, OF_RELEASES["1.5"])

    code, said = watched.again()
    new = watched.rows[~watched.rows["run_id"].isin(before)]
    assert code == 1
    assert sorted(new["env"]) == [f"{library.LIBRARY}:{release}" for release in ("1.5", LATER)]
    assert [line.split(" beside ")[0] for line in said.splitlines()[-2:]] == [
        f"{library.LIBRARY} {release}" for release in (NEEDS_ANOTHER_TORCH, LATER)
    ]
    assert watched.report(LATER).startswith(f"### {library.LIBRARY} {LATER} beside 1.5: nothing")


def test_without_a_new_release_nothing_runs_and_the_exit_code_is_0(watched: Watched):
    before = len(watched.rows)

    assert watched.again(since=LATER)[0] == 0
    assert len(watched.rows) == before


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["results.path=s3://bucket/rows"], "mode=watch writes reports beside its rows; type a folder"),
        (["watch.since=[]"], r"watch\.since: no library of sweep smoke is installed here \(ao-fakekernel\); type the release"),
        (["watch.since=[ao-fakekernel]"], r"watch\.since=ao-fakekernel: allowed: a library with its version"),
        (["watch.since=[torch-geometric:2.0]"], r"the package index does not list torch-geometric.*watch\.wheels=FOLDER"),
        (
            ["watch.since=[ao-fakekernel:0.9]"],
            r"watch\.since=ao-fakekernel:0\.9: the package index has no such release; it has 1\.0",
        ),
        (["watch.wheels=/no/such", "watch.since=[ao-fakekernel:1.0]"], r"watch\.wheels=/no/such: no such folder"),
    ],
)
def test_wrong_input_is_said_in_words(
    typed: list[str], words: str, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = [] if typed[0].startswith("results") else [f"results.path={tmp_path}"]

    assert main([*SMALL, "mode=watch", "adapters=[tests.backends.clocked]", "sweep.backend=[clocked]", *path, *typed]) == 2
    assert re.search(words, capsys.readouterr().err)
