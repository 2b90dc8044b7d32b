"""Kernels with one thing wrong, as backends of their own: mutation testing for the check."""

from __future__ import annotations

from kernels.adapter import Adapter
from kernels.mutants import catalogue, lse
from kernels.mutants.lse import LseMutant
from kernels.mutants.mutant import Mutant, made_of, of_folders

ADAPTERS: tuple[Adapter, ...] = (*catalogue.ADAPTERS, *lse.ADAPTERS, *of_folders("ADAPTERS"))

__all__ = ["ADAPTERS", "adapters_from"]


def adapters_from(adapter: Adapter) -> tuple[Mutant, ...]:
    """Every wrong kernel made of a backend from a plugin, called `<fault>@<backend>`; the registry asks for them."""
    return made_of(adapter, (mutant for mutant in ADAPTERS if isinstance(mutant, Mutant) and type(mutant) in (Mutant, LseMutant)))
