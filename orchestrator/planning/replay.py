"""The points of a run: those of its sweep as the mode needs them, or one of them again, and the command for that."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import PurePath

from kernels import registry
from kernels.problem.routine import routine_of
from orchestrator import PROGRAM
from orchestrator.config.read_keys import key_of, only_read, path_of
from orchestrator.config.settings import Points, Settings, mutants_of
from orchestrator.errors import UserError
from orchestrator.grouped import grouped
from orchestrator.planning.expand import chosen, expand
from orchestrator.point import Point
from orchestrator.storage import access
from orchestrator.untrusted.text import without_credentials

READ_FILES = ("import", "model", "traffic", "--config-dir")  # keys of files and folders that points come from
QUOTES = "'\""
WHEELS = re.compile(r"\bwheels: ?(/[^\s,}]+)")  # a folder of an environment that is typed as a whole
OF_HERE = re.compile(r"results\.path=['\"]*[/~]")  # a dataset's place on this machine, as an absolute path
NOT_ON_A_REPLAY = ("mode=", "point=", "rerun=", "modules=", "hydra.")
DESCRIBE = ("sweep", "model", "trees", "timing", "check", "engine")  # keys of a stored command that say what the point is
# Keys that name code, an environment or a file that somebody else chose. A replay has them only if they are typed again.
TRUSTED = ("adapters", "env", "import", "traffic", "--config-dir")
OF_ENVIRONMENT = re.compile(r"\benv\b")  # also within a mapping: it installs packages, whose builds are code
# To variables of this machine, or to files elsewhere. No `$`: Hydra takes backslashes away, so a brace may be escaped.
REFERS = re.compile(r"\$|^[+]?(?:model|sweep|timing|check|trees)=.*/")
BEGINS = [["python", "-m", name] for name in ("orchestrator", "attention_orchestrator")]  # a checkout's commands, and the wheel's
RENAMED_L2 = ("cold", "dirty")  # the state of the L2 in rows whose command names none, since it was the default


def points_of(settings: Points) -> list[Point]:
    """The points of a sweep, or the one that `point` names. Raises UserError if there are none, or no such one."""
    points = chosen(expand(settings), settings)
    if settings.mode == "check_power":
        points = _mutants_of(points, settings)
    if settings.mode == "noise":
        points = [twin for point in points for twin in (point, point._replace(twin=1))]
    if settings.point is None:
        return points
    named = [point for point in points if point.point_id == settings.point]
    if not named and settings.model.softmax_scale is not None:  # rows from before models had a scale are of 1/sqrt(head_dim_qk)
        return points_of(settings.model_copy(update={"model": settings.model.model_copy(update={"softmax_scale": None})}))
    if not named:
        raise UserError(f"point={settings.point!r}: {_why_not_named(settings, len(points))}")
    return named


def _why_not_named(settings: Points, count: int) -> str:
    """Why no point has the id that was asked for. Commands of rows from before timing.l2=clean was the default name no state."""
    dirty = settings.model_copy(update={"timing": settings.timing.model_copy(update={"l2": "dirty"}), "point": None})
    if settings.timing.l2 != "dirty" and settings.point in {point.point_id for point in points_of(dirty)}:
        return f"it was measured with timing.l2=dirty, and this asks for timing.l2={settings.timing.l2}; add timing.l2=dirty"
    return (
        f"none of the {count} points of sweep {settings.sweep.name} has this point_id; "
        f"the `command` column of its row has the whole command"
    )


def overrides_of(path: str, point_id: str | None, typed: Sequence[str] = ()) -> list[str]:
    """What the command in the newest row of a point says of the point, without the keys that are `typed`.

    The rest of it is left out: a dataset may be somebody else's. Raises UserError if the dataset has no such row, if the row has no
    command of this project, and if the point cannot be had without words that a person must type.
    """
    if point_id is None:
        raise UserError("point: mode=replay needs one; type mode=replay point=ID with a point_id of the dataset")
    import pyarrow.compute as pc

    table = access.read(path).select(["point_id", "command", "l2", "finished_at"])
    rows = table.filter(pc.equal(table.column("point_id"), point_id)).sort_by("finished_at").to_pylist()
    if not rows:
        raise UserError(f"point={point_id!r}: results.path={path!r} has no row of this point_id; type one of its column point_id")
    try:
        words = shlex.split(rows[-1]["command"] or "")
    except ValueError:  # a quote that does not end
        words = []
    if words[:3] not in BEGINS or not all("=" in word or word.startswith("~") for word in words[3:]):
        raise UserError(f"point={point_id!r}: its row has no command of this project; type +sweep=NAME, with the sweep that has it")
    if "mode=check_power" in words:
        raise UserError(f"point={point_id!r}: its row is of a wrong kernel; type its own command: {shlex.join(words)}")
    own = {path_of(word) for word in typed}
    stored = [word for word in words[3:] if path_of(word) not in own]
    if asked := [word for word in stored if _needs_trust(word)]:
        raise UserError(
            f"point={point_id!r}: its command has {shlex.join(asked)}, which runs or reads what the dataset names; "
            "if you trust it, type that too"
        )
    kept = [word for word in stored if key_of(word) in DESCRIBE]
    dirty = rows[-1]["l2"] in RENAMED_L2 and not any(word.startswith("timing.l2=") for word in [*kept, *typed])
    return [*kept, *(["timing.l2=dirty"] if dirty else [])]


def require_no_environment(sweep: object, typed: Sequence[str]) -> None:
    """Raises UserError if a sweep, as it was composed with words of a row, names an environment and the typed words do not.

    It installs packages, whose builds are code. This is judged of the values too, since Hydra reads words otherwise than a person.
    """
    if _names_environment(sweep) and not any(OF_ENVIRONMENT.search(word) or path_of(word) == "--config-dir" for word in typed):
        raise UserError("sweep.env: the command of the point's row names an environment; if you trust it, type sweep.env=[...] too")


def _names_environment(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("env") is not None or any(map(_names_environment, value.values()))
    return isinstance(value, list) and any(map(_names_environment, value))


def _needs_trust(word: str) -> bool:
    if key_of(word) in DESCRIBE:
        return bool(OF_ENVIRONMENT.search(word) or REFERS.search(word))
    return key_of(word) in TRUSTED


def replay_command(overrides: Sequence[str], mode: str) -> Callable[[Point], str]:
    """From what was typed for a sweep, a function that gives the command to run exactly one of its points again.

    It names no folder of the machine that measured: another one has none of them. So an absolute results.path is left out, and
    a file of points or of traffic, or a folder of configuration, keeps its name alone. Both points of an A/A pair have one command.
    """
    kept = [without_folder(o) for o in only_read(overrides, "replay") if not o.startswith(NOT_ON_A_REPLAY) and not OF_HERE.match(o)]
    again = "check_power" if mode == "check_power" else "replay"
    typed = without_credentials(shlex.join(["python", "-m", PROGRAM, *kept, f"mode={again}"]))
    return lambda point: f"{typed} point={point._replace(twin=0).point_id}"


def without_folder(override: str) -> str:
    """The override with the name of its file or folder alone, if it names one to read by an absolute path."""
    key, _, value = override.partition("=")
    if key.lstrip("+").startswith("env."):
        return WHEELS.sub(lambda found: f"wheels: {PurePath(found[1]).name}", override)
    path = PurePath(value.strip(QUOTES))
    return f"{key}={path.name}" if key in READ_FILES and path.is_absolute() else override


def _mutants_of(points: Sequence[Point], settings: Settings) -> list[Point]:
    """Every mutant on every problem of a sweep, and the mutants of a plugin's backend on the problems of that backend."""
    points = [point for point in points if not point.refused]
    if settings.check.draws:
        return _drawn_of(points, settings)
    known = registry.registered(settings.adapters)
    problems = dict.fromkeys((point.problem, point.how) for point in points)
    ours = [key for key, one in known.items() if one.module == mutants_of(settings)]
    made_of = grouped(((routine, one.made_of), name) for (routine, name), one in known.items() if one.made_of)
    return [
        *(Point(problem, name, how) for problem, how in problems for routine, name in ours if routine == problem.routine),
        *(point._replace(backend=name) for point in points for name in made_of.get((point.problem.routine, point.backend), ())),
    ]


def _drawn_of(points: Sequence[Point], settings: Settings) -> list[Point]:
    """The first drawn faults at every problem, or in every backend with `check.tolerance=each`, and then right outputs there.

    There is a right output for every 10 of `check.draws`, and at least 2. Each has a seed of inputs of its own, and the first has
    that of the faults. Raises UserError for `each` over a routine whose faults are made of the reference alone.
    """
    from kernels.mutants.drawn import BESIDE, numbers

    draws, each = settings.check.draws, settings.check.tolerance == "each"
    problems = dict.fromkeys((point.problem, point.how) for point in points)
    bases = list(points) if each else [Point(problem, "", how) for problem, how in problems]

    def made(base: Point, name: str) -> Point:
        return base._replace(backend=f"{name}@{base.backend}" if base.backend else name)

    names = [*(f"drawn_{number:03d}" for number in numbers(draws)), *BESIDE]
    known = registry.registered(settings.adapters)  # a routine of a folder has no more than it draws itself
    if alone := sorted({p.problem.routine for p in points if each and (p.problem.routine, f"no_fault@{p.backend}") not in known}):
        raise UserError(f"check.tolerance=each: faults of {', '.join(alone)} are made of the reference alone; leave the key out")
    made_there = [made(base, name) for base in bases for name in names]
    faults = [one for one in made_there if not routine_of(one.problem.routine) or (one.problem.routine, one.backend) in known]
    seeds = range(max(2, draws // 10))
    return [*faults, *(made(_at_seed(base, more), "no_fault") for more in seeds for base in bases)]


def _at_seed(base: Point, more: int) -> Point:
    """The point with a seed that is so much larger. It is validated again, since lengths may be drawn from the seed."""
    keys = base.problem.model_dump()
    return base._replace(problem=type(base.problem).model_validate(keys | {"seed": base.problem.seed + more})) if more else base
