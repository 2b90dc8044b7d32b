"""How long a plan's kernel modules take to compile if no cache has them: an estimate from committed rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from kernels.adapter import Module
from orchestrator.config.base import own_table

HOST_CORES = 16  # of the hosts whose rows the table is from: the pages of two of these datasets say so, the others say nothing
COMPILE_SECONDS: dict[str, tuple[float, int]] = own_table("compile_seconds")  # seconds and sources, by kind
KERNELS = ("fa2", "fa3")  # a first argument that chooses the code of a module


def kind_of(module: Module) -> str:
    """What modules that compile alike have in common: their generator, and its kernel if it makes several."""
    name = str(module).partition("(")[0]
    return f"{name}({module.args[0]})" if module.args and module.args[0] in KERNELS else name


def compile_seconds(modules: Iterable[Module], cores: int) -> float:
    """Seconds of wall time to compile these modules on so many cores.

    The cores share all sources, but no module is faster than it was on `HOST_CORES`. A kind that no committed run has compiled
    counts as the median of the kinds that are known.
    """
    wanted = [kind_of(module) for module in modules]
    if not wanted:
        return 0.0
    core_seconds = {kind: seconds * min(sources, HOST_CORES) for kind, (seconds, sources) in COMPILE_SECONDS.items()}
    usual = median(core_seconds.values())
    longest = max(COMPILE_SECONDS.get(kind, (0.0, 0))[0] for kind in wanted)
    return max(longest, sum(core_seconds.get(kind, usual) for kind in wanted) / cores)


def not_measured(modules: Iterable[Module]) -> int:
    """How many of the modules are of a kind that no committed run has compiled."""
    return sum(kind_of(module) not in COMPILE_SECONDS for module in modules)
