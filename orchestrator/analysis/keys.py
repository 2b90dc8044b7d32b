"""Which times may be compared, and the time of a row that questions compare, as SQL."""

from __future__ import annotations

from kernels.problem import Problem
from kernels.timing.graphs import MOST_OVER_US
from orchestrator.config.weights import OF_A_CHOICE

TIMING_KEYS = ("timer", "l2", "icache", "context", "pace")  # how a time was taken
USUAL_TIMING = {"l2": "clean", "icache": "warm", "context": "isolated", "pace": "bursts"}  # as the default settings take it
# Two times are compared only if all of these are equal: the place, the whole problem (so that a new axis joins by itself), and how
# they were taken. `mask` stands for the tree too: if two trees have one name, `current` appends the tree to it.
PROBLEM_KEYS = ("device_name", *(field for field in Problem.model_fields if field != "tree"), *TIMING_KEYS, "env")
OF_ANY_PAGES = ", ".join(f'"{key}"' for key in PROBLEM_KEYS if key not in (*OF_A_CHOICE, "page_size"))  # keys of a workload
RANKED_US = "CASE context WHEN 'step' THEN in_step_us ELSE median_us END"  # the time that questions rank a point by
GRID_AXES = ("batch_size", "s_qo", "s_kv")
GRAPH_REPLAY = "cuda_graph_events"  # the timer whose samples begin with the launch of a graph
# What the launch of a graph adds to a call, in rows older than `own_us` or of an impossible share: events minus CUPTI under 60 µs.
# An empty graph tells two classes of hosts: 2.7 to 3.3 µs where a call has 3.0, 4.3 to 5.0 µs where it has 3.75.
LAUNCH_US, SLOW_LAUNCH_US, SLOW_EMPTY_US = 3.0, 3.75, 3.8
LAUNCH_SPREAD_US = 0.3  # standard deviation over calls and kernels
# The time of a row that ratios are of: without the launch of the graph, if one is in it and was measured.
OWN_US = f"""CASE WHEN context = 'step' THEN in_step_us WHEN own_us IS NOT NULL
    AND NOT coalesce(timer = '{GRAPH_REPLAY}' AND median_us - own_us > launch_us + {MOST_OVER_US}, false) THEN own_us
    WHEN timer = '{GRAPH_REPLAY}' AND median_us > if(launch_us > {SLOW_EMPTY_US}, {SLOW_LAUNCH_US}, {LAUNCH_US})
    AND launch_us IS NOT NULL THEN median_us - if(launch_us > {SLOW_EMPTY_US}, {SLOW_LAUNCH_US}, {LAUNCH_US}) ELSE median_us END"""
ORIGINS = ("aiconfigurator", "flashinfer_benchmark", "flashinfer_trace")  # `orchestrator_version` of imported rows
