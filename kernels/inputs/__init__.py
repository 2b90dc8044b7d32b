"""The tensors of a problem: how they are drawn, what lies in slots that nobody may read, who sees whom."""

from kernels.inputs.tensors import Inputs

__all__ = ["Inputs"]
