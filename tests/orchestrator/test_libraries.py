"""Kernel libraries: their versions in a row, and what a machine lacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernels import registry
from kernels.mutants import adapters_from
from kernels.problem import Problem
from orchestrator import ROOT, libraries, machines
from orchestrator.analysis.compare.selection import select
from orchestrator.analysis.dataset import open_dataset
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Decision, Plan
from orchestrator.planning.resume import Resume
from orchestrator.run import imports_of
from orchestrator.storage import parquet
from orchestrator.storage.journal import parse_row
from orchestrator.storage.row import Row, describe, finish, library_column, to_json, to_table
from tests.helpers.command_line import Invoke
from tests.helpers.problems import HEADS
from tests.helpers.stored_rows import made

FA3 = "tokenspeed-fa3"
WITH, WITHOUT = {FA3: "3.0.0.post20260810"}, {FA3: None}


@pytest.mark.parametrize(
    ("distributions", "machine", "column"),
    [
        ((), {}, None),
        ((FA3,), WITH, "tokenspeed-fa3 3.0.0.post20260810"),
        ((FA3,), WITHOUT, None),
        (("flashinfer-python", "nvidia-cudnn-frontend"), {"flashinfer-python": "1", "nvidia-cudnn-frontend": "2"}, None),
        (("duckdb",), WITH, None),  # what only a plugin names is reported by a machine that is asked for it
        (("duckdb",), {"duckdb": "1.5"}, "duckdb 1.5"),
    ],
)
def test_the_column_has_each_library_with_its_version(distributions: tuple[str, ...], machine: Row, column: str | None):
    expected = column or ("flashinfer-python 1, nvidia-cudnn-frontend 2" if len(distributions) == 2 else None)
    assert libraries.column(distributions, machine) == expected


def planned(settings: Callable[..., Settings], machine: dict[str, str | None] | None) -> Plan:
    asked = settings("+sweep=smoke", "sweep.backend=[flash_attn_3,torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_kv=[8192]")
    return make_plan(expand(asked), [known_devices()["h200"]], asked, [machine] if machine else [])


def test_a_library_that_is_not_installed_makes_its_points_unsupported(settings: Callable[..., Settings]):
    kinds = {d.point.backend: (d.kind, d.reason) for d in planned(settings, WITHOUT).decisions}

    assert kinds["torch_sdpa"] == ("run", "")
    assert kinds["flash_attn_3"] == (
        "unsupported",
        "flash_attn_3 needs tokenspeed-fa3, which is not installed there; type: pip install '.[fa3]'",
    )
    for machine in (WITH, None):  # None: a plan for a device that is not here
        assert {d.kind for d in planned(settings, machine).decisions} == {"run"}


FI, FI_RULE = "flashinfer-python", "flashinfer-python>=0.5.3,<0.8"
TREES = (
    "sweep.routine=[paged_decode]",
    "sweep.s_qo=[1,4]",
    "sweep.mask=[causal,binary]",
    "sweep.batch_size=[1]",
    "sweep.s_kv=[8192]",
)


def over_trees(
    settings: Callable[..., Settings], machine: dict[str, str | None], backend: str = "flash_attn_3"
) -> dict[str, Decision]:
    """The decision over a causal draft of four tokens and over a draft tree."""
    asked = settings("+sweep=smoke", f"sweep.backend=[{backend}]", *TREES)
    plan = make_plan(expand(asked), [known_devices()["h200"]], asked, [machine])
    return {d.point.problem.mask: d for d in plan.decisions if d.point.problem.s_qo == 4}


def test_a_library_that_some_problems_need_is_asked_for_with_these_alone(settings: Callable[..., Settings]):
    both, neither = {**WITH, FI: "0.7.2"}, {**WITHOUT, FI: None}

    for machine, causal, tree in (
        (both, "", ""),
        (
            {**WITH, FI: None},
            "",
            f"flash_attn_3 needs flashinfer-python, which is not installed there; type: pip install '{FI_RULE}'",
        ),
        (neither, "[fa3]'", f"'.[fa3]' '{FI_RULE}'"),
        ({**WITH, FI: "0.9"}, "", "flashinfer-python>=0.5.3,<0.8 (not known for flashinfer-python 0.9)"),
    ):
        found = over_trees(settings, machine)
        for mask, words in (("causal", causal), ("binary", tree)):
            assert found[mask].kind == ("unsupported" if words else "run")
            assert found[mask].reason.endswith(words)
            assert bool(found[mask].reason) == bool(words)


def test_a_row_names_a_library_that_its_problem_needs(settings: Callable[..., Settings]):
    machine = {**WITH, FI: "0.7.2"}
    found = over_trees(settings, machine)

    assert library_column(found["causal"].point, machine) == {"libraries": "tokenspeed-fa3 3.0.0.post20260810"}
    assert library_column(found["binary"].point, machine) == {
        "libraries": "tokenspeed-fa3 3.0.0.post20260810, flashinfer-python 0.7.2"
    }


def test_an_upgrade_of_a_second_library_runs_the_problems_again_that_need_it(settings: Callable[..., Settings]):
    asked, machine = settings("+sweep=smoke"), {**WITH, FI: "0.7.1"}
    common: Row = {"cluster": "local", "torch_version": "2.13", "orchestrator_version": "0.1.0"}
    decisions = over_trees(settings, machine).values()
    at = {"device_name": next(iter(decisions)).devices[0]}
    rows = [finish({**describe(d.point), **common, **library_column(d.point, machine), **at}, "ok") for d in decisions]
    after = Resume(to_table(rows), asked, common, [{**machine, FI: "0.7.2"}])

    assert {d.point.problem.mask for d in decisions if not after.is_answered(d)} == {"binary"}


def test_backends_made_of_others_need_what_these_need():
    tree = {"mask": "binary", "tree": (-1, 0, 0, 1), "s_qo": 4}
    shape = {"routine": "paged_decode", "batch_size": 8, "s_kv": 8192, **HEADS}
    split = registry.get("paged_decode", "flash_attn_3+fa2@4")
    drafts, mixed = (Problem.model_validate({**shape, **keys}) for keys in ({"s_qo": 1}, {"s_qo": 8, "min_s_qo": 1}))
    mutants = {one.name: one for one in adapters_from(registry.get("paged_decode", "flash_attn_3"))}
    mutant = next(iter(mutants.values()))

    assert split.distributions_for(mixed) == split.all_distributions == (FA3, FI)
    assert split.to_install([FI]) == (FI_RULE,)
    assert split.to_install([FA3, FI]) == (".[fa3]", FI_RULE)
    assert registry.get("paged_decode", "flash_attn_3+flash_attn_3").distributions_for(mixed) == (FA3,)
    assert mutant.distributions_for(drafts) == ("torch", FA3)
    assert mutant.distributions_for(Problem.model_validate({**shape, **tree})) == ("torch", FA3, FI)
    assert dict(mutant.for_versions({FA3: "3.0", FI: "0.7"}).wraps.installed) == {FA3: "3.0", FI: "0.7"}


def test_workers_load_the_libraries_of_the_points_that_run_and_no_others(settings: Callable[..., Settings]):
    assert imports_of(planned(settings, WITH), ()) == ("flash_attn_3",)
    assert imports_of(planned(settings, WITHOUT), ()) == ()


def test_what_one_of_several_machines_lacks_is_missing_and_what_none_reports_is_not():
    adapter = registry.get("paged_decode", "fa2")

    assert libraries.missing(adapter, {FI: "1"}, {FI: None}).endswith(f"type: pip install '{FI_RULE}'")
    assert libraries.missing(adapter, {FI: "1"}, {}) == ""


@pytest.mark.parametrize(
    ("backend", "library", "what"),
    [("vllm_triton", "vllm", "'vllm>=0.25.1,<0.34'"), ("flash_attn_3", FA3, "it")],
)
def test_an_environment_that_lacks_a_library_says_what_to_add(
    backend: str, library: str, what: str, settings: Callable[..., Settings]
):
    asked = settings(
        "+sweep=smoke", f"sweep.backend=[{backend}]", "sweep.batch_size=[1]", "sweep.s_kv=[8192]",
        "+env.mine={requirements: ['flashinfer-python==0.7.2']}", "sweep.env=[mine]",
    )  # fmt: skip
    plan = make_plan(expand(asked), [known_devices()["h200"]], asked, environments={"mine": {FI: "0.7.2", library: None}})

    assert {d.reason for d in plan.decisions} == {
        f"environment mine: {backend} needs {library}, which is not installed there; add {what} to its requirements"
    }


def test_with_any_versions_a_library_need_not_be_on_all_machines(settings: Callable[..., Settings]):
    asked = settings("+sweep=smoke", "sweep.backend=[flash_attn_3]", "sweep.batch_size=[1]", "sweep.s_kv=[8192]", "versions=any")

    def kinds(*on: dict[str, str | None]) -> set[str]:
        return {d.kind for d in make_plan(expand(asked), [known_devices()["h200"]], asked, on).decisions}

    assert kinds(WITH, WITHOUT) == kinds(WITHOUT, WITH) == {"run"}
    assert kinds(WITHOUT, WITHOUT) == {"unsupported"}


def test_a_row_is_answered_by_the_versions_of_one_machine_not_by_a_mixture(settings: Callable[..., Settings]):
    asked = settings("+sweep=smoke", "versions=any")
    common: Row = {"cluster": "local", "torch_version": None, "orchestrator_version": "0.1.0"}
    decision = next(d for d in planned(settings, WITH).decisions if d.point.backend == "flash_attn_3")
    old, new = ({"torch_version": torch, FA3: fa3} for torch, fa3 in (("2.11", "3.0"), ("2.13", "3.1")))

    def answered(row_of: dict[str, str | None]) -> bool:
        at: Row = {**common, "torch_version": row_of["torch_version"], "device_name": decision.devices[0]}
        row = finish({**describe(decision.point), **at, **library_column(decision.point, row_of)}, "ok")
        return Resume(to_table([row]), asked, common, [old, new]).is_answered(decision)

    assert answered(old) and answered(new)
    assert not answered({"torch_version": "2.11", FA3: "3.1"})
    assert not answered({"torch_version": "2.13", FA3: "3.0"})


def test_an_older_row_has_the_library_of_its_time_in_a_file_a_journal_and_sql(tmp_path: Path):
    row = {**made("p1"), "flashinfer_version": "0.7.2"}
    older = [row, {**made("p2"), "flashinfer_version": None}]
    for one in older:
        del one["libraries"]
    expected = {"p1": "flashinfer-python 0.7.2", "p2": None}
    table = to_table([{**one, "libraries": None} for one in older]).drop_columns(["libraries"])
    pq.write_table(table, tmp_path / "rows.parquet")

    assert dict(zip(*(parquet.read(tmp_path).column(n).to_pylist() for n in ("point_id", "libraries")), strict=True)) == expected
    assert dict(open_dataset(str(tmp_path)).execute("SELECT point_id, libraries FROM rows")) == expected
    for one in older:
        found = parse_row(to_json(one).encode())
        assert isinstance(found, dict) and found["libraries"] == expected[found["point_id"]]


def test_after_a_library_is_installed_the_newer_row_alone_is_current(tmp_path: Path):
    before = {**made("p1", "unsupported"), "libraries": None, "finished_at": "2026-11-22T10:00:00+00:00"}
    after = {**made("p1"), "libraries": "tokenspeed-fa3 3.0", "finished_at": "2026-11-22T11:00:00+00:00"}
    pq.write_table(to_table([before, after]), tmp_path / "rows.parquet")

    assert list(open_dataset(str(tmp_path)).current()["libraries"]) == ["tokenspeed-fa3 3.0"]
    anywhere = {**before, "device_name": "NVIDIA H200 | NVIDIA B200"}
    assert parquet.merge(to_table([anywhere]), [after]).column("status").to_pylist() == ["ok"]


OF = {
    "fa2": "flashinfer-python 0.7.2",
    "cudnn": "flashinfer-python 0.7.2, nvidia-cudnn-frontend 1",
    "flash_attn_3": "tokenspeed-fa3 3.0",
}


@pytest.mark.parametrize(
    ("condition", "found"),
    [("flashinfer-python:0.7.2", ["fa2", "cudnn"]), ("tokenspeed-fa3:3", ["flash_attn_3"]), ("10.0.0.5:6379", list(OF))],
)
def test_a_comparison_can_name_one_library_or_an_address(condition: str, found: list[str], tmp_path: Path):
    rows = [{**made(name), "backend": name, "libraries": libraries, "cluster": "10.0.0.5:6379"} for name, libraries in OF.items()]
    pq.write_table(to_table(rows), tmp_path / "rows.parquet")

    assert list(select("baseline", [condition], str(tmp_path)).rows["backend"]) == found


def test_a_library_version_that_no_row_has_is_an_error_that_lists_those_there_are(tmp_path: Path):
    row = {**made("p"), "libraries": "tokenspeed-fa3 3.0", "sweep": "servers", "model": "m", "backend": "flash_attn_3"}
    pq.write_table(to_table([row, {**row, "libraries": "tokenspeed-fa3 4.0", "model": "n"}]), tmp_path / "rows.parquet")
    told = (
        "baseline=tokenspeed-fa3:4: no row of where={model: m} is of tokenspeed-fa3 4; those there are of tokenspeed-fa3 3.0\n"
        "to measure both: python -m orchestrator +sweep=servers 'sweep.env=[tokenspeed-fa3:3.0, tokenspeed-fa3:4]' "
        "'where={backend: [flash_attn_3], model: m}'\nthen: this command with results.path=results/servers"
    )

    with pytest.raises(UserError, match=re.escape(told)):
        select("baseline", ["tokenspeed-fa3:4"], str(tmp_path), {"model": "m"})


def test_an_upgrade_of_one_library_runs_its_points_alone_again(settings: Callable[..., Settings]):
    asked = settings("+sweep=smoke")
    common: Row = {"cluster": "local", "torch_version": "2.13", "orchestrator_version": "0.1.0"}
    decisions = planned(settings, WITH).decisions
    at = {"device_name": decisions[0].devices[0]}
    rows = [finish({**describe(d.point), **common, **library_column(d.point, WITH), **at}, "ok") for d in decisions]
    after = {**WITH, FA3: "3.1.0"}

    assert all(Resume(to_table(rows), asked, common, [WITH]).is_answered(d) for d in decisions)
    assert libraries.installed(FA3) is None  # what the driver has is not asked
    left = {d.point.backend for d in decisions if not Resume(to_table(rows), asked, common, [after]).is_answered(d)}
    assert left == {"flash_attn_3"}


def test_a_machine_says_which_libraries_it_has():
    found = machines.versions()

    assert found["flashinfer-python"] == found["flashinfer_version"]
    assert FA3 in found


def test_a_machine_reports_the_libraries_of_plugins_that_it_is_asked_for():
    names = libraries.named_by(("tests.backends.cheating",))

    assert set(libraries.named_by()) <= set(names)
    assert machines.versions(("duckdb", "no-such-package"))["duckdb"] == libraries.installed("duckdb") is not None
    assert machines.describe(names=("no-such-package",)).versions["no-such-package"] is None


def test_conformance_says_which_library_is_missing(invoke: Invoke):
    done = invoke("mode=conformance", "backend=[flash_attn_3]")
    words = " ".join(done.stdout.replace("│", " ").split())

    assert done.returncode == 0
    assert "not run flash_attn_3 needs tokenspeed-fa3, which is not installed there" in words
    assert "0 failed" in words


@pytest.mark.parametrize(
    ("release", "libraries"),
    [("0.5.12.post1", {"sglang-kernel 0.4.2.post2"}), ("0.5.23", {"sglang-kernel 0.4.10", "sglang 0.5.23"})],
)
def test_rows_of_a_release_of_an_engine_are_those_of_what_it_requires_too(release: str, libraries: set[str]):
    path = ",".join(f"{ROOT}/results/h200_main/servers{part}" for part in ("", "_older_releases"))

    assert set(select("baseline", [f"sglang:{release}"], path).rows["libraries"]) == libraries
