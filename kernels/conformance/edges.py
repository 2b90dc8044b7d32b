"""Both sides of each condition of a support rule: a problem that it allows, and a near one that this condition alone forbids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.adapter import Adapter
from kernels.conformance.problems import changed, neighbours
from kernels.device import Device
from kernels.problem import Problem


@dataclass(frozen=True)
class Edge:
    """A condition of a rule, and two problems that differ in one axis: `inside` is served, and `outside` lacks this alone."""

    sentence: str
    inside: Problem
    outside: Problem


def find_edges(adapter: Adapter, device: Device, served: Iterable[Problem]) -> dict[str, Edge]:
    """One edge for each condition that one change to one of the `served` problems breaks, by its sentence."""
    found: dict[str, Edge] = {}
    for inside in served:
        for outside in neighbours(inside):
            unmet = adapter.unmet(outside, device)
            if len(unmet) == 1 and unmet[0] not in found:
                found[unmet[0]] = _narrowed(adapter, device, Edge(unmet[0], inside, outside))
    return found


def sentences_of(adapter: Adapter, devices: Sequence[Device], problems: Sequence[Problem]) -> list[str]:
    """Every condition that one of these problems or a neighbour of it breaks on one of these devices."""
    asked = [*problems, *(other for problem in problems[:1] for other in neighbours(problem))]
    return list(dict.fromkeys(s for problem in asked for device in devices for s in adapter.unmet(problem, device)))


def _narrowed(adapter: Adapter, device: Device, edge: Edge) -> Edge:
    """The same edge with its two problems one apart, if they differ in one whole number."""
    inside, outside = edge.inside.model_dump(), edge.outside.model_dump()
    keys = [key for key in inside if inside[key] != outside[key]]
    if len(keys) != 1 or not all(type(side[keys[0]]) is int for side in (inside, outside)):
        return edge
    key = keys[0]
    low, high = inside[key], outside[key]
    best = edge
    while abs(high - low) > 1:
        middle = (low + high) // 2
        problem = changed(edge.inside, {key: middle})
        unmet = None if problem is None else adapter.unmet(problem, device)
        if problem is not None and unmet == []:
            low, best = middle, Edge(edge.sentence, problem, best.outside)
        elif problem is not None and unmet == [edge.sentence]:
            high, best = middle, Edge(edge.sentence, best.inside, problem)
        else:
            break
    return best
