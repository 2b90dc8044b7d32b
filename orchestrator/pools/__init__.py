"""Where workers come from: this process, or the machines of a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Protocol

from kernels.compile.module_cache import Library
from kernels.device import Device
from orchestrator.config.environment import Environment
from orchestrator.config.parts import Cluster, VersionRule
from orchestrator.environments.make import Say
from orchestrator.environments.modules import Compiled, CompileRequest
from orchestrator.libraries import LibraryVersions
from orchestrator.planning.plan import ModuleKey
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
        """Makes environments where devices are; gives their versions by name. Raises UserError for one that cannot be made."""

    def compile_in(self, wanted: CompileRequest, say: Say) -> Compiled:
        """Compiles the modules of an environment's points, and keeps them on each machine with devices that load them."""

    def build(self, keys: Sequence[ModuleKey], found: Mapping[ModuleKey, Library]) -> Builds:
        """Compiles modules, except those that an archive has (`found`), and puts all of them where workers load them."""


Reach = Callable[[Say], AbstractContextManager[ComputePool]]  # waits for the cluster, and says for what


@contextmanager
def starting(cluster: Cluster, versions: VersionRule = "same", names: tuple[str, ...] = (), early: bool = True) -> Iterator[Reach]:
    """Begins to reach a cluster, in a thread; the block does other things meanwhile, and then enters the pool that it is given.

    Ray is imported only if the cluster needs it. It is left when the block ends.
    `names` are libraries whose versions its machines report beside those of the project's own backends: those of plugins.
    With `early`, workers begin to load their libraries at once: for callers that will surely need them.
    """
    if cluster.kind == "inline":
        from orchestrator.pools.inline import InlinePool

        yield lambda say: nullcontext(InlinePool(names))
        return
    # Ray (2.60) sends the user's token to a cluster named by address only if this says so. It reads it at import.
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    if "RAY_AUTH_TOKEN" in os.environ or token.is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    beginning = _Beginning(cluster)
    try:
        yield partial(beginning.pool, versions, names, early)
    finally:
        beginning.end()


@contextmanager
def connect(cluster: Cluster, versions: VersionRule = "same", names: tuple[str, ...] = ()) -> Iterator[ComputePool]:
    """The pool of a cluster, for callers with nothing to do meanwhile. Raises UserError if it cannot be reached."""
    with starting(cluster, versions, names, early=False) as reach, reach(lambda words: None) as pool:
        yield pool


class _Beginning:
    """Ray as it starts or is joined, in a thread of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._on_terminate = signal.getsignal(signal.SIGTERM)  # Ray's own would end the process with rows unsealed
        self._begun, self._over = Future[None](), threading.Event()
        threading.Thread(target=self._begin, name="ray", daemon=True).start()

    def _begin(self) -> None:
        try:
            from orchestrator.pools.ray import connection

            connection.begin(self.cluster)
            self._begun.set_result(None)
        except BaseException as error:  # is raised where the pool is wanted
            self._begun.set_exception(error)
        self._over.wait()  # the processes of Ray end with the thread that has started them (PR_SET_PDEATHSIG)

    @contextmanager
    def pool(self, versions: VersionRule, names: tuple[str, ...], early: bool, say: Say) -> Iterator[ComputePool]:
        """Raises UserError if no Ray can be reached."""
        say(f"joining the Ray at {self.cluster.address}" if self.cluster.address else "Ray starts on this machine")
        self._begun.result()
        from orchestrator.pools.ray import connection

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_terminate)
        try:
            with connection.pool(self.cluster, versions, names, early) as found:
                yield found
        finally:
            self.end()

    def end(self) -> None:
        """Ends what has begun, once."""
        if self._begun.exception() is None:
            from orchestrator.pools.ray import connection

            connection.end()
        self._over.set()
