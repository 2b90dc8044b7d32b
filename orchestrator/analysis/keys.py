"""Which times may be compared, and the time of a row that questions compare, as SQL."""

from __future__ import annotations

from kernels.problem import Problem

TIMING_KEYS = ("timer", "l2", "icache", "context")  # how a time was taken
# Two times are compared only if all of these are equal: the place, the whole problem (so that a new axis joins by itself), and how
# they were taken. `mask` stands for the tree too: if two trees have one name, `current` appends the tree to it.
PROBLEM_KEYS = ("device_name", *(field for field in Problem.model_fields if field != "tree"), *TIMING_KEYS, "env")
RANKED_US = "CASE context WHEN 'step' THEN in_step_us ELSE median_us END"  # the time that questions rank a point by
GRID_AXES = ("batch_size", "s_qo", "s_kv")
GRAPH_REPLAY = "cuda_graph_events"  # the timer whose samples begin with the launch of a graph
# A ranked time without the launch of the graph, from a row joined with `launches`; the time itself if no launch is in it, as in the
# cost in a step, or if it is not known.
OWN_US = f"""CASE WHEN context = 'step' THEN in_step_us
    WHEN timer = '{GRAPH_REPLAY}' AND share_us < median_us THEN median_us - share_us ELSE median_us END"""
