"""Kernel modules compile on machines of a Ray cluster that come and go: each once, with a copy for every machine that loads it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernels.adapter import Module
from kernels.compile import module_cache
from kernels.compile.build import Built
from kernels.compile.module_cache import Library
from orchestrator.config.parts import Cluster
from orchestrator.scheduling.builds import Builds
from tests.backends.compiling import LONG_SECONDS, file
from tests.backends.faulty import MARKS
from tests.helpers.machines import Machines
from tests.helpers.runs import IMPATIENT, SMALL, processes, rows_of, signal_all, start, wait_until

if TYPE_CHECKING:
    from orchestrator.pools.ray.pool import RayPool

ELSEWHERE = Module("no.such.library:here", ())
Join = Callable[[str], str]


@pytest.fixture
def join(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Join:
    """Adds a machine with its own folder of compiled modules; returns its node id."""
    monkeypatch.setenv(MARKS, str(tmp_path))
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"  # a machine without one would not be asked to compile
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(mode=0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))

    def joined(home: str) -> str:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
            node = machines.join()
        machines.homes[node] = home
        return node

    return joined


@pytest.fixture
def pool(machines: Machines, join: Join) -> Iterator[RayPool]:
    """Two machines, `a` and `b`, that compile one module at a time each."""
    from orchestrator.pools import connect  # Ray reads how it asks for tokens once, when it is imported

    join("a"), join("b")
    with connect(Cluster(name="lab", kind="ray", address=machines.address)) as pool:
        yield pool


def all_of(builds: Builds, seconds: float = 90) -> list[Built]:
    ended: list[Built] = []
    deadline = time.monotonic() + seconds
    while builds.left:
        ended += builds.wait(0.5)
        assert time.monotonic() < deadline, f"{builds.left} modules are left"
    return ended


def homes_with(tmp_path: Path, name: str) -> set[str]:
    """The machines where workers find a module, complete."""
    found = tmp_path.glob(f"*/{module_cache.FOLDER}/*/cpu/{name}/{name}.so")
    return {path.relative_to(tmp_path).parts[0] for path in found if path.read_bytes() == f"the object of {name}".encode()}


def compiled_on(tmp_path: Path, name: str) -> list[str]:
    marks = tmp_path / f"built-{name}"
    return [Path(line).name for line in marks.read_text().splitlines()] if marks.exists() else []


def test_a_module_is_compiled_once_and_copied_to_machines_that_join_too(pool: RayPool, join: Join, tmp_path: Path):
    names = ["one", "two", "three", "four"]
    given = Library("elsewhere", b"the object of elsewhere")
    keys = [*(("cpu", file(name, 1)) for name in names), ("cpu", ELSEWHERE)]
    builds = pool.build(keys, {("cpu", ELSEWHERE): given})
    ended = all_of(builds)

    assert {("cpu", built.module): built.error for built in ended} == dict.fromkeys(keys)
    assert len(ended) == len(keys)
    assert {name: len(compiled_on(tmp_path, name)) for name in names} == dict.fromkeys(names, 1)
    assert {home for name in names for home in compiled_on(tmp_path, name)} == {"a", "b"}  # side by side
    assert all(homes_with(tmp_path, name) == {"a", "b"} for name in (*names, "elsewhere"))

    late = join("c")
    wait_until(lambda: late in {slot.node_id for slot in pool.slots}, "the machine that joined is one of the others")
    assert all(homes_with(tmp_path, name) == {"a", "b", "c"} for name in (*names, "elsewhere"))
    assert all(len(compiled_on(tmp_path, name)) == 1 for name in names)


def test_machines_without_a_compiler_load_but_do_not_compile(pool: RayPool, machines: Machines, join: Join, tmp_path: Path):
    from orchestrator.pools.ray.builds import RayBuilds

    join("c")
    wait_until(lambda: len(pool.slots) == 3, "three machines")
    node = {home: node for node, home in machines.homes.items()}
    compiles, other, loads = (pool.nodes.machines[node[home]] for home in "abc")
    here = {
        node["a"]: replace(compiles, has_nvcc=True),
        node["b"]: replace(other, has_nvcc=True, isa="another"),
        node["c"]: replace(loads, has_nvcc=False),
    }
    builds = RayBuilds([("cpu", file(name)) for name in ("one", "two")], {}, here, lambda arch: [node["c"]], pool.nodes.is_gone)

    assert [built.error for built in all_of(builds)] == [None, None]
    assert compiled_on(tmp_path, "one") == compiled_on(tmp_path, "two") == ["a"]
    assert homes_with(tmp_path, "one") == homes_with(tmp_path, "two") == {"c"}


def test_machines_that_die_while_they_compile_cost_a_module_no_attempt(
    pool: RayPool, machines: Machines, join: Join, tmp_path: Path
):
    builds = pool.build([("cpu", file("long", LONG_SECONDS))], {})
    for deaths in (1, 2):
        builds.wait(0.1)
        wait_until(lambda count=deaths: builds.wait(0.1) or count == len(compiled_on(tmp_path, "long")), "it is being compiled")
        *_, home = compiled_on(tmp_path, "long")
        machines.kill(next(node for node in machines.nodes if machines.homes[node] == home))
    wait_until(lambda: builds.wait(0.1) or builds.stranded, "nobody is left to compile it")
    join("c")
    wait_until(lambda: pool.slots, "the machine that joined is one of the others")
    ended = all_of(builds)

    assert [built.error for built in ended] == [None]
    assert sorted(compiled_on(tmp_path, "long")) == ["a", "b", "c"]
    assert homes_with(tmp_path, "long") == {"c"}


def test_a_module_outlives_the_machines_that_compiled_it(pool: RayPool, machines: Machines, join: Join, tmp_path: Path):
    builds = pool.build([("cpu", file("one"))], {})
    assert [built.error for built in all_of(builds)] == [None]
    for node in list(machines.nodes):
        machines.kill(node)
    late = join("c")
    wait_until(lambda: late in {slot.node_id for slot in pool.slots}, "the machine that joined is one of the others")

    assert "c" in homes_with(tmp_path, "one")
    assert len(compiled_on(tmp_path, "one")) == 1


def test_a_run_whose_machines_die_while_they_compile_can_be_resumed(machines: Machines, join: Join, tmp_path: Path):
    only = join("a")
    args = [*SMALL, "adapters=[tests.backends.compiling]", "sweep.backend=[filed]", "sweep.batch_size=[1]", "sweep.s_qo=[1]"]
    args += ["cluster=ray", f"cluster.address={machines.address}", f"results.path={tmp_path / 'rows'}", "cluster.wait_seconds=3"]
    first = start(*args)
    wait_until(lambda: compiled_on(tmp_path, "long"), "it is being compiled")
    machines.kill(only)
    out, err = first.communicate(timeout=240)

    assert first.returncode == 1, out + err
    assert "no machine is there that could after cluster.wait_seconds=3" in out
    assert "every finished row is stored. To go on, type" in out
    assert "Traceback" not in out + err
    assert len(rows_of(tmp_path / "rows")) == 0  # the machine is to blame and no point

    join("b")
    out, err = start(*args).communicate(timeout=240)
    assert set(rows_of(tmp_path / "rows")["status"]) == {"ok"}, out + err


def test_compiling_ahead_without_ray_ends_with_the_command_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {**{f"RAY_{key}": str(value) for key, value in IMPATIENT.items()}, MARKS: str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    driver = start(*SMALL, "adapters=[tests.backends.compiling]", "sweep.backend=[filed]", "mode=compile")
    wait_until(lambda: compiled_on(tmp_path, "long"), "it is being compiled")
    signal_all(list(processes("raylet/raylet", under=driver.pid)), signal.SIGKILL)
    out, err = driver.communicate(timeout=240)

    assert driver.returncode == 1, out + err
    assert "stopped: 1 kernel modules are left to compile" in out and "To go on, type" in out and "mode=compile" in out
    assert "Traceback" not in out + err
