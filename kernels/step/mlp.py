"""The MLP of a layer, dense or of experts, in bf16."""

# T = query tokens, h = hidden_size, E = num_experts, k = experts_per_token, A = experts awake, R = rows of each

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.step.shapes import LayerShape

Weights = dict[str, "Tensor"]


def gated(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU: x [..., T, h], `up` [..., 2 inner, h], `down` [..., h, inner], with the same leading axis for experts."""
    import torch
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
        import torch

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
        import torch

        scores, _ = torch.matmul(x, weights["router"].T).topk(self.chosen, dim=-1)
        share = scores.softmax(-1, dtype=torch.float32).to(x.dtype)  # [T, k]
        of_expert = x[self._token].view(self.active, -1, x.shape[1])  # [A, R, h]
        answers = gated(of_expert, weights["experts_up"], weights["experts_down"]).flatten(0, 1)
        return (answers[self._row].view(-1, self.chosen, x.shape[1]) * share[..., None]).sum(1)
