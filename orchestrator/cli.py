"""What a person types and reads: composes the config, picks the mode, turns every outcome into words and an exit code."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from kernels.timing import Timing
from orchestrator.errors import UserError, unknown
from orchestrator.settings import KEYS, Check, Cluster, Limits, Model, Results, Settings, load

if TYPE_CHECKING:
    from rich.console import Console

OK, BAD_POINTS, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
WIDE = 160  # columns where the output is no terminal

_composed: list[Settings] = []  # what got through the door
_exit_codes: list[int] = []  # of every job of a multirun: Hydra drops what a job returns


def main() -> None:
    """Entry point. Ends the process with the contract's exit code; no traceback for wrong input."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the words are ours
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _compose()
    except (HydraException, OmegaConfBaseException) as error:
        _fail(_explain_hydra(error))
    except ValueError as error:
        if _composed:
            raise
        _fail(_explain_hydra(error))  # Hydra raises it bare for some overrides, such as a group set to null
    except KeyboardInterrupt:
        _exit_codes.append(INTERRUPTED)
    sys.exit(max(_exit_codes, default=OK))


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")  # type: ignore[untyped-decorator]
def _compose(config: DictConfig) -> None:
    try:
        if config.get("mode") == "support":  # asks for no sweep
            print(_support([config.adapters] if isinstance(config.adapters, str) else list(config.adapters)), end="")
            return
        settings = load(_plain(config))
        _composed.append(settings)
        _exit_codes.append(execute(settings, list(HydraConfig.get().overrides.task)))
    except UserError as error:
        _fail(str(error))


def _support(plugins: list[str]) -> str:
    from orchestrator import support

    try:
        return support.page(tuple(plugins))
    except (ImportError, ValueError, AttributeError) as error:
        raise UserError(f"adapters={plugins}: {error}; allowed: modules that hold a tuple ADAPTERS") from None


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    _exit_codes.append(WRONG_INPUT)


def _explain_hydra(error: Exception) -> str:
    """Hydra's error without its frame, and the nearest thing that would have been right."""
    words = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    words = words.partition("Config search path:")[0].removeprefix("In 'config': ").strip()
    if group := re.match(r"Could not find '(\w+)/(.*?)' Available options in '\w+': (.*)", words):
        return unknown(group[1], group[2], (name for name in group[3].split() if name != "base"))
    merge = r"Error merging override ([\w.]+)=(\{.*\})|Cannot merge DictConfig with ListConfig full_key: ([\w.]+)"
    if ranged := re.search(merge, words):
        key, given = ranged[1] or ranged[3], ranged[2] or "{min: 1, max: 8}"
        return f"{key}: it holds a list, which a mapping cannot replace; type '{key}=[{given}]', or [{given}] in YAML"
    if key := re.match(r"Could not override '([\w.]+)'", words):
        near = get_close_matches(key[1], _all_keys(), n=1)
        if near and near[0] == key[1]:
            return f"{key[1]}: this config does not set it yet; type +{key[1]}=..."
        hint = f"did you mean '{near[0]}'?" if near else "type python -m orchestrator --help for the keys there are."
        return f"{key[1]}: there is no such key; {hint}"
    return f"{words}\n  type python -m orchestrator --help for the groups and keys there are"


def _all_keys() -> list[str]:
    """Every key of a run, with dots, for a sweep that has none of its own."""
    sections: dict[str, type[BaseModel]] = {
        "limits": Limits,
        "timing": Timing,
        "check": Check,
        "results": Results,
        "cluster": Cluster,
        "model": Model,
    }
    nested = [f"{name}.{field}" for name, section in sections.items() for field in section.model_fields]
    return [*Settings.model_fields, *nested, *(f"sweep.{key}" for key in (*KEYS, "dtype", "exclude", "include"))]


def execute(settings: Settings, overrides: Sequence[str]) -> int:
    """Runs one mode. Raises UserError for wrong input found before anything starts."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE)
    match settings.mode:
        case "plan":
            return _plan(settings, console)
        case "compile":
            return _compile(settings, console)
        case "report":
            return _report(settings, console)
    return _run(settings, overrides, console)


def _run(settings: Settings, overrides: Sequence[str], console: Console) -> int:
    from orchestrator import run
    from orchestrator.progress import Progress
    from orchestrator.scheduler import NoWorkers
    from orchestrator.store import CannotStore, Store

    points = run.points_of(settings)
    again = shlex.join(["python", "-m", "orchestrator", *overrides])
    store = Store(settings.results.path)
    started = time.monotonic()
    try:
        with run.connect(settings.cluster) as pool, Progress(console) as progress:
            job = run.Run(settings, overrides, store, pool, progress)
            counts = job.go(points)
    except KeyboardInterrupt:
        _say(console, f"interrupted; every finished row is stored. To go on, type:\n  {again}")
        return INTERRUPTED
    except NoWorkers as error:
        _say(console, f"stopped: {error}; every finished row is stored. To go on, type:\n  {again}")
        return BAD_POINTS
    except CannotStore as error:
        _say(console, f"stopped: {error}; rows that were reported are kept. Make room, then type:\n  {again}")
        return BAD_POINTS
    finally:
        with suppress(CannotStore):  # `go` has sealed what it finished; what could not be merged stays in the journal
            store.close()
    _summarize(settings, console, job.common["run_id"], f"{job.written} rows in {time.monotonic() - started:.1f} s", again)
    return run.exit_code(counts)


def _summarize(settings: Settings, console: Console, run_id: str, effort: str, again: str) -> None:
    from orchestrator import grid, questions, report, store

    table = store.read(settings.results.path).to_pandas()
    grid.draw(console, [*report.best_grids(table), *questions.grids(table), report.status_grid(table)])
    path = settings.results.path
    _say(console, f"run {run_id}: {effort}; dataset: {path} (pandas.read_parquet('{path}'))")
    _say(console, "next:")
    for command in (f"{again} mode=report format=markdown", f"{again} rerun=failed", f"{again} mode=plan device=b200"):
        _say(console, f"  {command}")


def _say(console: Console, words: str) -> None:
    """Words as they are: a command may hold [lists], which rich would take for its own markup."""
    console.print(words, soft_wrap=True, highlight=False, markup=False)


def _plan(settings: Settings, console: Console) -> int:
    from orchestrator import grid, machines, report
    from orchestrator.plan import make_plan
    from orchestrator.sweep import expand

    points = expand(settings)
    if settings.cluster.kind == "ray" and settings.device is None:
        raise UserError("device: mode=plan starts nothing and cannot ask a cluster; type device=h200, or another of conf/device")
    devices = [settings.device] if settings.device else list(machines.describe().devices)
    plan = make_plan(points, devices, settings)
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    _say(console, f"sweep {settings.sweep.name} on {names}: {settings.sweep.about}")
    grid.draw(console, report.plan_grids(plan, settings.cluster.workers or len(devices)))
    return OK


def _compile(settings: Settings, console: Console) -> int:
    from orchestrator import run
    from orchestrator.grid import Grid, draw
    from orchestrator.plan import make_plan
    from orchestrator.progress import Progress

    points = run.points_of(settings)
    with run.connect(settings.cluster) as pool, Progress(console) as progress:
        plan = make_plan(points, [settings.device] if settings.device else pool.devices, settings)
        built = list(progress.compiling(pool.build(list(plan.modules)), total=len(plan.modules)))
    cells = tuple((b.arch, str(b.module), f"{b.seconds:.1f}", b.error or "ok") for b in built)
    draw(console, [Grid(f"{len(built)} kernel modules", ("arch", "module", "seconds", "result"), cells)])
    return BAD_POINTS if any(b.error for b in built) else OK


def _report(settings: Settings, console: Console) -> int:
    from orchestrator import grid, questions, report, store

    table = store.read(settings.results.path).to_pandas()
    if table.empty:
        path = settings.results.path
        raise UserError(
            f"results.path={path!r}: no rows there; run the sweep first: python -m orchestrator +sweep={settings.sweep.name}"
        )
    grids = [*report.best_grids(table), *questions.grids(table), report.status_grid(table)]
    match settings.format:
        case "markdown":
            print(grid.markdown(grids))
        case "svg":
            print(grid.svg(grids, title=f"python -m orchestrator +sweep={settings.sweep.name}"))
        case "terminal":
            grid.draw(console, grids)
    return OK
