"""The cost of a target step without attention, measured in steps (timing.context=step or engine, docs/contexts.md).

The rest of a layer is the step with a stand-in for attention, over its layers. It holds the products, norms, the rotary embedding,
the KV append and the MLP. It does not hold the all-reduce between GPUs, the embedding, the output projection and sampling.
Steps of a running engine hold these too, but for the all-reduce, and give attention's own time beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from orchestrator.analysis.dataset import Dataset
from orchestrator.analysis.sql import query
from orchestrator.config.draft_cost import Draft
from orchestrator.config.model import LENT, layers_of
from orchestrator.errors import UserError
from orchestrator.notes import note_once

PRESET = "preset"  # the value of draft.rest that takes what is measured below


class ModelPlace(NamedTuple):
    """A model on a kind of device, split over `tp` of them."""

    model: str
    device_name: str
    tp: int


Rest = Mapping[int, float]  # µs of one layer without attention, by the query tokens of the whole batch


class Measured(NamedTuple):
    """The rest of a layer, what a step takes once beside its layers, and what measured both."""

    layer: dict[int, float]
    once: dict[int, float]
    by: str


# Medians of results/h200_studies/study_in_step over its contexts, dtypes of the cache and backends; a test holds them to it.
PRESETS: dict[ModelPlace, Rest] = {
    ModelPlace("llama_3_1_70b", "NVIDIA H200", 1): {1: 455.91, 2: 488.59, 4: 491.15, 8: 494.91, 16: 499.16, 32: 494.87, 64: 510.09},
}

ENGINE_ATTENTION = files(__package__).joinpath("engine_attention.sql").read_text(encoding="utf-8")
BY_STEPS = "timing.context=step: no embedding, output projection or sampling"


def measured(data: Dataset) -> dict[ModelPlace, Measured]:
    """The rest of a step: inside an engine if the dataset has such rows, else in steps. Raises UserError if it has neither."""
    found: dict[tuple[ModelPlace, str], Measured] = {}
    for model, device, tp, tokens, layer, once, by in data.execute(query("rest_of_steps"), [BY_STEPS]):
        of_place = found.setdefault((ModelPlace(model, device, tp), by), Measured({}, {}, by))
        of_place.layer[tokens], of_place.once[tokens] = layer, once
    if not found:
        raise UserError(
            f"draft.rest={data.path!r}: no row there was timed in a step; measure some: "
            f"python -m orchestrator +sweep=in_step timing.context=step, or type draft.rest={PRESET}"
        )
    # The engine's come last, and stay.
    return {place: found[place, by] for place, by in sorted(found, key=lambda of: (not of[1].startswith(BY_STEPS), of[1]))}


def us_at(rest: Rest, tokens: int) -> float | None:
    """The rest of a layer for a number of query tokens: on the line between its neighbours; None outside of what was measured."""
    below, above = max((t for t in rest if t <= tokens), default=None), min((t for t in rest if t >= tokens), default=None)
    if below is None or above is None:
        return None
    share = 0.0 if above == below else (tokens - below) / (above - below)
    return rest[below] + share * (rest[above] - rest[below])


def rest_of_step(data: Dataset, place: ModelPlace, tokens: int, layers: int) -> float | None:
    """µs of a step without attention: typed, of draft.rest or the preset; None for query tokens that were not measured."""
    if data.draft.rest_us:
        return data.draft.rest_us
    query = "SELECT tokens, us FROM measured_steps WHERE (model, device_name, coalesce(tp, 1)) = (?, ?, ?)"
    us = us_at(dict(data.execute(query, list(place))) or PRESETS.get(place, {}), tokens)
    return None if us is None else layers * us


def create_measured_rest(data: Dataset, source: Dataset | None, draft: Draft) -> Draft:
    """The table `measured_rest` of a dataset: the rest of a step at each batch and draft, if draft.rest measured it.

    Beside it, `measured_steps` has what was measured, by the query tokens of a batch, and `engine_attention` the least attention in
    a layer of a running engine over its flags, where one query token and a draft were timed, in proportion to the KV length.
    `source` is the dataset that draft.rest names; None for the preset, or for none. Returns `draft`, without a rest that is of
    none of the dataset's models on its devices. Raises UserError if nobody says how many layers one has.
    """
    preset = {place: Measured(dict(rest), {}, BY_STEPS) for place, rest in PRESETS.items()}
    known = {} if draft.rest is None else preset if source is None else measured(source)
    asked = data.execute("SELECT DISTINCT model, device_name, tp, batch_size, s_qo FROM problems WHERE batch_spec IS NULL")
    there = {ModelPlace(*place[:3]) for place in asked}
    known |= {of: known[own] for of in there if (own := of._replace(model=str(of.model).partition(LENT)[0])) in known}
    if draft.rest is not None and not there & known.keys():
        has, lacks = (", ".join(f"{of.model} on {of.device_name} (tp {of.tp})" for of in places) for places in (known, there))
        layers, costs = {draft.layers or layers_of(of.model) or 0 for of in there}, draft.cost_us or draft.start_us
        typed = f"draft.layers={' or '.join(str(n or 'N') for n in layers)} draft.rest_us=N, µs of a step without attention"
        words = f"draft.rest={draft.rest!r}: it is for {has}; for {lacks} type {typed}, or draft.rest=DIR of timing.context=step"
        if costs and (0 in layers or len(layers) > 1):
            raise UserError(words)
        note_once(words)
        draft = draft.model_copy(update={"rest": None, "layers": min(layers) if costs else draft.layers})
    found = []
    for model, device, tp, batch, s_qo in asked:
        of_place = known.get(ModelPlace(model, device, tp), Measured({}, {}, ""))
        if (us := us_at(of_place.layer, batch * s_qo)) is not None:
            if draft.layers is None and layers_of(model) is None:
                raise UserError(f"draft.layers: model {model} does not say how many it has; type draft.layers=80, or its number")
            once = us_at(of_place.once, batch * s_qo) or 0.0
            found.append((model, device, tp, batch, s_qo, us, once, layers_of(model), of_place.by))
    place = "model VARCHAR, device_name VARCHAR, tp BIGINT"
    steps = ((*of, tokens, us) for of, rest in known.items() for tokens, us in rest.layer.items())
    data.create_table(f"measured_steps({place}, tokens BIGINT, us DOUBLE)", steps)
    of_step = "rest_layer_us DOUBLE, rest_once_us DOUBLE, model_layers BIGINT, rest_by VARCHAR"
    data.create_table(f"measured_rest({place}, batch_size BIGINT, s_qo BIGINT, {of_step})", found)
    lengths = "kv_dtype VARCHAR, batch_size BIGINT, s_kv BIGINT, s_qo BIGINT"
    inside = [] if source is None else source.execute(ENGINE_ATTENTION)
    data.create_table(f"engine_attention({place}, {lengths}, engine_us DOUBLE, engine_flag VARCHAR)", inside)
    return draft
