"""What each choice of a server costs over the best backend at every shape: the rows of `one_backend`, added up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.engine_flags import DEFAULT_FLAGS, flags_for, runs_in
from orchestrator.analysis.engines import MAX_DRAFT
from orchestrator.analysis.margin import MUCH_SLOWER, Margin
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.cache_size import left_out
from orchestrator.analysis.questions.exactness import named
from orchestrator.analysis.questions.tables import group_by, l2_words
from orchestrator.analysis.rough import ROUGH, mark
from orchestrator.analysis.sql import literal

KINDS = ("decode", "verify", "chunked prefill", "prefill", "MLA")
PLACE = (
    "device_name",
    "cluster",
    "model",
    "tp",
    "num_qo_heads",
    "kv_dtype",
    "timer",
    "l2",
    "icache",
    "context",
)  # each combination is a server
IN_TITLE = ("device_name", "model", "tp", "num_qo_heads", "kv_dtype", "l2")
HERE = "backend"  # `who` of the choices that are backends of this project


@dataclass
class ChoiceCost:
    """What one choice costs over the shapes of one kind, or of several."""

    served: int = 0  # shapes
    weight: float = 0.0
    weighted_log: float = 0.0  # the sum of weight * log of the regret
    worst: float = 0.0
    worst_at: str = ""
    worst_best: str = ""  # the best backend there
    much_slower: int = 0  # shapes at which it takes more than MUCH_SLOWER times the best backend's time
    much_slower_weight: float = 0.0
    rel_err: float | None = None  # the largest
    missing: tuple[str, ...] = ()  # the shapes that it did not serve, in words
    rough: int = 0  # of the served shapes, those whose ratio is of a time that is only known within 5%
    worst_rough: bool = False

    @property
    def mean(self) -> float:
        """The weighted geometric mean of its time over that of the best backend; infinite if it served nothing."""
        return math.exp(self.weighted_log / self.weight) if self.weight else math.inf

    @property
    def mean_words(self) -> str:
        """`1.04`, or `~1.04` if a ratio in it is rough."""
        return f"{mark(self.rough > 0)}{self.mean:.2f}"

    @property
    def worst_words(self) -> str:
        """`1.19`, or `~1.19` if that ratio is rough."""
        return f"{mark(self.worst_rough)}{self.worst:.2f}"


@dataclass
class Choice:
    """One choice of an engine, or one backend: its costs by kind of shape, over all, and what it ran."""

    who: str
    name: str
    kinds: dict[str, ChoiceCost] = field(default_factory=dict)
    ran: set[tuple[str, str, str]] = field(default_factory=set)  # routine, backend, and the name for people with its kernel
    is_default: bool = False  # of its engine
    margin: Margin | None = None  # over the engine's default, of a choice that was measured wherever that was

    @property
    def all(self) -> ChoiceCost:
        """Over all kinds."""
        costs = [self.kinds[kind] for kind in in_order(self.kinds)]
        worst = max(costs, key=lambda c: c.worst)
        return ChoiceCost(
            served=sum(c.served for c in costs),
            weight=sum(c.weight for c in costs),
            weighted_log=sum(c.weighted_log for c in costs),
            worst=worst.worst,
            worst_at=worst.worst_at,
            worst_best=worst.worst_best,
            much_slower=sum(c.much_slower for c in costs),
            much_slower_weight=sum(c.much_slower_weight for c in costs),
            rel_err=max((c.rel_err for c in costs if c.rel_err is not None), default=None),
            missing=tuple(words for c in costs for words in c.missing),
            rough=sum(c.rough for c in costs),
            worst_rough=worst.worst_rough,
        )

    @property
    def rank(self) -> tuple[bool, float]:
        """The best first. One that does not serve every shape comes after all that do: means over other shapes say nothing."""
        return bool(self.all.missing), self.all.mean


@dataclass
class ServerChoices:
    """The shapes of one device, model and KV cache, by kind, and the choices for them."""

    title: str
    major: int | None  # of its compute capability
    heads: int | None  # query heads of one GPU
    tp: int | None
    shapes: dict[str, int]
    drafts: int  # of the shapes, those with several query tokens of a request that are no prompt
    choices: list[Choice]  # that served anything, the best of each engine first
    asked: set[tuple[str, str]]  # engine and choice of every row
    left_out: str = ""  # the shapes that are too big for the GPU, in words

    def choices_of(self, *who: str) -> list[Choice]:
        """The choices of these engines that served anything, the best first."""
        return [choice for choice in self.choices if choice.who in who]

    def answer(self, who: str) -> Choice | None:
        """The best choice of an engine, or its default if that is not clearly slower; None if nothing was served."""
        best = next(iter(self.choices_of(who)), None)
        default = next((choice for choice in self.choices_of(who) if choice.is_default and not choice.all.missing), None)
        keeps = best is not None and default is not None and best.margin is not None and not best.margin.is_clear
        return default if keeps else best

    def not_measured(self, engine: str) -> list[str]:
        """What an engine offers for these shapes, and no row tells of."""
        offered = set.union(*(flags_for(engine, self.major, kind) for kind in self.shapes))
        return sorted(name for name in offered if (engine, name) not in self.asked)


def in_order(kinds: Iterable[str]) -> list[str]:
    """Kinds of shapes as tables show them."""
    return sorted(kinds, key=lambda kind: (KINDS.index(kind) if kind in KINDS else len(KINDS), kind))


def server_titles(data: Dataset) -> dict[tuple[Any, ...], str]:
    """The title of each server of the dataset, by its values of `PLACE`."""
    found = data.records(f"SELECT DISTINCT {', '.join(PLACE)} FROM one_backend")
    varying = _varying(found)
    return {tuple(record[key] for key in PLACE): _title(record, varying) for record in found}


def _varying(records: list[Record]) -> list[str]:
    """The keys that a title needs beside those that it always has."""
    return [key for key in PLACE if key not in IN_TITLE and len({record[key] for record in records}) > 1]


def servers(data: Dataset) -> list[ServerChoices]:
    """Every server of the dataset."""
    place = ", ".join(PLACE)
    shapes = data.records(f"""
        SELECT {place}, kind, any_value(major) AS major, count(DISTINCT shape) AS shapes,
               count(DISTINCT shape) FILTER (s_qo BETWEEN 2 AND least(s_kv - 1, {MAX_DRAFT})) AS drafts
        FROM one_backend
        GROUP BY ALL""")
    if not shapes:
        return []
    costs = data.records(f"""
        SELECT {place}, who, choice, kind, any_value(major) AS major, count(regret) AS served,
               coalesce(sum(weight) FILTER (regret IS NOT NULL), 0) AS weight,
               coalesce(sum(weight * ln(regret)), 0) AS weighted_log, max(regret) AS worst, max(rel_err) AS rel_err,
               arg_max({{'batch_size': batch_size, 's_kv': s_kv, 's_qo': s_qo, 'best': best, 'kernel': best_kernel}}, regret)
                   AS worst_at,
               count_if(regret > {MUCH_SLOWER}) AS much_slower,
               coalesce(sum(weight) FILTER (regret > {MUCH_SLOWER}), 0) AS much_slower_weight,
               count_if(regret IS NOT NULL AND (rough OR best_rough)) AS rough, arg_max(rough OR best_rough, regret) AS worst_rough,
               count(*) FILTER (regret IS NULL) AS refused, string_agg(DISTINCT statuses, ', ') FILTER (regret IS NULL) AS statuses,
               list(DISTINCT {{'routine': routine, 'backend': backend, 'kernel': kernel}}) FILTER (regret IS NOT NULL) AS ran
        FROM one_backend
        GROUP BY ALL
        ORDER BY ALL""")
    margins = _margins(data, place) if any(record["who"] != HERE for record in costs) else defaultdict(dict)
    too_big = left_out(data, PLACE)
    of_place, varying = group_by(costs, PLACE), _varying(shapes)
    return [
        ServerChoices(
            _title(part[0], varying),
            part[0]["major"],
            part[0]["num_qo_heads"],
            part[0]["tp"],
            kinds := {r["kind"]: r["shapes"] for r in part},
            sum(r["drafts"] for r in part),
            _choices(of_place[values], kinds, margins[values]),
            {(r["who"], r["choice"]) for r in of_place[values]},
            too_big.get(values, ""),
        )
        for values, part in group_by(shapes, PLACE).items()
    ]


def _margins(data: Dataset, place: str) -> dict[tuple[Any, ...], dict[tuple[str, str], Margin]]:
    """By server, each choice of an engine beside the engine's default, at the shapes where both have a time."""
    defaults = ", ".join(f"({literal(who)}, {literal(flags)}, {major})" for who, flags, major in sorted(DEFAULT_FLAGS))
    found: dict[tuple[Any, ...], dict[tuple[str, str], Margin]] = defaultdict(dict)
    for record in data.records(f"""
        WITH engines AS (FROM one_backend WHERE who <> '{HERE}' AND regret IS NOT NULL),
        base AS (
            SELECT shape, who, us, own_us, noise_floor, rough FROM engines WHERE (who, choice, major) IN ({defaults})
        ), both_sides AS (
            SELECT engines.* EXCLUDE (noise_floor), engines.own_us / base.own_us AS ratio, base.us / engines.us - 1 AS ahead_by,
                   base.noise_floor + {ROUGH} * (base.rough::INT + engines.rough::INT) AS noise_floor
            FROM engines JOIN base USING (shape, who)
        )
        SELECT {place}, who, choice, count(*) AS shapes,
               1 - exp(sum(weight * ln(ratio)) / sum(weight)) AS saving,
               sum(weight * noise_floor) / sum(weight) AS floor,
               count_if(ahead_by > noise_floor) AS ahead,
               sum(weight * (ahead_by > noise_floor)::INT) / sum(weight) AS share_ahead
        FROM both_sides
        GROUP BY ALL"""):
        margin = Margin(*(record[key] for key in ("saving", "floor", "ahead", "share_ahead", "shapes")))
        found[tuple(record[key] for key in PLACE)][record["who"], record["choice"]] = margin
    return found


def _title(record: Record, varying: list[str]) -> str:
    others = (f"{key} {record[key]}" for key in varying if record[key] is not None)
    return " · ".join(
        filter(
            None,
            (record["model"], _heads(record), f"kv {record['kv_dtype']}", *others, l2_words(record["l2"]), record["device_name"]),
        )
    )


def _heads(record: Record) -> str | None:
    return None if record["num_qo_heads"] is None else f"{record['num_qo_heads']} query heads (tp {record['tp'] or 1})"


def _choices(records: list[Record], kinds: dict[str, int], margins: dict[tuple[str, str], Margin]) -> list[Choice]:
    found: dict[tuple[str, str], Choice] = {}
    rows: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        rows[record["who"], record["choice"]][record["kind"]] = record
    for (who, name), by_kind in rows.items():
        if any(record["served"] for record in by_kind.values()):
            found[who, name] = choice = Choice(who, name)
            choice.is_default = (who, name, records[0]["major"]) in DEFAULT_FLAGS
            choice.margin = None if choice.is_default else margins.get((who, name))
            lacking = {kind: _lacking(who, name, records[0]["major"], kind) for kind in kinds}
            choice.kinds = {kind: _cost(by_kind.get(kind), kind, shapes, lacking[kind]) for kind, shapes in kinds.items()}
            for ran in (ran for record in by_kind.values() for ran in record["ran"] or ()):
                choice.ran.add((ran["routine"], ran["backend"].partition("(")[0], named(ran["backend"], ran["kernel"])))
    return sorted(found.values(), key=lambda c: (c.who, c.rank, c.name))


def _lacking(who: str, name: str, major: int | None, kind: str) -> str:
    """What is said of shapes without a row: for a flag, which backend it would run there."""
    runs = [] if who == HERE else runs_in(who, name, major, kind)
    return f"not measured ({' or '.join(runs)})" if runs else "not measured"


def _cost(record: Record | None, kind: str, shapes: int, lacking: str) -> ChoiceCost:
    if record is None:
        return ChoiceCost(missing=(f"{kind}: {shapes:,} {lacking}",))
    unknown = shapes - record["served"] - record["refused"]
    parts = ((record["refused"], record["statuses"]), (unknown, lacking))
    missing = tuple(f"{kind}: {count:,} {why}" for count, why in parts if count)
    if not record["served"]:
        return ChoiceCost(missing=missing)
    at = record["worst_at"]
    worst_at = f"{kind}, batch {at['batch_size']}, s_kv {at['s_kv']:,}, s_qo {at['s_qo']}"
    return ChoiceCost(
        served=record["served"],
        weight=record["weight"],
        weighted_log=record["weighted_log"],
        worst=record["worst"],
        worst_at=worst_at,
        worst_best=named(at["best"], at["kernel"]),
        much_slower=record["much_slower"],
        much_slower_weight=record["much_slower_weight"],
        rel_err=record["rel_err"],
        missing=missing,
        rough=record["rough"],
        worst_rough=bool(record["worst_rough"]),
    )


def choice_name(choice: Choice) -> str:
    """What a person types, or the name of a backend here."""
    return shown(choice.name) if choice.who == HERE else choice.name
