"""How often the host would wait for a GPU in the check of points, counted on a CPU: prints a number for each size of problem."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operations for which a GPU's host waits until all before them is done.
WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave"}


class Operations(TorchDispatchMode):
    """Counts waits of what torch does while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, _, overload = func.__name__.partition(".")
        by_mask = name.startswith("index") and any(one is not None and one.dtype == torch.bool for one in _listed(args[1:2]))
        self.waits += by_mask or (name in WAITS and overload != "self_int")
        return func(*args, **(kwargs or {}))


class Transfers(TorchFunctionMode):
    """Counts numbers that go from the host to the device or back, each of which the host waits for, as waits of `operations`."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (*args[1:], *(kwargs or {}).values()) if not (kwargs or {}).get("non_blocking") else ()
        to_device = getattr(func, "__name__", "") in ("to", "tensor") and any(isinstance(one, str | torch.device) for one in given)
        self.operations.waits += to_device or getattr(func, "__name__", "") in ("tolist", "cpu", "new_tensor")
        return func(*args, **(kwargs or {}))


def _listed(args: Any) -> list[Any]:
    return list(args[0]) if args and isinstance(args[0], list | tuple) else []


def main(overrides: list[str]) -> None:
    sys.path.insert(0, "benchmarks")
    import check_cost

    operations = Operations()
    phases = check_cost.Phases(lambda: operations.waits)
    check_cost.wrap(phases)
    with operations, Transfers(operations):
        check_cost.run(overrides)
    counted = [(size, waits) for size, phase, waits in phases.calls if not phase.startswith(check_cost.OUTSIDE)]
    of_size = {size: sum(waits for of, waits in counted if of == size) / phases.sizes.count(size) for size in set(phases.sizes)}
    sys.stdout.write(f"{of_size}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
