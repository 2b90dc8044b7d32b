"""One point under a profiler: with the filter that leaves its call alone, and without a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from tests.helpers.command_line import Invoke

POINT = ("+sweep=smoke", "sweep.backend=[torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_kv=[256]", "sweep.s_qo=[1]", "timing=quick")
STAND_IN = """#!/bin/sh
echo "$@" > "$(dirname "$0")/asked"
while [ "$1" != "--export" ] && [ "$1" != "--output" ]; do shift; done
report="$2"; shift 2
"$@" > "$(dirname "$0")/said" && echo a report > "$report"
"""


@pytest.fixture
def point(settings: Callable[..., Settings]) -> str:
    return expand(settings(*POINT))[0].point_id


@pytest.mark.parametrize(
    ("name", "filters", "reader"),
    [
        ("ncu", "--profile-from-start=off", "ncu --import"),
        ("nsys", "--capture-range=cudaProfilerApi", "nsys stats"),
    ],
)
def test_a_profiler_sees_the_call_of_one_point_alone(
    name: str, filters: str, reader: str, point: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / name).write_text(STAND_IN)
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = invoke(*POINT, "mode=replay", f"point={point}", f"results.path={tmp_path}/rows", f"profile={name}")
    report = tmp_path / "rows_profiles" / f"{point}.{name}-rep"

    assert done.returncode == 0, done.stderr
    assert filters in (tmp_path / "asked").read_text() and "profile=marks cluster=inline" in (tmp_path / "asked").read_text()
    assert "3 launches of torch_sdpa between cudaProfilerStart" in (tmp_path / "said").read_text()
    assert report.read_text() == "a report\n" and f"{reader} {report}" in done.stdout
    assert not (tmp_path / "rows").exists() and not (tmp_path / "rows_replay").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["profile=ncu"], 2, "there is no program ncu here; install NVIDIA Nsight Compute, or add its folder to PATH"),
        (["profile=vtune"], 2, "allowed: 'ncu', 'nsys' or 'marks'"),
        (["profile=marks", "sweep.backend=[fa2_tc]"], 2, "nothing was measured or stored, unsupported here: fa2_tc on cpu needs"),
    ],
)
def test_what_cannot_be_profiled_is_said(
    words: list[str], code: int, said: str, settings: Callable[..., Settings], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nowhere")
    typed = [*POINT, *(word for word in words if word.startswith("sweep"))]
    typed = typed if len(typed) == len(POINT) else [word for word in typed if word != "sweep.backend=[torch_sdpa]"]
    id_ = expand(settings(*typed))[0].point_id
    done = invoke(*typed, "mode=replay", f"point={id_}", *(word for word in words if word.startswith("profile")))

    assert done.returncode == code and said in done.stderr + done.stdout
