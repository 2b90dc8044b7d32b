"""Makes an environment with uv, once on each machine, and reports its content.

It is made in a folder next to its final place and then renamed, so that no unfinished one is ever used. A lock lets one run make
it while others wait. The lock of a run that was killed is free again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from itertools import filterfalse
from pathlib import Path

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from kernels.compile.module_cache import cache_folder
from kernels.environment import describe
from orchestrator.config.environment import Environment
from orchestrator.environments import shared
from orchestrator.errors import UserError, explain
from orchestrator.process import end_with_parent
from orchestrator.untrusted.door import from_json
from orchestrator.untrusted.text import without_credentials

FOLDER = "attention-orchestrator/environments"
RECIPE = 1  # goes up if environments are made in another way: then they are made again
NEEDED = "pydantic>=2.11"  # by `kernels`, of an environment that shares nothing
MADE = "made.json"
SAID = 1200  # characters of uv's words in a message
UNREACHABLE = re.compile(
    r"error sending request|dns error|failed to lookup|could not connect|connect(ion)? (error|refused|timed)", re.I
)
NOISE = re.compile(r"warning: |Using (C?Python|PyPy) ")  # begins lines of uv that explain no failure; the second names a folder
DISABLED = "Network connectivity is disabled"

Say = Callable[[str], None]


@dataclass(frozen=True)
class EnvironmentInfo:
    """An environment on this machine: its interpreter, and the versions of its packages by canonical name."""

    name: str
    python: str
    packages: Mapping[str, str]
    cuda: str | None

    def versions(self, here: Mapping[str, str | None]) -> dict[str, str | None]:
        """Library versions as `machines.versions` gives those of this machine (`here`), in this environment."""
        columns = {"torch_version": "torch", "flashinfer_version": "flashinfer-python"}
        names = {name: columns.get(name, name) for name in here if name not in ("ray_version", "cuda")}
        return {**here, "cuda": self.cuda, **{name: self.packages.get(package) for name, package in names.items()}}


def make(environment: Environment, say: Say = lambda _words: None) -> EnvironmentInfo:
    """The environment here, made if need be; `say` gets progress. Raises UserError if a Python or a requirement cannot be had."""
    if not environment.requirements:
        python = environment.python or ""
        found = _described(environment, python)
        return EnvironmentInfo(environment.name, python, found.packages, found.cuda)
    place = _place(environment)
    try:
        return _made(environment, place, say)
    except OSError as error:  # a full disk, a folder of another user
        raise UserError(
            f"env.{environment.name}: it cannot be made in {place.parent} ({error.strerror or error}); make room there, or give "
            f"another folder with XDG_CACHE_HOME=... before the command"
        ) from None


def _made(environment: Environment, place: Path, say: Say) -> EnvironmentInfo:
    """Makes the environment in its place if it is not there, and reads what it has."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if _known(place) is None:
        lock = FileLock(place.with_name(f"{place.name}.lock"))
        try:
            held = lock.acquire(blocking=False)
        except TimeoutError:
            say(f"environment {environment.name} is being made by another run; waiting for it")
            held = lock.acquire()
        with held:
            if _known(place) is None:
                named = without_credentials(", ".join(environment.requirements))
                say(f"making environment {environment.name} ({named}), once on this machine")
                shutil.rmtree(place, ignore_errors=True)  # what a power cut has left
                _make(environment, place, say)
    found = _known(place)
    assert found is not None  # it was written and read again
    return EnvironmentInfo(environment.name, str(place / "bin" / "python"), found.packages, found.cuda)


class Described(BaseModel):
    """What `describe` says of an interpreter."""

    packages: dict[str, str]
    cuda: str | None = None
    problem: str | None = None


def _known(place: Path) -> Described | None:
    """What an environment has; None if there is none, or none that was finished."""
    try:
        return Described.model_validate(from_json((place / MADE).read_bytes()))
    except (OSError, ValueError):
        return None


def _place(environment: Environment) -> Path:
    """The folder of an environment, by all that decides what is in it."""
    packages = shared.packages_for(environment)
    parts = [
        RECIPE,
        sorted(environment.requirements),
        _wheels_in(environment),
        environment.python or sys.base_prefix,
        sys.version,
        [f"{name} {one.version} {one.locate_file('')}" for name, one in sorted(packages.items())],
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    return cache_folder(FOLDER) / f"{re.sub('[^A-Za-z0-9_.-]', '_', environment.name)}-{digest}"


def _wheels_in(environment: Environment) -> list[str]:
    """The wheels of a folder with their hashes: a wheel of the same name may be another one. Raises UserError without a folder."""
    if environment.wheels is None:
        return []
    folder = Path(environment.wheels)
    if not folder.is_dir():
        raise UserError(f"env.{environment.name}.wheels={environment.wheels!r}: no such folder; give a folder with wheels")
    return [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in sorted(folder.glob("*.whl"))]


def _make(environment: Environment, place: Path, say: Say) -> None:
    """Makes it beside its place and renames it; leaves nothing if that fails or is interrupted."""
    for left in place.parent.glob(f".{place.name}-*"):  # of a run that was killed: the lock is ours now
        shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        words = _install(environment, fresh, shared.packages_for(environment), say)
        if words:
            say(f"environment {environment.name} gets a torch of its own: {words}")
            shutil.rmtree(fresh)
            try:
                _install(environment, fresh, {}, say)
            except UserError as error:
                raise UserError(f"env.{environment.name}: {words}; a torch of its own: {str(error).partition(': ')[2]}") from None
        found = _described(environment, str(fresh / "bin" / "python"))
        masked = list(map(without_credentials, environment.requirements))
        with (fresh / MADE).open("w") as file:
            file.write(json.dumps({**found.model_dump(), "requirements": masked}, indent=1))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _install(environment: Environment, fresh: Path, shares: Mapping[str, Distribution], say: Say) -> str:
    """Fills a folder. Returns why it cannot share packages, if it was to and cannot; then it must be filled again."""
    offline = ["--offline", "--no-index", "--find-links", environment.wheels] if environment.wheels else []
    python = environment.python or sys.executable
    _uv(environment, ["venv", "--quiet", "--allow-existing", "--relocatable", "--no-project", "--python", python, str(fresh)], say)
    of_install = ["pip", "install", "--python", str(fresh / "bin" / "python"), "--color", "never", *offline]
    if not shares:
        _uv(environment, [*of_install, *environment.requirements, NEEDED], say)
        return ""
    overrides = fresh / "shared.txt"
    overrides.write_text("".join(f"{name} ; python_version < '0'\n" for name in shares))  # a marker that never holds: not installed
    _uv(environment, [*of_install, "--overrides", str(overrides), *environment.requirements], say)
    (site_packages,) = (fresh / "lib").glob("python*/site-packages")
    if words := shared.unmet(distributions(path=[str(site_packages)]), shares):
        return words
    (site_packages / f"{shared.MODULE}.py").write_text(shared.source(shares))
    (site_packages / f"{shared.MODULE}.pth").write_text(f"import {shared.MODULE}\n")
    return ""


def _uv(environment: Environment, words: Sequence[str], say: Say) -> None:
    """Runs uv to its end. It ends with this process, also if that is killed. Raises UserError in words for what went wrong."""
    uv = shutil.which("uv", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", ""))))
    if uv is None:
        raise UserError("sweep.env: uv, which makes environments, is not installed; type: pip install uv")
    said: list[str] = []
    process = subprocess.Popen(
        [uv, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it calls what was loaded before, and nothing that takes a lock
    )  # fmt: skip
    try:
        assert process.stderr is not None  # a pipe was asked for
        for line in filterfalse(NOISE.match, process.stderr):
            said.append(line)
            say(f"environment {environment.name}: {without_credentials(line.strip())}")
        if process.wait():
            raise UserError(_explain(environment, "".join(said)))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def _explain(environment: Environment, said: str) -> str:
    """uv's error for a person: what is wrong, and what to change."""
    words = without_credentials(" ".join(re.sub("[×├─▶╰│]", " ", said).split())[-SAID:])
    needed = list(map(without_credentials, environment.requirements))
    where = f"env.{environment.name}"
    if UNREACHABLE.search(said):
        return f"{where}: the package index cannot be reached ({words}); give wheels: a folder with all wheels that it needs"
    if DISABLED in said or environment.wheels is not None:
        return f"{where}: its folder of wheels does not hold what {needed} need ({words})"
    return f"{where}: its requirements {needed} cannot be met ({words}); give others"


def _described(environment: Environment, python: str) -> Described:
    """What an interpreter has. Raises UserError if it is none, or cannot run `kernels`."""
    where = f"env.{environment.name}: {python}"
    try:
        done = subprocess.run([python, "-I", describe.__file__], capture_output=True, text=True, timeout=60, check=True)
        found = Described.model_validate(from_json(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = explain(error) if isinstance(error, ValidationError) else ""
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else said
        words = " ".join(said.split())[-SAID // 4 :] or error
        raise UserError(
            f"{where} is not a Python that runs ({words}); give the path of an interpreter, such as .venv/bin/python"
        ) from None
    if found.problem:
        raise UserError(f"{where} cannot run a backend: {found.problem}")
    return found
