"""Why a worker died: its machine is gone, memory ran out, or the point that it ran killed it."""

from __future__ import annotations

from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from orchestrator.errors import WorkerDied
from orchestrator.pools.ray.nodes import Nodes, words


def death_of(error: RayError, node_id: str, nodes: Nodes) -> WorkerDied:
    """The death of a worker on the machine `node_id`, with its cause, from the error that Ray raised for its result."""
    detail = _exit_detail(error) if isinstance(error, RayActorError) else words(error)
    if isinstance(error, RayTaskError):
        return WorkerDied(detail)
    if not nodes.reaches(node_id):
        return WorkerDied(f"its machine is gone or cut off: {detail}", "machine")
    starved = isinstance(error, OutOfMemoryError) or nodes.killed_for_memory(node_id)
    return WorkerDied(detail, "memory" if starved else "point")


def _exit_detail(error: RayActorError) -> str:
    """Ray's message on how a process ended, without the text around it."""
    text = " ".join(str(error).split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            return text.partition(mark)[2][:600]
    return text[:600]
