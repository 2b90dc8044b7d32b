"""Modules that compile on machines of a Ray cluster which come and go: each once, and on every machine that loads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernels import modules
from kernels.adapter import Module
from kernels.build import Built
from kernels.modules import Library
from orchestrator.builds import Builds
from orchestrator.settings import Cluster
from tests.compiling import file
from tests.faults.conftest import Machines
from tests.faults.runs import wait_until
from tests.faulty import MARKS

if TYPE_CHECKING:
    from orchestrator.ray_pool import RayPool

ELSEWHERE = Module("no.such.library:here", ())
Join = Callable[[str], str]


@pytest.fixture
def join(machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Join:
    """A machine more, with a home of its own where it keeps compiled modules; its node id."""
    monkeypatch.setenv(MARKS, str(tmp_path))

    def joined(home: str) -> str:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
            return machines.join()

    return joined


@pytest.fixture
def pool(machines: Machines, join: Join) -> Iterator[RayPool]:
    """Two machines, `a` and `b`, that compile one module at a time each."""
    from orchestrator.ray_pool import connect  # Ray reads how it asks for tokens once, when it is imported

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
    """The machines on which a module lies where workers look, whole."""
    found = tmp_path.glob(f"*/{modules.FOLDER}/*/cpu/{name}/{name}.so")
    return {path.relative_to(tmp_path).parts[0] for path in found if path.read_bytes() == f"the object of {name}".encode()}


def compiled_on(tmp_path: Path, name: str) -> list[str]:
    return [Path(line).name for line in (tmp_path / f"built-{name}").read_text().splitlines()]


def test_each_module_is_compiled_once_and_put_on_every_machine_also_on_one_that_joins(pool: RayPool, join: Join, tmp_path: Path):
    names = ["one", "two", "three", "four"]
    given = Library("elsewhere", b"the object of elsewhere")
    builds = pool.build([*(("cpu", file(name, 1)) for name in names), ("cpu", ELSEWHERE)], {("cpu", ELSEWHERE): given})
    ended = all_of(builds)
    builds.close()

    assert sorted(str(built.module) for built in ended if built.error is None) == sorted(
        map(str, [*map(file_of, names), ELSEWHERE])
    )
    assert {name: len(compiled_on(tmp_path, name)) for name in names} == dict.fromkeys(names, 1)
    assert {home for name in names for home in compiled_on(tmp_path, name)} == {"a", "b"}  # side by side
    assert all(homes_with(tmp_path, name) == {"a", "b"} for name in (*names, "elsewhere"))

    late = join("c")
    wait_until(lambda: late in {slot.node_id for slot in pool.slots}, "the machine that joined has a worker's place")
    assert all(homes_with(tmp_path, name) == {"a", "b", "c"} for name in (*names, "elsewhere"))
    assert all(len(compiled_on(tmp_path, name)) == 1 for name in names)


def file_of(name: str) -> Module:
    return file(name, 1)


def test_a_module_whose_machine_dies_while_it_compiles_is_compiled_on_another(pool: RayPool, machines: Machines, tmp_path: Path):
    builds = pool.build([("cpu", file("long", 4))], {})
    assert not builds.wait(0.1)
    wait_until((tmp_path / "built-long").exists, "it is being compiled")
    (first,) = compiled_on(tmp_path, "long")
    number = {"a": 0, "b": 1}
    machines.kill(list(machines.nodes)[number[first]])
    ended = all_of(builds)

    assert [built.error for built in ended] == [None]
    assert compiled_on(tmp_path, "long") == [first, *({"a", "b"} - {first})]
    assert homes_with(tmp_path, "long") >= {"a", "b"} - {first}
