"""A step: several layers with attention in each, captured once as a CUDA graph. On a CPU it is called."""

# T = query tokens, H = num_qo_heads, D = head_dim, h = hidden_size

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.lazy import Tensor, torch
from kernels.problem.dtypes import torch_dtype
from kernels.step.layer import Layer
from kernels.timing.graphs import capture

Attention = tuple[Callable[[], object], "Tensor"]  # a call, and the output [T, H, D_vo] that it writes
WARMUP = 2  # eager steps before the capture: matrix products choose their kernels in the first


class Step:
    """Layers of one model that share a residual. A call runs the step once, with `attention[i]` in layer i.

    A step that is given another one shares the memory of its graph, in which nothing lives from one replay to the next. They must
    not be replayed at the same time.
    """

    def __init__(
        self, layers: Sequence[Layer], hidden_size: int, attention: Sequence[Attention], shares_with: Step | None = None
    ) -> None:
        first = layers[0].inputs
        generator = torch.Generator(device=first.device).manual_seed(first.problem.seed + 1)
        self.layers, self.attention = layers, attention
        self.embedded = torch.empty(first.problem.num_q_tokens, hidden_size, dtype=torch.bfloat16, device=first.device)
        self.embedded.normal_(generator=generator)
        self.residual = torch.empty_like(self.embedded)
        self._replay: Callable[[], object] = self._run
        self._graph: torch.cuda.CUDAGraph | None = None
        self._capture(shares_with) if first.q.is_cuda else self._run()

    def __call__(self) -> None:
        self._replay()

    def _run(self) -> None:
        self.residual.copy_(self.embedded)  # in the place of a look into the table of embeddings
        for layer, (attend, out) in zip(self.layers, self.attention, strict=True):
            layer.before(self.residual)
            attend()
            layer.after(self.residual, out)

    def _capture(self, shares_with: Step | None) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = capture(self._run, shares_with._graph if shares_with is not None else None)
        self._replay = self._graph.replay


def stand_in(layer: Layer) -> Attention:
    """A copy of the queries [T, H, D_qk] into an output [T, H, D_vo], in the place of attention.

    It is the cheapest call with the same data dependencies: it waits for the queries, and the output product waits for it. It reads
    no cache. A step with it has the same products, appends and launches but one: what a kernel that does nothing takes between two
    others, about 2 µs on an H200, is therefore not in the difference.
    """
    p, q = layer.inputs.problem, layer.inputs.q
    out = torch.zeros(p.num_q_tokens, p.num_qo_heads, p.value_dim, dtype=torch_dtype(p.output_dtype), device=q.device)
    width = min(p.key_dim, p.value_dim)
    return lambda: out[..., :width].copy_(q[..., :width]), out
