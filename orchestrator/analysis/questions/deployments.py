"""The one place that prices a choice: what each flag of an engine, and each backend, costs over the workloads of a deployment.

A deployment is a GPU, a model and its share of it, a KV cache, and how times were taken (`PLACE`). Decode and drafts are priced
apart: one that drafts runs every step as a draft. The questions, the exports, the page and the site print what stands here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf
from typing import Any

from orchestrator.analysis.connection import Record
from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.keys import TIMING_KEYS, USUAL_TIMING
from orchestrator.analysis.names import shown
from orchestrator.analysis.questions.cache_size import left_out, no_room
from orchestrator.analysis.questions.exactness import COARSE, error, named, share
from orchestrator.analysis.questions.tables import group_by, l2_words, times
from orchestrator.analysis.rough import ROUGH, mark
from orchestrator.analysis.sql import query
from orchestrator.config.model import CUSTOM

PHASES = ("decode", "drafts", "tree drafts", "chunked prefill", "prefill")
# Each combination is a deployment. `no_room` takes the first three.
PLACE = ("device_name", "model", "tp", "num_qo_heads", "kv_dtype", *TIMING_KEYS, "env", "num_kv_heads", "head_dim_qk")
IN_TITLE = ("device_name", "model", "tp", "num_qo_heads", "kv_dtype", "l2")
# How the times of a server are taken.
USUAL: dict[str, Sequence[str]] = {**{key: [usual] for key, usual in USUAL_TIMING.items()}, "env": []}
OF_CUSTOM = ("num_kv_heads", "head_dim_qk")  # they follow from a model's name; heads without one are told apart by them
HERE = "backend"  # `who` of the choices that are backends of this project
NAMED = 3  # of them in a brief answer, the fastest first
MUCH_SLOWER = 1.2  # a choice that takes more than this many times the fastest one's time at some workload: an answer says so
NOT_THERE = "not in the engine"  # the `status` of a flag that does not serve a workload
SAME_SHARE = 0.005  # shares of the workloads and of the weight that read alike


@dataclass(frozen=True)
class Choice:
    """What one flag of an engine, or one backend, costs over the workloads of a part. `record` is its row of `costs.sql`.

    `for_layers`: it is typed for one kind of layers alone. `shares_name`: the engine has another flag of this name here.
    """

    record: Record
    for_layers: bool = False
    shares_name: bool = False

    @property
    def name(self) -> str:
        """What a person types, or the name of a backend here."""
        typed = self.record["typed_per_layers"] if self.for_layers else self.record["choice"]
        return shown(typed) if self.record["who"] == HERE else str(typed)

    @property
    def flag(self) -> str:
        """The engine's name of it; of a backend its own name."""
        return str(self.record["flag"] or self.name)

    @property
    def label(self) -> str:
        """What an answer calls it: the engine's name, or what is typed if another flag has that name too."""
        return self.name if self.shares_name else self.flag

    @property
    def is_default(self) -> bool:
        """Whether the engine takes it by itself."""
        return bool(self.record["is_default"])

    @property
    def typed(self) -> tuple[str, ...]:
        """What is typed to get what was measured: its name, if the engine takes another by itself, and the same of its pages."""
        return tuple(filter(None, ("" if self.is_default else self.name, self.record["typed_page"])))

    @property
    def pages_words(self) -> str:
        """`pages of 64 take ~26.1% less time than its own of 1`; empty if not both were measured."""
        if (found := self.record["of_pages"]) is None:
            return ""
        words = times(1 - found["saving"], than=f"its own of {self.record['own_page']}")
        return f"pages of {found['page']} take {mark(found['rough'])}{words}"

    @property
    def served(self) -> int:
        """The workloads at which it was right."""
        return int(self.record["served"])

    @property
    def is_complete(self) -> bool:
        """Whether it was right at every workload."""
        return self.served == int(self.record["workloads"])

    @property
    def mean(self) -> float:
        """The weighted geometric mean of its time over the fastest backend's, at the workloads where it was right; 1 at best."""
        return float(self.record["mean"]) if self.served else float("inf")

    @property
    def is_alone(self) -> bool:
        """Whether no other kernel of the dataset ran at its workloads, so that its time is compared with nothing."""
        return self.served > 0 and int(self.record["rivals"]) == 1

    @property
    def mean_words(self) -> str:
        """`1.04`, or `~1.04` if a ratio in it is rough; `–` without a comparison."""
        return "–" if self.is_alone else f"{mark(self.record['rough'] > 0)}{self.mean:.2f}"

    @property
    def worst_words(self) -> str:
        """`1.19`, or `~1.19` if that ratio is rough; `–` without a comparison."""
        return "–" if self.is_alone else f"{mark(self.record['worst_at']['rough'])}{self.record['worst']:.2f}"

    @property
    def error(self) -> str:
        """Its largest relative error where it was right, and what is allowed there."""
        told, allowed = self.record["rel_err"], self.record["allowed"]
        words = f" (allowed {share(allowed or 0)})" * bool(allowed)
        return "–" if not self.served else "unchecked" if told is None else share(told) + words

    @property
    def wrong(self) -> str:
        """Where its answer was wrong, and how far; empty if nowhere."""
        if not self.record["wrong"]:
            return ""
        return f"wrong at {self.record['wrong']:,} ({self.record['why_wrong']}; {at(self.record['wrong_at'])})"

    def price(self, *, at_worst: bool = False) -> str:
        """` 1.04×` or ` 1.04× (1.19)`, then where it was wrong; or that it is compared with nothing."""
        ratio = f" {self.mean_words}×{f' ({self.worst_words})' if at_worst else ''}"
        words = f": {self.no_comparison}" if self.is_alone else ratio
        wrong = f" where right; WRONG at {self.record['wrong']:,} of {self.record['workloads']:,} ({self.record['why_wrong']})"
        larger = self.record["wrong_if_larger"].partition(" (")[0]
        told = wrong * bool(self.record["wrong"]) + f"; {larger}" * bool(larger)
        return words.removesuffix("; no comparison") + told if told else words

    @property
    def no_comparison(self) -> str:
        """What stands in place of a ratio if it is the only kernel; empty otherwise."""
        count = f"{self.served:,} workload{'s' * (self.served > 1)}"
        return f"the only kernel measured here ({count}); no comparison" if self.is_alone else ""

    @property
    def not_right(self) -> str:
        """At how many workloads it has no right answer, and why; empty if at none."""
        others = Counter[str](self.record["statuses"])
        others["not measured"] += int(self.record["workloads"]) - others.total()  # a backend has no row there
        told = (f"{name} at {count:,}" for name, count in sorted(others.items()) if count > 0 and name not in ("ok", "mismatch"))
        return ", ".join(filter(None, [self.wrong, *told]))

    @property
    def ran(self) -> str:
        """The backends here that it stands for, with the kernels that ran."""
        return ", ".join(sorted({named(ran["shown"], ran["kernel"]) for ran in self.record["ran"] or ()}))

    @property
    def known(self) -> str:
        """How it is known what a flag runs: `seen on H200`, `read, not seen`, or both by layers; empty of a backend here."""
        return ", in other layers ".join(sorted({one["known"] for one in self.record["known"] if one["known"]}, reverse=True))

    @property
    def runs(self) -> str:
        """What it stands for, and how that is known: `trtllm-native, seen on H200`."""
        calls = ", ".join(sorted({one["call"] for one in self.record["known"] if one["call"]}))
        of_build = f" of {self.record['other_builds']}; {self.differs}" if self.differs else ""
        return ", ".join(filter(None, ((self.ran or calls or "–") + of_build, self.known)))

    @property
    def differs(self) -> str:
        """What the engine's release does otherwise than the one in whose build it was timed; empty if they run the same."""
        builds = {build.partition(" ")[2] for build in (self.record["other_builds"] or "").split(", ")}
        told = (word.partition(" ") for one in self.record["known"] for word in (one["others"] or "").split(", "))
        return "; ".join(dict.fromkeys(text.partition(": ")[2] or f"{of} {text}" for of, _, text in told if of in builds and of))

    @property
    def stands_in(self) -> str:
        """Which builds stand in for the engine's own one; empty if its own was measured."""
        return ", ".join(sorted(map(shown, self.record["stand_ins"] or ())))

    def coarser_than(self, other: Choice, name: str) -> str:
        """`err 5.3%, 17× FLASHINFER's`, if its largest error is over that of another one, by this name, by much; else empty."""
        ratio = (self.record["rel_err"] or 0) / (other.record["rel_err"] or inf)
        return error(self.record["rel_err"], ratio, name) if ratio >= COARSE else ""

    @property
    def margin(self) -> Margin | None:
        """Beside the engine's default, of a choice that was right wherever that was."""
        record = self.record
        if self.is_default or not record["covers"] or not record["pairs"]:
            return None
        return Margin(*(record[key] for key in ("saving", "floor", "ahead", "share_ahead", "pairs", "rough_ratio")))


@dataclass(frozen=True)
class Margin:
    """How much less time a choice takes than the engine's default, over the same workloads.

    `saving` is 1 minus the geometric mean of its time over the default's, and `floor` the mean noise floor of the workloads.
    `ahead` is the number of workloads at which it is faster by more than noise, `share_ahead` their share of the weight.
    `rough`: one of its times is rough.
    """

    saving: float
    floor: float
    ahead: int
    share_ahead: float
    workloads: int
    rough: bool = False

    @property
    def words(self) -> str:
        """How much less or more time, without the sign; `~` if it is rough."""
        return f"{mark(self.rough)}{abs(self.saving):.1%}"

    def why_not(self, name: str) -> str:
        """Why the default stays although `name` is the best of the others, if it is not clear."""
        if abs(self.saving) <= self.floor:
            return f"{name} takes as long ({mark(self.rough)}{-self.saving:+z.1%}, noise {self.floor:.1%})"
        if self.saving < 0:
            return f"the next best, {name}, takes {mark(self.rough)}{times(1 - self.saving)}"
        few = f"ahead by more than noise at only {self.ahead} of {self.workloads} workloads"
        weigh = abs(self.share_ahead - self.ahead / self.workloads) > SAME_SHARE
        weight = f", with {self.share_ahead:.0%} of the weight" if weigh else ""
        return f"{name} takes {self.words} less time by the mean, and is {few}{weight}"


@dataclass(frozen=True)
class Advice:
    """What an engine's user types for a part, and why. `choice` is None if the rows support no advice."""

    choice: Choice | None
    why: str

    @property
    def keeps(self) -> bool:
        """Whether the engine's default stays."""
        return self.choice is not None and self.choice.is_default

    @property
    def words(self) -> str:
        """`nothing to type: FLASH_ATTN is the default; ...`, what to type, or why there is no advice."""
        if self.choice is None:
            return f"no advice: {self.why}"
        own, record = f"pages of {self.choice.record['own_page']}", self.choice.record
        untyped = (self.choice.pages_words or f"{own} not measured") * bool(record["typed_page"])
        reasons = "; ".join(filter(None, (self.why, untyped)))
        nothing = f"nothing to type{' beside the cache' * str(record['kv_dtype']).startswith('fp8')}"
        typed = " ".join(self.choice.typed) or nothing
        if not self.keeps:
            return f"{typed}{f' ({reasons})' * bool(reasons)}{f'; {self.choice.not_right}' * bool(record['wrong'])}"
        default = f"{self.choice.label} is the default{f' at {own}' * (self.choice.name in typed)}"
        if record["wrong"]:
            right = f"right at {self.choice.served:,} of {record['workloads']:,} workloads, {self.choice.not_right}"
            default = f"but {self.choice.label}, the default, was {right}"
        return f"{typed}{', ' if record['wrong'] else ': '}{default}{f'; {reasons}' * bool(reasons)}"


@dataclass(frozen=True)
class Part:
    """A deployment in one phase, and the choices of one engine (or of all backends here) for it, the cheapest first.

    `place` are the values of `PLACE`. `layers` are those that share the choice: `all`, or one kind. `lengths` are the query tokens
    of a request. `references` are the reference backends with their times in microseconds, least and most.
    """

    title: str
    place: tuple[Any, ...]
    phase: str
    who: str
    layers: str
    lengths: tuple[int, ...]
    choices: tuple[Choice, ...]
    references: Mapping[str, Sequence[float]]
    left_out: str = ""

    @property
    def workloads(self) -> int:
        return max(int(choice.record["workloads"]) for choice in self.choices)

    @property
    def what(self) -> str:
        """`decode`, or `drafts of 1, 3, 7 tokens`; with the kind of layers if the engine has a backend for each kind."""
        lengths = ", ".join(f"{length - 1:,}" for length in self.lengths)
        words = f"drafts of {lengths}" if self.phase == "drafts" else self.phase
        return words if self.layers == "all" else f"{words}, {self.layers} layers"

    def brief(self, *, at_worst: bool = False, of_layers: bool = False) -> str:
        """`vLLM 0.33.0: FLASH_ATTN 1.01×`; `at_worst`: what it saves, and `1.01× (1.20)`; `of_layers`: with their kind, if any."""
        choice = self.answer.choice
        who = "" if self.who == HERE else f"{self.who}{f', {self.layers} layers' * (of_layers and self.layers != 'all')}: "
        if choice is None:
            return f"{who}no advice"
        if self.who == HERE:
            return ", ".join(f"{one.label}{one.price(at_worst=at_worst)}" for one in self.measured[:NAMED])
        saved = f"{choice.margin.words} less time than default" if at_worst and choice.margin and choice.margin.saving > 0 else ""
        told = ", ".join(filter(None, ("default" * choice.is_default, saved, choice.record["typed_page"])))
        return f"{who}{choice.label}{f' ({told})' if told else ''}{choice.price(at_worst=at_worst)}"

    @property
    def default(self) -> Choice | None:
        """The engine's default."""
        return next((choice for choice in self.choices if choice.is_default), None)

    @property
    def holds(self) -> str:
        """The releases in which the answer's flag and the default run what they run here, and what they do in others."""
        return self.holds_for(*(choice for choice in (self.answer.choice, self.default) if choice is not None))

    def holds_for(self, *choices: Choice) -> str:
        """The same of any flags of the engine."""
        told = [one for choice in choices for one in choice.record["known"]]
        alike = [dict(word.partition(" ")[::2] for word in one["alike"].split(", ") if word) for one in told]
        held = [" ".join(filter(None, (name, mark))) for name, mark in alike[0].items() if all(name in of for of in alike)]
        others = {word.partition(" ")[0]: word for one in reversed(told) for word in one["others"].split(", ") if word}
        name = self.who.rpartition(" ")[0]
        here = f"holds for {name} {', '.join(held)}" if held else f"holds for no known release of {name}"
        return "; ".join([here, *others.values()])

    @property
    def measured(self) -> list[Choice]:
        """The choices that were right at some workload: complete ones first, then those with the most workloads."""
        return [choice for choice in self.choices if choice.served]

    @property
    def of_plugins(self) -> list[tuple[Choice, str]]:
        """The backends of plugins, each with its rank among all backends here, and where it has no right answer."""
        found = ((one, f"rank {rank} of {len(self.measured)}") for rank, one in enumerate(self.measured, 1))
        return [(one, ", ".join(filter(None, (rank, one.not_right)))) for one, rank in found if one.record["of_plugin"]]

    @property
    def answer(self) -> Advice:
        """The flag to type: the best one that was right wherever the default was, if it is clearly faster; else the default.

        A default that was wrong is left for the best flag that was right everywhere. A default that was not measured supports no
        advice, since nobody knows what a flag saves.
        """
        found = self._of_all() if self.who == HERE else self._of_engine()
        larger = found.choice.record["wrong_if_larger"] if found.choice else ""
        return replace(found, why="; ".join(filter(None, (larger, found.why))))

    def _of_all(self) -> Advice:
        if (best := next(iter(self.measured), None)) is None:
            return Advice(None, "no backend was right")
        if not best.is_complete:
            words = f"no backend has a right answer for every workload; nearest: {best.name}, at {best.served:,}"
            return Advice(None, f"{words} ({best.not_right})")
        return Advice(best, "")

    def _of_engine(self) -> Advice:
        default, best = self.default, self.next_best
        if all(set(choice.record["statuses"]) == {NOT_THERE} for choice in self.choices):
            return Advice(None, "no flag of the engine serves such workloads")
        if default is None or not default.served:
            why = f"the default {default.label} has no time ({default.not_right})" if default else "the engine's default is unknown"
            fastest = next((f"; of what was right, {one.label} is fastest" for one in self.measured if not one.record["wrong"]), "")
            return Advice(None, why + fastest)
        right = next((one for one in self.measured if one.is_complete and one.margin is not None), None)
        if default.record["wrong"] and right is not None:
            return Advice(right, f"the default {default.label} was {default.wrong}")
        unknown = f"; {', '.join(self.unmeasured)} not measured" * bool(self.unmeasured)
        if best is None or best.margin is None:
            is_wrong, has_time = (any(one.record[key] for one in self.choices if one is not default) for key in ("wrong", "served"))
            few = "was right at all its workloads" if is_wrong else f"has a time{' at all its workloads' * has_time}"
            return Advice(default, f"no other flag {few}{unknown}{self.elsewhere}")
        # It is chosen if it is faster by more than noise, by the mean and at more than half of the workloads.
        coarse, coarser = default.coarser_than(best, f"{best.label}'s"), best.coarser_than(default, "its")
        if best.margin.saving > best.margin.floor and best.margin.share_ahead > 0.5:
            told = f"; {coarser}" * bool(coarser) or f", {coarse}" * bool(coarse)
            build = f", as {best.record['other_builds']} runs it" * bool(best.differs)
            told += f"; {best.record['by_batch']}" * bool(best.record["by_batch"])
            return Advice(best, f"{best.margin.words} less time than the default {default.label}{build}{told}")
        rest = f"; {coarse}" * bool(coarse) + unknown * (best.margin.saving < 0)
        return Advice(default, best.margin.why_not(best.label) + self.elsewhere + rest)

    @property
    def unmeasured(self) -> list[str]:
        """The flags without a row here."""
        return sorted({one.label for one in self.choices if {*one.record["statuses"]} - {NOT_THERE} == {"not measured"}})

    @property
    def elsewhere(self) -> str:
        """`; batch 1, 8: FLASHINFER −14.7%; batch 64: ...`: other flags that are clearly faster than the default there."""
        found = ((one.record["wins"], one.label) for one in self.choices)
        won = sorted((at["batches"], f"{label} −{mark(at['rough'])}{at['saving']:.1%}") for at, label in found if at)
        return "".join(f"; batch {', '.join(map(str, batches))}: {saved}" for batches, saved in won)

    @property
    def next_best(self) -> Choice | None:
        """The flag that takes least time beside the default, of those that were right wherever the default was."""
        others = [choice for choice in self.choices if choice.margin is not None]
        return min(others, key=lambda choice: (-choice.margin.saving if choice.margin else 1.0, choice.name), default=None)


def at(record: Mapping[str, Any]) -> str:
    """A workload in few words."""
    return f"batch {record['batch_size']}, s_kv {record['s_kv']:,}, s_qo {record['s_qo']}"


def deployment_titles(data: Dataset) -> dict[tuple[Any, ...], str]:
    """The title of each deployment of the dataset, by its values of `PLACE`."""
    return _titles(data.records(f"SELECT DISTINCT {', '.join(PLACE)} FROM one_backend"))


def _titles(records: Sequence[Record]) -> dict[tuple[Any, ...], str]:
    values = {key: {record[key] for record in records} for key in PLACE if key not in IN_TITLE}
    varying = [key for key, of in values.items() if len(of) > 1 or of == {"sustained"}]
    return {tuple(record[key] for key in PLACE): _title(record, varying) for record in records}


def _title(record: Record, varying: Sequence[str]) -> str:
    told = [key for key in varying if key not in OF_CUSTOM or record["model"] == CUSTOM]
    others = (f"{key} {record[key]}" for key in told if record[key] is not None)
    heads = None if record["num_qo_heads"] is None else f"{record['num_qo_heads']} query heads (tp {record['tp'] or 1})"
    parts = (record["model"], heads, f"kv {record['kv_dtype']}", *others, l2_words(record["l2"]), record["device_name"])
    return " · ".join(filter(None, parts))


def parts(data: Dataset) -> list[Part]:
    """Every deployment of the dataset in each phase with each engine that was asked for, and with all backends here."""
    if "parts" not in data.memo:
        data.memo["parts"] = _parts(data)
    found: list[Part] = data.memo["parts"]
    return found


def create_decisions(data: Dataset) -> None:
    """Creates the table `decisions` once: a row for each part of an engine, with what `question=one_backend` says of it."""
    if "decisions" not in data.memo:
        data.create_table(query("decisions"), (_decision(part) for part in parts(data) if part.who != HERE))
        data.memo["decisions"] = True


def _decision(part: Part) -> tuple[Any, ...]:
    choice, place = part.answer.choice, dict(zip(PLACE, part.place, strict=True))
    margin = None if choice is None else choice.margin
    saved = (margin.saving, margin.words) if margin else (None, None)
    batches = part.elsewhere[2:] if part.answer.keeps or choice is None else choice.record["by_batch"]
    server = (place[key] for key in ("device_name", "model", "tp", "kv_dtype"))
    flag = (choice and choice.label, choice and choice.record["choice"])
    told = (part.workloads, *flag, part.answer.keeps, *saved, part.answer.words, batches, part.lengths)
    return (*server, part.phase, part.layers, part.who, *told)


def _parts(data: Dataset) -> list[Part]:
    text = files(__package__).joinpath("costs.sql").read_text(encoding="utf-8")
    found = data.records(f"{text.format(place=', '.join(PLACE), rough=ROUGH, much=MUCH_SLOWER)} ORDER BY ALL")
    titles, too_big, of_choice = _titles(found), left_out(data, PLACE), (*PLACE, "phase", "who", "layers", "choice")
    wrong = data.execute(query("wrong_if_larger", choice=", ".join(of_choice))) if data.scalar(query("has_wrong_if_larger")) else []
    larger = {(*key,): words for *key, words in wrong}
    for one in found:
        one["wrong_if_larger"] = "" if one["wrong"] else larger.get(tuple(one[key] for key in of_choice), "")
    references = {(*key,): of for *key, of in data.execute(query("references_of_deployments", place=", ".join(PLACE)))}
    groups = group_by(found, (*PLACE, "phase", "who", "layers"))
    kinds = Counter(key[:-1] for key in groups)
    order = {place: number for number, place in enumerate(titles)}
    made = [
        Part(
            title=titles[place := key[: len(PLACE)]],
            place=place,
            phase=key[-3],
            who=key[-2],
            layers=key[-1] if kinds[key[:-1]] > 1 else "all",
            lengths=tuple(sorted({length for record in records for length in record["lengths"]})),
            choices=_choices(records, for_layers=kinds[key[:-1]] > 1),
            references=references.get((*place, key[-3]), {}),
            left_out="; ".join(filter(None, (no_room(data.draft.layers, *place[:3]), too_big.get(place)))),
        )
        for key, records in groups.items()
    ]
    return sorted(made, key=lambda part: (order[part.place], [*PHASES, part.phase].index(part.phase), part.phase, part.who == HERE))


def _choices(records: Sequence[Record], *, for_layers: bool) -> tuple[Choice, ...]:
    names = Counter(record["flag"] for record in records if set(record["statuses"]) != {NOT_THERE})
    made = (Choice(record, for_layers, bool(record["flag"]) and names[record["flag"]] > 1) for record in records)
    # Means over other workloads say nothing: complete ones come first, then those that were right at most workloads.
    return tuple(sorted(made, key=lambda one: (not one.is_complete, 0 if one.is_complete else -one.served, one.mean, one.name)))


def briefs(found: Sequence[Part], *, at_worst: bool = False, of_layers: bool = False) -> list[str]:
    """The answers of the engines to one question; what all backends here say if no engine has one."""
    told = [part for part in found if part.answer.choice is not None]
    engines = [part for part in told if part.who != HERE] or told
    own = ((part, *one) for part in told if part.who == HERE for one in part.of_plugins)
    ranks = [f"your {one.label}{one.price(at_worst=at_worst)}, {rank}" for part, one, rank in own if part not in engines]
    return [*(part.brief(at_worst=at_worst, of_layers=of_layers) for part in engines), *ranks] or ["no advice"]


def is_usual(place: Sequence[Any]) -> bool:
    """Whether the times of a deployment were taken as a server's are."""
    return all(value in (None, *USUAL[name]) for name, value in zip(PLACE, place, strict=True) if name in USUAL)


def server_name(place: Mapping[str, Any]) -> str:
    """A model and its share, and the heads of one that has no name."""
    heads = f" · {place['num_qo_heads']} query heads, {place['num_kv_heads']} KV heads" if place["model"] == CUSTOM else ""
    return f"{place['model']} · tp {place['tp'] or 1}{heads}"
