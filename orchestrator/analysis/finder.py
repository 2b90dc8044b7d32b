"""Finds the dataset that answers for a deployment: a model, its tensor parallelism, a GPU, drafts, an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import duckdb

from kernels.device import Device
from orchestrator.analysis.connection import plan_quickly
from orchestrator.analysis.keys import OF_ANY_PAGES, ORIGINS, OWN_US, PROBLEM_KEYS, USUAL_TIMING
from orchestrator.analysis.names import of_references
from orchestrator.analysis.noise import SAME
from orchestrator.analysis.sources import NEAR, RULE_EDGES, find_sources, union_sql
from orchestrator.analysis.sql import LentRows, condition, default, file_literal, literal, query, quoted, sql_type
from orchestrator.config.base import own_files, own_table
from orchestrator.config.engine import MAX_DRAFT, Engine, calls_of, of_builds
from orchestrator.config.model import CUSTOM, HEADS, LENT, Model, shipped
from orchestrator.config.modes import owner
from orchestrator.config.ranges import Bounds, several
from orchestrator.config.settings import FOR_DEPLOYMENT
from orchestrator.errors import NoRows, as_typed
from orchestrator.grouped import grouped
from orchestrator.machines import known_devices
from orchestrator.notes import note_once
from orchestrator.storage import parquet
from orchestrator.storage.columns import COLUMNS

Wanted = Mapping[str, Sequence[Any]]  # values of columns
Has = Mapping[str, Sequence[str]]  # what each file has, in words
Typed = tuple[str, str, Model | None]  # what stands for a model in a command, the sweep that measures it, and the model
Served = tuple[str, int, str]  # a model, its tp, a device
Alike = tuple[LentRows, str]  # values of rows with the heads of a model's share, and SQL on all such rows of a dataset
RESULTS = "results"  # the folder that datasets are looked for in
SERVERS, HOPPER = "servers", 9  # the sweep of the flags of engines, and the GPUs that it is for
MAX_LISTED, FEW, LINES = 12, 3, ",\n  "
OF_HEADS = ("paged_decode", "paged_prefill", "ragged_prefill")  # routines over the keys and values of each head
NAMED = {"device_name": "device"}  # what is typed for a column with another name
LENGTHS = ("batch_size", "s_kv")  # of a workload
WORKLOAD = ("device_name", "routine", *HEADS, "tp", "sinks", "window", "mask", "page_size", "s_qo", *LENGTHS)
OF_ROW = ("model", "sweep", "context", "backend", "finished_at", "libraries", "median_us", "energy_j", "plan_host_us")
READ = (*WORKLOAD, *OF_ROW, *PROBLEM_KEYS, "q_dtype", "tree", "compute_capability", "device_uuid")  # columns that queries name
POINT = ("backend", "tree", *(key for key in PROBLEM_KEYS if key not in ("device_name", "env", *USUAL_TIMING)))
# What a measured row and an imported one of its workload have in common.
ALIKE = ("device_name", "routine", *LENGTHS, "s_qo", *HEADS, "q_dtype", "kv_dtype", "mask", "window", "sinks")
OF_TIME = ("orchestrator_version", "timer", "in_step_us", "own_us", "launch_us")  # beside `READ`
KEPT = (*LENGTHS, "s_qo", "tp", "device_name", "model")  # of a deployment; what comes last is changed last
ELSEWHERE = " at other workloads"  # of rows of a flag that share no workload with what is read
EVERY_DTYPE = 3  # of `answers` to question=fp8
IN_ENGINE = "in_engine"  # the question that compares rows of a running engine with isolated ones
FLAGS_OF_DRAFTS = "flags of drafts"  # question=draft of one engine
OF_FLAGS = (*FOR_DEPLOYMENT, FLAGS_OF_DRAFTS)


def same_heads(model: Model, tp: int | None, others: Wanted) -> Alike | None:
    """Rows of any name whose heads, sinks, windows and soft cap are those of a model's share, its whole heads unless `tp` is typed.

    None for a size that it is not served with, and if its attention is not dense.
    """
    size = min(model.tp) if tp is None else tp
    if size not in model.tp or model.index_topk or model.is_encoder:
        return None
    routines = OF_HEADS if model.head_dim_ckv is None else ("mla",)
    share, of_all = model.share(routines[0], size), model.window_of_all
    windows = {of_all} if of_all or model.windowed else {None, model.sliding_window}
    wide = " OR ".join(f'"window" IS NOT DISTINCT FROM {literal(one)}' for one in windows)
    having = f"bool_and(({wide}) AND soft_cap IS NOT DISTINCT FROM {literal(model.soft_cap)})"
    heads = {key: (share[key],) for key in (*HEADS, "sinks") if key in share}
    return LentRows(model.name, size, {**heads, "routine": routines, **others}), having


def find(
    wanted: Wanted,
    engines: Sequence[Engine],
    drafts: int | None,
    alike: Alike | None = None,
    *,
    question: str | None = None,
    typed: Typed = ("", SERVERS, None),
) -> tuple[str, Wanted]:
    """The path of the dataset under results/ that says most about these values of columns, and the values that its rows have.

    `drafts` asks for steps with so many drafted tokens, `alike` also for rows with a model's heads, `question` for its answer.
    `typed` is what stands for the model in a command, if not its name, the sweep that measures it, if one does, and the model.
    Of a question on flags rows are those of attention. Raises NoRows, with what there is, for no such rows and no question.
    """
    places, length = _places(), [] if drafts is None else [f"s_qo = {drafts + 1}"]
    asked = [(wanted, "true"), *([alike] if alike else [])]
    queries = [(" AND ".join([condition(values), *length]), having) for values, having in asked]
    columns, best_first = (name for values, _ in asked for name in values), _best_first(queries, engines, question, wanted)
    with _opened(places, *columns) as every, _of_flags(every, engines) as of_flags:
        con = of_flags if question in OF_FLAGS and "routine" not in wanted else every
        lacks = wanted, drafts, alike[0] if alike else {}, typed
        found = con.execute(best_first).fetchall() if wanted else []
        if not found:
            raise _nothing(con, *lacks)
        if question is None and "routine" not in wanted and not of_flags.execute(best_first).fetchall():
            note_once(f"attention is {_nothing(of_flags, *lacks)}")
        (file, turn, *_, answers, _, _, _) = found[0]
        where, here = queries[turn][0], {name: places[name] for name, at, *_ in found if at == turn}
        flags, within = _flags(con, where, file, engines)
        if question == IN_ENGINE:
            read = [*dict.fromkeys((file, *_of_engines(con, places, where, lacks)))]
        elif question == "fp8" and answers < EVERY_DTYPE:
            read = _together(con, where, _over_both(con, where, here)) or [file]
        else:  # other questions have a table for each page
            beside = within & here.keys() if question in (None, *OF_FLAGS) else {file}
            read = _together(con, where, {name: flags.get(name, []) for name in beside}, file)
        read += _of_release(con, where, read, engines) if question in (None, *OF_FLAGS) else []
    best = LINES.join(str(places[one]).removesuffix(".parquet" * bool(read[1:])) for one in read)
    why = "together say most about this" if question != IN_ENGINE else "have rows of running engines, and isolated ones beside them"
    note_once(f"read {best if len(read) <= FEW else f'{len(read)} datasets'}, which {why if read[1:] else 'says most about this'}")
    if question != IN_ENGINE:
        _tell_others(best, {name: place for name, place in here.items() if name not in read}, flags, read)
        _tell_other_values(found, read)
    return best.replace(LINES, ","), asked[turn][0]


def find_pair(wanted: Wanted, gpus: Mapping[str, Device], alike: Alike | None, typed: Typed) -> tuple[Any, Wanted]:
    """What chooses the rows of each of two GPUs, by what was typed for it, in a dataset; and the values that all of them have.

    The datasets share most workloads and backends of the same releases, with decode, which every server has, if any do.
    Raises NoRows, with what there is, for a GPU without such rows, and for two without a common point.
    """
    places, asked = _places(), [(wanted, "true"), *([alike] if alike else [])]
    parts = (query("rows_of_whole", turn=turn, where=condition(of), having=having) for turn, (of, having) in enumerate(asked))
    every, sides = " UNION ALL ".join(parts), {side: {"device_name": (one.name, *one.match)} for side, one in gpus.items()}
    with _opened(places, *(name for values, _ in asked for name in values)) as con:
        first, second = map(condition, sides.values())
        shared = query("most_shared", every=every, point=", ".join(map(quoted, POINT)), first=first, second=second)
        if not (pairs := con.execute(shared).fetchall()):
            for side, of_gpu in sides.items():
                if not con.execute(f"SELECT 1 FROM ({every}) WHERE {condition(of_gpu)} LIMIT 1").fetchall():
                    raise NoRows(f"{side}: {_nothing(con, {**wanted, **of_gpu}, None, alike[0] if alike else {}, typed)}")
            there = "; ".join(_there(con, asked[-1][0], MAX_LISTED))
            raise NoRows(f"{' and '.join(gpus)}: no point was measured on both; there are: {there}")
    read = [[str(places[file]).removesuffix(".parquet") for file in files] for *files, _, _, _, _ in pairs]
    (_, _, *devices, turn, lender) = pairs[0]
    told = f"; rows of {lender} answer, whose heads are the same" * turn
    told += "; {} more pairs share some, next baseline={} candidate={}".format(len(read) - 1, *read[1]) if read[1:] else ""
    note_once(f"read {' and '.join(read[0])}, which share most workloads and backends of the same releases{told}")
    chosen = [(path, f"device:{device}") for path, device in zip(read[0], devices, strict=True)]
    return chosen, {**asked[turn][0], **({"model": (lender,)} if turn else {})}


def _best_first(queries: Iterable[tuple[str, str]], engines: Sequence[Engine], question: str | None, wanted: Wanted) -> str:
    """SQL on the datasets with rows of WHERE and HAVING, by the model's name and then by its heads; of lists all lengths count."""
    offered = [(flag, call) for one in engines for flag in one.flags for *_, call in calls_of(flag)]
    taken = {(f"{major}", *call) for flag, call in offered for default in flag.default for major in default.cc or flag.cc}
    own, calls = _listed(call for flag, call in offered if call.backend == flag.own_build), _listed(call for _, call in offered)
    listed = " + ".join(["0", *(f"count(DISTINCT {name})" for name in LENGTHS if len(wanted.get(name, ())) > 1)])
    told = {"own": own, "calls": calls, "defaults": _listed(taken, 3), "question": str(question), "listed": listed}
    usual = (of for flag, of in offered if of.backend == flag.own_build and any(not (d.trees or d.cc) for d in flag.default))
    told |= {"usual": _listed(usual if question != IN_ENGINE else ()), "release": literal(of_builds(engines))}
    every = (query("datasets_of_server", turn=turn, where=where, having=has, **told) for turn, (where, has) in enumerate(queries))
    return query("best_datasets", every=" UNION ALL ".join(every))


def _flags(con: duckdb.DuckDBPyConnection, where: str, file: str, engines: Iterable[Engine]) -> tuple[Has, Set[str]]:
    """Flags, and own pages of defaults, with right rows over caches of `file`; and files of its workloads, whatever their pages."""
    rows = con.execute(query("calls_of_datasets", workload=OF_ANY_PAGES, where=where, file=literal(file))).fetchall()
    found, caches = list[tuple[str, str]](), {kv for _, name, kv, *_ in rows if name == file}
    for flag, of in grouped((one.name, one) for engine in engines for one in engine.flags).items():
        ways = ((one, kv, cc, sinks) for one in of for kv in caches & {*one.kv} for cc in one.cc for sinks in {False, one.sinks})
        calls = {(*way, *call, one.kernel_page) for one, *way in ways for *_, call in calls_of(one)}
        own = {one.page for one in of if one.default and one.page}
        right = ((one[1], one[-2], "" if one[-1] else ELSEWHERE) for one in rows if {(*one[2:-2], None), one[2:-1]} & calls)
        words = {(name, f"{flag} with pages of {page}{where}" if page in own else flag + where) for name, page, where in right}
        found += sorted(words)
    return grouped(found), {name for is_within, name, *_ in rows if is_within}


def _tell_others(best: str, others: Mapping[str, Path], flags: Has, read: Sequence[str]) -> None:
    """Says which other datasets, best first, have such rows, and which have right ones of flags that those `read` have none of."""
    if others:
        first = LINES.join(map(str, [*others.values()][:FEW])) + ", ..." * (len(others) > FEW)
        note_once(f"{len(others)} more have such rows; results.path=DIR reads another:\n  {first}")
    known = {words for name in read for words in flags.get(name, ())}
    listed = ((words, name) for name in reversed([*others]) for words in flags.get(name, ()))
    found = {words: others[name] for words, name in listed if words.removesuffix(ELSEWHERE) not in known}
    if found:
        lines = LINES.join(f"{words} in {place}" for words, place in sorted(found.items()))
        every = ",".join([best, *sorted(map(str, {*found.values()}))]).replace(".parquet", "").replace(LINES, ",")
        note_once(f"right rows of other flags and pages; to read them too:\n  'results.path=[{every}]'\n  {lines}")


def _tell_other_values(found: Sequence[tuple[Any, ...]], read: Sequence[str]) -> None:
    """Says of which tp and caches the datasets `read` are, if others have more."""
    for at, of, typed in ((-2, "of tp", "tp={}"), (-1, "over", "'where={{kv_dtype: {}}}'")):
        there = {value for one in found if one[0] in read for value in one[at]}
        if there and (left := {value for one in found for value in one[at]} - there):
            others = " or ".join(map(typed.format, sorted(left)))
            note_once(f"these are {of} {' and '.join(map(str, sorted(there)))}; for the others type {others}")


def _over_both(con: duckdb.DuckDBPyConnection, where: str, files: Iterable[str]) -> Has:
    """What each file has the fastest kernels (within `SAME`) of, over 16-bit and over FP8 caches; none if no workload has both."""
    workload, listed = ", ".join(map(quoted, WORKLOAD)), ", ".join(map(literal, sorted(files)))
    sides = query("fastest_over_each_cache", workload=workload, where=where, files=listed, most=1 + SAME)
    return grouped(con.execute(sides).fetchall())


def _together(con: duckdb.DuckDBPyConnection, where: str, has: Has, best: str = "") -> list[str]:
    """`best`, then the files that have most of what those before them lack, with the same versions of libraries on each GPU."""
    found, known, left = list[str](), dict[str, str](), has
    names = f"SELECT DISTINCT filename, device_name, unnest(string_split(libraries, ', ')) FROM rows WHERE {where}"
    told = grouped((file, (device + name.split(" ")[0], name)) for file, device, name in con.execute(names).fetchall())
    while left:
        first = max(sorted(left), key=lambda file: (file == best, len(left[file])))
        found.append(first)
        known |= dict(told.get(first, ()))
        right = [file for file in left if all(known.get(library, name) == name for library, name in told.get(file, ()))]
        left = {file: rest for file in right if (rest := [one for one in left[file] if one not in left[first]])}
    return found


def _of_release(con: duckdb.DuckDBPyConnection, where: str, read: Iterable[str], engines: Iterable[Engine]) -> list[str]:
    """Files of workloads of those `read` alone, with the engines' own release where these have another release's build."""
    point, workload = (", ".join(map(quoted, ("device_name", "kv_dtype", *of))) for of in (POINT, WORKLOAD))
    told = {"own": literal(of_builds(engines)), "point": point, "workload": workload, "read": ", ".join(map(literal, read))}
    return [name for (name,) in con.execute(query("files_of_release", where=where, **told)).fetchall()]


def _of_engines(con: duckdb.DuckDBPyConnection, places: Iterable[str], where: str, asked: tuple[Any, ...]) -> list[str]:
    """The files with rows of a running engine, and those with isolated rows of the same points on GPUs that ran an engine.

    Raises NoRows if no engine ran such points, with what engines ran instead, and the command that measures these in one.
    """
    if found := con.execute(query("files_of_engines", every=_every(places), where=where)).fetchall():
        return [name for (name,) in found]
    wanted, drafts, _, typed = asked
    listed = con.execute(query("servers_of_engines", every=_every(places))).fetchall()
    ran = "; ".join(f"{model} (tp {', '.join(map(str, sizes))}; {', '.join(caches)})" for model, sizes, caches in listed)
    axes = {**({"tp": wanted["tp"]} if "tp" in wanted else {}), **({} if drafts is None else {"drafts": (drafts,)})}
    command = measuring(typed[0] or str(wanted.get("model", ["NAME"])[0]), {}, axes, IN_ENGINE)
    engine = "".join(f" engine={name}" for name in wanted.get("engine", ()))
    what = ", ".join(as_key(name, values) for name, values in wanted.items())
    raise NoRows(f"not measured in a running engine: {what}\nmeasured: {ran or 'none'}\nto measure: {command}{engine}")


def longer_drafts(model: str, device: str, tp: int | None, s_qo: int) -> str:
    """`7 measured in results/DIR`: of the dataset with steps without a draft and most workloads of longer drafts; empty if none."""
    with suppress(NoRows), _opened(places := _places()) as con:
        where = condition({"model": (model,), "device_name": (device,), "tp": (tp,), "routine": (*OF_HEADS, "mla")})
        for name, drafts in con.execute(query("longer_drafts", where=where, s_qo=s_qo, longest=MAX_DRAFT)).fetchall():
            return f"{drafts} measured in {places[name]}"
    return ""


def beside(rows: Iterable[Mapping[str, Any]]) -> Path | None:
    """The dataset under results/ that is fastest, within `SAME`, at most workloads of imported rows; None if none has one."""
    theirs, workload = _listed(tuple(row[name] for name in ALIKE) for row in rows), ", ".join(map(quoted, ALIKE))
    with suppress(duckdb.Error, NoRows), _opened(places := _places(), *OF_TIME, *ALIKE) as con:  # none, or other files
        rivals = query("rivals", workload=workload, theirs=theirs, us=OWN_US, same=1 + SAME, origins=str(ORIGINS))
        if found := con.execute(rivals).fetchone():
            return places[found[0]]
    return None


def held(path: str, wanted: Wanted, alike: Alike) -> Wanted:
    """`wanted`, or the values of `alike` if the datasets under a path have rows of these alone, and all are as its SQL says."""
    with suppress(OSError, duckdb.Error), duckdb.cursor() as con:  # of what is no dataset `open_dataset` says so
        rows, (lent, having) = union_sql(con, find_sources(path)[0]), alike
        asked = query("only_lent", rows=rows, wanted=condition(wanted), lent=condition(lent), having=having)
        return lent if con.execute(asked).fetchall() == [(True,)] else wanted
    return wanted


def of_one_model(path: str, wanted: Wanted, drafts: int | None) -> Wanted:
    """`wanted`; of rows with a model's heads those of one name on each GPU over each cache, that with most workloads."""
    if isinstance(wanted, LentRows):
        with duckdb.cursor() as con:
            rows, s_qo = union_sql(con, find_sources(path)[0]), "s_qo" if drafts is None else drafts + 1
            found = con.execute(query("lenders", rows=rows, where=condition(wanted), s_qo=s_qo, custom=CUSTOM)).fetchall()
        for keys, lenders, others in found:
            wanted.lender = f"hash(device_name, kv_dtype, model) IN ({keys})" if keys else "true"
            if others:
                note_once(f"rows of {lenders} answer, with most workloads; these have the same heads: {others}")
    return wanted


def served_alike(models: Iterable[Model] | None = None) -> list[Served]:
    """Model, tp and device of models, by default all shipped, that rows with their heads answer for, and none of their name."""
    found = []
    with _opened(_places()) as con:
        for model in map(Model.model_validate, shipped().values()) if models is None else models:
            for tp, alike in ((tp, same_heads(model, tp, {})) for tp in model.tp):
                values, having = alike or ({}, "false")
                own = condition({"model": (model.name,), "tp": (tp,)})
                devices = con.execute(query("devices_with_heads", where=condition(values), having=having, own=own)).fetchall()
                found += [(model.name, tp, device) for (device,) in devices]
    return found


def _opened(places: Mapping[str, Path], *more: str) -> duckdb.DuckDBPyConnection:
    """A connection with the table `rows`: those of all datasets that stand for a server, with what is asked of them and `more`."""
    if not places:
        raise NoRows(f"{RESULTS}/: there is no dataset here; type results.path=DIR, start in a checkout, or type a +sweep=NAME")
    return _rows(tuple((file, Path(file).stat().st_mtime_ns) for file in places), frozenset({*READ, *more})).cursor()


def _of_flags(con: duckdb.DuckDBPyConnection, engines: Sequence[Engine]) -> duckdb.DuckDBPyConnection:
    """One whose `rows` are of routines that flags of engines run."""
    routines = {call.routine for one in engines for flag in one.flags for *_, call in calls_of(flag)}
    return con.cursor().execute(f"CREATE TEMP VIEW rows AS FROM memory.rows WHERE {condition({'routine': sorted(routines)})}")


@lru_cache(1)
def _rows(files: tuple[tuple[str, int], ...], columns: Set[str]) -> duckdb.DuckDBPyConnection:
    """Kept while no file changes, since it takes a third of a second."""
    named = ((quoted(name), default(COLUMNS[name], dict.fromkeys(COLUMNS, ""))) for name in sorted(columns))
    con, kept = duckdb.connect(), ", ".join(f"coalesce({name}, {of_older}) AS {name}" for name, of_older in named)
    usual = " AND ".join(f"coalesce({key}, '{value}') = '{value}'" for key, value in USUAL_TIMING.items())
    con.execute(query("rows_of_servers", kept=kept, every=_every(file for file, _ in files), usual=usual))
    plan_quickly(con)
    return con


def _every(files: Iterable[str]) -> str:
    """SQL on all rows of files, with every column of today: no file may have a later one."""
    listed, today = ", ".join(map(file_literal, files)), ", ".join(f"NULL::{sql_type(name)} AS {quoted(name)}" for name in COLUMNS)
    return f"FROM read_parquet([{listed}], union_by_name = true, filename = true) UNION ALL BY NAME SELECT {today} WHERE false"


def _places() -> dict[str, Path]:
    """The datasets of sweeps by their Parquet files. Those of noise, wrong kernels and rule edges answer for no deployment."""
    files = sorted(Path(RESULTS).glob("*/*.parquet"))
    places = {str(file): file.parent if file.name == parquet.DATA else file for file in files}
    return {file: place for file, place in places.items() if owner(place.with_suffix("")) is None and RULE_EDGES not in place.name}


def _listed(lines: Iterable[tuple[Any, ...]], wide: int = 2) -> str:
    return ", ".join(sorted({f"({', '.join(map(literal, one))})" for one in [*lines] or [("",) * wide]}))


def _nothing(con: duckdb.DuckDBPyConnection, wanted: Wanted, drafts: int | None, heads: Wanted, typed: Typed) -> NoRows:
    """What is not measured, what comes nearest (`heads`: the model's share), and the command that measures it: a line each."""
    asked = {**wanted, **({} if drafts is None else {"s_qo": (drafts + 1,)})}
    if not wanted:
        hint = "type model=NAME device=NAME and, if you like, tp=N drafts=N engine=NAME; or results.path=DIR"
        return NoRows(f"nothing says which deployment; {hint}; there are: {'; '.join(_there(con, {}, MAX_LISTED))}")

    models = [model for (model,) in con.execute("SELECT DISTINCT model FROM rows ORDER BY model").fetchall() if model]
    *_, model = typed
    alike = served_alike([model]) if heads and model and model.name not in models else []  # rows with its heads alone
    others = {**heads, **{name: of for name, of in asked.items() if name not in ("model", "tp")}} if alike else asked
    missing = _missing_alike(con, asked, alike, heads) if alike else _missing(con, asked)
    rest = {name: values for name, values in others.items() if name not in missing}
    near = get_close_matches(str(asked["model"][0]), models, n=1, cutoff=NEAR) if "model" in missing else []
    first, then = ({**rest, "model": near}, {"model": near}) if near else (rest, rest)
    others = {} if "device_name" in missing else {name: of for name, of in asked.items() if name != "device_name"}
    nearest = (_there(con, others) if others else []) + (_there(con, first, of=None if near else heads) or _there(con, then))
    if alike:
        there = [one for one in alike if one[-1] in asked.get("device_name", [])] or alike
        devices = grouped((device, str(tp)) for _, tp, device in there)
        nearest = [f"{asked['model'][0]} on {device} (tp {', '.join(tps)}, by its heads)" for device, tps in devices.items()]
    files = con.execute(query("files_of_prompts", where=condition(rest))).fetchall() if _of_prompts(rest) else []
    nearest += [f"in {', '.join(name.removesuffix('.parquet') for (name,) in files)}"] * bool(files)
    near_lengths = {name: _near(con, name, asked[name], condition(rest)) for name in LENGTHS if name in missing}
    for name, of in near_lengths.items():
        nearest.append(f"in its place type {' or '.join(f'{name}: {one}' for one in (*of, *([of] if of[1:] else [])))}")
    what = ", ".join(as_key(name, asked[name]) for name in missing)
    meant = f"; did you mean {near[0]!r}?" if near and near[0] not in asked["model"] else ""
    lines = f"not measured: {what}{meant}", f"nearest: {'; '.join(nearest) or 'none'}", _to_measure(con, asked, missing, typed)
    return NoRows("\n".join(lines), near_lengths if {*missing} <= {*LENGTHS} else None)


def _near(con: duckdb.DuckDBPyConnection, name: str, wanted: Sequence[Any], where: str) -> list[int]:
    """The measured values of a length next below and above what is wanted."""
    ends = [(one.low, one.high) if isinstance(one, Bounds) else (one, one) for one in wanted]
    sides = (f"max({name}) FILTER ({name} < {literal(low)}), min({name}) FILTER ({name} > {literal(high)})" for low, high in ends)
    (found,) = con.execute(f"SELECT {', '.join(sides)} FROM rows WHERE {where}").fetchall()
    return sorted({*found} - {None})


def _missing_alike(con: duckdb.DuckDBPyConnection, asked: Wanted, alike: Sequence[Served], heads: Wanted) -> Sequence[str]:
    """The columns without whose values rows with the model's `heads` answer."""
    there = [(tp, device) for _, tp, device in alike if device in asked.get("device_name", (device,))]
    if not there or ("tp" in asked and asked["tp"][0] not in dict(there)):
        return ["tp" if there else "device_name"]
    lengths: Wanted = {name: of for name, of in asked.items() if name not in ("model", "tp", "device_name")}
    return _missing(con, lengths, {name: of for name, of in {**heads, **asked}.items() if name not in (*lengths, "model", "tp")})


def _missing(con: duckdb.DuckDBPyConnection, asked: Wanted, fixed: Wanted | None = None) -> Sequence[str]:
    """The fewest columns without whose values there are rows of those `fixed`. One whose value has none at all goes first."""

    def left(names: Iterable[str]) -> int:
        where = condition({**(fixed or {}), **{name: asked[name] for name in names}})
        return len(con.execute(f"SELECT DISTINCT batch_size, s_qo, s_kv, backend FROM rows WHERE {where}").fetchall())

    kept = {name: place for place, name in enumerate(KEPT) if name != "s_qo" or not _of_prompts(asked)}
    order = sorted(asked, key=lambda name: (left([name]) > 0, kept.get(name, kept["device_name"])))
    lengths = [name for name in order if name in LENGTHS]  # before a server, which may have others; of two the one with more rows
    either = sorted(([name] for name in lengths), key=lambda of: -left(asked.keys() - {*of}))
    some = (of for count in range(1, len(order)) for of in combinations(order, count))
    return next((of for of in chain(either, [lengths], some) if of and left(asked.keys() - {*of})), tuple(order))


def _to_measure(con: duckdb.DuckDBPyConnection, asked: Wanted, missing: Sequence[str], typed: Typed) -> str:
    """The command that measures a deployment, and on which machine if its device has no rows."""
    on = f", on a machine with {as_key('device_name', asked['device_name'])}" if "device_name" in missing else ""
    model = str(asked.get("model", ["NAME"])[0])
    if not {*asked.get("mask", ("causal",))} <= {"causal", "full"}:
        command = measuring(typed[0] or model, {}, {"tp": asked.get("tp", (1,))}, "xqa_specdec")
        return f"to measure{on}, with the branches of your tree: {command} '+trees.mine={{branches: [4, 3]}}' 'sweep.mask=[mine]'"
    alike = {"model": (model,)} | {name: values for name, values in asked.items() if name == "kv_dtype" or name not in missing}
    chunk = ("routine",) if _of_prompts(asked) else ()
    of_chunks: Wanted = {"s_qo": (Bounds(MAX_DRAFT + 1),), "mask": ("causal",)}
    alike |= of_chunks if chunk else {}
    of_any: Wanted = {**of_chunks, "routine": ("paged_prefill",)}  # any model's prompts
    told = (query("sweeps_of_server", where=condition(of), references=literal(of_references())) for of in (alike, of_any))
    rows = next((found for one in told if (found := con.execute(one).fetchall()) or not chunk), [])
    ends = {name: [(one.low, one.high) if isinstance(one, Bounds) else (one,) for one in of] for name, of in asked.items()}
    names = (name for name in ("tp", "s_qo", *LENGTHS, *chunk) if name in asked)
    axes: dict[str, Sequence[Any]] = {name: [end for both in ends[name] for end in both if end is not None] for name in names}
    axes |= {"s_qo": (512, 2048)} if chunk and any(isinstance(one, Bounds) for one in asked["s_qo"]) else {}
    if kv := [one for one in asked.get("kv_dtype", ()) if isinstance(one, str)]:
        of_flags = [one for one in own_table(f"sweep/{SERVERS}")["dtype"] if one["kv"] in kv]
        axes["dtype"] = of_flags or [{"q": one if one == "fp16" else "bf16", "kv": one} for one in kv]
    sweeps = {sweep: {"backend": of, **({"dtype": dtypes} if kv else {})} for sweep, of, dtypes in rows}
    return f"to measure{on}: {measuring(typed[0] or model, sweeps, axes, typed[1], asked.get('device_name', ()))}"


def _of_prompts(asked: Wanted) -> bool:
    """Whether chunks of prompts were asked for: a length of queries that is no draft's."""
    lengths = (one.low if isinstance(one, Bounds) else one for one in asked.get("s_qo", ()))
    return any(isinstance(one, int) and one > MAX_DRAFT for one in lengths)


def as_key(name: str, values: Sequence[Any]) -> str:
    """What was typed for a column: `tp=4`, `drafts=3`, `device=h200`."""
    if name == "s_qo" and all(isinstance(value, int) for value in values) and not _of_prompts({name: values}):
        return f"drafts={' or '.join(str(value - 1) for value in values)}"
    short = [key for key, one in known_devices().items() if name == "device_name" and values[0] in (one.name, *one.match)]
    return f"{NAMED.get(name, name)}={short[0] if short else ' or '.join(map(as_typed, values))}"


def _there(con: duckdb.DuckDBPyConnection, wanted: Wanted, most: int = FEW, of: Wanted | None = None) -> list[str]:
    """The models and devices of such rows, each with its tp and drafts: `llama_3_1_70b on NVIDIA H200 (tp 1, 8; drafts 0, 1)`.

    Given the heads and routines `of` a model, those of the same kind alone, the nearest heads first, with what differs.
    """
    heads = {name: of.get(name, (None,))[0] for name in HEADS} if of else {}
    apart = " + ".join(f"abs(log2(coalesce({name}, 1) / {value or 1}))" for name, value in heads.items()) or "0"
    routines = {"routine": of["routine"]} if of else {}
    where = condition({**wanted, **routines})
    listed = con.execute(query("servers", heads=", ".join(heads), apart=apart, custom=CUSTOM, where=where))
    found = []
    for model, device, *lengths, there in listed.fetchall():
        differs = [f"{name} {one}, not {heads[name]}" for name, one in zip(heads, there, strict=True) if one != heads[name]]
        sizes, drafts, all_lengths = (", ".join(map(str, some or ())) for some in lengths)
        steps = f"drafts {drafts}" if drafts else f"s_qo {all_lengths}"
        found.append(f"{model} on {device} ({'; '.join((f'tp {sizes}', steps, *differs))})")
    return [*found[:most], *([f"{len(found) - most} more"] if len(found) > most else [])]


def measuring(model: str, sweeps: Mapping[str, Wanted], axes: Wanted, first: str = SERVERS, gpus: Sequence[Any] = ()) -> str:
    """The command that measures a model: `first` if it serves the model and one of `gpus`, else one of `sweeps` with a file."""
    model = model.partition(LENT)[0]
    known = Model.model_validate(shipped()[model]) if model in shipped() else None
    usual = "mla_mtp" if known and known.head_dim_ckv else "specdec_long_ctx"
    there = [one for one in sweeps if one in own_files("sweep")] or [usual]
    routines = [own_table(f"sweep/{one}").get("routine", OF_HEADS) for one in there]
    is_served = any({*several(one)} <= {*OF_HEADS} for one in routines) and usual != "mla_mtp" and not _of_prompts(axes)
    is_served &= any(one.is_sm(HOPPER) for one in known_devices().values() if not gpus or {one.name, *one.match} & {*gpus})
    first = first or SERVERS * (not sweeps or SERVERS in there)
    sweep = first if first and (is_served or first != SERVERS) else there[0]
    file, axes = own_table(f"sweep/{sweep}"), {**axes, **sweeps.get(sweep, {})}
    if known and known.sliding_window and known.window_of_all is None:  # both kinds of layers
        axes["window"] = [None, known.sliding_window]
    if _of_prompts(axes) and usual != "mla_mtp":
        axes.setdefault("routine", ["paged_prefill"])
    typed = {"tp", "s_qo", *LENGTHS} & axes.keys()
    if any(rule.keys() <= typed for rule in file.get("exclude", ())):  # lengths that were asked for
        axes["exclude"] = [rule for rule in file["exclude"] if not rule.keys() <= typed]
    kept = (name for name in axes if name != "backend" or "kernel" not in file)
    words = [f"'sweep.{name}={as_typed(tuple(axes[name]))}'" for name in kept]
    return f"python -m orchestrator +sweep={sweep} {' '.join([f'model={model}', *words])}"
