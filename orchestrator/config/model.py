"""The head shapes of a model, and the share of them that one GPU has under tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import yaml
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from kernels.problem import Problem
from kernels.problem.routine import routine_of
from kernels.step.shapes import LayerShape, weight_bytes
from orchestrator.config.base import Frozen, Scalar, own_files

CUSTOM = "custom"  # a model whose heads are not those of a file
LENT = " (rows of "  # after a model's name: of which one its rows are
HEADS = ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe")
FULL, WINDOWED = "full", "windowed"  # kinds of layers that attend; others are named, and not measured
OF_PAGES = ("paged_decode", "paged_prefill", "cascade")  # routines that read keys and values of each head from pages


class Model(Frozen):
    """The head shapes of a whole model, its tokens per KV page, and the tensor-parallel sizes `tp` that it is served with.

    `head_dim_ckv` and `head_dim_kpe` are set for a model with MLA. `kinds` counts the layers if they differ. `sliding_window` is
    the window of its windowed layers, in tokens, and `windowed` has the keys in which these differ from the others; a sweep times
    the layers without a window unless it sets `window` or there are none. `softmax_scale` is None for 1/sqrt(head_dim_qk).
    `max_positions` is the longest request in tokens, which limits a sweep if a person `typed` the model. `index_topk` is to how
    many keys each query token attends if attention is sparse. Tokens of an `is_encoder` see those after them. `routines` has the
    sizes of layers that run a routine of `kernels/routines`, by its name. `layer` has the sizes of its matrix products, which
    timing.context=step needs, `weights_gb` that of the published ones. With other heads or sparsity than its file's it is `custom`.
    """

    name: str
    model_type: str | None = None
    num_qo_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim_qk: PositiveInt
    head_dim_vo: PositiveInt
    head_dim_ckv: PositiveInt | None = None
    head_dim_kpe: NonNegativeInt | None = None
    page_size: PositiveInt = 64
    tp: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1,)
    kinds: dict[str, PositiveInt] = Field(default_factory=dict)
    sliding_window: PositiveInt | None = None
    windowed: dict[str, PositiveInt | bool] = Field(default_factory=dict)
    sinks: bool = False
    softmax_scale: PositiveFloat | None = None
    soft_cap: PositiveFloat | None = None
    max_positions: PositiveInt | None = None
    index_topk: PositiveInt | None = None
    is_encoder: bool = False
    routines: dict[str, dict[str, Scalar]] = Field(default_factory=dict)
    layer: LayerShape | None = None
    weights_gb: PositiveFloat | None = None
    typed: bool = False

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_heads(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        of_file = _file_of(str(given.get("name")))
        differs = any(given.get(key) != of_file.get(key) for key in (*HEADS, "index_topk") if of_file)
        return {**given, "name": CUSTOM} if differs else given

    @property
    def window_of_all(self) -> int | None:
        """The window that every layer has; None if some layers attend to everything."""
        return self.sliding_window if self.kinds and FULL not in self.kinds else None

    def refusal(self, routine: str, tp: int, s_kv: object = None, mask: object = None) -> str:
        """Why no request of a sweep can be this model's, and what to type; empty if nothing stands against it."""
        if self.is_encoder and mask != "full":
            others = f"points of mask={mask} are none of its own"
            typed = "type +sweep=encoder, or sweep.mask=[full]" if mask in (None, "causal") else others
            return f"model {self.name} is an encoder, whose tokens see those after them; {typed}"
        if own := routine_of(routine):
            found = own.share(self, tp)
            return found if isinstance(found, str) else self._refused_size(tp, s_kv)
        if self.index_topk:
            return (
                f"model {self.name} attends sparsely, to {self.index_topk:,} keys of each query token (index_topk); type "
                f"+sweep=sparse_mla, which is its own, or model.index_topk=null for dense attention with its heads"
            )
        if routine == "mla" and self.head_dim_ckv is None:
            return f"model {self.name} has no latent, which routine=mla reads; type +sweep=specdec_long_ctx, or model=deepseek_v3"
        if routine in OF_PAGES and self.head_dim_ckv is not None:
            return (
                f"model {self.name}: this model's cache is a latent, and no engine stores it as the keys and values that "
                f"routine={routine} reads; type +sweep=mla_mtp, or mixed_q_len_mla"
            )
        return self._refused_size(tp, s_kv)

    def _refused_size(self, tp: int, s_kv: object) -> str:
        if tp not in self.tp:
            return f"sweep.tp={tp}: model {self.name} is split over {', '.join(map(str, self.tp))}; type one of these"
        if self.typed and self.max_positions and isinstance(s_kv, int) and s_kv > self.max_positions:
            return (
                f"model {self.name} has {self.max_positions:,} positions, and s_kv is more; type model.max_positions=null, or a "
                f"larger number if it is served with more"
            )
        return ""

    def share(self, routine: str, tp: int, *, windowed: bool = False) -> dict[str, Scalar]:
        """The part of one GPU of `tp` as keys of a problem, windowed layers or others. Engines copy KV heads if they are fewer."""
        if own := routine_of(routine):
            found = own.share(self, tp)
            return {} if isinstance(found, str) else dict(found)
        whole = {key: getattr(self, key) for key in (*HEADS[:4], "sinks")} | (self.windowed if windowed else {})
        whole |= {key: max(1, whole[key] // tp) for key in HEADS[:2]}
        whole |= {key: value for key in ("softmax_scale", "soft_cap") if (value := getattr(self, key)) is not None}
        shape: dict[str, Scalar] = {**whole, "page_size": self.page_size}
        if routine == "mla" and self.head_dim_ckv is not None and self.head_dim_kpe is not None:
            shape |= {"head_dim_ckv": self.head_dim_ckv, "head_dim_kpe": self.head_dim_kpe}
        return shape if self.window_of_all is None else {**shape, "window": self.window_of_all}


def shipped() -> Mapping[str, Mapping[str, Any]]:
    """What the files of conf/model hold, by their names."""
    return {name: _file_of(name) for name in own_files("model")}


def layers_of(name: str, kinds_of: Sequence[str] = (FULL, WINDOWED)) -> int | None:
    """The layers of a model that comes with the project, those that attend if others do not; None if its file does not say."""
    return layers_in(_file_of(name), kinds_of)


def layers_in(model: Mapping[str, Any], kinds_of: Sequence[str] = (FULL, WINDOWED)) -> int | None:
    """As `layers_of`, of what a model's file holds."""
    if kinds := model.get("kinds"):
        return sum(int(count) for kind, count in kinds.items() if kind in kinds_of)
    layers: int | None = (model.get("layer") or {}).get("num_layers")
    return layers


def window_of(name: str) -> int | None:
    """The tokens that windowed layers of a model keep in the cache; None if its file does not say."""
    return _file_of(name).get("sliding_window")


def weights_on_gpu(name: str, tp: int, layers: int | None = None) -> tuple[int, str, int] | None:
    """The bytes that a model's weights, or those of so many layers, take on one of `tp` GPUs; which, and how many share them.

    `published` ones if its file has their size, `16-bit` ones of a dense model without embeddings; None if its file does not say.
    """
    given, layer = _file_of(name), _file_of(name).get("layer") or {}
    if whole := given.get("weights_gb"):
        gpus, part = max(tp, layer.get("mlp_gpus", 1)), layers / (layers_in(given) or layers) if layers else 1
        return round(1e9 * whole * part / gpus), "published", gpus
    if not layer.get("num_layers") or layer.get("num_experts"):
        return None
    share = Model.model_validate(given).share("paged_decode", tp)
    one = Problem.model_validate({"routine": "paged_decode", "batch_size": 1, "s_qo": 1, "s_kv": 1, "tp": tp, **share})
    return (layers or int(layer["num_layers"])) * weight_bytes(one, LayerShape.model_validate(layer)), "16-bit", 1


@cache
def _file_of(name: str) -> Mapping[str, Any]:
    """What a shipped model's file holds, else nothing. A name, maybe of a foreign row, is compared and never used as a path."""
    found = own_files("model").get(name.partition(LENT)[0])
    return yaml.safe_load(found.read_text(encoding="utf-8")) if found else {}
