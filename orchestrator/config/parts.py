"""Parts of the settings: where to run, how to check, limits, where the dataset is, and kinds of values that several keys share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from kernels.check.answer import MAX_INPUTS
from kernels.timing.config import Seconds, Wait
from orchestrator.config.base import Frozen, Scalar
from orchestrator.untrusted.files import expanded

VersionRule = Literal["same", "any"]
OLD_NAMES = {"trtllm-gen-native": "trtllm-native"}  # of backends in FlashInfer's benchmark, which people still type
MAX_DRAWS = 200  # mutants that `DRAWN` has


def todays(name: str) -> str:
    """A backend's name in this project; what is no old name stays as it is."""
    return OLD_NAMES.get(name, name)


def _as_texts(given: Any) -> Any:
    """One value or a list of them as a tuple of strings: YAML reads a version such as 0.8 as a number."""
    values = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return tuple(str(value) if isinstance(value, Scalar) else value for value in values)


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_texts)]
UserPath = Annotated[str, AfterValidator(expanded)]  # a path, in which ~ is the home folder
UserPaths = Annotated[Texts, AfterValidator(lambda texts: tuple(map(expanded, texts)))]
BackendNames = Annotated[Texts, AfterValidator(lambda names: tuple(map(todays, names)))]


class Cluster(Frozen):
    """Where to run: `local` starts Ray on this machine, `ray` joins a Ray cluster, `inline` runs in this process.

    With `spread=any` a point runs on one of the kinds of devices that support it; with `each_device` it runs on each of them,
    as a separate row. `wait_seconds` is how long a run waits for a machine if none is left. A run stops
    once Ray's head has not answered for `head_seconds`. After a run, workers
    that have loaded their libraries wait for the next one for `keep_warm_s`.
    """

    name: str
    kind: Literal["local", "ray", "inline"]
    address: str | None = None
    workers: PositiveInt | None = None
    spread: Literal["any", "each_device"] = "any"
    wait_seconds: Wait = 0
    head_seconds: Seconds = 15
    keep_warm_s: Wait = 0

    @model_validator(mode="after")
    def _address(self) -> Self:
        if (self.kind == "ray") != (self.address is not None):
            raise ValueError(
                f"cluster.address={self.address!r}: cluster=ray needs one and no other cluster takes one; "
                f"type cluster=ray cluster.address=HOST:6379"
            )
        return self


class Check(Frozen):
    """Whether results are checked. `force_unsupported` also runs unsupported points: one that passes shows a rule that is too
    strict. `batch_invariance` also asks whether requests get the same bits in smaller batches.
    `draws` is how many randomly drawn faults mode=check_power tries at each problem, instead of the listed ones, and half as many
    of the kinds that were added later.
    `max_inputs` is how many inputs a point may be checked on, if one does not show a lost page of 64 tokens.
    `tolerance` says how it judges them: once at the widest tolerance that any backend has, or in each backend at its own.
    """

    enabled: bool = True
    force_unsupported: bool = False
    max_inputs: Annotated[int, Field(ge=1, le=MAX_INPUTS)] = 4
    batch_invariance: bool = False
    draws: Annotated[int, Field(ge=0, le=MAX_DRAWS)] = 0
    tolerance: Literal["widest", "each"] = "widest"

    @model_validator(mode="after")
    def _drawn(self) -> Self:
        if self.tolerance == "each" and not self.draws:
            raise ValueError("check.tolerance=each: only drawn faults are made of each backend; add check.draws=20, for example")
        return self


class Limits(Frozen):
    """Limits on a point and on a worker: seconds of wall time, a fraction of device memory, a number of attempts."""

    point_seconds: Seconds = 30
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    attempts: Annotated[int, Field(ge=1, le=100)] = 2
    start_seconds: Seconds = 180


def _joined(given: Any) -> Any:
    """One path as it is; a list of them with commas between them, as `analysis/sources.py` reads them."""
    if not isinstance(given, list | tuple):
        return given
    if not given or not all(isinstance(path, str) and path and "," not in path and "://" not in path for path in given):
        raise ValueError(
            f"results.path={given!r}: allowed: folders, Parquet files or patterns on this machine, such as [results/a,results/b]"
        )
    return ",".join(map(expanded, given))


class Results(Frozen):
    """Where the dataset is: a folder, or `s3://BUCKET/PREFIX`. Modes that read a dataset also take a list of folders."""

    path: Annotated[str, Field(min_length=1), AfterValidator(expanded), BeforeValidator(_joined)]


class Releases(Frozen):
    """Releases of a library: `pre` and `yanked` also take pre-releases and those taken back. `wheels` is a folder that has them,
    and `shares` what the environment of a release has of the one that runs the command (`Environment.shares`).
    """

    pre: bool = False
    yanked: bool = False
    wheels: UserPath | None = None
    shares: Literal["torch", "all"] = "torch"


class Bisect(Releases):
    """A search over releases: `slower` is the share from which a release is bad with predicate=slower, and `rounds` how often a
    release is measured at most.
    """

    slower: Annotated[float, Field(gt=0, lt=10)] = 0.05
    rounds: Annotated[int, Field(ge=1, le=20)] = 4


class ReleaseWatch(Releases):
    """`since` are the releases that a watch begins with, one of each library; `site` is the folder of its pages."""

    since: Texts = ()
    site: UserPath | None = None


class Dashboard(Frozen):
    """`port` on the loopback address; 0 takes a free one."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8787


class Best(Frozen):
    """`max_rel_err`: the largest error of a ranked answer, which then must be checked; None ranks every one that passed."""

    max_rel_err: PositiveFloat | None = None
