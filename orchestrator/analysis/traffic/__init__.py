"""`traffic=FILE`: the lengths and batches of real requests as a few points to measure, and as weights of shapes.

`read` takes a file, `points` gives the axes of a sweep, `weights` the share of the traffic that each measured shape stands for.
"""

from orchestrator.analysis.traffic.files import read
from orchestrator.analysis.traffic.mix import Mix, ShapeWeights, TrafficPoint, points, weights

__all__ = ["Mix", "ShapeWeights", "TrafficPoint", "points", "read", "weights"]
