"""Makes the Python processes of Ray cheaper to start in tests. What they do for a run is the same.

They import modules that they seldom need when they need them. A local Ray, and the head that `ray start` makes, come without the
processes that only people look at: the dashboard's server, the autoscaler, the reader of logs. A process that starts one of them
for its own sake says so and gets it.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from functools import partialmethod
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

if __package__:
    from tests.ray_start import stand_in, template
else:  # imported by sitecustomize.py
    import stand_in

IMPORTS = "TESTS_WORKERS_IMPORT"
SELDOM_USED = {"jsonschema", "requests", "tqdm", "yaml"}
# Ray's own programs. Commands of this project that begin anew stay as their users have them.
PROGRAMS = ("/ray/_private/", "/ray/dashboard/", "/ray/autoscaler/", "/bin/ray")
SETUP = "/ray/_private/workers/setup_worker.py"
KINDS = {"--python_worker_command": "worker", "--runtime_env_agent_command": "agent", "--dashboard_agent_command": "no_dashboard"}

origins: list[template.Origin] = []  # the last starts the raylets of this process


def in_this_process(origin: template.Origin | None = None) -> None:
    """Modules of Ray that are imported from now on are changed. Workers are forked from `origin`, if it is given."""
    origins.extend([origin] if origin else [])
    sys.meta_path.insert(0, Changed())


def in_programs_of_ray() -> None:
    """Does something only if Python runs one of them."""
    program = next((word for word in sys.orig_argv[1:] if not word.startswith("-")), "")
    if not any(part in program for part in PROGRAMS):
        return
    if program.endswith(SETUP):
        become_the_worker(sys.orig_argv[sys.orig_argv.index(program) + 1 :])
    gc.set_threshold(100_000)  # until Ray is imported, there is no garbage
    sys.meta_path.insert(0, WhenUsed())
    in_this_process(fork_origin_that_imports() if program.endswith("/bin/ray") else None)


def fork_origin_that_imports() -> template.Origin | None:
    """For `ray start` of a node with several workers, whose variables say what an origin imports for all of them."""
    imports = os.environ.get(IMPORTS, "").split()
    if not imports:
        return None
    import template as here

    return here.fork_origin(imports)


def become_the_worker(words: list[str]) -> None:
    """What setup_worker.py does once it has imported Ray. Returns if more than a path and variables is to be set up."""
    given = dict(word[2:].split("=", 1) for word in words if word.startswith(("--language=", "--serialized-runtime-env-context=")))
    context = json.loads(given.get("serialized-runtime-env-context", "{}"))
    more = {key for key, value in context.items() if value} - {"env_vars", "py_executable"}
    if given.get("language") != "PYTHON" or more:
        return
    for key, value in context.get("env_vars", {}).items():
        os.environ[key] = value.replace(f"${{{key}}}", os.environ.get(key, ""))
    python = context.get("py_executable") or sys.executable
    os.execvp(python, [python, *(word for word in words if word[2:].split("=", 1)[0] not in given)])


class WhenUsed:
    """Finds modules that are loaded at their first use."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name) if name in SELDOM_USED else None
        if spec and spec.loader:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


class Changed:
    """Finds the modules of Ray that CHANGES names, and changes them once they are loaded."""

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in CHANGES else None
        if spec and spec.loader:
            load = spec.loader.exec_module

            def loaded(module: ModuleType) -> None:
                load(module)
                CHANGES[name](module)

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def _no_watchers(parameter: ModuleType) -> None:
    """Of a Ray that ray.init starts: it cannot be asked to leave them out. `ray start` can, and is."""
    params = parameter.RayParams
    params.__init__ = partialmethod(params.__init__, include_log_monitor=False, no_monitor=True)


def _cheap_processes(services: ModuleType) -> None:
    start, start_server = services.start_ray_process, services.start_api_server

    def started(command: list[str], process_type: str, fate_share: bool, **more: Any) -> Any:
        if process_type == "raylet":
            command = with_stand_ins(command)
        if process_type != "raylet" or not origins:
            return start(command, process_type, fate_share, **more)
        variables = {**os.environ, **(more.get("env_updates") or {})}
        raylet = origins[-1].start(command, socket_of(command), variables, more.get("cwd") or str(Path.cwd()), fate_share)
        return services.ProcessInfo(raylet, None, None, False, False, False, False, False)

    def no_server(include_dashboard: bool | None, *rest: Any, **more: Any) -> Any:
        """With include_dashboard=False Ray starts its server all the same, for usage statistics."""
        return (None, None) if include_dashboard is False else start_server(include_dashboard, *rest, **more)

    services.start_ray_process, services.start_api_server = started, no_server


def with_stand_ins(command: list[str]) -> list[str]:
    """A raylet's command line, in which stand_in.py runs in the place of Ray's Python programs."""
    changed = []
    for word in command:
        key, _, value = word.partition("=")
        words = stand_in.command(KINDS[key], socket_of(command), shlex.split(value)) if key in KINDS else None
        changed.append(f"{key}={subprocess.list2cmdline(words)}" if words else word)
    return changed


def socket_of(command: list[str]) -> str:
    """Where the template of a raylet listens."""
    (name,) = (word.partition("=")[2] for word in command if word.startswith("--raylet_socket_name="))
    return f"{name}.template"


CHANGES = {"ray._private.parameter": _no_watchers, "ray._private.services": _cheap_processes}
