"""Datasets beside a sweep's own: such as the A/A pairs of mode=noise, and points that mode=replay measured again."""

from __future__ import annotations

from orchestrator.config.modes import MODES

COMPANIONS = tuple(mode for mode, rules in MODES.items() if rules.own_dataset)


def companion(path: object, mode: str) -> str:
    """The dataset that a mode writes beside the one under `path`."""
    return f"{str(path).rstrip('/')}_{mode}"


def owner(path: object) -> str | None:
    """The dataset that the one under `path` is a companion of; None for a dataset of a sweep."""
    plain = str(path).rstrip("/")
    return next((plain.removesuffix(f"_{mode}") for mode in COMPANIONS if plain.endswith(f"_{mode}")), None)
