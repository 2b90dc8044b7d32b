"""The cost of a target step without attention, measured in steps (timing.context=step, docs/contexts.md).

The rest of a layer is the step with a stand-in for attention, over its layers. It holds the products, norms, the rotary embedding,
the KV append and the MLP. It does not hold the all-reduce between GPUs, the embedding, the output projection and sampling.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from orchestrator.analysis.dataset import Dataset, open_dataset
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

# Medians of results/h200_studies/study_in_step over its contexts, dtypes of the cache and backends; a test holds them to it.
PRESETS: dict[ModelPlace, Rest] = {
    ModelPlace("llama_3_1_70b", "NVIDIA H200", 1): {1: 455.91, 2: 488.59, 4: 491.15, 8: 494.91, 16: 499.16, 32: 494.87, 64: 510.09},
}


def measured(path: str) -> dict[ModelPlace, Rest]:
    """The rest of a layer from a dataset of timing.context=step. Raises UserError if it has no such rows."""
    found: dict[ModelPlace, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = open_dataset(path).execute("""
        SELECT model, device_name, tp, batch_size * s_qo, stand_in_us / step_layers
        FROM current
        WHERE status = 'ok' AND stand_in_us IS NOT NULL AND batch_spec IS NULL AND min_s_qo IS NULL""")
    for model, device, tp, tokens, us in rows:
        found[ModelPlace(model, device, tp)][tokens].append(us)
    if not found:
        raise UserError(
            f"draft.rest={path!r}: no row there was timed in a step; measure some: "
            f"python -m orchestrator +sweep=in_step timing.context=step, or type draft.rest={PRESET}"
        )
    return {place: {tokens: median(us) for tokens, us in sorted(by_tokens.items())} for place, by_tokens in found.items()}


def us_at(rest: Rest, tokens: int) -> float | None:
    """The rest of a layer for a number of query tokens: on the line between its neighbours; None outside of what was measured."""
    below, above = max((t for t in rest if t <= tokens), default=None), min((t for t in rest if t >= tokens), default=None)
    if below is None or above is None:
        return None
    share = 0.0 if above == below else (tokens - below) / (above - below)
    return rest[below] + share * (rest[above] - rest[below])


def step_us(draft: Draft, attention_us: float, s_qo: int, layer: tuple[float | None, int | None]) -> float | None:
    """Microseconds of a target step and its draft: the formula of the question `draft`, for an export.

    `attention_us` is one layer's, and `layer` the rest of a layer and the model's layers, from the table `measured_rest`. None if
    draft.rest is given and has no step with as many query tokens.
    """
    rest_layer_us, model_layers = layer
    layers = draft.layers or model_layers or 1
    drafting = draft.start_us + (s_qo - 1) * draft.cost_us if s_qo > 1 else 0.0
    if draft.rest is None:
        return layers * attention_us + draft.rest_us + drafting
    return None if rest_layer_us is None else layers * (attention_us + rest_layer_us) + drafting


def create_measured_rest(data: Dataset, source: str | None, layers: int | None) -> None:
    """The table `measured_rest` of a dataset: the rest of a layer at each batch and draft, if `source` measured it.

    Beside it, `measured_steps` has what was measured: the rest of a layer by the query tokens of a batch. `source` is draft.rest:
    None for an empty table. `layers` is draft.layers. Raises UserError if none of the dataset's models was measured on its
    devices, or if nobody says how many layers one has.
    """
    data.execute("""
        CREATE TEMP TABLE measured_rest(model VARCHAR, device_name VARCHAR, tp BIGINT, batch_size BIGINT, s_qo BIGINT,
                                        rest_layer_us DOUBLE, model_layers BIGINT)""")
    data.execute("CREATE TEMP TABLE measured_steps(model VARCHAR, device_name VARCHAR, tp BIGINT, tokens BIGINT, us DOUBLE)")
    if source is None:
        return
    known = PRESETS if source == PRESET else measured(source)
    asked = data.execute("SELECT DISTINCT model, device_name, tp, batch_size, s_qo FROM problems WHERE batch_spec IS NULL")
    if not {ModelPlace(*place[:3]) for place in asked} & known.keys():
        places = ", ".join(f"{place.model} on {place.device_name} (tp {place.tp})" for place in known)
        raise UserError(
            f"draft.rest={source!r}: it has {places}, and the dataset has none of these; type draft.layers and draft.rest_us"
        )
    for place, rest in known.items():
        for tokens, us in rest.items():
            data.execute("INSERT INTO measured_steps VALUES (?, ?, ?, ?, ?)", [*place, tokens, us])
    for model, device, tp, batch, s_qo in asked:
        found = us_at(known.get(ModelPlace(model, device, tp), {}), batch * s_qo)
        if found is not None and layers is None and layers_of(model) is None:
            raise UserError(
                f"draft.layers: model {model} does not say how many layers it has; type draft.layers=80, or its own number"
            )
        if found is not None:
            data.execute(
                "INSERT INTO measured_rest VALUES (?, ?, ?, ?, ?, ?, ?)", [model, device, tp, batch, s_qo, found, layers_of(model)]
            )
