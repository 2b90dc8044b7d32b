"""Each module once, a group as soon as its own are there, and what becomes of points whose modules do not compile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from kernels import modules
from kernels.adapter import Module
from kernels.build import Built
from kernels.modules import Library
from orchestrator.builds import Key, Readiness, ThreadedBuilds, install
from orchestrator.machines import known_devices
from orchestrator.plan import Decision, Group, Plan, make_plan
from orchestrator.pool import Slot, Task
from orchestrator.row import Row
from orchestrator.scheduler import Scheduler
from orchestrator.settings import Cluster, Limits, Settings
from orchestrator.sweep import expand
from tests.compiling import SLOW_SECONDS, module
from tests.conftest import run
from tests.orchestrator.test_scheduler import FakePool, row_of

ARCHS = {known_devices()[name].name: known_devices()[name].arch for name in ("h200", "a100")}


class Told:
    """Builds that end when they are told to, one module at a time."""

    stranded = False

    def __init__(self, keys: Sequence[Key], broken: Sequence[Key] = ()) -> None:
        self.keys, self.broken = list(keys), set(broken)

    @property
    def left(self) -> int:
        return len(self.keys)

    def wait(self, timeout_s: float) -> list[Built]:
        arch, one = self.keys.pop(0)
        return [Built(one, arch, 2.0, "ptxas died" if (arch, one) in self.broken else None)]

    def close(self) -> None:
        self.keys.clear()


@pytest.fixture
def plan(settings: Callable[..., Settings]) -> Plan:
    """The main sweep on an H200, 576 points that wait for 14 modules."""
    asked = settings("+sweep=specdec_long_ctx")
    return make_plan(expand(asked), [known_devices()["h200"]], asked)


def readiness(plan: Plan, broken: Sequence[Key] = ()) -> tuple[Readiness, list[Built], dict[Decision, str]]:
    built: list[Built] = []
    lost: dict[Decision, str] = {}
    ready = Readiness(plan, ARCHS, built.append, lost.update)
    ready.builds = Told(ready.modules, broken)
    return ready, built, lost


def test_groups_come_as_soon_as_their_own_modules_are_there_and_none_earlier(plan: Plan):
    ready, built, _ = readiness(plan)
    needs = {d.point: set(d.modules) for d in plan.of("run")}
    came: list[Group] = []
    while ready.left:
        new = ready.groups(1.0)
        done = {(b.arch, b.module) for b in built}
        assert all(needs[point] <= done for group in new for point in group.points)
        came += new
        late = {p for group in plan.groups if all(needs[q] <= done for q in group.points) for p in group.points}
        assert late <= {point for group in came for point in group.points}

    assert sorted(came, key=str) == sorted(plan.groups, key=str)
    assert Counter((b.arch, b.module) for b in built) == Counter(dict.fromkeys(plan.modules, 1))


def test_the_modules_of_the_longest_group_are_compiled_first(plan: Plan):
    ready, _, _ = readiness(plan)
    longest = {d.point: d for d in plan.of("run")}
    first = {key for point in plan.groups[0].points for key in longest[point].modules}

    assert set(ready.modules[: len(first)]) == first


def test_points_whose_module_does_not_compile_are_lost_with_the_words_and_no_others(plan: Plan):
    broken = next(key for key in plan.modules if "xqa" in str(key[1]))
    ready, _, lost = readiness(plan, [broken])
    came = []
    while ready.left:
        came += ready.groups(1.0)
    ran = [point for group in came for point in group.points]

    assert {d.point for d in lost} == set(plan.modules[broken])
    assert all(words.endswith("did not compile: ptxas died") for words in lost.values())
    assert len(ran) == len(set(ran)) == 576 - len(lost)


def test_a_scheduler_runs_groups_as_they_come_and_ends_after_the_last(plan: Plan):
    ready, built, _ = readiness(plan)
    ran_after: list[int] = []
    rows: list[Row] = []

    def behaviour(task: Task) -> str:
        ran_after.append(len(built))
        return "ok"

    pool = FakePool(behaviour, [Slot(f"n:{i}", "NVIDIA H200") for i in range(2)])
    Scheduler(pool, Limits(), rows.extend, lambda task, slot, status, reason: row_of(task, status)).run(
        plan.groups, lambda point: "", ready
    )

    assert len(rows) == len({row["point_id"] for row in rows}) == 576
    assert min(ran_after) < len(plan.modules)  # points ran while modules were compiled


def test_modules_compile_side_by_side_and_each_says_how_long_it_took():
    names = ["quick", "slow", "broken", "nothing"]
    started = time.monotonic()
    builds = ThreadedBuilds([("cpu", module(name)) for name in names], {}, cores=8, loaded={"cpu"})
    ended = {}
    while builds.left:
        for built in builds.wait(1.0):
            ended[built.module.args[0]] = (built, time.monotonic() - started)

    assert set(ended) == set(names)
    assert all(ended[name][1] < SLOW_SECONDS / 2 for name in names if name != "slow")
    assert ended["slow"][0].seconds == pytest.approx(SLOW_SECONDS, abs=1.0)
    assert ended["broken"][0].error == "mha.cu(7): error: no such thing 1 error detected"


def test_a_compiled_module_lies_where_flashinfer_is_told_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from flashinfer.jit import env

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(env, "FLASHINFER_AOT_DIR", env.FLASHINFER_AOT_DIR)
    given = Built(Module("a:b", (1,)), "9.0a", 1.0, library=Library("some_module", b"an object"))
    install(given)
    modules.load_from(modules.folder_of("9.0a"))

    assert env.get_aot_path("some_module").read_bytes() == b"an object"
    assert [artifact.path for artifact in env.get_aot_artifacts("some_module")] == [env.get_aot_path("some_module")]
    assert tmp_path in env.get_aot_path("some_module").parents


def test_a_module_that_cannot_be_kept_fails_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    built = install(Built(Module("a:b", ()), "9.0a", 1.0, library=Library("m", b"")))

    assert "it cannot be kept for the workers" in str(built.error)


def test_a_module_of_another_cuda_than_this_machines_torch_is_not_put_where_workers_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(modules, "cuda_of_torch", lambda: "13.0")
    given = [
        Built(Module("a:b", ()), "9.0a", 1.0, library=Library(f"m{cuda}", f"an object {asks}{cuda}".encode()))
        for asks, cuda in (("libcudart.so.", 12), ("libcudart.so.", 13), ("", None))
    ]
    errors = [install(built).error for built in given]

    assert errors[0] and errors[0].startswith("compiled with CUDA 12, and torch has CUDA 13.0 where it is to run")
    assert errors[1:] == [None, None]
    assert sorted(file.stem for file in tmp_path.rglob("*.so")) == ["m13", "mNone"]
    assert modules.folder_of("9.0a").parent.name.endswith("-cu13")


def test_a_builder_that_is_killed_costs_its_module_alone_and_what_is_compiled_elsewhere_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from orchestrator.ray_pool import connect

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elsewhere = Module("no.such.library:here", ())
    keys = [("cpu", module(name)) for name in ("quick", "dies", "nothing")] + [("cpu", elsewhere)]
    with connect(Cluster(name="local", kind="local")) as pool:
        builds = pool.build(keys, {("cpu", elsewhere): Library("made_elsewhere", b"an object")})
        ended = []
        while builds.left:
            ended += builds.wait(1.0)
        builds.close()
    errors = {built.module: built.error for built in ended}

    assert len(ended) == len(errors) == 4
    assert {one: errors[one] for _, one in keys if "dies" not in one.args} == dict.fromkeys(
        [module("quick"), module("nothing"), elsewhere]
    )
    assert "the build's process ended" in str(errors[module("dies")])
    assert (modules.folder_of("cpu") / "made_elsewhere" / "made_elsewhere.so").read_bytes() == b"an object"


@pytest.mark.parametrize("cluster", ["inline", "local"])
def test_points_run_while_the_modules_of_others_compile(cluster: str, tmp_path: Path):
    done = run(
        "+sweep=smoke",
        f"cluster={cluster}",
        "timing=quick",
        "adapters=[tests.compiling]",
        "sweep.backend=[compiled,broken,torch_sdpa]",
        "sweep.batch_size=[1,2]",
        "sweep.s_kv=[256]",
        "sweep.s_qo=[1]",
        f"results.path={tmp_path}",
    )
    table = pd.read_parquet(tmp_path).set_index(["backend", "batch_size"]).sort_index()

    assert done.returncode == 1, done.stderr
    assert table["status"].to_dict() == {
        ("broken", 1): "failed",
        ("broken", 2): "failed",
        ("compiled", 1): "ok",
        ("compiled", 2): "ok",
        ("torch_sdpa", 1): "ok",
        ("torch_sdpa", 2): "ok",
    }
    assert all("did not compile: mha.cu(7): error: no such thing" in reason for reason in table.loc["broken", "reason"])
    started = table.loc["compiled", "started_at"]
    assert (started[1] - started[2]).total_seconds() > SLOW_SECONDS / 2  # batch 2 did not wait for the module of batch 1
    assert table.loc[("compiled", 2), "compile_s"] < SLOW_SECONDS / 2
    assert table.loc[("compiled", 1), "compile_s"] > SLOW_SECONDS * 0.9
