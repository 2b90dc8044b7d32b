"""The cost of a target step without attention, measured in steps (timing.context=step or engine, docs/contexts.md).

The rest of a layer is the step with a stand-in for attention, over its layers. It holds the products, norms, the rotary embedding,
the KV append and the MLP. It does not hold the all-reduce between GPUs, the embedding, the output projection and sampling.
Steps of a running engine hold these too, but for the all-reduce, and give attention's own time beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.analysis.dataset import Dataset
from orchestrator.config.draft_cost import Draft
from orchestrator.config.model import layers_of
from orchestrator.errors import UserError

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


ENGINE_ATTENTION = """
    SELECT model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo, min(us), arg_min(flag, us) || ' in ' || arg_min(release, us)
    FROM (
        SELECT model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo, flag, engine || ' ' || engine_version AS release,
               median(measured_us * s_kv / kv_tokens) AS us
        FROM engine_points GROUP BY ALL
    )
    GROUP BY model, device_name, tp, kv_dtype, batch_size, s_kv, s_qo
    QUALIFY min(s_qo) OVER (PARTITION BY model, device_name, tp, kv_dtype, batch_size, s_kv) = 1"""
BY_STEPS = "timing.context=step: no embedding, output projection or sampling"


def measured(data: Dataset) -> dict[ModelPlace, Measured]:
    """The rest of a step from a dataset with views: inside an engine if it has such rows, else of timing.context=step.

    Raises UserError if it has neither.
    """
    found: dict[tuple[ModelPlace, str], Measured] = {}
    for model, device, tp, tokens, layer, once, by in data.execute(f"""
        SELECT model, device_name, tp, batch_size * s_qo AS tokens, median(stand_in_us / step_layers), 0, '{BY_STEPS}'
        FROM current
        WHERE status = 'ok' AND stand_in_us IS NOT NULL AND batch_spec IS NULL AND min_s_qo IS NULL
        GROUP BY model, device_name, tp, tokens
        UNION ALL
        SELECT model, device_name, tp, tokens, layer_us, fixed_us,
               engine || ' ' || engine_version || ' with ' || array_to_string(layers, ' and ') || ' layers'
        FROM engine_rest
        ORDER BY ALL"""):
        of_place = found.setdefault((ModelPlace(model, device, tp), by), Measured({}, {}, by))
        of_place.layer[tokens], of_place.once[tokens] = layer, once
    if not found:
        raise UserError(
            f"draft.rest={data.path!r}: no row there was timed in a step; measure some: "
            f"python -m orchestrator +sweep=in_step timing.context=step, or type draft.rest={PRESET}"
        )
    in_order = sorted(found, key=lambda of: (of[1] != BY_STEPS, of[1]))  # the engine's come last, and stay
    return {place: found[place, by] for place, by in in_order}


def us_at(rest: Rest, tokens: int) -> float | None:
    """The rest of a layer for a number of query tokens: on the line between its neighbours; None outside of what was measured."""
    below, above = max((t for t in rest if t <= tokens), default=None), min((t for t in rest if t >= tokens), default=None)
    if below is None or above is None:
        return None
    share = 0.0 if above == below else (tokens - below) / (above - below)
    return rest[below] + share * (rest[above] - rest[below])


def step_us(draft: Draft, attention_us: float, s_qo: int, layer: tuple[float | None, float | None, int | None]) -> float | None:
    """Microseconds of a target step and its draft: the formula of the question `draft`, for an export.

    `attention_us` is one layer's, and `layer` the rest of a layer, what a step takes once, and the model's layers, from the table
    `measured_rest`. None if draft.rest is given and has no step with as many query tokens.
    """
    rest_layer_us, rest_once_us, model_layers = layer
    layers = draft.layers or model_layers or 1
    drafting = draft.start_us + (s_qo - 1) * draft.cost_us if s_qo > 1 else 0.0
    if draft.rest is None:
        return layers * attention_us + draft.rest_us + drafting
    return None if rest_layer_us is None else layers * (attention_us + rest_layer_us) + (rest_once_us or 0.0) + drafting


def create_measured_rest(data: Dataset, source: Dataset | None, draft: Draft) -> None:
    """The table `measured_rest` of a dataset: the rest of a step at each batch and draft, if draft.rest measured it.

    Beside it, `measured_steps` has what was measured, by the query tokens of a batch, and `engine_attention` the least attention in
    a layer of a running engine over its flags, where one query token was timed too; it is moved in proportion to its own KV length.
    `source` is the dataset that draft.rest names; None for the preset, or for none. Raises UserError if none of the dataset's
    models was measured on its devices, or if nobody says how many layers one has.
    """
    data.execute("""
        CREATE TEMP TABLE measured_rest(model VARCHAR, device_name VARCHAR, tp BIGINT, batch_size BIGINT, s_qo BIGINT,
                                        rest_layer_us DOUBLE, rest_once_us DOUBLE, model_layers BIGINT, rest_by VARCHAR);
        CREATE TEMP TABLE measured_steps(model VARCHAR, device_name VARCHAR, tp BIGINT, tokens BIGINT, us DOUBLE);
        CREATE TEMP TABLE engine_attention(model VARCHAR, device_name VARCHAR, tp BIGINT, kv_dtype VARCHAR, batch_size BIGINT,
                                           s_kv BIGINT, s_qo BIGINT, engine_us DOUBLE, engine_flag VARCHAR)""")
    if draft.rest is None:
        return
    known = {place: Measured(dict(rest), {}, BY_STEPS) for place, rest in PRESETS.items()} if source is None else measured(source)
    asked = data.execute("SELECT DISTINCT model, device_name, tp, batch_size, s_qo FROM problems WHERE batch_spec IS NULL")
    if not {ModelPlace(*place[:3]) for place in asked} & known.keys():
        places = ", ".join(f"{place.model} on {place.device_name} (tp {place.tp})" for place in known)
        raise UserError(
            f"draft.rest={draft.rest!r}: it has {places}, and the dataset has none of these; type draft.layers and draft.rest_us"
        )
    for place, rest in known.items():
        for tokens, us in rest.layer.items():
            data.execute("INSERT INTO measured_steps VALUES (?, ?, ?, ?, ?)", [*place, tokens, us])
    for model, device, tp, batch, s_qo in asked:
        of_place = known.get(ModelPlace(model, device, tp), Measured({}, {}, ""))
        found, once = us_at(of_place.layer, batch * s_qo), us_at(of_place.once, batch * s_qo)
        if found is not None and draft.layers is None and layers_of(model) is None:
            raise UserError(
                f"draft.layers: model {model} does not say how many layers it has; type draft.layers=80, or its own number"
            )
        if found is not None:
            values = [model, device, tp, batch, s_qo, found, once or 0.0, layers_of(model), of_place.by]
            data.execute("INSERT INTO measured_rest VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    for line in [] if source is None else source.execute(ENGINE_ATTENTION):
        data.execute("INSERT INTO engine_attention VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", line)
