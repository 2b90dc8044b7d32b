"""The head shapes of a model, and what one GPU of several holds of them."""

from __future__ import annotations

from pydantic import PositiveInt

from orchestrator.errors import UserError
from orchestrator.frozen import Frozen, Scalar


class Model(Frozen):
    """Head shapes of a whole model, and how it is served: tokens a KV page, tensor-parallel sizes.

    `head_dim_ckv` and `head_dim_kpe` are those of a model with MLA. `sliding_window` says what its windowed layers see; a
    sweep times the layers that see everything unless it names a `window`.
    """

    name: str
    num_qo_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim_qk: PositiveInt
    head_dim_vo: PositiveInt
    head_dim_ckv: PositiveInt | None = None
    head_dim_kpe: PositiveInt | None = None
    page_size: PositiveInt = 64
    tp: tuple[PositiveInt, ...] = (1,)
    sliding_window: PositiveInt | None = None
    sinks: bool = False

    def share(self, routine: str, tp: int) -> dict[str, Scalar]:
        """What one GPU of `tp` holds, as keys of a problem: KV heads are copied where there are fewer of them than GPUs.

        Raises UserError for a size at which this model is not split.
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
