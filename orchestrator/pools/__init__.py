"""Where workers come from: this process, or the machines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from kernels.compile.module_cache import Library
from kernels.device import Device
from orchestrator.config.environment import Environment
from orchestrator.config.parts import Cluster, Versions
from orchestrator.environments.make import Say
from orchestrator.environments.modules import Compiled
from orchestrator.libraries import Versions as LibraryVersions
from orchestrator.planning.plan import ModuleKey
from orchestrator.point import Point
from orchestrator.scheduling.builds import Builds
from orchestrator.scheduling.interfaces import Pool


class ComputePool(Pool, Protocol):
    """Workers and compilers, and what a plan must know about their machines."""

    @property
    def devices(self) -> list[Device]:
        """The kinds of devices, one of each."""

    @property
    def versions(self) -> list[dict[str, str | None]]:
        """The library versions of the machines, without duplicates."""

    @property
    def left_out(self) -> list[str]:
        """Why machines that joined are not used."""

    def make_environments(self, wanted: Sequence[Environment], say: Say) -> dict[str, LibraryVersions]:
        """Makes environments on each machine with devices, if they are not there. Gives their library versions by name.

        Raises UserError for one that cannot be made.
        """

    def compile_in(self, environment: Environment, points: Sequence[Point], plugins: tuple[str, ...], say: Say) -> Compiled:
        """Compiles the modules of an environment's points, and keeps them on each machine with devices."""

    def build(self, keys: Sequence[ModuleKey], found: Mapping[ModuleKey, Library]) -> Builds:
        """Compiles modules, except those that an archive has (`found`), and puts all of them where workers load them."""


def connect(cluster: Cluster, versions: Versions = "same", names: tuple[str, ...] = ()) -> AbstractContextManager[ComputePool]:
    """The pool of a cluster. Ray is imported only if the cluster needs it. Raises UserError if it cannot be reached.

    `names` are libraries whose versions its machines report beside those of the project's own backends: those of plugins.
    """
    if cluster.kind == "inline":
        from orchestrator.pools import inline

        return inline.connect(cluster, versions, names)
    _show_token()
    from orchestrator.pools.ray import connection

    return connection.connect(cluster, versions, names)


def _show_token() -> None:
    """Makes Ray send this user's token to a cluster that is named by its address, which it does not do by default.

    Ray (2.60) requires a token on clusters that it starts, and reads the mode once, when it is imported.
    """
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    if "RAY_AUTH_TOKEN" in os.environ or token.is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
