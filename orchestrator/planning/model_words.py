"""What is said of a model: that it takes the place of a sweep's own heads, and which of its layers and lengths are not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.draft_cost import COSTS
from orchestrator.config.model import FULL, WINDOWED, layers_in
from orchestrator.config.settings import Chosen, Settings
from orchestrator.config.sweep import OF_MODEL
from orchestrator.errors import UserError, unknown
from orchestrator.notes import note_once
from orchestrator.point import Point

Config = dict[str, Any]
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


def with_kernels(settings: Settings, words: Sequence[str]) -> Settings:
    """Settings that choose the typed `sweep.backend` or `routine` of a sweep whose axis `kernel` sets these. Raises UserError."""
    typed, axes = {word.lstrip("+").partition("=")[0] for word in words}, (settings.sweep.axes, *settings.sweep.include)
    for key in ("backend", "routine"):
        there = [{str(one[key]) for one in of.get("kernel", ()) if isinstance(one, dict) and key in one} for of in axes]
        if there[0] and f"sweep.{key}" in typed and "sweep.kernel" not in typed and isinstance(settings, Chosen):
            if others := {*map(str, asked := settings.sweep.axes[key])}.difference(*there):
                words_of = unknown(f"sweep.{key}", min(others), set().union(*there))
                raise UserError(f"{words_of}; for others type 'sweep.kernel=[{{routine: ..., backend: ...}}]'")
            settings = settings.model_copy(update={"where": {key: asked, **settings.where}})
    return settings


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
