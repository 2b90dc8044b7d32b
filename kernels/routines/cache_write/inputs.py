"""The tensors of a cache write. All slots hold random numbers before it, so a slot that is not written, or wrongly, is seen.

Where keys are quantised, an element of each head's row is too large for fp8_e4m3, and must become the largest number.
"""

# B = batch_size, T = new tokens of all requests, P = pages, N = slots a page, K = KV heads, H = query heads, D = head_dim

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kernels.inputs.generate import fill_normal
from kernels.inputs.tensors import K_SCALE, V_SCALE, OwnInputs, generator_of, offsets, turned
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import torch_dtype
from kernels.routines.cache_write.problem import SPARE_PAGES, sizes

Q_SCALE = 0.25
LARGE = 1000.0  # beyond the largest number of fp8_e4m3 times any of the scales, also if it is rotated
BASE = 10_000.0  # of the angles: position * BASE^(-2 i / dim)


@dataclass(frozen=True)
class WriteInputs(OwnInputs):
    """What every backend reads. The cache that a call writes is its own: `pool` is that cache before it.

    A token of a latent is [D_ckv + D_kpe] in the place of keys and values [2, K, D].
    """

    problem: Problem
    new: Tensor  # [T, 2, K, D], as a QKV product leaves it
    q: Tensor  # [T, H, D]; [T, H, 0] without rope
    pool: Tensor  # [P, 2, N, K, D], with HND [P, 2, K, N, D]; of a latent [P, N, D]
    scale: Tensor  # fp32 [2, K, 1], of a latent [1]: the true element is what is stored times it
    angles: Tensor  # fp32 [positions, D_rotated]: cosines, then sines
    request: Tensor  # int32 [T]
    position: Tensor  # int32 [T], in its request
    kv_indices: Tensor  # int32: the pages of each request in turn
    kv_indptr: Tensor  # int32 [B + 1]
    last_page_len: Tensor  # int32 [B]
    slot: Tensor  # int64 [T], page * N + slot of each token
    quantises: bool
    q_scale: float

    def by_slot(self, cache: Tensor) -> Tensor:
        """The bits of a cache as integers, a view [P, N, 2, K, D]; of a latent [P, N, D]."""
        whole, order = as_integers(cache), (0, 3, 1, 2, 4) if self.problem.kv_layout == "HND" else (0, 2, 1, 3, 4)
        return whole if self.problem.head_dim_ckv else whole.permute(order)

    @property
    def at(self) -> tuple[Tensor, Tensor]:
        """Page and slot of each token."""
        return self.slot // self.problem.page_size, self.slot % self.problem.page_size

    def split(self, of_tokens: Tensor) -> tuple[Tensor, ...]:
        """Keys and values of new tokens or of a cache; of a latent its elements [..., D_ckv] and [..., D_kpe], of queries too."""
        ckv = self.problem.head_dim_ckv
        return (of_tokens[..., :ckv], of_tokens[..., ckv:]) if ckv else of_tokens.unbind(1)

    def rotating(self, new: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Views of what is rotated of new tokens and of queries: keys, and of a latent its end."""
        return (self.split(new)[1], self.split(q)[1]) if self.problem.head_dim_ckv else (new[:, 0], q)

    def truth(self) -> list[Tensor]:
        """True new tokens and queries, fp32 in units of the cache."""
        new, q, style = self.new.float(), self.q.float(), str(self.problem.axis("rope"))
        if style != "none":
            for rows in self.rotating(new, q):
                angles = self.angles[self.position.long()].view(len(rows), *(1,) * (rows.dim() - 2), -1)
                (a, b), (cos, sin) = pairs(rows, style), angles.chunk(2, -1)
                rotated = a * cos - b * sin, b * cos + a * sin  # Su et al., RoFormer, 2021, equation 34
                a.copy_(rotated[0]), b.copy_(rotated[1])
        return [new / self.scale, q / self.q_scale]


def as_integers(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def pairs(rows: Tensor, style: str) -> tuple[Tensor, Tensor]:
    """What is rotated together: elements of both halves of each row (neox), or neighbours (interleaved)."""
    half = rows.shape[-1] // 2
    return (rows[..., :half], rows[..., half:]) if style == "neox" else (rows[..., ::2], rows[..., 1::2])


def draw(problem: Problem, device: torch.device | str) -> WriteInputs:
    p, own = problem, sizes(problem)
    shape, turns = own.token, own.queries > 0
    inner = (p.num_kv_heads, p.page_size) if p.kv_layout == "HND" else (p.page_size, p.num_kv_heads)
    page = (2, *inner, p.head_dim_qk) if len(shape) > 1 else (p.page_size, *shape)
    given, cached = torch_dtype(p.q_dtype), torch_dtype(p.kv_dtype)
    scales = (K_SCALE, K_SCALE if turns else V_SCALE) if cached != given else (1.0, 1.0)
    by_head = 1 + 0.75 * torch.arange(p.num_kv_heads) / p.num_kv_heads * (p.axis("scales") == "head")  # no two alike
    scale = torch.tensor(scales)[:, None, None] * by_head[:, None]
    frequency = BASE ** (-torch.arange(0, own.rotated, 2).double() / own.rotated)
    angle = torch.arange(p.s_kv + 1 if turns else 1)[:, None] * frequency
    new = torch.empty(p.num_q_tokens, *shape, dtype=given, device=device)
    inputs = WriteInputs(
        p, new, new.new_empty(len(new), p.num_qo_heads, shape[-1] * turns),
        torch.empty(own.pages, *page, dtype=cached, device=device),
        (scale if len(shape) > 1 else scale[0, 0]).to(device), torch.cat((angle.cos(), angle.sin()), 1).float().to(device),
        quantises=cached != given, q_scale=Q_SCALE if cached != given else 1.0,
        **{name: table.to(device) for name, table in _tables(p).items()},
    )  # fmt: skip
    write_values(inputs, generator := generator_of(p, new.device))
    fill_normal(inputs.pool, generator)
    return inputs


def _tables(p: Problem) -> dict[str, Any]:
    """The integers. Pages are in random order; those before the first that is reached are spare ones."""
    q_lens, kv_lens, (first, own) = torch.tensor(p.q_lens), torch.tensor(p.kv_lens), torch.tensor(sizes(p).reached).T
    order = torch.randperm(sizes(p).pages, generator=torch.Generator().manual_seed(p.seed))
    starts, indptr = offsets(own).long() + SPARE_PAGES, offsets(first + own).long()
    owner = torch.repeat_interleave(torch.arange(p.batch_size), first + own)
    column = torch.arange(len(owner)) - indptr[owner]
    pages = order[torch.where(column < first[owner], (column + owner) % SPARE_PAGES, starts[owner] + column - first[owner])]
    request = torch.repeat_interleave(torch.arange(p.batch_size), q_lens)
    position = (kv_lens - q_lens)[request] + torch.arange(len(request)) - offsets(q_lens).long()[request]
    slot = pages[indptr[request] + position // p.page_size] * p.page_size + position % p.page_size
    found = {"request": request, "position": position, "kv_indices": pages, "kv_indptr": indptr}
    found["last_page_len"] = (kv_lens - 1) % p.page_size + 1
    return {**{name: table.int() for name, table in found.items()}, "slot": slot}


def redraw(inputs: WriteInputs) -> None:
    for own, drawn in zip(inputs.tensors(), draw(inputs.problem, inputs.device).tensors(), strict=True):
        own.copy_(drawn)


def write_values(inputs: WriteInputs, generator: torch.Generator) -> None:
    for rows in (one for one in (inputs.new, inputs.q) if one.numel()):
        fill_normal(rows, generator)
        if inputs.quantises:
            token = torch.arange(len(rows), device=rows.device)
            rows[token, ..., token * 71 % rows.shape[-1]] = LARGE


def other_cache(inputs: WriteInputs) -> AbstractContextManager[None]:
    """New keys and values, and the numbers of a cache before them, in reverse order of each row while it lasts."""
    return turned(lambda: [one.copy_(one.flip(-1)) for one in (as_integers(inputs.new), as_integers(inputs.pool))])


def copied_tokens(inputs: WriteInputs, copied: Sequence[int]) -> AbstractContextManager[None]:
    """These tokens have opposite signs for a while. Of none: pages and the table of angles are in reverse order."""

    def turn() -> None:
        for one in (as_integers(rows) for rows in (inputs.new, inputs.q) if copied and rows.numel()):
            one[copied] = one[copied] ^ torch.iinfo(one.dtype).min
        if not copied:
            inputs.kv_indices.neg_().add_(last := len(inputs.pool) - 1)
            inputs.slot.add_((last - 2 * inputs.at[0]) * inputs.problem.page_size)
            inputs.angles.copy_(inputs.angles.flip(0))

    return turned(turn)
