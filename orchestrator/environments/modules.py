"""Compiles the kernel modules of an environment's points, in a process of the environment, before a worker runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kernels import registry
from kernels.device import Device
from kernels.environment.process import Process, ProcessDied
from kernels.environment.wire import Header
from orchestrator.environments.make import Made
from orchestrator.point import Point


@dataclass
class Compiled:
    """By the index of each point: seconds that its modules took, and the words for one that did not compile."""

    seconds: dict[int, float] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


def merged(parts: Iterable[Compiled]) -> Compiled:
    """What several machines or kinds of devices gave: the longest time, and any error."""
    found = Compiled()
    for part in parts:
        found.errors |= part.errors
        found.seconds = {i: max(found.seconds.get(i, 0.0), part.seconds.get(i, 0.0)) for i in found.seconds | part.seconds}
    return found


def compile_there(
    made: Made, points: Sequence[Point], device: Device, plugins: tuple[str, ...], say: Callable[[str], None] = lambda words: None
) -> Compiled:
    """Compiles what the points need. Starts no process if no backend of theirs has modules."""
    found = Compiled()
    if not any(registry.get(p.problem.routine, p.backend, plugins).modules(p.problem, device) for p in points):
        return found

    def note(event: Header) -> None:
        say(f"environment {made.name}: {event['module']} {event['seconds']:.1f} s")
        for index in event["points"]:
            found.seconds[index] = found.seconds.get(index, 0.0) + event["seconds"]
            if event["error"]:
                found.errors[index] = (
                    f"kernel module {event['module']} did not compile in environment {made.name}: {event['error']}"
                )

    process = Process(made.python, plugins)
    try:
        asked = [[point.backend, point.problem.model_dump(mode="json", exclude_defaults=True)] for point in points]
        process.ask("compile", on_event=note, points=asked, device=device.model_dump(mode="json"), plugins=list(plugins))
    except ProcessDied as death:
        found.errors |= {index: f"its modules did not compile: {death}" for index in range(len(points))}
    except Exception as error:  # what an adapter says of modules, under versions that it does not know
        words = " ".join(str(error).split())[:400]
        found.errors |= {i: f"its modules cannot be compiled in environment {made.name}: {words}" for i in range(len(points))}
    finally:
        process.close()
    return found
