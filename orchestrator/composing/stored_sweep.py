"""A configuration as plain values, and one whose sweep the row of a dataset names instead of the person who types."""

from __future__ import annotations

from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from orchestrator.composing import config_dir
from orchestrator.composing.words import in_words
from orchestrator.config.modes import MODES
from orchestrator.config.settings import NO_SWEEP_PATH
from orchestrator.errors import UserError


def _point_of(typed: list[str]) -> str | None:
    """The id of the point as it was typed: YAML would read one of digits alone, such as 123456789012, as a number."""
    points = [value.strip("'\"") for key, _, value in (word.partition("=") for word in typed) if key == "point"]
    return points[-1] if points and points[-1] not in ("", "null") else None


def to_dict(config: DictConfig) -> dict[str, Any]:
    """The configuration with every `${...}` replaced. Raises OmegaConfBaseException if one cannot be looked up."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def with_sweep_of_row(config: dict[str, Any], typed: list[str]) -> tuple[dict[str, Any], list[str]]:
    """A configuration and its overrides. If its mode can take the sweep from a row and none was typed, those of the row's command.

    Must be called while Hydra is initialised. Raises UserError if the dataset has no such row, or its command fits no more.
    """
    mode, path, point = str(config.get("mode")), (config.get("results") or {}).get("path"), _point_of(typed)
    if point is not None:
        config = {**config, "point": point}
    takes_row = mode in MODES and MODES[mode].sweep_of_row
    if not takes_row or config.get("sweep") is not None or config.get("import") or path == NO_SWEEP_PATH:
        return config, typed
    from orchestrator.planning.stored_command import overrides_of

    if not isinstance(path, str):
        raise UserError(f"results.path={path}: mode={mode} takes one dataset; type the one that has the point")
    stored = overrides_of(path, point)
    if any(word.startswith(config_dir.PREFIX) for word in typed):
        stored = [word for word in stored if not word.startswith(config_dir.PREFIX)]
    try:
        composed = to_dict(hydra.compose("config", overrides=config_dir.for_compose(stored, typed)))
        return {**composed, "point": point}, [*stored, *typed]
    except HydraException as error:
        raise UserError(in_words(error)) from None
