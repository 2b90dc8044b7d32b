"""A point: one problem on one backend, as it is to be measured, and the names that rows know it by. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from functools import cached_property, lru_cache
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from kernels.engines import flags, start
from kernels.problem import Problem

_canonical = json.JSONEncoder(sort_keys=True).encode  # json.dumps would make an encoder for every point


class _Point(NamedTuple):  # a frozen dataclass takes five times as long to make
    problem: Problem
    backend: str
    how: str  # fingerprint of the measurement settings
    twin: int = 0  # 1: the same point once more, for the noise between two measurements of one thing
    distributions: tuple[str, ...] = ()  # packages that the backend calls for it; their versions enter the row and not `point_id`
    env: str | None = None  # the environment that it runs in; None: the one that runs the command
    plugin_code: str = ""  # a hash of the plugin that the backend comes from; it enters the row's version and not `point_id`
    refused: str = ""  # why its model cannot have this problem, which then may be none that holds together; empty: it can


class Point(_Point):
    """One problem on one backend, as it is to be measured. Where it runs is no part of it."""

    @cached_property
    def point_id(self) -> str:
        """Hash of what is measured and how; the same on every machine."""
        # What `fingerprint` of the three in a list gives, in half the time: a large plan asks for every point's.
        twin = f", {self.twin}" if self.twin else ""
        env = "" if self.env is None else f', {{"env": {encode_basestring_ascii(self.env)}}}'
        return _digest(f'["{self.group_id}", {encode_basestring_ascii(self.backend)}{twin}{env}]')

    @cached_property
    def group_id(self) -> str:
        """Hash of the problem, whose points share inputs and reference. No default enters, so that old ids outlive a new axis."""
        return _group_id(self.problem, self.how)

    @property
    def engine(self) -> tuple[str, str] | None:
        """The engine that the point runs inside, and its flag; None for a call of this project."""
        return flags.parsed(self.backend)

    @property
    def shares(self) -> Hashable:
        """What points must have in common to be measured by one worker in one go: their inputs, or a start of their engine."""
        return self.problem if self.engine is None else start.key_of(self.problem, self.backend, self.env)


@lru_cache(maxsize=2**18)
def _group_id(problem: Problem, how: str) -> str:
    """Worked out once for all points of a group."""
    return fingerprint([problem.model_dump(exclude_defaults=True), how])


def fingerprint(what: object) -> str:
    """The first 12 hex digits of a SHA-256 over canonical JSON."""
    return _digest(_canonical(what))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
