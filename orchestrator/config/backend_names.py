"""Older names of backends, from other tools, that people still type."""

from __future__ import annotations

OLD_NAMES = {"trtllm-gen-native": "trtllm-native"}  # of FlashInfer's benchmark


def todays(name: str) -> str:
    """A backend's name in this project; what is no old name stays as it is."""
    return OLD_NAMES.get(name, name)
