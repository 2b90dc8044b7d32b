"""What a layer computes before and after attention, in bf16: norm, products, rotary embedding, KV append, norm, MLP.

Left out, because they are small beside the products or need other GPUs: the all-reduce of tensor parallelism, biases, norms of
single heads. Each operation is one of PyTorch's, so there are more small kernels than in an engine that fuses them; the step with
the stand-in has the same ones.

Attention reads queries and new keys that were computed just before, as in an engine. The check needs known ones: keys are planted,
and a reference takes long. So what is written is `known + 0 * computed`, in integers over the bits of both: exactly the known bits,
whatever the product is, by a kernel that reads the product and cannot start before it is there. Dtypes and bytes are those of an
engine: an FP8 cache gets the product divided by its scale and rounded to 8 bits first.
"""

# h = hidden_size, T = query tokens, H = num_qo_heads, K = num_kv_heads, D = head_dim
from __future__ import annotations

import math
from abc import ABC, abstractmethod

from kernels.inputs import Inputs
from kernels.inputs.tensors import slots, token_major
from kernels.lazy import Tensor, torch
from kernels.step.shapes import LayerShape, nope_dim, weight_shapes

ROPE_BASE = 10000.0  # of the rotary embedding; the value changes no time
EPS = 1e-5
Weights = dict[str, "Tensor"]
ALL_ONES = {1: 0xFF, 2: -1, 4: -1}  # bits of a NaN in every dtype


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
        values = self._values(attended if attended.dtype == x.dtype else attended.to(x.dtype))
        x.add_(torch.mm(values.flatten(1), self.weights["output"].T))
        x.add_(self.mlp(norm(x), self.weights))

    @abstractmethod
    def _project(self, x: Tensor) -> None: ...

    @abstractmethod
    def _values(self, attended: Tensor) -> Tensor:
        """What the output product reads, [T, H, D of the model's own values]."""


class HeadsLayer(Layer):
    """Queries, keys and values of heads (MHA, GQA, MQA)."""

    def _project(self, x: Tensor) -> None:
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
        return torch.bmm(attended.transpose(0, 1), self.weights["values_up"].transpose(1, 2)).transpose(0, 1).contiguous()


class Rotary:
    """The rotary embedding of a step's new tokens (Su et al. 2021, in the half-split form), for vectors [T, heads, D]."""

    def __init__(self, inputs: Inputs) -> None:
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

    def drawn(size: tuple[int, ...]) -> Tensor:
        weights = torch.empty(size, dtype=torch.bfloat16, device=inputs.device)
        return weights.normal_(0, 1 / math.sqrt(size[-1]), generator=generator)

    return {name: drawn(size) for name, size in weight_shapes(inputs.problem, shape).items()}


def make_layers(inputs: list[Inputs], shape: LayerShape) -> list[Layer]:
    """A layer for each of the inputs, which differ in queries and cache alone."""
    first = inputs[0]
    generator = torch.Generator(device=first.device).manual_seed(first.problem.seed)
    mlp, rotary = Mlp(shape, first.problem.num_q_tokens, first.device), Rotary(first)
    kind = LatentLayer if first.problem.latent else HeadsLayer
    return [kind(one, random_weights(one, shape, generator), mlp, rotary) for one in inputs]


def gated(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU: x [..., T, h], `up` [..., 2 inner, h], `down` [..., h, inner], with the same leading axis for experts."""
    from torch.nn.functional import silu

    gate, value = torch.matmul(x, up.transpose(-1, -2)).chunk(2, dim=-1)
    return torch.matmul(silu(gate) * value, down.transpose(-1, -2))


class Mlp:
    """The MLP of one layer. A call takes the normalised activations [T, h] and returns what is added to the residual.

    The router's product, softmax and top-k run, and their probabilities weigh the experts. Which experts these are is fixed and
    even: assignment i of the T * k goes to expert i mod A. A graph then has the products of A experts over R = ceil(T k / A) rows
    each, and reads as many weights as a batch of T tokens wakes in expectation (`LayerShape.active_experts`).
    """

    def __init__(self, shape: LayerShape, tokens: int, device: torch.device) -> None:
        self.chosen = shape.experts_per_token or 0
        if not self.chosen:
            return
        self.active = shape.active_experts(tokens)
        assignments = tokens * self.chosen
        rows = -(-assignments // self.active)
        expert, row = torch.arange(self.active, device=device)[:, None], torch.arange(rows, device=device)
        self._token = ((expert + self.active * row).clamp(max=assignments - 1) // self.chosen).flatten()  # [A * R]
        i = torch.arange(assignments, device=device)
        self._row = i % self.active * rows + i // self.active  # [T * k], into [A * R]

    def __call__(self, x: Tensor, weights: Weights) -> Tensor:
        if not self.chosen:
            return gated(x, weights["gate_up"], weights["mlp_down"])
        out = self._experts(x, weights)
        return out + gated(x, weights["gate_up"], weights["mlp_down"]) if "gate_up" in weights else out

    def _experts(self, x: Tensor, weights: Weights) -> Tensor:
        scores, _ = torch.matmul(x, weights["router"].T).topk(self.chosen, dim=-1)
        share = scores.softmax(-1, dtype=torch.float32).to(x.dtype)  # [T, k]
        of_expert = x[self._token].view(self.active, -1, x.shape[1])  # [A, R, h]
        answers = gated(of_expert, weights["experts_up"], weights["experts_down"]).flatten(0, 1)
        return (answers[self._row].view(-1, self.chosen, x.shape[1]) * share[..., None]).sum(1)


class PlantedTokens:
    """The known queries of a layer, [T, H, D], and the keys and values of its new tokens, [T, K, D] each."""

    def __init__(self, inputs: Inputs) -> None:
        p = inputs.problem
        self.inputs = inputs
        page, slot = slots(inputs, *new_positions(inputs))
        self.at = page, slot.to(torch.int64)  # of every query token's own key, int64 [T] each
        caches = inputs.kv[:1] if p.latent else inputs.kv
        self._caches = [_bits(token_major(p, cache)) for cache in caches]
        self._tokens = [cache[self.at] for cache in self._caches]
        self._queries = _bits(inputs.q).clone()
        self._scales = (inputs.k_scale, inputs.v_scale)

    def write_queries(self, computed: Tensor) -> None:
        """Writes the known queries where attention reads them, after `computed` [T, H, D]."""
        product = computed.to(self.inputs.q.dtype).contiguous()
        torch.add(self._queries, _bits(product), alpha=0, out=_bits(self.inputs.q))

    def append(self, *computed: Tensor) -> None:
        """Writes the known keys and values of the new tokens into their pages, after `computed`, [T, K, D] each."""
        for cache, tokens, product, scale in zip(self._caches, self._tokens, computed, self._scales, strict=False):
            stored = (product if scale == 1 else product / scale).to(self.inputs.kv[0].dtype).contiguous()
            cache[self.at] = torch.add(tokens, _bits(stored), alpha=0)

    def poison(self) -> None:
        """Fills the queries and the new tokens with NaN: a step must write them before its attention reads them."""
        _bits(self.inputs.q).fill_(ALL_ONES[self.inputs.q.element_size()])
        for cache in self._caches:
            cache[self.at] = ALL_ONES[cache.element_size()]


def new_positions(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The request of every query token, and its position in that request's KV cache, int64 [T] each."""
    q_lens = inputs.q_lens.long()
    request = torch.repeat_interleave(torch.arange(inputs.problem.batch_size, device=inputs.device), q_lens)
    in_draft = torch.arange(inputs.problem.num_q_tokens, device=inputs.device) - inputs.qo_indptr.long()[request]
    return request, (inputs.kv_lens.long() - q_lens)[request] + in_draft


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
