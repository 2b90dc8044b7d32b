"""The tables of question=one_backend: which one flag of an engine serves a whole server best."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.engine_flags import FLASHINFER, in_flashinfer
from orchestrator.analysis.engines import SGLANG, VLLM
from orchestrator.analysis.margin import MUCH_SLOWER
from orchestrator.analysis.questions.choices import HERE, Choice, ChoiceCost, ServerChoices, choice_name, in_order, servers
from orchestrator.analysis.questions.exactness import share
from orchestrator.analysis.questions.tables import percent
from orchestrator.analysis.rough import legend
from orchestrator.tables import Grid

TITLE = "one backend for a server: its time over the best backend's at each shape, geometric mean"
ENGINES = (VLLM, SGLANG, HERE)
AS_LONG = 0.005  # a mean that is within half a percent of the best's is shown as the best


def grids(data: Dataset) -> list[Grid]:
    """The best flag of each engine for each server; then every flag, and every backend, by kind of shape."""
    found = servers(data)
    if not found:
        return []
    header = ("server", "engine", "type", "mean", "at worst", "worst at", "largest err", "shapes", "its choices without a row")
    any_rough = legend(*(choice.all.rough > 0 for server in found for choice in server.choices))
    answers = tuple(_answer(server, who) for server in found for who in ENGINES if server.choices_of(who))
    answer = Grid(TITLE + any_rough, header, answers)
    return [
        answer,
        _what_they_are(found),
        *(_engines(server) for server in found if server.choices_of(VLLM, SGLANG)),
        *map(_backends, found),
    ]


def _what_they_are(found: list[ServerChoices]) -> Grid:
    """What the shapes of each server are and are not, as far as the answer depends on it."""
    notes = dict.fromkeys(note for server in found for note in _notes(server))
    of_note = {note: [server.title for server in found if note in _notes(server)] for note in notes}
    cells = tuple(("each" if len(titles) == len(found) > 1 else ", ".join(titles), note) for note, titles in of_note.items())
    return Grid("what this is an answer to", ("server", "note"), cells)


def _notes(server: ServerChoices) -> Iterator[str]:
    if server.heads is not None:
        part = (
            f"all {server.heads} query heads (tp 1)" if server.tp in (None, 1) else f"{server.heads} query heads (tp {server.tp})"
        )
        yield f"one GPU with {part}; another size of tensor parallelism is another answer: measure it with sweep.tp=[N]"
    if server.left_out:
        yield server.left_out
    shapes = sum(server.shapes.values())
    if 0 < server.drafts < shapes:
        yield f"{server.drafts:,} of these {shapes:,} shapes are drafts; without speculative decoding add 'where={{s_qo: 1}}'"
    for who in ENGINES:
        answer = server.answer(who)
        if answer is not None and not answer.all.missing and answer.all.worst > MUCH_SLOWER:
            yield _but_at_worst(answer)


def _but_at_worst(answer: Choice) -> str:
    """An answer that is much slower than the best backend somewhere, and where."""
    cost = answer.all
    name = f"{answer.who}: {'keep' if answer.is_default else 'type'} {answer.name}"
    weight = percent(cost.much_slower_weight / cost.weight)
    return (
        f"{choice_name(answer) if answer.who == HERE else name}, but at {cost.worst_at} it takes {cost.worst:.2f} times "
        f"{cost.worst_best}; more than {MUCH_SLOWER:g} times the best at {cost.much_slower:,} of {cost.served:,} shapes, "
        f"with {weight} of the weight"
    )


def _answer(server: ServerChoices, who: str) -> tuple[str, ...]:
    best, shapes = server.answer(who) or server.choices_of(who)[0], sum(server.shapes.values())
    cost, engine = best.all, "(of all backends here)" if who == HERE else who
    others = "" if who == HERE else ", ".join(name.removeprefix("--attention-backend ") for name in server.not_measured(who))
    if cost.missing:
        words = f"none was measured at every shape; nearest: {choice_name(best)}, at {cost.served:,}"
        return (server.title, engine, words, *("–",) * 4, f"{shapes:,}", others)
    worst_at = "–" if cost.worst < 1 + AS_LONG else cost.worst_at
    return (
        server.title,
        engine,
        choice_name(best) + kept(server, who),
        cost.mean_words,
        cost.worst_words,
        worst_at,
        _error(cost),
        f"{shapes:,}",
        others,
    )


def kept(server: ServerChoices, who: str) -> str:
    """Behind the name of an answer that is the engine's default: why it stays; empty for any other."""
    answer, best = server.answer(who), server.choices_of(who)[0]
    if answer is None or not answer.is_default:
        return ""
    if best is answer or best.margin is None:
        return " (the default)"
    if best.margin.is_tie:
        return f" (the default; equal within noise ({best.margin.floor:.1%}) to {best.name}: keep the default)"
    return f" (the default; {best.margin.why_not(best.name)}: keep the default)"


def _error(cost: ChoiceCost) -> str:
    return "unchecked" if cost.rel_err is None else share(cost.rel_err)


def _engines(server: ServerChoices) -> Grid:
    cells = tuple(
        (c.who, c.name, *_costs(c), _error(c.all), _ran(c), "; ".join(c.all.missing))
        for who in (VLLM, SGLANG)
        for c in server.choices_of(who)
    )
    header = ("engine", "type", *_counted(server), "largest err", "runs", "not served")
    return Grid(f"every flag: mean over the best (at worst) · {server.title}", header, cells)


def _backends(server: ServerChoices) -> Grid:
    cells = tuple((choice_name(c), *_costs(c), _error(c.all), _calls(c), "; ".join(c.all.missing)) for c in server.choices_of(HERE))
    header = ("backend", *_counted(server), "largest err", f"in {FLASHINFER}", "not served")
    return Grid(f"every backend: mean over the best (at worst) · {server.title}", header, cells)


def _counted(server: ServerChoices) -> list[str]:
    return [*(f"{kind}, {server.shapes[kind]:,}" for kind in in_order(server.shapes)), *(["all"] if len(server.shapes) > 1 else [])]


def _costs(choice: Choice) -> list[str]:
    """By kind of shape, and over all of several kinds."""
    by_kind = [choice.kinds[kind] for kind in in_order(choice.kinds)]
    return [_cost(cost) for cost in (by_kind if len(by_kind) == 1 else [*by_kind, choice.all])]


def _cost(cost: ChoiceCost) -> str:
    """`1.04 (1.19)`; with a star if it is not over every shape, and so cannot be compared with the others."""
    return f"{cost.mean_words} ({cost.worst_words}){'*' if cost.missing else ''}" if cost.served else "–"


def _ran(choice: Choice) -> str:
    return ", ".join(sorted({name for _, _, name in choice.ran}))


def _calls(choice: Choice) -> str:
    return ", ".join(sorted({call for routine, backend, _ in choice.ran if (call := in_flashinfer(routine, backend))})) or "–"


def summary(data: Dataset) -> str | None:
    """The best flag of each engine for the first server of the dataset, and how many servers there are."""
    found = servers(data)
    if not found:
        return None
    server = found[0]
    parts = []
    for who in ENGINES:
        best = server.answer(who)
        if best is not None and not best.all.missing:
            cost = f"{best.all.mean_words} times the best, at worst {best.all.worst_words}"
            parts.append(f"{'of all backends' if who == HERE else who}: {choice_name(best)}{kept(server, who)}, {cost}")
    others = len(found) - 1
    more = f"; {others} other server{'s' * (others > 1)} at length" if others else ""
    return f"{server.title}: {'; '.join(parts) or 'none was measured at every shape'}{more}"
