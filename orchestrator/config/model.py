"""The head shapes of a model, and the share of them that one GPU has under tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import yaml
from pydantic import Field, PositiveInt, model_validator

import conf
from kernels.step.shapes import LayerShape
from orchestrator.config.base import Frozen, Scalar
from orchestrator.errors import UserError

CUSTOM = "custom"  # a model whose heads are not those of a file
HEADS = ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "head_dim_ckv", "head_dim_kpe")


class Model(Frozen):
    """The head shapes of a whole model, its tokens per KV page, and the tensor-parallel sizes `tp` that it is served with.

    `head_dim_ckv` and `head_dim_kpe` are set for a model with MLA. `sliding_window` is the window of its windowed layers, in
    tokens; a sweep times the layers without a window unless it sets `window`. `layer` has the sizes of its matrix products, which
    timing.context=step needs. With head shapes other than those of its file a model is called `custom`: its name would say that
    the rows are of a model that they are not of.
    """

    name: str
    num_qo_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim_qk: PositiveInt
    head_dim_vo: PositiveInt
    head_dim_ckv: PositiveInt | None = None
    head_dim_kpe: PositiveInt | None = None
    page_size: PositiveInt = 64
    tp: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1,)
    sliding_window: PositiveInt | None = None
    sinks: bool = False
    layer: LayerShape | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_heads(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        of_file = _file_of(str(given.get("name")))
        return {**given, "name": CUSTOM} if any(given.get(key) != of_file.get(key) for key in HEADS if of_file) else given

    def share(self, routine: str, tp: int) -> dict[str, Scalar]:
        """The part of one GPU of `tp`, as keys of a problem. KV heads are replicated if there are fewer of them than GPUs.

        Raises UserError if this model is not served with `tp` GPUs.
        """
        if tp not in self.tp:
            raise UserError(f"sweep.tp={tp}: model {self.name} is split over {', '.join(map(str, self.tp))}; type one of these")
        shape: dict[str, Scalar] = {
            "num_qo_heads": self.num_qo_heads // tp,
            "num_kv_heads": max(1, self.num_kv_heads // tp),
            "head_dim_qk": self.head_dim_qk,
            "head_dim_vo": self.head_dim_vo,
            "page_size": self.page_size,
            "sinks": self.sinks,
        }
        if routine == "mla" and self.head_dim_ckv and self.head_dim_kpe:
            shape |= {"head_dim_ckv": self.head_dim_ckv, "head_dim_kpe": self.head_dim_kpe}
        return shape


def layers_of(name: str) -> int | None:
    """The layers of a model that comes with the project; None for another one, or if its file does not say."""
    layer = _file_of(name).get("layer")
    return layer.get("num_layers") if layer else None


def layers_that_keep_all(name: str) -> int | None:
    """The layers of a model that keep every token in the cache; None if its file does not say, as for one with windowed layers."""
    return None if _file_of(name).get("sliding_window") else layers_of(name)


@cache
def _file_of(name: str) -> Mapping[str, Any]:
    """What the file of a model that comes with the project holds; nothing for another one.

    A name may come from a row of any dataset. It is compared with the names of the files, and never used as a path.
    """
    found = next((file for file in files(conf).joinpath("model").iterdir() if file.name == f"{name}.yaml"), None)
    return yaml.safe_load(found.read_text(encoding="utf-8")) if found else {}
