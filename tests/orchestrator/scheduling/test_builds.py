"""Each module once, a group as soon as its own are there, and what becomes of points whose modules do not compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from kernels.adapter import Module
from kernels.compile import module_cache
from kernels.compile.build import Built, install
from kernels.compile.module_cache import Library
from kernels.libraries.flashinfer_modules import FLASHINFER
from orchestrator.config.parts import Cluster
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.plan import ModuleKey, Plan
from orchestrator.scheduling.builds import ThreadedBuilds
from orchestrator.scheduling.interfaces import Batch, Slot
from orchestrator.scheduling.ready_groups import ReadyGroups, Uncompiled, modules_in_order
from orchestrator.storage.row import Row
from orchestrator.worker.messages import Task
from tests.backends.compiling import SLOW_SECONDS, module
from tests.helpers.command_line import run
from tests.helpers.fake_pool import FakePool, scheduler_of

ARCHS = {known_devices()[name].name: known_devices()[name].arch for name in ("h200", "a100")}


class OneByOne:
    """Builds that end one module at a time, each when it is asked for."""

    stranded = False

    def __init__(self, keys: Sequence[ModuleKey], broken: Sequence[ModuleKey] = ()) -> None:
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
    """The main sweep on an H200: 960 points, of which 448 wait for 14 modules."""
    asked = settings("+sweep=specdec_long_ctx")
    return make_plan(expand(asked), [known_devices()["h200"]], asked)


def ready_groups(plan: Plan, broken: Sequence[ModuleKey] = ()) -> tuple[ReadyGroups, list[Built], list[Uncompiled]]:
    built: list[Built] = []
    lost: list[Uncompiled] = []
    ready = ReadyGroups(
        plan,
        OneByOne(modules_in_order(plan), broken),
        archs=ARCHS,
        command=lambda point: f"replay {point.point_id}",
        on_built=built.append,
        on_uncompiled=lost.extend,
    )
    return ready, built, lost


def test_a_group_comes_as_soon_as_its_modules_are_compiled_and_not_before(plan: Plan):
    ready, built, _ = ready_groups(plan)
    needs = {d.point: set(d.modules) for d in plan.decisions_of("run")}
    came: list[Batch] = []
    while ready.left:
        new = ready.batches(1.0)
        done = {(b.arch, b.module) for b in built}
        assert all(needs[task.point] <= done for batch in new for task in batch.tasks)
        came += new
        late = {p for group in plan.groups if all(needs[q] <= done for q in group.points) for p in group.points}
        assert late <= {task.point for batch in came for task in batch.tasks}

    assert Counter((tuple(task.point for task in batch.tasks), batch.devices) for batch in came) == Counter(
        (group.points, group.devices) for group in plan.groups
    )
    assert not +ready.expected
    assert {task.compile_s["9.0a"] for batch in came for task in batch.tasks if needs[task.point]} == {
        2.0 * len(modules) for modules in needs.values() if modules
    }
    assert Counter((b.arch, b.module) for b in built) == Counter(dict.fromkeys(plan.modules, 1))


def test_the_modules_of_the_longest_group_are_compiled_first(plan: Plan):
    first = {key for decision in plan.groups[0].decisions for key in decision.modules}

    assert set(modules_in_order(plan)[: len(first)]) == first


def test_only_points_whose_module_does_not_compile_are_lost(plan: Plan):
    broken = next(key for key in plan.modules if "xqa" in str(key[1]))
    ready, _, lost = ready_groups(plan, [broken])
    came = []
    while ready.left:
        came += ready.batches(1.0)
    ran = [task.point for batch in came for task in batch.tasks]

    assert {one.task.point for one in lost} == set(plan.modules[broken])
    assert all(one.reason.endswith("did not compile: ptxas died") for one in lost)
    assert len(ran) == len(set(ran)) == 960 - len(lost)


def test_a_scheduler_runs_groups_as_they_come_and_ends_after_the_last(plan: Plan):
    ready, built, _ = ready_groups(plan)
    ran_after: list[int] = []
    rows: list[Row] = []

    def behaviour(task: Task) -> str:
        ran_after.append(len(built))
        return "ok"

    pool = FakePool(behaviour, [Slot(f"n:{i}", "NVIDIA H200") for i in range(2)])
    scheduler_of(pool, rows.extend, arrivals=ready).run()

    assert len(rows) == len({row["point_id"] for row in rows}) == 960
    assert min(ran_after) < len(plan.modules)  # points ran while modules were compiled


def test_modules_compile_side_by_side_and_each_says_how_long_it_took():
    names = ["quick", "slow", "broken", "nothing"]
    builds = ThreadedBuilds([("cpu", module(name)) for name in names], {}, cores=8, loaded={"cpu"})
    ended = {}
    while builds.left:
        for built in builds.wait(1.0):
            ended[built.module.args[0]] = built

    assert set(ended) == set(names)
    assert list(ended)[-1] == "slow"  # the second of four: the others did not wait for it
    assert ended["slow"].seconds >= SLOW_SECONDS > max(ended[name].seconds for name in names if name != "slow")
    assert ended["broken"].error == "mha.cu(7): error: no such thing 1 error detected"


def test_a_compiled_module_is_installed_where_flashinfer_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from flashinfer.jit import env

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(env, "FLASHINFER_AOT_DIR", env.FLASHINFER_AOT_DIR)
    given = Built(Module("a:b", (1,), FLASHINFER), "9.0a", 1.0, library=Library("some_module", b"an object"))
    install(given)
    module_cache.look_for([given.module], "9.0a")

    assert env.get_aot_path("some_module").read_bytes() == b"an object"
    assert [artifact.path for artifact in env.get_aot_artifacts("some_module")] == [env.get_aot_path("some_module")]
    assert tmp_path in env.get_aot_path("some_module").parents


def test_a_module_that_cannot_be_kept_fails_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    built = install(Built(Module("a:b", ()), "9.0a", 1.0, library=Library("m", b"")))

    assert "it cannot be kept for the workers" in str(built.error)


def test_a_module_of_another_cuda_than_torch_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module_cache, "cuda_of_torch", lambda: "13.0")
    given = [
        Built(Module("a:b", ()), "9.0a", 1.0, library=Library(f"m{cuda}", f"an object {asks}{cuda}".encode()))
        for asks, cuda in (("libcudart.so.", 12), ("libcudart.so.", 13), ("", None))
    ]
    errors = [install(built).error for built in given]

    assert errors[0] and errors[0].startswith("compiled with CUDA 12, and torch has CUDA 13.0 where it is to run")
    assert errors[1:] == [None, None]
    assert sorted(file.stem for file in tmp_path.rglob("*.so")) == ["m13", "mNone"]
    assert module_cache.folder_of("9.0a").parent.name.endswith("-cu13")


def test_a_killed_builder_costs_only_its_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from orchestrator.pools import connect

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
    assert (module_cache.folder_of("cpu") / "made_elsewhere" / "made_elsewhere.so").read_bytes() == b"an object"


@pytest.mark.parametrize("cluster", ["inline", "local"])
def test_points_run_while_the_modules_of_others_compile(cluster: str, tmp_path: Path):
    done = run(
        "+sweep=smoke",
        f"cluster={cluster}",
        "timing=quick",
        "adapters=[tests.backends.compiling]",
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
    assert (started[1] - started[2]).total_seconds() > SLOW_SECONDS / 5  # batch 2 did not wait for the module of batch 1
    assert table.loc[("compiled", 2), "compile_s"] < SLOW_SECONDS / 2
    assert table.loc[("compiled", 1), "compile_s"] > SLOW_SECONDS * 0.9
