"""What `import=` and `export=` make of a composed config, before it goes through the door of settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels import registry
from kernels.problem import ROUTINES
from orchestrator.errors import UserError
from orchestrator.formats import testlist, vllm_config
from orchestrator.settings import CSV_TO_STDOUT, NO_SWEEP_PATH

Config = dict[str, Any]

READERS = {".txt": testlist.read, ".yaml": vllm_config.read, ".yml": vllm_config.read}
RESULTS = ".csv"
# An imported point brings every head and page; it is a share of no model.
NO_MODEL = {"name": "custom", "num_qo_heads": 1, "num_kv_heads": 1, "head_dim_qk": 16, "head_dim_vo": 16}


def taken_in(config: Config) -> Config:
    """The config with the points of a file as its sweep, or with the mode that reads or writes a result file.

    Raises UserError for a file that cannot be read or mapped, and for keys that contradict it.
    """
    source, export = config.get("import"), config.get("export")
    if source is None:
        return _exported(config, str(export))
    if export is not None:
        raise UserError(f"import={source} export={export}: allowed: one of them at a time")
    path = Path(str(source))
    if path.suffix not in {RESULTS, *READERS}:
        raise UserError(f"import={source}: allowed: a test list (.txt), a result file ({RESULTS}), or a vLLM config (.yaml)")
    if not path.is_file():
        raise UserError(f"import={source}: there is no such file; give the path of one")
    named = _with_path(config, re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem))
    try:
        return _with_rows(named) if path.suffix == RESULTS else _with_points(named, path)
    except UnicodeDecodeError as error:
        raise UserError(f"import={source}: no text in UTF-8 ({error.reason} at byte {error.start})") from None


def _exported(config: Config, export: str) -> Config:
    """Other modes may give `export` a meaning of their own."""
    if config.get("mode") not in ("run", "export"):
        return config
    if export != CSV_TO_STDOUT and not export.endswith(RESULTS):
        raise UserError(f"export={export!r}: allowed: {CSV_TO_STDOUT}, which prints, or a path that ends in {RESULTS}")
    return {**config, "mode": "export"}


def _with_path(config: Config, name: str) -> Config:
    """The dataset is named after the file where no path is given."""
    results = config["results"]
    path = f"results/{name}" if results["path"] == NO_SWEEP_PATH else results["path"]
    return {**config, "results": {**results, "path": path}, "sweep_name": name}


def _with_rows(config: Config) -> Config:
    name = config.pop("sweep_name")
    if config.get("mode") not in ("run", "import"):
        raise UserError(f"mode={config['mode']}: import={config['import']} holds results, not points to run; leave mode out")
    if config.get("device") is None:
        raise UserError(
            f"device: {config['import']} does not say on which GPU it was measured; type device=h200, or another of conf/device"
        )
    return {**config, "mode": "import", "sweep": {"name": name}}


def _with_points(config: Config, path: Path) -> Config:
    name, own = config.pop("sweep_name"), config.get("sweep") or {}
    if config.get("mode") == "import":
        raise UserError(f"mode=import: import={path} holds points to run, not results; leave mode out, or type mode=plan")
    if strange := sorted(own.keys() & {"name", "about", "include", "exclude"}):
        raise UserError(
            f"sweep.{strange[0]}: import={path} brings its own points; leave +sweep=NAME out, +sweep.KEY=VALUE may stay"
        )
    known = None if "backend" in own else _backends(tuple(config.get("adapters") or ()))
    rules, about = READERS[path.suffix](str(path), known)
    sweep = {"name": name, "about": about, "backend": [], "include": [{**rule, **own} for rule in rules]}
    return {**config, "sweep": sweep, "model": NO_MODEL}


def _backends(plugins: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    try:
        known = registry.adapters(plugins)
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={list(plugins)}: {error}; allowed: modules that hold a tuple ADAPTERS") from None
    return {routine: frozenset(name for of, name in known if of == routine) for routine in ROUTINES}
