"""What a layer computes before and after attention, in bf16: norm, products, rotary embedding, KV append, norm, MLP.

Left out, because they are small beside the products or need other GPUs: the all-reduce of tensor parallelism, biases, norms of
single heads. Each operation is one of PyTorch's, so there are more small kernels than in an engine that fuses them; the step with
the stand-in has the same ones.
"""

# h = hidden_size, T = query tokens, H = num_qo_heads, K = num_kv_heads, D = head_dim

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kernels.step.mlp import Mlp
from kernels.step.planted import PlantedTokens, new_positions
from kernels.step.shapes import LayerShape, nope_dim, weight_shapes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.inputs import Inputs

ROPE_BASE = 10000.0  # of the rotary embedding; the value changes no time
EPS = 1e-5


class Layer(ABC):
    """One layer: its weights, its cache, and its queries. All layers of a step share the MLP's plan and the rotary tables."""

    def __init__(self, inputs: Inputs, weights: dict[str, Tensor], mlp: Mlp, rotary: Rotary) -> None:
        self.inputs, self.weights, self.mlp, self.rotary = inputs, weights, mlp, rotary
        self.planted = PlantedTokens(inputs)

    def before(self, x: Tensor) -> None:
        """From the residual [T, h] to the queries and the cache that attention reads."""
        self._project(norm(x))

    def after(self, x: Tensor, attended: Tensor) -> None:
        """Adds the output product of attention's output [T, H, D_vo], and the MLP, to the residual [T, h]."""
        self.add_output(x, attended)
        self.add_mlp(x)

    def add_output(self, x: Tensor, attended: Tensor) -> None:
        """The first half of `after`."""
        import torch

        values = self._values(attended if attended.dtype == x.dtype else attended.to(x.dtype))
        x.add_(torch.mm(values.flatten(1), self.weights["output"].T))

    def add_mlp(self, x: Tensor) -> None:
        """The second half of `after`."""
        x.add_(self.mlp(norm(x), self.weights))

    @abstractmethod
    def _project(self, x: Tensor) -> None: ...

    @abstractmethod
    def _values(self, attended: Tensor) -> Tensor:
        """What the output product reads, [T, H, D of the model's own values]."""


class HeadsLayer(Layer):
    """Queries, keys and values of heads (MHA, GQA, MQA)."""

    def _project(self, x: Tensor) -> None:
        import torch

        p = self.inputs.problem
        qkv = torch.mm(x, self.weights["qkv"].T)
        keyed = (p.num_qo_heads + p.num_kv_heads) * p.head_dim_qk
        turned = self.rotary(qkv[:, :keyed].view(len(x), -1, p.head_dim_qk))
        values = qkv[:, keyed:].view(len(x), -1, p.head_dim_vo)
        self.planted.append(turned[:, p.num_qo_heads :], values)
        self.planted.write_queries(turned[:, : p.num_qo_heads])

    def _values(self, attended: Tensor) -> Tensor:
        return attended


class LatentLayer(Layer):
    """MLA in absorbed form: queries go into the latent's space and outputs come back from it, head by head."""

    def _project(self, x: Tensor) -> None:
        import torch

        p, weights = self.inputs.problem, self.weights
        ckv, nope = p.head_dim_ckv or 0, nope_dim(p)
        down = torch.mm(x, weights["down"].T)
        queries, latent = down[:, : -p.key_dim], down[:, -p.key_dim :]
        if "queries_up" in weights:
            queries = torch.mm(norm(queries), weights["queries_up"].T)
        q = queries.view(len(x), p.num_qo_heads, -1)
        absorbed = torch.bmm(q[..., :nope].transpose(0, 1), weights["keys_up"].transpose(1, 2)).transpose(0, 1)
        key = torch.cat((norm(latent[:, :ckv])[:, None], self.rotary(latent[:, None, ckv:])), dim=-1)
        self.planted.append(key)
        self.planted.write_queries(torch.cat((absorbed, self.rotary(q[..., nope:])), dim=-1))

    def _values(self, attended: Tensor) -> Tensor:
        import torch

        return torch.bmm(attended.transpose(0, 1), self.weights["values_up"].transpose(1, 2)).transpose(0, 1).contiguous()


class Rotary:
    """The rotary embedding of a step's new tokens (Su et al. 2021, in the half-split form), for vectors [T, heads, D]."""

    def __init__(self, inputs: Inputs) -> None:
        import torch

        p = inputs.problem
        dim = p.head_dim_kpe if p.latent and p.head_dim_kpe else p.head_dim_qk
        rates = ROPE_BASE ** (-torch.arange(0, dim, 2, device=inputs.device) / dim)
        angle = new_positions(inputs)[1][:, None, None] * rates  # [T, 1, D/2]
        self.cos = torch.cat((angle, angle), dim=-1).cos().to(torch.bfloat16)
        self.sin = angle.sin().to(torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = x * self.cos
        left, right = turned.chunk(2, dim=-1)
        left.addcmul_(second, self.sin, value=-1)
        right.addcmul_(first, self.sin)
        return turned


def norm(x: Tensor) -> Tensor:
    """RMSNorm of [T, h] with weights of one."""
    from torch.nn.functional import rms_norm

    return rms_norm(x, x.shape[-1:], eps=EPS)


def random_weights(inputs: Inputs, shape: LayerShape, generator: torch.Generator) -> dict[str, Tensor]:
    """The weights of one layer, bf16 and N(0, 1/in), so that activations keep their size from layer to layer."""
    import torch

    def drawn(size: tuple[int, ...]) -> Tensor:
        weights = torch.empty(size, dtype=torch.bfloat16, device=inputs.device)
        return weights.normal_(0, 1 / math.sqrt(size[-1]), generator=generator)

    return {name: drawn(size) for name, size in weight_shapes(inputs.problem, shape).items()}


def make_layers(inputs: list[Inputs], shape: LayerShape) -> list[Layer]:
    """A layer for each of the inputs, which differ in queries and cache alone."""
    import torch

    first = inputs[0]
    generator = torch.Generator(device=first.device).manual_seed(first.problem.seed)
    mlp, rotary = Mlp(shape, first.problem.num_q_tokens, first.device), Rotary(first)
    kind = LatentLayer if first.problem.latent else HeadsLayer
    return [kind(one, random_weights(one, shape, generator), mlp, rotary) for one in inputs]
