"""A Ray cluster of several machines, each a raylet of its own that can be killed, stopped and joined."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from tests.backends.faulty import alive
from tests.helpers.runs import processes, signal_all


@dataclass
class Machines:
    """Machines with one CPU each, beside a head that runs no points."""

    cluster: Any
    nodes: dict[str, Any] = field(default_factory=dict)  # by node id
    homes: dict[str, str] = field(default_factory=dict)  # where each keeps compiled modules, if a test says so
    stopped: list[int] = field(default_factory=list)  # processes that were sent SIGSTOP

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def join(self, **more: Any) -> str:
        """Adds a machine; returns its node id."""
        node = self.cluster.add_node(num_cpus=1, **more)
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def raylet(self, node_id: str) -> int:
        return int(self.nodes[node_id].all_processes["raylet"][0].process.pid)

    def kill(self, node_id: str) -> None:
        """Power off: the raylet and all that it started, at once."""
        raylet = self.raylet(node_id)
        signal_all([*processes("", under=raylet), raylet], signal.SIGKILL)

    def cut_off(self, node_id: str) -> None:
        """Stops all its processes: its connections stay open, and nothing answers on them."""
        raylet = self.raylet(node_id)
        stopped = [*processes("", under=raylet), raylet]
        self.stopped += stopped
        signal_all(stopped, signal.SIGSTOP)

    def stop_raylet(self, node_id: str) -> None:
        """Stops Ray's own process of a machine, and none of the workers that it started."""
        self.stopped.append(self.raylet(node_id))
        signal_all(self.stopped[-1:], signal.SIGSTOP)

    def leave(self) -> None:
        """Removes all machines but the head, and ends what was stopped on them."""
        signal_all([pid for pid in self.stopped if alive(pid)], signal.SIGKILL)
        self.stopped.clear()
        for node in self.nodes.values():
            self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.clear()
