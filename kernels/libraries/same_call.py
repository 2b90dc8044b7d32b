"""What a prepared call is, as a key: two calls of one problem whose keys are equal are the same call.

A key has the kernel's compiled module, the plan, and every argument, so that nothing of the call is left out. What a call has for
itself, outputs and workspaces, is not in it. Where a part cannot be compared there is no key: then both calls are measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from kernels.contract.runner import CallKey, Runner
from kernels.lazy import Tensor, torch

SMALL_BYTES = 2**16  # of an argument that is compared by its content, such as scales; larger ones must be the same memory
ASKED_FOR = frozenset({"_backend", "_requested_backend"})  # of a wrapper: the name that was typed, which is what may differ
WRAPPED_BY = ("_cached_module", "_plan_info")  # what a planned wrapper launches, and its plan
# MLA's wrapper hands its call over to an object that its plan made (FlashInfer 0.7.2, `mla/_batch_mla/_wrapper.py`). The class that
# made that plan is `auto`'s own for whatever it chose, and no call reads it.
HANDS_OVER_TO, PLANNED_BY = "_planned_backend", "_backend_type"
NOT_STATE = {*ASKED_FOR, *WRAPPED_BY, HANDS_OVER_TO, PLANNED_BY}


def with_key(runner: Runner, wrapper: Any) -> Runner:
    """A runner whose call is that of one of FlashInfer's planned wrappers, with the key of the call."""
    outputs = (runner.out, None if isinstance(runner.lse, str) else runner.lse)
    key = planned_call(wrapper, runner.resolved_backend, runner.launch, outputs)
    return runner if key is None else replace(runner, call_key=CallKey(runner.launch, key))


def planned_call(wrapper: Any, kernel: str, launch: object, own: Sequence[Tensor | None]) -> Hashable | None:
    """The key of a call of one of FlashInfer's planned wrappers; None if it has no plan that can be compared.

    `kernel` is what the wrapper resolved to, `launch` a partial of a method of the wrapper, and `own` are its outputs.
    """
    planned = getattr(wrapper, HANDS_OVER_TO, None)
    parts = (wrapper,) if planned is None else (wrapper, planned)
    module, plan = (getattr(parts[-1], name, None) for name in WRAPPED_BY)
    if module is None or plan is None or not isinstance(launch, partial) or getattr(launch.func, "__self__", None) is not wrapper:
        return None
    outputs = {id(one) for one in own if one is not None}
    try:
        states = [{name: _setting(value) for name, value in vars(part).items() if name not in NOT_STATE} for part in parts]
        called = (launch.func.__name__, *(_part(part, outputs) for part in (launch.args, launch.keywords, *states)))
        kinds = tuple(type(part).__qualname__ for part in parts)
        return (kinds, kernel, id(module), tuple(int(number) for number in plan), called)
    except Exception:  # a library's objects may raise anything when they are looked at, which must not fail the point
        return None


def _setting(value: object) -> object:
    """What counts of a wrapper's attribute: no tensor, whose contents follow from the plan; of unknown objects, which one it is."""
    if isinstance(value, torch.Tensor):
        return ("own memory", str(value.dtype))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__qualname__, [(one.name, _setting(getattr(value, one.name))) for one in fields(value)])
    is_list = isinstance(value, list | tuple) and all(map(_is_plain, value))
    return value if _is_plain(value) or is_list else ("object", id(value))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device)


def _part(value: object, outputs: set[int]) -> Hashable:
    """A value as it enters a key."""
    if _is_plain(value):
        return (type(value).__name__, str(value))
    if isinstance(value, Mapping):
        return tuple((str(name), _part(value[name], outputs)) for name in sorted(value))
    if isinstance(value, tuple | list):
        return tuple(_part(one, outputs) for one in value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{type(value).__name__} cannot be compared")
    about = (str(value.dtype), tuple(value.shape), value.stride())
    if id(value) in outputs:
        return ("output", *about)
    if value.numel() * value.element_size() <= SMALL_BYTES:
        return ("content", *about, bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()))
    return ("memory", *about, value.data_ptr())
