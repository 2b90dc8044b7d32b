"""How evenly the groups of a sweep would fill several GPUs: a simulation with the seconds that a committed dataset's groups took.

    python -m benchmarks.scaling [DATASET ...]

A group is one problem with all its backends. They take turns on one GPU, so a group is never split. Each GPU takes the next group
when it is free. The table has the efficiency: the seconds of all groups, over the number of GPUs times the seconds of the whole.
It is given for groups in the order of the plan, in the order of their real seconds, and shuffled (the mean of 100 orders).
`no more than` is what no order can exceed: the longest group runs on one GPU. Starting a worker is not part of it.
Below the table is the least efficiency of the plan's order, beside its target.
"""

from __future__ import annotations

import heapq
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from benchmarks.figures import at_least
from benchmarks.rows import frame_of, path_of, problem_of
from kernels.timing.config import Timing
from orchestrator.machines import known_devices
from orchestrator.planning.cost import estimate

DATASETS = ("h200_main/specdec_long_ctx", "h200_drafts/target_verify", "h200_main/specdec_paged_decode")
GPUS = (1, 2, 4, 8)
SHUFFLES = 100
PLAN, EFFICIENCY = "the plan's order", 0.95


@dataclass(frozen=True)
class GroupSeconds:
    """The seconds of a group as they were measured, and as the plan would expect them."""

    real_s: float
    planned_s: float


def groups_of(rows: pd.DataFrame) -> list[GroupSeconds]:
    """The groups of a dataset's rows that were measured together, in the order in which they ran."""
    device = known_devices()["h200"]
    found = []
    for _, members in rows[rows["status"] == "ok"].groupby("group_id", sort=False):
        cost = estimate(problem_of(members.iloc[0].to_dict()), 0, device, Timing())
        found.append(GroupSeconds(float(members["total_s"].sum()), cost.setup_s + len(members) * cost.point_s))
    return found


def whole_s(seconds: Iterable[float], gpus: int) -> float:
    """When the last of several GPUs ends, if each takes the next group as soon as it is free."""
    free_at = [0.0] * gpus
    for one in seconds:
        heapq.heapreplace(free_at, free_at[0] + one)
    return max(free_at)


def efficiencies(groups: Sequence[GroupSeconds], gpus: int) -> dict[str, float]:
    """By order, the share of the GPUs' time that is spent on groups."""
    total = sum(group.real_s for group in groups)
    orders = {
        PLAN: sorted(groups, key=lambda group: -group.planned_s),
        "longest first": sorted(groups, key=lambda group: -group.real_s),
    }
    found = {name: total / gpus / whole_s((group.real_s for group in order), gpus) for name, order in orders.items()}
    draw = random.Random(1)
    shuffled = (draw.sample(groups, len(groups)) for _ in range(SHUFFLES))
    found["shuffled"] = statistics.mean(total / gpus / whole_s((group.real_s for group in order), gpus) for order in shuffled)
    return found | {"no more than": min(1.0, total / gpus / max(group.real_s for group in groups))}


def main(names: Sequence[str]) -> None:
    """Prints the table."""
    print("| dataset | groups | seconds | longest | GPUs | the plan's order | longest first | shuffled | no more than |")
    print("|---|---|---|---|---|---|---|---|---|")
    planned = []
    for name in names:
        groups = groups_of(frame_of(path_of(name)))
        total, longest = sum(group.real_s for group in groups), max(group.real_s for group in groups)
        for gpus in GPUS:
            found = efficiencies(groups, gpus)
            shares = " | ".join(f"{share:.3f}" for share in found.values())
            print(f"| {name} | {len(groups)} | {total:.1f} | {longest:.1f} | {gpus} | {shares} |")
            planned.append(found[PLAN])
    print()
    at_least(f"the least efficiency in {PLAN}, simulated", [min(planned)], EFFICIENCY, "")


if __name__ == "__main__":
    main(sys.argv[1:] or DATASETS)
