"""Who writes wrong numbers into page tables, lengths or masks is named, and honest backends that follow these are measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.inputs.generate import draw
from kernels.inputs.small_inputs import SmallInputs
from kernels.problem import Problem
from kernels.timing import timers
from tests.backends.indexing import PLACES, SMALL, WRONG, culprits, damage, name_of
from tests.helpers.blamed import HONEST, PAIR, TIMING, assert_each_is_named_and_nobody_else_suffers, rows_of


@pytest.mark.parametrize("place", PLACES)
def test_each_small_input_in_each_place(place: str, problem: Callable[..., Problem]):
    """Two honest backends, before and after 20 that write."""
    guilty = culprits(place)

    rows = rows_of(problem(page_size=16, **PAIR), [HONEST[0], *guilty, HONEST[1]])

    assert_each_is_named_and_nobody_else_suffers(rows, guilty)
    late = place not in ("prepare", "first", "checked")
    assert all(rows[name]["reason"].startswith("right before it was timed") == late for name in guilty)


@pytest.mark.parametrize("place", ["timed", "raises"])
def test_an_honest_backend_beside_a_single_culprit(place: str, problem: Callable[..., Problem]):
    """As in a sweep with two candidates: nobody else draws inputs again."""
    guilty = name_of("page_table", place, "huge")

    assert_each_is_named_and_nobody_else_suffers(rows_of(problem(page_size=16), [*HONEST, guilty]), [guilty])


def test_a_culprit_while_plans_are_timed(problem: Callable[..., Problem]):
    """Those that follow it are measured and checked as ever."""
    guilty = name_of("page_table", "planned", "huge")
    rows = rows_of(problem(page_size=16), [guilty, *HONEST], timing=TIMING.model_copy(update={"host": True}))

    assert_each_is_named_and_nobody_else_suffers(rows, [guilty])


def test_what_is_compared_after_a_block_costs_little(problem: Callable[..., Problem], monkeypatch: pytest.MonkeyPatch):
    """Once for each block and a few times for each check, and not for each launch: a comparison waits for the device."""
    looks: list[bool] = []
    blocks: list[int] = []
    restore, block = SmallInputs.restore, timers.WallClock.block
    monkeypatch.setattr(SmallInputs, "restore", lambda self, wait: looks.append(wait) or restore(self, wait))
    monkeypatch.setattr(timers.WallClock, "block", lambda self, *args: blocks.append(1) or block(self, *args))

    rows_of(problem(page_size=16), ["follows"])

    assert len(looks) <= len(blocks) + 14
    assert sum(looks) <= len(blocks) + 6  # of them wait


@pytest.mark.parametrize("keys", [{}, PAIR, {"graph_batch": 4}, {"sinks": True}])
def test_what_was_changed_is_put_back_in_place(keys: dict[str, object], problem: Callable[..., Problem]):
    x = draw(problem(page_size=16, **keys), "cpu")
    kept = SmallInputs([x])
    small = [name for name in SMALL if name != "visible" or "tree" in keys]

    assert not kept.restore()
    for name in small:
        damage(x, name, WRONG["negative"])
        assert kept.restore() and not kept.restore()
    again = draw(x.problem, "cpu")
    assert all(torch.equal(getattr(x, name), getattr(again, name)) for name in small if not name.startswith("unused"))
    assert all(torch.equal(mine, its) for mine, its in zip(x.unused_slots, again.unused_slots, strict=True))


def test_a_mask_that_no_tree_needs_is_of_one_backend_alone(problem: Callable[..., Problem]):
    x = draw(problem(page_size=16), "cpu")
    kept = SmallInputs([x])
    x.visible.logical_not_()

    assert not kept.restore()
    assert torch.equal(x.visible, torch.ones(3, 3, dtype=torch.bool).tril())
