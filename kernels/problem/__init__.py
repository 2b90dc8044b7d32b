"""The attention problem of a point: its lengths, masks, dtypes, bytes and FLOPs. Pure Python, no torch."""

from kernels.problem.dtypes import default_output
from kernels.problem.fields import ROUTINES, Count
from kernels.problem.problem import Problem
from kernels.problem.validation import PLAIN_MASKS

__all__ = ["PLAIN_MASKS", "ROUTINES", "Count", "Problem", "default_output"]
