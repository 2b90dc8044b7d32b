"""The dataset that a command asks about, with everything that its keys set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kernels.problem.dtypes import SIZE_BITS
from orchestrator.analysis import finder, traffic
from orchestrator.analysis.cards import learn_from
from orchestrator.analysis.compare.selection import exists
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions import open_views
from orchestrator.analysis.questions.deployments import create_decisions, parts
from orchestrator.analysis.sql import OfEngines, query
from orchestrator.analysis.traffic import Mix
from orchestrator.config.engine import MAX_DRAFT, selected
from orchestrator.config.exports import ENGINES
from orchestrator.config.parts import Results
from orchestrator.config.ranges import several
from orchestrator.config.settings import FOR_DEPLOYMENT, NO_SWEEP_PATH, Answers, AskSettings, ForDeployment, Settings
from orchestrator.errors import NoRows, as_typed
from orchestrator.grouped import grouped
from orchestrator.machines import known_devices
from orchestrator.notes import note_once
from orchestrator.storage.columns.sections import EngineColumns

if TYPE_CHECKING:
    from orchestrator.config.settings import CompareSettings, Served

OF_ADVICE = ("fp8", "draft")  # questions that of one engine compare its advised flags: over both caches, and at each draft length
Asking = TypeVar("Asking", bound=ForDeployment)


def mix_of(settings: Settings) -> Mix | None:
    """The traffic of the file that `traffic` names, if it names one. Raises UserError for a file that cannot be read."""
    return None if settings.traffic is None else traffic.read(settings.traffic)


def _asked(settings: Served, typed: Sequence[str], others: dict[str, Any]) -> tuple[str, dict[str, Any], finder.Alike | None]:
    """What stands for the model in a command; values of its rows and of its tp, and those of rows with its heads, with others."""
    *_, of_model = "", *(word.partition("=")[2] for word in typed if word.startswith("model="))
    wanted: dict[str, Any] = {"model": (settings.model.name,)} if of_model else {}
    wanted |= {} if settings.tp is None else {"tp": (settings.tp,)}
    return of_model, wanted | others, finder.same_heads(settings.model, settings.tp, others) if of_model else None


def sides_found(settings: CompareSettings, overrides: Sequence[str]) -> CompareSettings:
    """Settings whose rows are of the typed model, tp and drafts, in two datasets if both sides are GPUs. Raises NoRows."""
    of_drafts = {} if settings.drafts is None else {"s_qo": (settings.drafts + 1,)}
    rows = of_drafts | {name: several(value) for name, value in settings.where.items()}
    of_model, wanted, alike = _asked(settings, overrides, rows)
    sides, known = {"baseline": settings.baseline, "candidate": settings.candidate}, known_devices()
    gpus = {side: one for side, of in sides.items() for one in of if one in known and not exists(one)}
    if len(gpus) < len(sides) or settings.results.path != NO_SWEEP_PATH:
        where = cast(finder.Wanted, {**wanted, **settings.where})
        if (held := finder.held(settings.results.path, where, alike) if alike else where) is not where:
            note_once(f"rows with the heads of {of_model} answer")
        return settings.model_copy(update={"where": held})
    typed_as = (of_model, "encoder" if settings.model.is_encoder else finder.SERVERS, settings.model)
    found, where = finder.find_pair(wanted, {f"{side}={one}": known[one] for side, one in gpus.items()}, alike, typed_as)
    read = {side: (*of, *(one for one in sides[side] if one != gpus[side])) for side, of in zip(sides, found, strict=True)}
    typed = {word.partition("=")[0] for word in overrides}  # what was found need not have the same points
    return settings.model_copy(update={**read, "where": where, "missing": settings.missing if "missing" in typed else "allow"})


def located(settings: Asking, overrides: Sequence[str]) -> Asking:
    """Settings whose rows are of the typed model, tp and device, in the dataset that has them unless given. Raises NoRows."""
    rows: dict[str, Any] = {"device_name": tuple(dict.fromkeys((one.name, *one.match)))} if (one := settings.device) else {}
    export = getattr(settings, "export", None)
    question = FOR_DEPLOYMENT[0] if export and export.format in ENGINES else getattr(settings, "question", None)
    if question not in (None, *FOR_DEPLOYMENT) and settings.drafts is not None:
        rows["s_qo"] = (settings.drafts + 1,)
    if question in OF_ADVICE and settings.engine is not None and settings.results.path == NO_SWEEP_PATH:
        settings = _over_both(settings, overrides) if question == "fp8" else settings
        question = finder.FLAGS_OF_DRAFTS if question == "draft" else question
    of_engines = _of_engines(settings) if question == finder.IN_ENGINE else {}
    rows |= {name: several(value) for name, value in settings.where.items()} | of_engines
    of_model, wanted, alike = _asked(settings, overrides, rows)
    path, where = settings.results.path, cast(finder.Wanted, {**wanted, **settings.where, **of_engines})
    if path == NO_SWEEP_PATH:
        is_of_flags = question in (None, *FOR_DEPLOYMENT) or settings.engine is not None
        typed_as = (of_model, "encoder" if settings.model.is_encoder else finder.SERVERS * is_of_flags, settings.model)
        path, where = finder.find(wanted, settings.engines, settings.drafts, alike, question=question, typed=typed_as)
    elif alike:
        where = finder.held(path, where, alike)
    return settings.model_copy(update={"results": Results(path=path), "where": finder.of_one_model(path, where, settings.drafts)})


def _over_both(settings: Asking, overrides: Sequence[str]) -> Asking:
    """Settings whose rows are in the datasets that name an engine's flags over 16-bit and over FP8 caches. Raises NoRows."""
    caches = ("bf16", "fp16"), tuple(one for one in SIZE_BITS if one.startswith("fp8"))
    asked = ({"question": FOR_DEPLOYMENT[0], "where": {"kv_dtype": kinds, **settings.where}} for kinds in caches)
    try:
        found = [located(settings.model_copy(update=one), overrides).results.path for one in asked]
    except NoRows:  # of one cache: without any, what measures both is told
        located(settings.model_copy(update={"question": FOR_DEPLOYMENT[0]}), overrides)
        raise
    paths = dict.fromkeys(one.removesuffix(".parquet") for path in found for one in path.split(","))
    return settings.model_copy(update={"results": Results(path=",".join(paths))})


def _of_engines(settings: ForDeployment) -> dict[str, tuple[Any, ...]]:
    """What was asked of the engine, its release and flag: isolated rows have none of them, and stay beside its rows."""
    typed = {name: several(value) for name, value in settings.where.items() if name in EngineColumns.__annotations__}
    if settings.engine is not None:
        (one,) = settings.engines
        typed |= {"engine": (one.engine,)} | ({} if settings.engine.name == one.engine else {"engine_version": (one.release,)})
    return {name: OfEngines(values) for name, values in typed.items()}


def opened(settings: Answers, mix: Mix | None) -> Dataset:
    """The rows of `results.path` that `where` keeps, with a view for every question. Raises UserError as `open_dataset` does.

    Of an engine that was asked for only its flags answer a question on kernels, `OF_ADVICE` those that are advised.
    """
    asked, question = settings if isinstance(settings, ForDeployment) else None, getattr(settings, "question", None)
    told: dict[str, Any] = {"where": settings.where, "weights": settings.weights, "traffic": mix}
    told |= {"engines": asked.engines, "drafts": asked.drafts} if asked else {"engines": selected()}
    cards = None if settings.cards is None else learn_from(settings.cards)
    read = partial(open_views, settings.results.path, settings.draft, cards=cards, max_rel_err=settings.best.max_rel_err, **told)
    is_plain = asked is None or asked.engine is None or question in (None, finder.IN_ENGINE, *FOR_DEPLOYMENT)
    found = read() if is_plain else of_flags(read, advised=question in OF_ADVICE, each_length=question == "draft")
    for name, values in ((name, several(settings.where.get(name))) for name in finder.LENGTHS):
        there = {value for (value,) in found.execute(f"SELECT DISTINCT {name} FROM rows")} if values[1:] else {*values}
        if left := [value for value in values if isinstance(value, int) and value not in there]:
            note_once(f"no row of {settings.results.path} has {name}: {as_typed(left[: finder.MAX_LISTED])}")
    if [*several(told["where"].get("routine"))] == ["paged_prefill"] and found.scalar(f"SELECT max(s_qo) <= {MAX_DRAFT} FROM rows"):
        note_once(f"these are drafts that run as prompts do; for prompts type 'where={{s_qo: {{from: {MAX_DRAFT + 1}}}}}'")
    return found


def of_flags(read: Callable[..., Dataset], *, advised: bool, each_length: bool = False) -> Dataset:
    """The rows of the flags of the engine that was asked for, or of its advised ones alone, under the names of flags.

    `each_length`: those that are advised for each number of drafted tokens alone.
    """
    answers = [read(drafts=0) if each_length else read()]
    answers += [read(drafts=s_qo - 1) for (s_qo,) in (answers[0].execute(query("draft_lengths")) if each_length else ())]
    for data in answers:
        create_decisions(data)
    found = read(flags=[row for data in answers for row in data.execute(query("rows_of_flags", advised=advised))])
    found.memo["parts"] = [part for data in answers for part in parts(data)]  # also where a default has no time
    return found


def flags_near(near: Mapping[str, Sequence[int]], settings: AskSettings, overrides: Sequence[str]) -> list[str]:
    """What question=one_backend answers at lengths next to some that were not measured: a line for each engine, phase and cache."""
    told = list[tuple[str, tuple[str, str]]]()
    for lengths in (dict(zip(near, values, strict=True)) for values in product(*near.values()) if values):
        with suppress(NoRows):  # two lengths need not have been measured together
            there = located(settings.model_copy(update={"where": {**settings.where, **lengths}}), overrides)
            create_decisions(data := opened(there, mix_of(there)))
            place = ", ".join(map("{} {}".format, lengths, lengths.values()))
            told += [(of, (flag, place)) for of, flag in data.execute(query("decided"))]
    lines = []
    for of, answers in grouped(told).items():
        flags = grouped(dict.fromkeys(answers))
        same = "the same flag, " * (len(flags) == 1 < len(answers))
        lines.append(f"{of}: {same}{'; '.join(map('{} at {}'.format, flags, map(' and at '.join, flags.values())))}")
    return lines
