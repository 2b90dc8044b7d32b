"""What is said of a model: that it takes the place of a sweep's own heads, and which of its layers and lengths are not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from orchestrator.config.draft_cost import COSTS
from orchestrator.config.model import FULL, WINDOWED, layers_in
from orchestrator.config.settings import Settings
from orchestrator.config.sweep import OF_MODEL, AxisValue, keys_of
from orchestrator.errors import UserError, unknown
from orchestrator.notes import note_once
from orchestrator.point import Point

Config = dict[str, Any]
Axes = dict[str, tuple[AxisValue, ...]]
AXIS, MODEL = OF_MODEL
MAX_NOTES = 5


def is_typed(words: Sequence[str]) -> bool:
    """Whether a command names a model, or heads of one."""
    return any(word.startswith(("model=", "model.num_", "model.head_")) for word in words)


def with_typed(config: Mapping[str, Any], words: Sequence[str]) -> Config:
    """The composed configuration with a typed model marked, its heads in `sweep.heads`, and its layers for a step's costs."""
    sweep, model = config.get("sweep"), config.get("model")
    if not is_typed(words) or not isinstance(model, dict):
        return {**config}
    typed = {**config, "model": {**model, "typed": True}}
    draft = config.get("draft")
    if isinstance(draft, dict) and draft.get("rest") is None and any(draft.get(key) for key in COSTS):
        typed["draft"] = {**draft, "layers": draft.get("layers") or layers_in(model)}
    if not isinstance(sweep, dict) or any(word.startswith(f"sweep.{AXIS}=") for word in words):
        return typed
    rules = sweep.get("include")
    listed = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    heads = [(rule, values) for rule in (sweep, *listed) if (values := rule.get(AXIS)) is not None]
    own = [rule for rule, values in heads if MODEL not in (values if isinstance(values, list) else [values])]  # none of the model's
    if not own:
        return typed
    note_once(
        f"sweep.{AXIS}: the model that was typed takes the place of the heads that sweep {sweep.get('name')} sets; "
        f"leave model=... out for these, or type sweep.{AXIS}=[{MODEL},{{num_qo_heads: 8, ...}}] for both"
    )
    changed = [{**rule, AXIS: [MODEL]} if rule in own else rule for rule in rules or ()]
    return {**typed, "sweep": {**sweep, **({AXIS: [MODEL]} if sweep in own else {}), "include": changed}}


def with_axes(settings: Settings, words: Sequence[str]) -> Settings:
    """Settings in which typed axes win: over `include`, and `backend` and `routine` over the axis `kernel`. Raises UserError."""
    typed, sweep = {word.lstrip("+").partition("=")[0] for word in words}, settings.sweep
    parts = [sweep.axes, *sweep.include]
    for key in ("backend", "routine"):
        there = [{str(one[key]) for one in of.get("kernel", ()) if isinstance(one, dict) and key in one} for of in parts]
        if there[0] and f"sweep.{key}" in typed and "sweep.kernel" not in typed:
            if others := {*map(str, asked := sweep.axes[key])}.difference(*there):
                words_of = unknown(f"sweep.{key}", min(others), set().union(*there))
                raise UserError(f"{words_of}; for others type 'sweep.kernel=[{{routine: ..., backend: ...}}]'")
            parts = [_only(of, {"kernel": [{(key, value)} for value in asked]}) for of in parts]
    asked_of = {axis: [keys_of(axis, one).items() for one in of] for axis, of in sweep.axes.items() if f"sweep.{axis}" in typed}
    whole = "sweep.include" in typed or settings.source or getattr(settings, "point", None)  # a point is found wherever it is
    if asked_of and not whole:
        parts[1:] = [rule for rule in (_only(one, asked_of) for one in parts[1:]) if all(rule.values())]
    if (left := len(sweep.include) + 1 - len(parts)) > 0:
        words_of = f"{left} of {len(sweep.include)} rules add other values than the typed ones, and are left out"
        note_once(f"sweep.include: {words_of}; to add points, type 'sweep.include=[{{KEY: VALUE, ...}}]'")
    return settings.model_copy(update={"sweep": sweep.model_copy(update={"axes": parts[0], "include": tuple(parts[1:])})})


def _only(axes: Axes, asked: Mapping[str, Sequence[Set[Any]]]) -> Axes:
    """Axes, in which those that are asked for have the values alone that set such keys."""
    return {
        axis: tuple(one for one in of if axis not in asked or any(keys <= keys_of(axis, one).items() for keys in asked[axis]))
        for axis, of in axes.items()
    }


def say(settings: Settings, points: Sequence[Point], words: Sequence[str]) -> None:
    """Notes what the points leave out of the model, and of the sweep for the model's sake."""
    model = settings.model
    ours = [point for point in points if point.problem.model == model.name and settings.source is None]
    refused = Counter(point.refused for point in points if point.refused)
    for reason, count in refused.most_common(MAX_NOTES):
        note_once(f"{count:,} of {len(points):,} points do not run: {reason}")
    if is_typed(words) and not ours:
        whose = f"import={settings.source}" if settings.source else f"sweep {settings.sweep.name}"
        note_once(f"model: no point has its heads: {whose} brings its own; type sweep.{AXIS}=[{MODEL}] for those of model=...")
    if not ours:
        return
    window = model.sliding_window
    if window and model.window_of_all is None and all(point.problem.window is None for point in ours):
        none = all(point.problem.routine == "cascade" for point in ours)
        way = "routine=cascade takes no window" if none else f"for both, type 'sweep.window=[null,{window}]'"
        note_once(f"some layers of {model.name} see {window:,} tokens alone, and these points measure full attention; {way}")
    recurrent = all(point.problem.routine in model.routines for point in ours)  # the layers that no attention serves
    others = {kind: count for kind, count in model.kinds.items() if (kind in (FULL, WINDOWED)) == recurrent}
    if others:
        total, rest = sum(model.kinds.values()), sum(others.values())
        named, do = ", ".join(f"{count} {kind}" for kind, count in others.items()), "are such" if recurrent else "attend"
        note_once(f"{total - rest} of the {total} layers of {model.name} {do}, as these points do; not measured: {named}")
