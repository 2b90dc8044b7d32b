"""Which query sees which key: the visibility of the draft block, and its packed form for XQA. Vectorised, on the device.

A causal mask, a full one and a tree speak of the last `s_qo` keys alone, every query sees all keys before them; a sliding
window also hides the far end, and under a full mask the far end ahead.
"""

from __future__ import annotations

from kernels.lazy import Tensor, torch
from kernels.problem import Problem

WORD_BITS = 32  # XQA reads the mask in 32-bit words; uint16 is only the type in which its binding takes them


def visibility(problem: Problem, device: torch.device | str) -> Tensor:
    """Bool [s_qo, s_qo]: entry (i, j) is true when draft query i sees draft key j. A shorter draft is the top left of it."""
    full = torch.ones(problem.s_qo, problem.s_qo, dtype=torch.bool, device=device)
    if problem.tree is not None:
        return _ancestors(problem.tree, device)
    if problem.mask == "full":
        return full
    both_ways = problem.mask_prefix or 0
    causal = full.tril()
    causal[:both_ways, :both_ways] = True
    return causal


def seen_to(problem: Problem, request: int, rows: range) -> int:
    """The position behind the last key that any of these queries of a request may see."""
    before = problem.kv_lens[request] - problem.q_lens[request]
    if problem.mask == "full" or problem.tree is not None:
        return problem.kv_lens[request]
    both_ways = min(problem.mask_prefix or 0, problem.q_lens[request])
    return before + (max(rows.stop, both_ways) if rows.start < both_ways else rows.stop)


def hidden(problem: Problem, request: int, rows: range, keys: range, device: torch.device | str) -> Tensor | None:
    """Bool [rows, keys]: what the mask hides from these queries of a request among these keys; None where it hides nothing."""
    draft_start = problem.kv_lens[request] - problem.q_lens[request]
    reach = problem.window
    if keys.stop <= draft_start + (rows.start if problem.tree is None else 0) + 1 and reach is None:
        return None
    key = torch.arange(keys.start, keys.stop, device=device)
    if problem.tree is not None:
        tree = _ancestors(problem.tree, device)[rows.start : rows.stop]
        in_draft = (key - draft_start).clamp(0, problem.s_qo - 1)
        return ~tree[:, in_draft] & (key >= draft_start)
    if problem.mask == "full" and reach is None:
        return None
    own = draft_start + torch.arange(rows.start, rows.stop, device=device)[:, None]  # the key that is the query's own token
    if reach is None:
        both_ways = draft_start + (problem.mask_prefix or 0)
        return (key > own) & ((own >= both_ways) | (key >= both_ways))
    return (key - own).abs() >= reach if problem.mask == "full" else (key > own) | (key <= own - reach)


def sees(problem: Problem, own: Tensor, token: Tensor, key: Tensor) -> Tensor:
    """Whether query tokens see the keys at these positions, bool, element by element. `own` is the position of a query's own key,
    and `token` its number in the request.
    """
    if problem.tree is not None:
        in_draft = (key - own + token).clamp(0, problem.s_qo - 1)
        return _ancestors(problem.tree, key.device)[token, in_draft] | (key < own - token)
    ahead = problem.mask == "full"
    both_ways = problem.mask_prefix or 0
    causal = (key <= own) | ahead | ((token < both_ways) & (key - own + token < both_ways))
    return causal if problem.window is None else causal & (((key - own).abs() if ahead else own - key) < problem.window)


def _ancestors(tree: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Bool [n, n]: entry (i, j) is true when j is i or lies on the way from the root to i."""
    rows: list[list[bool]] = []
    for i, parent in enumerate(tree):
        row = list(rows[parent]) if parent >= 0 else [False] * len(tree)
        row[i] = True
        rows.append(row)
    return torch.tensor(rows, dtype=torch.bool, device=device)


def pack(visible: Tensor) -> Tensor:
    """XQA's packed mask of one request, uint16 [s_qo, 2 * ceil(s_qo / 32)], from a bool [s_qo, s_qo].

    Bit k of 32-bit word w of row i says whether query i sees draft key 32 * w + k; the words are little-endian pairs of
    uint16 (FlashInfer 0.7.2, `xqa_batch_decode_with_kv_cache`).
    """
    s_qo = visible.shape[0]
    words = -(-s_qo // WORD_BITS)
    bits = torch.zeros(s_qo, words * WORD_BITS, dtype=torch.int64, device=visible.device)
    bits[:, :s_qo] = visible
    weights = 1 << torch.arange(WORD_BITS, dtype=torch.int64, device=visible.device)
    packed = (bits.view(s_qo, words, WORD_BITS) * weights).sum(-1)
    return torch.stack((packed & 0xFFFF, packed >> 16), dim=-1).view(s_qo, 2 * words).to(torch.uint16)


def packed_batch(problem: Problem, device: torch.device | str) -> Tensor | None:
    """The packed mask of every request, None for a single query token.

    uint16 [batch_size, s_qo, W] where all requests have `s_qo` query tokens; else [num_q_tokens, W], the rows of a request
    one after another, each as wide as that of the longest draft.
    """
    if problem.s_qo == 1:
        return None
    packed = pack(visibility(problem, device))
    if problem.min_s_qo is None:
        return packed.expand(problem.batch_size, *packed.shape).contiguous()
    rows = torch.cat([torch.arange(q, device=device) for q in problem.q_lens])
    return packed.view(torch.int16)[rows].view(torch.uint16).contiguous()


def flat_custom(problem: Problem, device: torch.device | str) -> Tensor:
    """FlashInfer's custom mask: bool [sum of q_len * kv_len], a request after another, row by row; true where a key is seen."""
    parts = []
    for request, (q, length) in enumerate(zip(problem.q_lens, problem.kv_lens, strict=True)):
        seen = torch.ones(q, length, dtype=torch.bool, device=device)
        unseen = hidden(problem, request, range(q), range(length), device)
        parts.append(seen if unseen is None else ~unseen)
    return torch.cat([part.flatten() for part in parts])
