"""Checks the YAML files that Hydra composes before it reads them: those of conf/, and those of `--config-dir`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator import ROOT
from orchestrator.composing.words import in_words
from orchestrator.errors import UserError
from orchestrator.untrusted import yaml as untrusted_yaml
from orchestrator.untrusted.files import read_text

MAX_VALUES = 10_000  # in a file: composing more takes a minute
OF_HYDRA = ("hydra", "hydra.conf")

_defaults: dict[str, list[str]] = {}  # of each file that was read, the files that its list of defaults names


class _FromFolder(FileConfigSource):  # type: ignore[misc]
    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path)).resolve()
        return _load(super().load_config, config_path, path)


class _FromPackage(ImportlibResourcesConfigSource):  # type: ignore[misc]
    def load_config(self, config_path: str) -> ConfigResult:
        if self.path.startswith(OF_HYDRA):
            return super().load_config(config_path)
        place = resources.files(self.path).joinpath(self._normalize_file_name(config_path))
        return _load(super().load_config, config_path, Path(str(place)))


def install() -> None:
    """Makes Hydra read every file through here, and begins a new command."""
    Plugins.instance()  # registers Hydra's own sources first
    SourcesRegistry.instance().types.update({"file": _FromFolder, "pkg": _FromPackage})
    _defaults.clear()


def circle() -> list[str]:
    """Files whose lists of defaults lead back to the first of them; none if there are none."""

    def search(path: list[str]) -> list[str]:
        for following in _defaults.get(path[-1], []):
            if following in path:
                return [*path[path.index(following) :], following]
            if found := search([*path, following]):
                return found
        return []

    return next(filter(None, (search([start]) for start in _defaults)), [])


def _load(load: Any, config_path: str, path: Path) -> ConfigResult:
    """A file's content. Raises UserError, which names the file and the line, if it is not what this project takes."""
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    if not path.exists():
        return load(config_path)
    untrusted_yaml.check(read_text(path, "config"), name, MAX_VALUES)
    try:
        result: ConfigResult = load(config_path)
    except OmegaConfBaseException as error:
        raise UserError(f"{name}: {in_words(error)}") from None
    except (ValueError, TypeError, OSError):  # of OSError: OmegaConf, for a file that is one number
        raise UserError(f"{name}:1: no keys with values; allowed: lines such as batch_size: [1, 16]") from None
    if not OmegaConf.is_dict(result.config):
        raise UserError(f"{name}:1: a list; allowed: keys with values, such as batch_size: [1, 16]")
    _defaults[config_path.removesuffix(".yaml")] = _named_by(config_path, result.config.get("defaults"))
    return result


def _named_by(config_path: str, defaults: object) -> list[str]:
    """The files that a list of defaults names."""
    folder, found = config_path.rpartition("/")[0], []
    for entry in OmegaConf.to_container(defaults) if OmegaConf.is_list(defaults) else []:  # type: ignore[union-attr]
        named = (
            entry
            if isinstance(entry, str)
            else "/".join(map(str, next(iter(entry.items()), ())))
            if isinstance(entry, dict)
            else ""
        )
        named = named.partition("@")[0]
        if named and named != "_self_" and " " not in named:
            found.append(named.lstrip("/") if named.startswith("/") or not folder else f"{folder}/{named}")
    return found
