"""The drawn faults, each made of every backend, and so judged at that backend's own tolerance; and each backend without a fault.

`mode=check_power check.draws=N check.tolerance=each` runs them: `drawn_007@fa2_tc` is fault 7 in fa2_tc's output, and
`no_fault@fa2_tc` is that output as it is.
"""

from __future__ import annotations

from kernels import registry
from kernels.adapter import Adapter
from kernels.mutants import drawn
from kernels.mutants.mutant import Mutant, made_of


def adapters_from(adapter: Adapter) -> tuple[Mutant, ...]:
    """Every drawn fault made of a backend; the registry asks for those of plugins."""
    return made_of(adapter, (mutant for mutant in drawn.ADAPTERS if isinstance(mutant, Mutant)))


ADAPTERS = tuple(mutant for backend in registry.adapters().values() for mutant in adapters_from(backend))
