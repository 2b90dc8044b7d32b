"""Kernels with one thing wrong, as backends of their own: mutation testing for the check."""

from kernels.mutants.catalogue import ADAPTERS, adapters_from

__all__ = ["ADAPTERS", "adapters_from"]
