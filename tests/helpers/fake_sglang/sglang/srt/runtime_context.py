"""What 0.5.23 publishes for a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.server_args import LATER, ServerArgs

assert LATER, "No module named 'sglang.srt.runtime_context'"
published: dict[str, Any] = {}


@dataclass(frozen=True)
class SpawnRanks:
    world_rank: int
    dp_rank: int | None = None
    gpu_id: int | None = None


def publish(server_args: ServerArgs, *, role: str, ranks: SpawnRanks) -> None:
    assert (ranks.world_rank, ranks.gpu_id) == (0, 0)
    server_args.resolve_once()
    published[role] = server_args
