"""Two planned calls have one key only if nothing but outputs and workspaces differs."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.libraries.same_call import planned_call

MODULE, QUERIES = SimpleNamespace(), torch.zeros(2**15)  # larger than what is compared by content


class Planned:
    """What FlashInfer's wrappers leave after their plan, as far as a key reads it."""

    def __init__(self, backend: str, plan: tuple[int, ...] = (1, 2), module: object = MODULE, **settings: Any) -> None:
        self._backend = self._requested_backend = backend
        self._cached_module, self._plan_info, self._workspace = module, list(plan), torch.empty(4)
        self._sm_scale, self._names = 0.5, ["a"]
        vars(self).update(settings)

    def run(self, *_args: object, **_keys: object) -> None: ...


def key(wrapper: Planned, kernel: str = "fa2", q: torch.Tensor = QUERIES, **keys: object) -> object:
    out = torch.empty(3)
    launch = partial(wrapper.run, q, (q, q), out=out, scales=torch.ones(2), enable_pdl=None, **keys)
    return planned_call(wrapper, kernel, launch, (out, None))


def test_a_name_that_resolves_to_a_kernel_makes_its_call():
    assert key(Planned("auto")) == key(Planned("fa2")) is not None
    assert key(Planned("auto"), sinks=torch.ones(3)) == key(Planned("fa2"), sinks=torch.ones(3))


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(Planned("auto", plan=(1, 3))),
        lambda: key(Planned("auto", module=SimpleNamespace())),
        lambda: key(Planned("auto", _sm_scale=0.25)),
        lambda: key(Planned("auto", _helper=object())),  # nothing is known of it
        lambda: key(Planned("auto"), kernel="fa3"),
        lambda: key(Planned("auto"), q=torch.zeros(2**15)),  # equal values in other memory
        lambda: key(Planned("auto"), k_scale=0.5),
        lambda: key(Planned("auto"), sinks=torch.zeros(3)),
    ],
)
def test_whatever_else_differs_makes_another_call(other: Any):
    assert other() != key(Planned("fa2")) is not None


def test_what_cannot_be_compared_has_no_key():
    assert planned_call(Planned("auto"), "fa2", print, ()) is None
    assert key(Planned("auto"), callback=object()) is None
    assert planned_call(SimpleNamespace(), "fa2", partial(print), ()) is None
