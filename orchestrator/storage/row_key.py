"""The key of a row: a dataset has one row for each, and a newer one replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = ("point_id", "cluster", "device_name", "torch_version", "libraries", "orchestrator_version")
LATER = frozenset({"libraries"})  # of KEY: what files and journals of older versions lack, and get by its default

Key = tuple[Any, ...]


def key_of(row: Mapping[str, Any]) -> Key:
    """A row's key: its point, cluster, kind of device and versions."""
    return tuple(row[name] for name in KEY)
