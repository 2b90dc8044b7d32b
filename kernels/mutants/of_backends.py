"""The drawn faults, each made of every backend, and so judged at that backend's own tolerance; and each backend without a fault.

`mode=check_power check.draws=N check.tolerance=each` runs them: `drawn_007@fa2_tc` is fault 7 in fa2_tc's output, and
`no_fault@fa2_tc` is that output as it is.
"""

from __future__ import annotations

from dataclasses import replace

from kernels import registry
from kernels.adapter import Adapter
from kernels.mutants import drawn
from kernels.mutants.mutant import Mutant


def adapters_from(adapter: Adapter) -> tuple[Mutant, ...]:
    """Every drawn fault made of a backend; the registry asks for those of plugins."""
    faults = (fault for fault in drawn.ADAPTERS if fault.routine == adapter.routine)
    return tuple(replace(fault, name=f"{fault.name}@{adapter.name}", wraps=adapter) for fault in faults)


ADAPTERS = tuple(mutant for backend in registry.adapters().values() for mutant in adapters_from(backend))
