"""`traffic=FILE`: the lengths and batches of real requests as a few points to measure, and as weights of workloads.

`read` takes a file, `points` gives the axes of a sweep, `weights` the share of the traffic that each measured workload stands for,
and `axes_to_measure` the axes of a sweep for what is far from all of them.
"""

from __future__ import annotations

from orchestrator.analysis.traffic import metrics, requests
from orchestrator.analysis.traffic.mix import NEAR, Mix, TrafficPoint, WorkloadWeights, axes_to_measure, points, weights
from orchestrator.errors import UserError
from orchestrator.untrusted.door import reading
from orchestrator.untrusted.files import read_text

__all__ = ["NEAR", "Mix", "TrafficPoint", "WorkloadWeights", "axes_to_measure", "points", "read", "weights"]

MAX_BYTES = 256 * 10**6  # a trace of a million requests has 100 MB or so
ALLOWED = (
    'lines such as {"input_length": 6758, "output_length": 500} (a trace of Mooncake), '
    'lines such as {"batch_size": 8, "s_kv": 4096, "weight": 3}, the result of a serving benchmark with the lengths of '
    f"its requests, or the text of /metrics of {', '.join(metrics.METRICS)}"
)


def read(path: str) -> Mix:
    """The traffic in a file. Raises UserError if no line is left of which the lengths are known."""
    text = read_text(path, "traffic", MAX_BYTES)
    if not text.strip():
        raise UserError(f"traffic={path}: it is empty; allowed: {ALLOWED}")
    with reading(f"traffic={path}", f"allowed: {ALLOWED}"):
        of_requests = text.lstrip()[0] in "{[" or requests.is_csv(text)
        return requests.read(path, text, ALLOWED) if of_requests else metrics.read(path, text, ALLOWED)
