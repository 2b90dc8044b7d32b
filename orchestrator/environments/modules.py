"""Compiles the kernel modules of an environment's points, in a process of the environment, before a worker runs them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels import registry
from kernels.compile.build import Built
from kernels.compile.module_cache import Library
from kernels.contract.toolchain import Module, Toolchain
from kernels.device import Device
from kernels.environment.process import Process, ProcessDied
from kernels.environment.wire import Header
from orchestrator.config.environment import Environment
from orchestrator.environments.make import EnvironmentInfo
from orchestrator.point import Point


@dataclass(frozen=True)
class CompileRequest:
    """What is to be compiled in an environment: the modules of these points."""

    environment: Environment
    points: Sequence[Point]
    plugins: tuple[str, ...] = ()
    archived: Mapping[tuple[str, Module], Library] = field(default_factory=dict)  # by architecture: they need not be compiled
    device: Device | None = None  # the one to compile for; None for those of the machines
    bring: bool = False  # whether the compiled modules are in the result


@dataclass
class Compiled:
    """Seconds or words of failure of each point's modules, by its index; `built` has them, with libraries if asked for."""

    seconds: dict[int, float] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    built: list[Built] = field(default_factory=list)


def merged(parts: Iterable[Compiled]) -> Compiled:
    """What several machines or kinds of devices gave: the longest time, and any error."""
    found = Compiled()
    for part in parts:
        found.errors |= part.errors
        found.seconds = {i: max(found.seconds.get(i, 0.0), part.seconds.get(i, 0.0)) for i in found.seconds | part.seconds}
        both = sorted([*found.built, *part.built], key=lambda one: one.error is not None)  # an error counts, whoever else has it
        found.built = list({one.key: one for one in both}.values())
    return found


def compile_there(
    made: EnvironmentInfo, wanted: CompileRequest, device: Device, say: Callable[[str], None] = lambda words: None
) -> Compiled:
    """Compiles what the points need for a device. Starts no process if no backend of theirs has modules."""
    found, points, plugins = Compiled(), wanted.points, wanted.plugins
    if not any(registry.get(p.problem.routine, p.backend, plugins).modules(p.problem, device) for p in points):
        return found
    process = Process(made.python, plugins)
    try:
        asked = [[point.backend, point.problem.model_dump(mode="json", exclude_defaults=True)] for point in points]
        how: dict[str, Any] = {"device": device.model_dump(mode="json"), "plugins": list(plugins)}
        with _as_files(wanted.archived, device.arch) as archived:

            def note(event: Header) -> None:
                say(_note(found, made.name, device.arch, wanted.bring, event))

            process.ask("compile", on_event=note, points=asked, **how, archived=archived)
    except ProcessDied as death:
        found.errors |= {index: f"its modules did not compile: {death}" for index in range(len(points))}
    except Exception as error:  # what an adapter says of modules, under versions that it does not know
        words = " ".join(str(error).split())[:400]
        found.errors |= {i: f"environment {made.name} does not say what modules it needs: {words}" for i in range(len(points))}
    finally:
        process.close()
    return found


def _note(into: Compiled, environment: str, arch: str, bring: bool, event: Header) -> str:
    """Keeps what the process tells of a module, and returns it in words."""
    module = Module(event["generator"], tuple(event["args"]), Toolchain(event["library"]))
    for index in event["points"]:
        into.seconds[index] = into.seconds.get(index, 0.0) + event["seconds"]
        if event["error"]:
            into.errors[index] = f"environment {environment}: {module.why_missing(event['error'])}"
    file = Path(event["file"]) if event["file"] and bring else None
    library = None if file is None else Library(file.stem, file.read_bytes())
    into.built.append(Built(module, arch, event["seconds"], event["error"], library))
    return f"environment {environment}: {module} {event['seconds']:.1f} s"


@contextmanager
def _as_files(archived: Mapping[tuple[str, Module], Library], arch: str) -> Iterator[list[dict[str, Any]]]:
    """The modules for an architecture as files that the process can read."""
    with tempfile.TemporaryDirectory() as folder:
        listed = []
        for number, (key, library) in enumerate(archived.items()):
            if key[0] == arch and key[1].toolchain.library:  # of others nothing says where they would be looked for
                file = Path(folder) / f"{number}.so"
                file.write_bytes(library.content)
                about = {"generator": key[1].generator, "args": list(key[1].args), "name": library.name}
                listed.append({**about, "file": str(file)})
        yield listed
