"""`traffic=FILE`: the lengths and batches of real requests as a few points to measure, and as weights of workloads.

`read` takes a file, `points` gives the axes of a sweep, `weights` the share of the traffic that each measured workload stands for,
and `axes_to_measure` the axes of a sweep for what is far from all of them.
"""

from orchestrator.analysis.traffic.files import read
from orchestrator.analysis.traffic.mix import NEAR, Mix, TrafficPoint, WorkloadWeights, axes_to_measure, points, weights

__all__ = ["NEAR", "Mix", "TrafficPoint", "WorkloadWeights", "axes_to_measure", "points", "read", "weights"]
