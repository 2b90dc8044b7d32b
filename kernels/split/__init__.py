"""A batch of mixed query lengths in two calls, as engines run it: a uniform decode kernel, and a prefill kernel for the rest."""

from kernels.split.adapter import Split

__all__ = ["Split"]
