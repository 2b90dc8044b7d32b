"""The tables of question=one_backend: which flag of an engine serves a deployment best, for decode and for drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.questions.deployments import HERE, MUCH_SLOWER, PLACE, SAME_SHARE, Choice, Part, at, briefs, parts
from orchestrator.analysis.questions.exactness import named
from orchestrator.analysis.questions.tables import in_form, percent
from orchestrator.analysis.rough import legend
from orchestrator.analysis.step_rest import ModelPlace, rest_of_step
from orchestrator.config.model import FULL, WINDOWED, layers_of
from orchestrator.grouped import grouped
from orchestrator.tables import Grid

NEEDS = (
    "points that are ok on backends other than torch_sdpa, of workloads whose KV cache fits the GPU (draft.layers "
    "says how many layers one GPU has), and that have a weight if weights or traffic are given"
)

TITLE = "one backend for a deployment: its time over the fastest backend's at each workload, geometric mean"
NO_FLAG = "; no flag of an engine (conf/engine) runs any of these, so all backends compete"
HEADER = ("deployment", "for", "engine", "type", "runs", "mean", "at worst", "worst at", "largest err", "workloads")
ON_SCREEN = ("deployment", "for", "engine", "type", "mean", "at worst")  # of these columns
AS_LONG = 0.005  # a mean that is within half a percent of the fastest's is shown as equal


def grids(data: Dataset) -> list[Grid]:
    """The flag to type for each deployment, phase and engine; then every flag, and every backend."""
    found = grids_of(parts(data))
    return [*found[:1], *([_of_steps(data, parts(data))] if found else []), *found[1:]]


def grids_of(found: Sequence[Part]) -> list[Grid]:
    """The same of some parts."""
    if not found:
        return []
    engines, here = ([part for part in found if (part.who == HERE) == of_here] for of_here in (False, True))
    rough = legend(*(choice.record["rough"] > 0 for part in found for choice in part.measured))
    own = [_line(part, "your backend", f"{one.label}: {rank}", one) for part in here for one, rank in part.of_plugins]
    return [
        Grid(TITLE + rough + ("" if engines else NO_FLAG), HEADER, (*map(line, engines or here), *own)),
        _notes(found),
        _flags(engines),
        Grid("the best backend here", HEADER, tuple(map(line, here if engines else ()))),
        _backends(here),
        references(found),
    ]


def line(part: Part) -> tuple[str, ...]:
    """The answer of a part, a cell for each name of `HEADER`."""
    return _line(part, "(of all backends here)" if part.who == HERE else part.who, part.answer.words, part.answer.choice)


def _line(part: Part, who: str, words: str, choice: Choice | None) -> tuple[str, ...]:
    of_choice = ("–",) * 5
    if choice is not None:
        worst_at = "–" if choice.record["worst"] < 1 + AS_LONG else at(choice.record["worst_at"])
        of_choice = (choice.runs, choice.mean_words, choice.worst_words, worst_at, choice.error)
    return (part.title, part.what, who, words, *of_choice, f"{part.workloads:,}")


def _notes(found: Sequence[Part]) -> Grid:
    """What the answers depend on, once each. First those of flags to be typed: a screen may cut off the others."""
    order = sorted(found, key=lambda part: part.who == HERE or part.answer.keeps)
    titles = grouped(dict.fromkeys((note, part.title) for part in order for note in _of_part(part)))
    every = len({part.title for part in found})
    cells = tuple(("each" if len(of) == every > 1 else ", ".join(of), note) for note, of in titles.items())
    return Grid("scope of the answers", ("deployment", "note"), cells)


def _of_part(part: Part) -> Iterator[str]:
    place, choice, who = part.choices[0].record, part.answer.choice, part.who if part.who != HERE else "all backends"
    if choice is not None and part.who != HERE:
        yield f"{part.who}, {part.what}: {stands_on(choice)}{of_default(part)}; {part.holds}"
    if choice is not None and choice.is_alone:
        yield f"{who}, {part.what}: {choice.label}, {choice.no_comparison}"
    if choice is not None and choice.record["worst"] > MUCH_SLOWER:
        yield f"{who}, {part.what}: {but_at_worst(choice)}"
    if part.left_out:
        yield part.left_out
    if place["num_qo_heads"] is not None:
        heads, tp = place["num_qo_heads"], place["tp"] or 1
        yield f"one GPU with {'all ' if tp == 1 else ''}{heads} query heads (tp {tp}); another tp is another answer: type tp=N"


def of_default(part: Part) -> str:
    """That the default was priced with another build, if the answer is beside it; empty if its own was measured."""
    default, choice = part.default, part.answer.choice
    if default is None or default is choice or not default.stands_in:
        return ""
    return f"; {default.label}, the default, is priced with {default.stands_in}, which stands in for the engine's own build"


def stands_on(choice: Choice) -> str:
    """Which rows a flag's price stands on: its own build or a stand-in, and how it is known that the engine runs it."""
    build = f"priced with {choice.stands_in}, which stands in for the engine's own build" if choice.stands_in else ""
    build = f"timed in {choice.record['other_builds']}'s build" if choice.record["other_builds"] and not choice.differs else build
    pages, own = sorted(filter(None, choice.record["pages"] or [])), choice.record["own_page"]
    evidence = ", ".join(sorted({one["evidence"] for one in choice.record["known"]}))
    words = f"measured with pages of {', '.join(map(str, pages))} tokens, the engine's default is {own}"
    if own and own not in pages:
        words += f" ('sweep.page_size={sorted([own, *pages])}' measures what pages save)"
    told = (build, words * (bool(own) and pages not in ([], [own])), choice.pages_words)
    return "; ".join(filter(None, (f"{choice.label} runs {choice.runs}: {evidence}", *told)))


def but_at_worst(choice: Choice) -> str:
    """Where a choice is much slower than the fastest backend."""
    weight, there = choice.record["much_slower_weight"] / choice.record["weight"], choice.record["worst_at"]
    weigh = abs(weight - choice.record["much_slower"] / choice.served) > SAME_SHARE
    takes = f"at {at(there)} {choice.label} takes {choice.worst_words} times {named(there['best'], there['kernel'])}"
    many = f"more than {MUCH_SLOWER:g} times the fastest at {choice.record['much_slower']:,} of {choice.served:,} workloads"
    return f"{takes}; {many}{f', with {percent(weight)} of the weight' if weigh else ''}"


def _of_steps(data: Dataset, found: Sequence[Part]) -> Grid:
    """What the best other flag saves of a step, or costs, where it differs most from the default."""
    cells = (_of_step(data, part, beside) for part in found if part.who != HERE and (beside := part.next_best) is not None)
    title = (
        "attention in a step where the next flag differs most, ± (range; + slower); rest: measured, no sampling, or draft.rest_us"
    )
    header = ("deployment", "for", "engine", "next flag", "± µs a layer", "layers", "± ms a step", "± of the step")
    return Grid(title, (*header, "default, ms", "rest, ms", "default, of the step", "at"), tuple(cells))


def _of_step(data: Dataset, part: Part, beside: Choice) -> tuple[str, ...]:
    place, most = dict(zip(PLACE, part.place, strict=True)), beside.record["most_beside"]
    model = ModelPlace(place["model"], place["device_name"], place["tp"] or 1)
    kind = FULL if most["window"] is None else WINDOWED
    layers = int(data.draft.layers or layers_of(model.model, [kind]) or 0)
    us, own = (most["us"], beside.record["from_us"], beside.record["to_us"]), most["base_us"] * layers
    is_whole = layers == (data.draft.layers or layers_of(model.model))
    rest = rest_of_step(data, model, most["batch_size"] * most["s_qo"], layers) if is_whole else None
    change, share = (None if rest is None else one / (rest + own) for one in (most["us"] * layers, own))
    of_kind = f"{layers}{f' ({kind})' * (not is_whole and part.layers == 'all')}"
    ms = (of_kind, _with_range([one * layers / 1e3 for one in us], "+.2f")) if layers else ("–", "–")
    of_step = (change, own / 1e3 if layers else None, rest and rest / 1e3, share)
    figures = (*ms, *map(in_form, of_step, ("+.1%", ".2f", ".2f", ".1%")))
    return (part.title, part.what, part.who, beside.label, _with_range(us, "+.1f"), *figures, at(most))


def _with_range(values: Sequence[float], form: str) -> str:
    """`-12.4 (-12.4 to -0.7)`: at one workload, then the least and the most over all; without these if they are alike."""
    one, least, most = (f"{value:{form}}" for value in values)
    return one if least == most else f"{one} ({least} to {most})"


def _flags(found: Sequence[Part]) -> Grid:
    header = ("deployment", "for", "engine", "type", "name", "mean (at worst)", "largest err", "runs", "holds for", "not right")
    every = ((part, one, (part.title, part.what, part.who, one.name, _name(one))) for part in found for one in part.choices)
    cells = (
        (*names, _cost(one), one.error, one.runs, part.holds_for(one).removeprefix("holds for "), one.not_right)
        for part, one, names in every
    )
    return Grid("every flag; * not right at every workload", header, tuple(cells))


def _name(choice: Choice) -> str:
    words = choice.flag + (" (the default)" if choice.is_default else "")
    return f"{words}, by {choice.stands_in}" if choice.stands_in else words


def _backends(found: Sequence[Part]) -> Grid:
    ran = ((part, one) for part in found for one in part.choices if one.served or one.wrong)
    cells = tuple((part.title, part.what, one.name, _cost(one), one.error, one.ran, one.not_right) for part, one in ran)
    header = ("deployment", "for", "backend", "mean (at worst)", "largest err", "runs", "not right")
    return Grid("every backend; * not right at every workload", header, cells)


def _cost(choice: Choice) -> str:
    """`1.04 (1.19)`; with a star if it is not over every workload, and so cannot be compared with the others."""
    if choice.is_alone or not choice.served:
        return "–"
    return f"{choice.mean_words} ({choice.worst_words}){'' if choice.is_complete else '*'}"


def references(found: Sequence[Part]) -> Grid:
    """The reference backends and their times: no engine has them, so they are not ranked."""
    every = ((part.title, part.what, *of) for part in found for of in part.references.items())
    cells = dict.fromkeys((*names, f"{least:,.1f} to {most:,.1f}") for *names, (least, most) in every)
    return Grid("references, not ranked", ("deployment", "for", "backend", "µs"), tuple(cells))


def summary(data: Dataset) -> str | None:
    """The answers for the first deployment of the dataset, and how many more there are."""
    found = parts(data)
    first = grouped((part.what, part) for part in found if part.place == found[0].place)
    told = "; ".join(f"{what}: {', '.join(briefs(of, at_worst=True))}" for what, of in first.items())
    others = len({part.title for part in found}) - 1
    more = f"; {others} more deployment{'s' * (others > 1)}: full=true" if others else ""
    return f"{found[0].title}: {told}{more}" if found else None
