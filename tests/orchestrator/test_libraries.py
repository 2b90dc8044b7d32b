"""Kernel libraries: their versions in a row, and what a machine lacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels import registry
from orchestrator import libraries, machines
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.resume import Resume
from orchestrator.storage.row import Row, describe, finish, library_column, to_table
from tests.helpers.command_line import Invoke

FA3 = "tokenspeed-fa3"
WITH, WITHOUT = {FA3: "3.0.0.post20260810"}, {FA3: None}


@pytest.mark.parametrize(
    ("distributions", "machine", "column"),
    [
        ((), {}, None),
        ((FA3,), WITH, "tokenspeed-fa3 3.0.0.post20260810"),
        ((FA3,), WITHOUT, None),
        (("flashinfer-python", "nvidia-cudnn-frontend"), {"flashinfer-python": "1", "nvidia-cudnn-frontend": "2"}, None),
        (("duckdb",), {}, f"duckdb {libraries.installed('duckdb')}"),  # what only a plugin names is looked up here
    ],
)
def test_the_column_has_each_library_with_its_version(distributions: tuple[str, ...], machine: Row, column: str | None):
    expected = column or ("flashinfer-python 1, nvidia-cudnn-frontend 2" if len(distributions) == 2 else None)
    assert libraries.column(distributions, machine) == expected


def planned(settings: Callable[..., Settings], machine: dict[str, str | None] | None) -> Plan:
    asked = settings("+sweep=smoke", "sweep.backend=[flash_attn_3,torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_kv=[8192]")
    return make_plan(expand(asked), [known_devices()["h200"]], asked, machine)


def test_a_library_that_is_not_installed_makes_its_points_unsupported(settings: Callable[..., Settings]):
    kinds = {d.point.backend: (d.kind, d.reason) for d in planned(settings, WITHOUT).decisions}

    assert kinds["torch_sdpa"] == ("run", "")
    assert kinds["flash_attn_3"] == (
        "unsupported",
        "flash_attn_3 needs tokenspeed-fa3, which is not installed there; type: pip install 'attention-orchestrator[fa3]'",
    )
    for machine in (WITH, None):  # None: a plan for a device that is not here
        assert {d.kind for d in planned(settings, machine).decisions} == {"run"}


def test_a_plugin_s_library_is_named_by_itself():
    adapter = registry.get("paged_decode", "fa2")

    assert libraries.missing(adapter, {"flashinfer-python": None}).endswith("type: pip install flashinfer-python")


def test_an_upgrade_of_one_library_runs_its_points_alone_again(settings: Callable[..., Settings]):
    asked = settings("+sweep=smoke")
    common: Row = {"cluster": "local", "torch_version": "2.13", "orchestrator_version": "0.1.0"}
    decisions = planned(settings, WITH).decisions
    at = {"device_name": decisions[0].devices[0]}
    rows = [finish({**describe(d.point), **common, **library_column(d.point, WITH), **at}, "ok") for d in decisions]
    after = {**WITH, FA3: "3.1.0"}

    assert all(Resume(to_table(rows), asked, common, [WITH]).is_answered(d) for d in decisions)
    left = {d.point.backend for d in decisions if not Resume(to_table(rows), asked, common, [after]).is_answered(d)}
    assert left == {"flash_attn_3"}


def test_a_machine_says_which_libraries_it_has():
    found = machines.versions()

    assert found["flashinfer-python"] == found["flashinfer_version"]
    assert FA3 in found


def test_conformance_says_which_library_is_missing(invoke: Invoke):
    done = invoke("mode=conformance", "backend=[flash_attn_3]")
    words = " ".join(done.stdout.replace("│", " ").split())

    assert done.returncode == 0
    assert "not run flash_attn_3 needs tokenspeed-fa3, which is not installed there" in words
    assert "0 failed" in words
