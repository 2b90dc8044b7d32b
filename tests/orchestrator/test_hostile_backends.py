"""A backend of a plugin fails alone, in words: it ends no run in silence, and the dataset stays readable."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import ROOT
from orchestrator.cli import main
from orchestrator.storage.columns import COLUMNS, Row
from orchestrator.storage.folder import FolderStore
from orchestrator.storage.journal import storable
from orchestrator.storage.parquet import read
from tests.backends import hostile
from tests.helpers.command_line import Invoke
from tests.helpers.runs import SMALL
from tests.helpers.stored_rows import made

ONE = [*SMALL, "cluster=inline", "sweep.batch_size=[1]", "sweep.s_qo=[1]", "adapters=[tests.backends.hostile]"]
SAYS = {
    "rule_raises": "the plugin cannot say where rule_raises runs: ValueError: my rule is wrong",
    "rule_is_nonsense": "the plugin cannot say where rule_is_nonsense runs: TypeError",
    "rule_exits": "the plugin cannot say where rule_exits runs: SystemExit: 0",
    "no_module": "the plugin cannot say where no_module runs: TypeError: 5 is no Module",
    "no_bytes": "the plugin cannot say where no_bytes runs: TypeError",
    "exits": "the worker process died: SystemExit: no licence for this kernel",
    "exits_well": "the worker process died: SystemExit: 0",
    "launch_exits": "the worker process died: SystemExit: 0",
    "unprintable": "Unprintable: it cannot be printed",
    "unprintable_exits": "UnprintableAtAll: it cannot be printed",
    "rule_no_exception": "the plugin cannot say where rule_no_exception runs: NoException: mine",
    "surrogate": "RuntimeError: bad \\udcff name",
    "no_exception": "the worker process died: NoException: mine",
}


def test_each_fails_in_words_and_the_others_have_their_rows(invoke: Invoke, tmp_path: Path):
    backends = f"sweep.backend=[{','.join(SAYS)},torch_sdpa]"
    planned = invoke(*ONE, backends, "mode=plan", f"results.path={tmp_path}")
    done = invoke(*ONE, backends, f"results.path={tmp_path}")
    rows = pd.read_parquet(tmp_path).set_index("backend")

    assert (planned.returncode, done.returncode) == (0, 1)
    assert "6 failed" in planned.stdout and "the plugin cannot say where rule_exits runs: SystemExit: 0" in planned.stdout
    assert rows["status"].to_dict() == {**dict.fromkeys(SAYS, "failed"), "torch_sdpa": "ok"}
    assert {name: rows.loc[name, "reason"] for name, words in SAYS.items() if words not in rows.loc[name, "reason"]} == {}


@pytest.mark.parametrize(
    ("backends", "code", "statuses"),
    [("[rule_exits],[torch_sdpa]", 1, {"failed", "ok"}), ("[nope],[torch_sdpa]", 1, {"ok"}), ("[torch_sdpa],[nope]", 1, {"ok"})],
)
def test_later_jobs_of_a_command_run(invoke: Invoke, tmp_path: Path, backends: str, code: int, statuses: set[str]):
    """2 would say that nothing ran."""
    done = invoke(*ONE, "-m", f"sweep.backend={backends}", f"results.path={tmp_path}")

    assert done.returncode == code
    assert set(pd.read_parquet(tmp_path)["status"]) == statuses


def test_jobs_of_which_none_can_run_are_wrong_input(invoke: Invoke, tmp_path: Path):
    assert invoke(*ONE, "-m", "sweep.backend=[nope],[nope_either]", f"results.path={tmp_path / 'rows'}").returncode == 2
    assert not (tmp_path / "rows").exists()


def test_jobs_leave_nothing_in_the_folder_that_users_of_a_machine_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = [sys.executable, "-m", "orchestrator", "+sweep=smoke", "mode=plan", "device=h200,h100", "-m"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)

    assert (done.returncode, list(tmp_path.iterdir())) == (0, []), done.stderr


def test_threads_that_a_backend_leaves_behind_do_not_keep_the_process(tmp_path: Path):
    code = "import sys, threading, time; from orchestrator import __main__ as entry\n"
    code += "threading.Thread(target=time.sleep, args=(1000,)).start(); sys.argv[1:] = ['--version']; sys.exit(entry.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout.split()[0]) == (0, "attention-orchestrator")


def test_a_backend_that_changes_the_working_directory_loses_no_row(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*ONE, "sweep.backend=[moves,torch_sdpa]", "results.path=rows")

    assert done.returncode == 0, done.stderr
    assert pd.read_parquet(tmp_path / "rows")["status"].tolist() == ["ok", "ok"]


def test_a_plugin_that_patches_a_library_is_named_where_others_fail_after_it(invoke: Invoke, tmp_path: Path, monkeypatch: Any):
    function = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", function)  # as it was, after the test
    invoke(*ONE, "sweep.backend=[patches,torch_sdpa]", f"results.path={tmp_path}")
    rows = pd.read_parquet(tmp_path).set_index("backend")

    assert rows.loc["torch_sdpa", "status"] == "failed"
    assert "(a plugin ran before in this process)" in rows.loc["torch_sdpa", "reason"]


class OddText(str):
    __slots__ = ()

    def __getitem__(self, _key: object) -> str:
        raise hostile.NoException("mine")


class OddNumber(float):
    __slots__ = ()

    def is_integer(self) -> bool:
        raise hostile.NoException("mine")


def test_a_value_of_a_plugin_s_own_class_costs_its_own_row_at_most():
    whole = made("p1")
    assert storable({**whole, "resolved_backend": OddText("fa2")}) == {**whole, "resolved_backend": "fa2"}
    row = storable({**whole, "batch_size": OddNumber(1)})
    assert (row["point_id"], row["status"], row["reason"]) == ("p1", "failed", "its row cannot be stored: NoException: mine")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@given(st.dictionaries(st.sampled_from(sorted(COLUMNS.keys() - {"point_id"})), ANYTHING, max_size=6))
@settings(max_examples=80, **FEW)
def test_whatever_a_row_holds_the_dataset_stays_readable_and_the_others_are_there(values: Row):
    with tempfile.TemporaryDirectory() as folder:
        store = FolderStore(folder)
        store.add([made("p1"), {**made("p2"), **values}, made("p3")])
        assert read(folder).num_rows == 3
        store.close()

        assert set(read(folder).column("point_id").to_pylist()) == {"p1", "p2", "p3"}


@given(
    st.dictionaries(
        st.sampled_from(
            ["resolved_backend", "kernel_config", "compute_dtype", "caller_scale", "accumulator_dtype", "launch", "out"]
        ),
        ANYTHING,
        min_size=1,
    )
    | st.text(st.characters()).map(lambda words: {"raises": RuntimeError(words)})
)
@settings(max_examples=8, **FEW)
def test_whatever_a_backend_says_of_itself_every_other_point_has_its_row(says: dict[str, Any]):
    hostile.DRAWN.clear()
    hostile.DRAWN.update(says)
    with tempfile.TemporaryDirectory() as folder:
        code = main([*ONE, "sweep.backend=[drawn,torch_sdpa]", f"results.path={folder}"])
        rows = {row["backend"]: row["status"] for row in read(folder).to_pylist()}

    assert rows.keys() == {"drawn", "torch_sdpa"}
    assert rows["torch_sdpa"] == "ok"
    assert code == (rows["drawn"] != "ok")
