"""The matrix products of one layer of a model, on one GPU of its tensor-parallel share. Pure Python, no torch."""

# h = hidden_size, H = num_qo_heads, K = num_kv_heads, D = head_dim, T = query tokens of all requests

from __future__ import annotations

import math

from pydantic import PositiveInt, model_validator

from kernels.data import Data
from kernels.problem import Problem

WEIGHT_BYTES = 2  # weights and activations are bf16; FP8 weights are not modelled
Shapes = dict[str, tuple[int, ...]]


class LayerShape(Data):
    """What `config.json` of a model says of a layer beside its heads. The sizes are those of the whole model.

    A model with experts has all three of `num_experts`, `experts_per_token` and `intermediate_size`, which is then that of one
    expert. `mlp_gpus` is over how many GPUs the MLP is split if that is more than the tensor-parallel size of attention:
    DeepSeek's attention may be data-parallel (tp 1), its experts never lie on one GPU.
    """

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: PositiveInt | None = None
    num_experts: PositiveInt | None = None
    experts_per_token: PositiveInt | None = None
    shared_intermediate_size: PositiveInt | None = None  # of the experts that every token takes, together
    q_lora_rank: PositiveInt | None = None  # MLA: length of the compressed queries
    mlp_gpus: PositiveInt = 1

    @model_validator(mode="after")
    def _experts(self) -> LayerShape:
        if (self.num_experts is None) != (self.experts_per_token is None):
            raise ValueError("layer: num_experts and experts_per_token come together; give both or neither")
        if self.num_experts and self.experts_per_token and self.experts_per_token > self.num_experts:
            raise ValueError(f"layer.experts_per_token={self.experts_per_token}: allowed: at most num_experts={self.num_experts}")
        return self

    def active_experts(self, tokens: int) -> int:
        """How many experts a batch of `tokens` is expected to wake if each token takes its experts evenly at random.

        An expert stays asleep with probability (1 - k/E)^T. At least k, which one token takes alone. 0 for a dense model.
        """
        if not self.num_experts or not self.experts_per_token:
            return 0
        asleep = (1 - self.experts_per_token / self.num_experts) ** tokens
        return max(self.experts_per_token, round(self.num_experts * (1 - asleep)))

    def of_mlp(self, size: int, tp: int) -> int:
        """The part of an MLP's inner size that one GPU holds."""
        return -(-size // max(tp, self.mlp_gpus))


def weight_shapes(problem: Problem, shape: LayerShape) -> Shapes:
    """The weights that one layer reads in a step, by name, each [out, in] or [heads or awake experts, out, in]."""
    p, h = problem, shape.hidden_size
    heads = (p.num_qo_heads + p.num_kv_heads) * p.head_dim_qk + p.num_kv_heads * p.head_dim_vo
    attention: Shapes = _of_latent(p, shape) if p.latent else {"qkv": (heads, h)}
    return {**attention, "output": (h, p.num_qo_heads * p.head_dim_vo), **_of_mlp(p, shape)}


def _of_latent(p: Problem, shape: LayerShape) -> Shapes:
    """MLA in absorbed form: down to the latents, queries up, and the two halves of the latent's up-projection for each head."""
    ckv, h, queries = p.head_dim_ckv or 0, shape.hidden_size, p.num_qo_heads * p.head_dim_qk
    rank = shape.q_lora_rank
    return {
        "down": ((rank or queries) + p.key_dim, h),
        **({"queries_up": (queries, rank)} if rank else {}),
        "keys_up": (p.num_qo_heads, ckv, nope_dim(p)),
        "values_up": (p.num_qo_heads, p.head_dim_vo, ckv),
    }


def nope_dim(problem: Problem) -> int:
    """MLA: elements of a head's key, before absorption, that carry no position."""
    return problem.head_dim_qk - (problem.head_dim_kpe or 0)


def _of_mlp(p: Problem, shape: LayerShape) -> Shapes:
    h, inner = shape.hidden_size, shape.of_mlp(shape.intermediate_size, p.tp)
    if not shape.num_experts:
        return {"gate_up": (2 * inner, h), "mlp_down": (h, inner)}
    active = shape.active_experts(p.num_q_tokens)
    found: Shapes = {"router": (shape.num_experts, h), "experts_up": (active, 2 * inner, h), "experts_down": (active, h, inner)}
    if shape.shared_intermediate_size:
        shared = shape.of_mlp(shape.shared_intermediate_size, p.tp)
        found |= {"gate_up": (2 * shared, h), "mlp_down": (h, shared)}
    return found


def weight_bytes(problem: Problem, shape: LayerShape) -> int:
    """Bytes of the weights that one layer reads in a step."""
    return WEIGHT_BYTES * sum(math.prod(size) for size in weight_shapes(problem, shape).values())
