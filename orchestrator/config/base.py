"""The base of all configuration, and the values that an axis or a filter may have."""

from kernels.data import Data as Frozen

__all__ = ["Frozen", "Scalar"]
Scalar = bool | int | float | str
