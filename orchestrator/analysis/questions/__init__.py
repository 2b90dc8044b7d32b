"""The questions to a dataset: one SQL file for each, and one module that shows its answer as tables on a terminal.

Every query becomes a view of the dataset's connection, named like its file, over the tables that `orchestrator/analysis/dataset.py`
describes. So a terminal, a dashboard and a notebook all read the same answer.

A question is NAME.sql, NAME.py and its name in `Question` (config/settings.py). The module has
NEEDS          what a dataset must contain for an answer
grids(data)    the tables of the answer, none if the dataset has none
summary(data)  the answer in a sentence, or None
EACH           of a question whose tables show the first `MAX_SHOWN` rows of the view: what one of these is
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from kernels.timing.racing import OFF
from orchestrator.analysis.cards import Cards
from orchestrator.analysis.dataset import Dataset, from_table, open_dataset
from orchestrator.analysis.keys import LAUNCH_SPREAD_US, OF_ANY_PAGES, PROBLEM_KEYS
from orchestrator.analysis.names import of_references
from orchestrator.analysis.noise import DEFAULT_NOISE_FLOOR, SAME
from orchestrator.analysis.questions import cache_size, in_engine, traffic_weights
from orchestrator.analysis.sql import Where, literal, query, quoted, weight_sql
from orchestrator.analysis.step_rest import PRESET, create_measured_rest
from orchestrator.analysis.traffic import Mix
from orchestrator.analysis.views import MANY_ROWS
from orchestrator.code_version import OF_PLUGIN
from orchestrator.config.draft_cost import CURVES, Draft
from orchestrator.config.engine import MAX_DRAFT, Engine, Known, Workload, calls_of, of_builds, releases, selected
from orchestrator.config.model import layers_of
from orchestrator.config.weights import OF_A_CHOICE, WEIGHT, WeightRules
from orchestrator.notes import note_once

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import pyarrow as pa

RANKING = ("contenders", "ranked")
PARTS = ("ranking", "costs", "steps", "engine_points")  # SQL that is no view by itself
# The ranking is one query at three levels: of a problem, of a workload, whatever the routine and the dtype of its queries, and of a
# call, whatever the routine: a draft may go through paged decode or paged prefill.
OF_WORKLOADS = (
    "(SELECT contenders.*, workload FROM contenders JOIN all_workloads USING (problem) ANTI JOIN lone_pages USING (workload))"
)
OF_CALLS = """(SELECT contenders.*, hash(workload, if(getvariable('by_flag'), NULL, q_dtype)) AS call_of  -- which a flag decides
    FROM contenders JOIN all_workloads USING (problem) JOIN problems USING (problem) ANTI JOIN lone_pages USING (workload))"""
TEXTS = {
    "ranked": ("ranking", {"key": "problem", "contenders": "contenders"}),
    "ranked_workloads": ("ranking", {"key": "workload", "contenders": OF_WORKLOADS}),
    "ranked_calls": ("ranking", {"key": "call_of", "contenders": OF_CALLS}),
    "draft_steps": ("steps", {"source": "step_attention"}),
    "one_backend": ("one_backend", {"counted": "weight > 0"}),
    "one_backend_too_large": ("one_backend", {"counted": "too_big AND asked > 0"}),
}
LAYERS = """CASE WHEN routine = 'sparse_mla' THEN routine WHEN routine = 'mla' OR head_dim_qk <> head_dim_vo THEN 'mla'
    WHEN "window" IS NOT NULL THEN 'sliding' ELSE 'full' END"""
# A problem whatever its routine and the dtype of its queries, which come with the choice of a backend.
WORKLOAD = ", ".join(["phase", *(quoted(key) for key in PROBLEM_KEYS if key not in OF_A_CHOICE)])
# What workloads of one way to serve traffic differ in: lengths, and a padded graph, which is how some batch sizes run.
OF_ONE_WAY = ("batch_size", "s_kv", "s_qo", "graph_batch", "graph_fill")
WAY = ", ".join(["phase", *(quoted(key) for key in PROBLEM_KEYS if key not in (*OF_A_CHOICE, *OF_ONE_WAY))])
# Noise of a ratio of two times about as long: A/A pairs, and below `SHORT_US` what the launches of two calls may differ by (95%).
SHORT_US = 50
FLOOR_AT = f"""sqrt(pow(coalesce(known, getvariable('noise_floor')), 2)
    + if(us < {SHORT_US} AND own_us < us, pow({1.96 * math.sqrt(2) * LAUNCH_SPREAD_US} / own_us, 2), 0))"""
SPIKE = 1.3  # a point more than this factor off the line between its neighbours stands out


class Assumed(TypedDict, total=False):
    """What answers assume. Every key may be left out.

    max_rel_err      answers with a larger relative error are not ranked, nor those that were not checked
    weights, traffic how much each workload counts in `one_backend`; without them all count alike
    engines          the releases that answers are about; the newest of each engine if there are none
    drafts           keeps the steps with so many drafted tokens in the answers for a deployment; 0 is decode
    flags            rows with the names of an engine's flags: only these are points
    """

    max_rel_err: float | None
    weights: WeightRules
    traffic: Mix | None
    engines: Sequence[Engine] | None
    drafts: int | None
    flags: Sequence[tuple[int, str]] | None


def open_views(
    path: str | Path,
    draft: Draft | None = None,
    *,
    threads: int | None = None,
    where: Where | None = None,
    cards: Cards | None = None,
    **assumed: Unpack[Assumed],
) -> Dataset:
    """The dataset under `path`, with a view for every question. Raises UserError as `open_dataset` does."""
    own = of_builds(selected() if (engines := assumed.get("engines")) is None else engines)
    return define_views(open_dataset(path, threads=threads, where=where, cards=cards, own=own), draft or Draft(), **assumed)


def ask(data: Dataset, view: str) -> duckdb.DuckDBPyRelation:
    """The answer of a view as a relation. It is computed by `.df()`, `.to_arrow_table()` and the like."""
    return data.relation(f"FROM {view}")


@cache
def query_text(view: str) -> str:
    name, values = TEXTS.get(view, (view, {}))
    text = next(file for place in __path__ if (file := Path(place) / f"{name}.sql").exists()).read_text(encoding="utf-8")
    return text.format_map(values) if values else text


def find_views() -> tuple[str, ...]:
    """Every view, after those that it reads."""
    names = {file.stem for place in __path__ for file in Path(place).glob("*.sql")}.difference(PARTS) | TEXTS.keys()
    read = {name: {*re.findall(r"\b(?:FROM|JOIN) (\w+)", query_text(name))} & names - {name} for name in sorted(names)}
    return tuple(TopologicalSorter({name: sorted(of) for name, of in read.items()}).static_order())


VIEWS = find_views()


def ranked_by(keys: Sequence[str], problems: str = "problems") -> str:
    """A query: the ranking over problems that agree in these keys. Its column `place` is equal for equal values of them."""
    return query_text("ranking").format(key="place", contenders=f"({contenders_by(keys, problems)})")


def contenders_by(keys: Sequence[str], problems: str) -> str:
    """A query: the contenders, with the `place` of `ranked_by`."""
    return f"SELECT contenders.*, {place_of(keys)} AS place FROM contenders JOIN {problems} USING (problem)"


def place_of(keys: Sequence[str]) -> str:
    """SQL that is equal for equal values of these keys, null included, in whichever dataset."""
    return f"hash({', '.join(map(quoted, keys))})"


def ranking_of(table: pa.Table | pd.DataFrame, max_rel_err: float | None = None) -> Dataset:
    """A dataset of rows in memory, with the views `contenders` and `ranked` alone."""
    return _define_ranking(from_table(table), max_rel_err)


def _define_ranking(data: Dataset, max_rel_err: float | None) -> Dataset:
    """Creates `contenders` and `ranked`, and what they read."""
    data.execute(f"SET VARIABLE max_rel_err = {literal(max_rel_err)}")
    if max_rel_err is not None:
        data.execute(query("too_coarse"))
    data.execute(f"SET VARIABLE noise_floor = {DEFAULT_NOISE_FLOOR}; SET VARIABLE rough = {OFF - 1}")
    data.execute(query("macros", floor=FLOOR_AT, references=literal(of_references()), plugin=literal(OF_PLUGIN)))
    _create_own_builds(data)
    for view in RANKING:
        data.execute(f"CREATE TEMP {data.kind} {view} AS {query_text(view)}")
    return data


def define_views(data: Dataset, draft: Draft, **assumed: Unpack[Assumed]) -> Dataset:
    """Creates the parameters and views of all questions in a dataset, and returns it."""
    data.execute(f"SET VARIABLE by_flag = {literal((flags := assumed.get('flags')) is not None)}")
    if flags is not None:
        data.create_table("of_flags(row BIGINT, flag VARCHAR)", flags)
        data.execute(query("only_flags"))
    _define_ranking(data, assumed.get("max_rel_err"))
    data.draft = draft = _with_own_steps(data, draft)
    weights, engines = assumed.get("weights", ()), assumed.get("engines")
    engine = engines[0].title if engines and len(engines) == 1 else None
    asked = {"drafts": literal(assumed.get("drafts")), "engine": literal(engine)}
    data.execute(query("assumed", same=SAME, spike=SPIKE, longest=MAX_DRAFT, **asked))
    models = [model for (model,) in data.execute("SELECT DISTINCT model FROM rows WHERE plan_host_us IS NOT NULL")]
    of_models = ((model, draft.layers or layers_of(model) or 1) for model in models)
    data.create_table("model_layers(model VARCHAR, layers BIGINT)", of_models)
    lengths = [length for (length,) in data.execute("SELECT DISTINCT s_qo FROM problems WHERE s_qo IS NOT NULL")]
    tokens = ((s_qo, expected) for s_qo in lengths if (expected := expected_tokens(draft.acceptance, s_qo)) is not None)
    data.create_table("expected(s_qo BIGINT, tokens DOUBLE)", tokens)
    cache_size.create(data, draft.layers)
    _create_workloads(data, weights, assumed.get("traffic"))
    _create_engine_tables(data, selected() if engines is None else engines)
    in_engine.create(data, query_text("engine_points").format(layers=LAYERS))
    data.later = {view: query_text(view) for view in VIEWS if view not in RANKING}
    # Of more rows those that take long and are read several times.
    data.kept = frozenset(data.later if data.kind == "TABLE" else ("spikes", "one_backend")[: 1 + (data.count <= MANY_ROWS)])
    own = not data.where and draft.rest == data.path  # else rows may be missing
    rest = None if draft.rest in (None, PRESET) else data if own else open_views(str(draft.rest), Draft(layers=1))
    data.draft = draft = create_measured_rest(data, rest, draft)
    costs = (draft.layers, draft.rest_us, draft.start_us, draft.cost_us, draft.rest is not None)
    data.create_table("draft_costs(layers DOUBLE, rest_us DOUBLE, start_us DOUBLE, cost_us DOUBLE, rest_measured BOOLEAN)", [costs])
    _note_unused(data, weights)
    return data


def _with_own_steps(data: Dataset, draft: Draft) -> Draft:
    """The costs of drafts, with the steps of a running engine that the dataset itself has, unless the cost of a step is typed."""
    if draft.whole_steps or not data.path or not data.scalar("SELECT count(*) FROM rows WHERE context = 'engine'"):
        return draft
    models = data.execute(query("models_in_engines"))
    known = models and all(layers_of(model) is not None for (model,) in models)
    return draft.model_copy(update={"rest": data.path}) if known else draft


def _create_workloads(data: Dataset, weights: WeightRules, traffic: Mix | None) -> None:
    """`workloads`: workload, phase, layers and weight of each problem; `asked` is its weight even if it is too big for the GPU."""
    words = {"workload": WORKLOAD, "lengths": OF_ANY_PAGES, "way": WAY, "longest": str(MAX_DRAFT), "layers": LAYERS}
    data.execute(query("all_workloads", kind=data.kind, weight=weight_sql(weights), **words))
    several = data.scalar("SELECT (count(DISTINCT page_size) > 1)::VARCHAR FROM problems")
    flags = ((one, call) for engine in releases().values() for one in engine.flags if one.kernel_page for *_, call in calls_of(one))
    calls = ", ".join(sorted({f"({literal(call.routine)}, {literal(call.backend)}, {one.kernel_page})" for one, call in flags}))
    data.execute(query("lone_pages", several=several, calls=calls))
    traffic_weights.create(data, traffic, MAX_DRAFT)
    of_traffic = "1" if traffic is None else "coalesce(traffic_weights.weight, 0)"
    data.execute(query("workloads", kind=data.kind, of_traffic=of_traffic))


def _note_unused(data: Dataset, weights: WeightRules) -> None:
    """Says which entries of `weights` fit no measured workload, and their share: the answer says nothing about them."""
    fits = f"SELECT {', '.join(f'bool_or(({weight_sql((entry,))}) > 0)' for entry in weights)} FROM problems"
    unused = [entry for entry, fit in zip(weights, data.single_row(fits), strict=True) if not fit] if weights else []
    if unused:
        share = sum(float(entry[WEIGHT]) for entry in unused) / sum(float(entry[WEIGHT]) for entry in weights)
        keys = ", ".join(f"{{{', '.join(f'{key}: {value}' for key, value in e.items() if key != WEIGHT)}}}" for e in unused)
        note_once(f"weights: {len(unused)} of {len(weights)} entries, {share:.0%} of the weight, fit no measured workload: {keys}")


def _create_own_builds(data: Dataset) -> None:
    """`own_builds(backend, build)`: of each backend that is an engine's own build of a kernel, or a way to call it, that build."""
    routines = {routine for (routine,) in data.execute("SELECT DISTINCT routine FROM problems")}  # builds of others are none here
    flags = (flag for one in releases().values() for flag in one.flags if routines & {call.routine for *_, call in calls_of(flag)})
    builds = sorted({flag.own_build for flag in flags if flag.own_build}, key=len)
    backends = [backend for (backend,) in data.execute("SELECT DISTINCT backend FROM points")]
    found = ((backend, of[-1]) for backend in backends if (of := [build for build in builds if backend.startswith(build)]))
    data.create_table("own_builds(backend VARCHAR, build VARCHAR)", found)


def _create_engine_tables(data: Dataset, engines: Sequence[Engine]) -> None:
    """What each flag of the engines is for the workloads that were measured (`engine_flags`), and which calls it makes."""
    data.execute(query("majors"))
    asked = data.execute(query("asked_of_engines"))
    flags = (line for one in engines for values in asked for line in _flag_values(one, Workload(*values)))
    calls = (
        (one.title, number, phase, turn, *call, flag.stands_in(call), flag.rounds_q)
        for one in engines
        for number, flag in enumerate(one.flags)
        for phase, turn, call in calls_of(flag)
    )
    known = ", ".join(f"{name} VARCHAR" for name in Known._fields)
    data.create_table(query("engine_flags", known=known), flags)
    data.create_table(query("engine_calls"), calls)
    libraries = [of for (of,) in data.execute("SELECT DISTINCT libraries FROM rows WHERE libraries IS NOT NULL")]
    builds = ((one.title, of, other) for one in engines for of in libraries if (other := one.other_build(of)))
    data.create_table("builds(who VARCHAR, libraries VARCHAR, other_build VARCHAR)", builds)


def _flag_values(engine: Engine, workload: Workload) -> Iterator[tuple[Any, ...]]:
    """The lines of `engine_flags` of a workload: its flags on this GPU and for these layers, also those that cannot serve it."""
    default, phase = engine.default(workload), workload.phase
    for number, flag in enumerate(engine.flags):
        if workload.major in flag.cc and workload.layers in flag.layers and phase in flag.phases:
            typed, pages = flag.text(phase), (flag.page, flag.page_flag or engine.page_flag)
            pages = (None, None) if flag.kernel_page else pages  # nobody sets those
            is_default = default is not None and default.text(phase) == typed
            yield (
                *(engine.title, *workload, number, flag.words or flag.name, typed, engine.typed(flag, phase, workload.layers)),
                *(flag.pages, *pages, flag.kernel_page, flag.serves(workload), is_default, *engine.known(flag, workload)),
            )


def expected_tokens(acceptance: float | Sequence[float] | str, s_qo: int) -> float | None:
    """The tokens that a verify step over `s_qo` = k + 1 query tokens yields, including the target's own one.

    If every drafted token is accepted with the probability `a`: (1 - a^(k+1)) / (1 - a), equation 1 of Leviathan, Kalman, Matias,
    "Fast Inference from Transformers via Speculative Decoding", 2023 (arXiv 2211.17192). A sequence has one probability for each
    position, given that all before it were accepted: 1 + a1 + a1 a2 + ...; None if the draft is longer than that. A name is one of
    `conf/acceptance.yaml`, whose curve was measured at each length.
    """
    if isinstance(acceptance, str):
        return CURVES[acceptance].expected(s_qo)
    chances = (acceptance if isinstance(acceptance, Sequence) else [acceptance] * s_qo)[: s_qo - 1]
    return 1 + sum(accumulate(chances, mul)) if len(chances) == s_qo - 1 else None
