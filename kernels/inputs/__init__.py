"""The tensors of a problem: how they are drawn, what unused slots contain, and which query sees which key."""

from kernels.inputs.tensors import Inputs

__all__ = ["Inputs"]
