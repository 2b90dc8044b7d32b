"""Nodes that die while a driver asks what they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from orchestrator import machines
from orchestrator.errors import UserError
from orchestrator.pools.ray import nodes
from orchestrator.pools.ray.nodes import Nodes

HERE = {"NodeID": "here", "Alive": True, "Resources": {"CPU": 2.0}}
DYING = {"NodeID": "dying", "Alive": True, "Resources": {"CPU": 2.0}}


def first_of(monkeypatch: pytest.MonkeyPatch, listed: list[list[dict[str, Any]]]) -> Callable[[], Nodes]:
    """A start on a cluster that lists these nodes, one list after the other, and in which `dying` answers nobody."""
    lists = iter(listed)
    known: list[dict[str, Any]] = []

    def alive() -> list[dict[str, Any]]:
        known[:] = next(lists, known)
        return list(known)

    def get(greetings: list[str]) -> list[tuple[machines.Machine, int]]:
        if "dying" in greetings:
            raise RayError("The task is not schedulable")
        return [(machines.describe(name, ()), 0) for name in greetings]

    monkeypatch.setattr(nodes, "alive", alive)
    monkeypatch.setattr(nodes, "_greet", lambda node, _names: node["NodeID"])
    monkeypatch.setattr(ray, "get", get)
    return lambda: Nodes(False, lambda _machine: [], lambda _machine: "")


def test_a_node_that_has_just_died_is_left_out(monkeypatch: pytest.MonkeyPatch):
    start = first_of(monkeypatch, [[HERE, DYING], [HERE]])

    assert list(start().machines) == ["here"]


def test_a_cluster_whose_only_node_has_just_died_has_no_machine(monkeypatch: pytest.MonkeyPatch):
    start = first_of(monkeypatch, [[DYING], []])

    assert start().machines == {}


def test_a_node_that_lives_and_cannot_answer_is_said(monkeypatch: pytest.MonkeyPatch):
    start = first_of(monkeypatch, [[HERE, DYING], [HERE, DYING]])

    with pytest.raises(UserError, match="a node cannot report what it has"):
        start()
