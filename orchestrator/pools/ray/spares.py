"""Workers that start before a run needs them, and load their libraries meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from orchestrator.pools.ray.actor import new_worker
from orchestrator.pools.ray.nodes import alive


@dataclass(frozen=True)
class Spare:
    """A worker that has no work yet: its machine, the kind of device that it holds (cuda or cpu), and Ray's handle of it."""

    node_id: str
    kind: str
    actor: Any


class Spares:
    """The workers of a run that are not in use yet."""

    def __init__(self, spares: Sequence[Spare]) -> None:
        self._spares = list(spares)

    def keep(self, places: Sequence[tuple[str, str]]) -> None:
        """Ends those beyond these places, each a machine and a kind of device: they hold devices that the run will not use."""
        kept = [spare for place in places if (spare := self._find(*place))]
        for spare in self._spares:
            ray.kill(spare.actor, no_restart=True)
        self._spares = kept

    def take(self, node_id: str, kind: str) -> Any | None:
        """The handle of a worker on a machine, which is then in use; None without one."""
        spare = self._find(node_id, kind)
        return spare and spare.actor

    def _find(self, node_id: str, kind: str) -> Spare | None:
        for spare in self._spares:
            if (spare.node_id, spare.kind) == (node_id, kind):
                self._spares.remove(spare)
                return spare
        return None


def started_early(most: int | None, there: Sequence[Spare] = ()) -> list[Spare]:
    """A worker for each device that the nodes of Ray offer, at most so many, each of which begins to load its libraries.

    If a node offers GPUs, those alone are used. Workers that are `there` already are not started again.
    """
    resources = {node["NodeID"]: node["Resources"] for node in alive()}
    gpus = [(node_id, "cuda") for node_id, has in resources.items() for _ in range(int(has.get("GPU", 0)))]
    cpus = [(node_id, "cpu") for node_id, has in resources.items() if has.get("CPU", 0)]
    places = (gpus or cpus)[:most]
    left = Spares(there)
    spares = [Spare(*place, actor=left.take(*place)) for place in places]
    left.keep([])
    return [spare if spare.actor else _started(spare) for spare in spares]


def _started(spare: Spare) -> Spare:
    actor = new_worker(spare.kind, spare.node_id)
    actor.load.remote()
    return replace(spare, actor=actor)
