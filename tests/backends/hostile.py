"""Backends that end, deceive or soil the process that asks them, beside a right one: `adapters=[tests.backends.hostile]`.

`drawn` says what a test has put into DRAWN.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from kernels.adapter import Adapter, Module, Need, Runner
from kernels.adapters.torch_sdpa import TorchSdpa
from kernels.device import Device
from kernels.inputs import Inputs
from kernels.problem import Problem

DRAWN: dict[str, Any] = {}  # fields of a Runner; `raises` is raised instead


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class UnprintableAtAll(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


class NoException(BaseException):
    pass


def ends(*_given: object) -> NoReturn:
    sys.exit(0)


def raises(error: BaseException) -> Callable[..., NoReturn]:
    def fault(*_given: object) -> NoReturn:
        raise error

    return fault


def patches(runner: Runner) -> None:
    torch.nn.functional.scaled_dot_product_attention = raises(RuntimeError("patched by a plugin"))


def closes() -> None:
    os.closerange(3, 4096)


def moves() -> None:
    os.chdir("/")


@dataclass(frozen=True, kw_only=True)
class Hostile(TorchSdpa):
    """A right backend, but for what is given."""

    routine: str = "paged_decode"
    query_lengths: Any = "uniform"
    rule: Callable[..., Any] = lambda *_given: ()
    plans: Callable[..., Any] = lambda *_given: None
    launches: Callable[..., Any] | None = None
    loads: Any = ()
    uses: Any = 0

    def needs(self, problem: Problem, device: Device) -> tuple[Need, ...]:
        return self.rule()

    def modules(self, problem: Problem, device: Device) -> tuple[Module, ...]:
        return self.loads

    def workspace_bytes(self, problem: Problem) -> int:
        return self.uses

    def prepare(self, inputs: Inputs, device: Device) -> Runner:
        self.plans()
        if self.name == "drawn" and "raises" in DRAWN:
            raise DRAWN["raises"]
        right = super().prepare(inputs, device)
        if self.name == "drawn":
            return replace(right, **DRAWN)
        return right if self.launches is None else replace(right, launch=lambda: self.launches(right()))


OF_NOBODY: tuple[Adapter, ...] = (  # each costs its own points alone
    Hostile(name="rule_raises", rule=raises(ValueError("my rule is wrong"))),
    Hostile(name="rule_is_nonsense", rule=lambda: (5,)),
    Hostile(name="rule_exits", rule=ends),
    Hostile(name="no_module", loads=(5,)),
    Hostile(name="no_bytes", uses="many"),
    Hostile(name="exits", plans=raises(SystemExit("no licence for this kernel"))),
    Hostile(name="exits_well", plans=ends),
    Hostile(name="launch_exits", launches=ends),
    Hostile(name="unprintable", plans=raises(Unprintable())),
    Hostile(name="unprintable_exits", plans=raises(UnprintableAtAll())),
    Hostile(name="rule_no_exception", rule=raises(NoException("mine"))),
    Hostile(name="surrogate", plans=raises(RuntimeError("bad \udcff name"))),
    Hostile(name="no_exception", plans=raises(NoException("mine"))),
)
ADAPTERS = (
    *OF_NOBODY,
    Hostile(name="patches", launches=patches),
    Hostile(name="closes", plans=closes),
    Hostile(name="moves", plans=moves),
    Hostile(name="drawn"),
)
