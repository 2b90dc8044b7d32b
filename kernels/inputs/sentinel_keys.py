"""Keys that a check can see: among thousands of random keys, one more or one less changes nothing.

A planted key keeps its random value and is moved along one query until its logit with that query is so high that it weighs
there about as much as the spread of the whole output. A kernel that misses it, or sees it where it must not, is wrong by as
much as the answer holds. Shapes and bytes stay what they were, and so does what is timed.

One row of each request has logits above 100, as real models have: a softmax that does not subtract the maximum overflows there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from kernels.inputs.nvfp4 import dequantize
from kernels.inputs.tensors import bits, slots, token_major, write
from kernels.problem.dtypes import SIZE_BITS

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.inputs import Inputs
    from kernels.problem import Problem

PLANTED = 64  # query tokens of a request, from the last, whose keys are planted and at whom context keys are aimed
# Context keys aimed at one output row, by (values are the keys, some kernel rounds to 8 bits). A row that holds n + 2 keys of equal
# weight moves by 1 / sqrt(n + 2) when one is missed: by 0.35, over a tolerance of up to 0.19, or by 0.15, over one of 0.012.
# Values that are the keys all lean towards the query: an average of many such hardly moves when one is missed.
PLANTS_A_ROW = {(False, True): 6, (False, False): 40, (True, True): 1, (True, False): 2}
MOST_POSITIONS, MOST_PLANTS = 4096, 8192  # of one request
PLANTS_AT_ONCE = 2**16
SINK_SPREAD = 1024
MAX_DRAFT_PLANTS = 8  # queries that can see a draft key, and as many that cannot, to which it is planted beside its neighbours
LARGE_LOGIT = 110.0  # exp of it overflows fp32
LARGEST = 1.3  # of it: the logit of the one key that the row with large logits answers with
MIN_ROWS = 4  # of a KV head, to spare one for large logits


def plant(inputs: Inputs) -> None:
    """Plants the keys of the draft and of the context, in place."""
    _plant_drafts(inputs)
    _plant_context(inputs)
    _enlarge_logits(inputs)


def tail(problem: Problem, q_len: int) -> int:
    """Query tokens at a request's end that plants are aimed at; a tree or a full mask joins all of them."""
    return q_len if problem.tree is not None or problem.mask == "full" else min(q_len, PLANTED)


@lru_cache(maxsize=256)
def context_positions(problem: Problem, q_len: int, kv_len: int) -> list[int]:
    """The context's first and last key, and the first and the last key of every page.

    Where its rows cannot bear so many, one key of every page, or of every 2, 4, 8, ... pages: the last of one range and the first
    of the next, so that a key lies on either side of a split of the KV cache, which kernels make at multiples of pages and tiles.
    """
    n, stop = problem.slots_per_page, kv_len - tail(problem, q_len)
    start = 0 if problem.window is None else max(0, kv_len - problem.window)
    if stop <= start:
        return []
    capacity = min(MOST_POSITIONS, problem.stored_kv_heads * _a_head_bears(problem, q_len))
    pages = -(-stop // n) - start // n
    if 2 * pages <= capacity:
        firsts = [start, *range((start // n + 1) * n, stop, n)]
        return sorted({*firsts, *(first - 1 for first in firsts[1:]), stop - 1})
    step = n * 2 ** math.ceil(math.log2(max(1.0, pages / capacity)))
    borders = range((start // step + 1) * step, stop, 2 * step)
    return sorted({start, stop - 1, *borders, *(border - 1 for border in borders)})


def narrowest(problem: Problem) -> str:
    """The fewest bits in which some kernel multiplies: those of the queries or of the cache, which MLA kernels widen."""
    dtypes = (problem.q_dtype,) if problem.latent else (problem.q_dtype, problem.kv_dtype)
    return min(dtypes, key=lambda dtype: SIZE_BITS[dtype])


def _a_head_bears(problem: Problem, q_len: int) -> int:
    """Context keys that can be aimed at the rows of one KV head."""
    return PLANTS_A_ROW[problem.latent, SIZE_BITS[narrowest(problem)] <= 8] * problem.group_size * min(q_len, PLANTED)


@lru_cache(maxsize=256)
def context_plants(problem: Problem, q_len: int, kv_len: int) -> Tensor:
    """int64 [4, n]: token position and KV head of each planted key, and the head of the group and the tail query it is aimed at.

    KV heads take neighbouring positions in turns, and so do the rows of a head; together they cover all.
    """
    import torch

    positions, heads, group = context_positions(problem, q_len, kv_len), problem.stored_kv_heads, problem.group_size
    least = -(-len(positions) // heads)  # the two ends may be one more than the rows of a head were counted for
    each = torch.arange(max(least, min(len(positions), MOST_PLANTS // heads, _a_head_bears(problem, q_len))))
    kv_head = torch.arange(heads)[:, None].expand(-1, len(each))
    # After so many laps over all positions each would get the same head again; then it is the next head's turn.
    laps = each * heads // max(1, len(positions)) // (heads // math.gcd(heads, len(positions)))
    turn = (each * heads + kv_head + laps) % max(1, len(positions))
    position = torch.tensor(positions, dtype=torch.int64)[turn]
    row = each.expand(heads, -1)
    grid = torch.stack((position, kv_head, row % group, row // group % min(q_len, PLANTED))).flatten(1)
    return torch.cat((grid, torch.tensor(_window_edges(problem, q_len, kv_len), dtype=torch.int64).view(-1, 4).T), dim=1)


def _window_edges(problem: Problem, q_len: int, kv_len: int) -> list[tuple[int, int, int, int]]:
    """The key that a query's window has just left, for every other query, and for the rest the first that it still holds."""
    if problem.window is None:
        return []
    queries = min(q_len, PLANTED)
    edges = []
    for j in range(queries):
        left = kv_len - queries + j - problem.window  # query j must not see it, query j - 1 sees it last
        if 0 <= left < kv_len - q_len:  # a window that ends within the draft has its edge planted there
            edges += [(left, head, j % problem.group_size, j - j % 2) for head in range(problem.stored_kv_heads)]
    return edges


def plants_of(problem: Problem, request: int) -> tuple[Tensor, Tensor]:
    """The context plants of a request, and how many times the usual logit each gets [n].

    The row with large logits keeps one plant alone, and a larger one: several would share the row by rounding errors.
    """
    import torch

    q_len, kv_len = problem.q_lens[request], problem.kv_lens[request]
    plants = context_plants(problem, q_len, kv_len)
    if (place := large_row(problem, request)) is None:
        return plants, torch.ones(plants.shape[1])
    kv_head, head = place
    positions = context_positions(problem, q_len, kv_len)
    largest = torch.tensor([positions[len(positions) // 2], kv_head, head, min(q_len, PLANTED) - 1])[:, None]
    same_row, same_key = (plants[1:] == largest[1:]).all(0), (plants[:2] == largest[:2]).all(0)
    plants = torch.cat((plants[:, ~(same_row | same_key)], largest), dim=1)
    size = torch.ones(plants.shape[1])
    size[-1] = LARGEST
    return plants, size


def _plant_context(inputs: Inputs) -> None:
    import torch

    p, device = inputs.problem, inputs.device
    of_request = [plants_of(p, request) for request in range(p.batch_size)]
    counts = torch.tensor([plants.shape[1] for plants, _ in of_request], device=device)
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), counts)
    position, kv_head, head, query = torch.cat([plants for plants, _ in of_request], dim=1).to(device)
    size = torch.cat([size for _, size in of_request]).to(device)
    queries = inputs.q_lens.long().clamp(max=PLANTED)
    row = inputs.qo_indptr[1:].long()[request] - queries[request] + query
    target = _target(inputs)
    for start in range(0, request.numel(), PLANTS_AT_ONCE):
        part = slice(start, start + PLANTS_AT_ONCE)
        at = (*slots(inputs, request[part], position[part]), kv_head[part])
        q = inputs.q[row[part], kv_head[part] * p.group_size + head[part]].float()  # [n, D]
        drawn = _keys(inputs, at)
        short = target[request[part]] * size[part] - (drawn * q).sum(-1)
        write(inputs, 0, at, drawn + (short / q.square().sum(-1))[:, None] * q)


def _plant_drafts(inputs: Inputs) -> None:
    """Draft key j, seen by query j and not by query j - 1 nor, in a tree or under a window, by the next query that is blind to it.

    It gets its logit with each of them, and with one or more other queries that see it and that do not. KV heads and requests
    take these in turns, so that together they plant every pair of the mask. One head of a group takes its turn over requests, KV
    heads and draft tokens; one head alone keeps the key short, and with it the rounding error of its logit.
    """
    import torch

    p, device = inputs.problem, inputs.device
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), inputs.q_lens.long().clamp(max=PLANTED))
    back = torch.cat([torch.arange(min(q, PLANTED), 0, -1, device=device) for q in p.q_lens])  # 1: the last token
    first_row, own = inputs.qo_indptr[:-1].long()[request], inputs.q_lens.long()[request] - back  # own: the token's number
    kv_head = torch.arange(p.stored_kv_heads, device=device)
    turn = (request[:, None] + own[:, None] + kv_head) % p.group_size + kv_head * p.group_size  # [n, K]
    at = slots(inputs, request, inputs.kv_lens.long()[request] - back)
    moved = _keys(inputs, at)  # [n, K, D]
    logit = _target(inputs)[request]
    neighbours = (own, own - 1, _next_blind(inputs, own))
    for other in (*(query[:, None].expand(turn.shape) for query in neighbours), *_others(inputs, request, own)):
        there = (other >= 0) & (other < inputs.q_lens.long()[request][:, None])
        q = inputs.q[(first_row[:, None] + other).clamp(0, p.num_q_tokens - 1), turn].float()  # [n, K, D]
        short = logit[:, None] - (moved * q).sum(-1)
        moved += torch.where(there, short / q.square().sum(-1), 0.0)[..., None] * q
    write(inputs, 0, at, moved)


def draft_plants(problem: Problem) -> int:
    """Queries that see a draft key, and as many that do not, to which each KV head of a request plants it beside its neighbours.

    One, if a kernel may round queries to the bits of the cache: each further one makes the key longer, and its logit's error.
    """
    pairs, heads = min(problem.s_qo, PLANTED) - 1, problem.batch_size * problem.stored_kv_heads
    narrowed = SIZE_BITS[problem.q_dtype] > SIZE_BITS[narrowest(problem)]
    return min(1 if narrowed else MAX_DRAFT_PLANTS, math.ceil(pairs / heads))


def _others(inputs: Inputs, request: Tensor, own: Tensor) -> Iterator[Tensor]:
    """[n, K] each: a query of the tail that sees key `own` [n], or that does not, another one for every request and KV head."""
    import torch

    p = inputs.problem
    length = inputs.q_lens.long()[request][:, None]
    query = (length - PLANTED).clamp(min=0) + torch.arange(min(PLANTED, p.s_qo), device=inputs.device)  # [n, tail]
    seen = _sees(inputs, query, own[:, None])
    turn = request[:, None] * p.stored_kv_heads + torch.arange(p.stored_kv_heads, device=inputs.device)  # [n, K]
    for wanted in (seen & (query < length) & (query != own[:, None]), ~seen & (query < length)):
        count, so_far = wanted.sum(1, keepdim=True), wanted.cumsum(1)
        for i in range(draft_plants(p)):
            number = (turn * draft_plants(p) + i) % count.clamp(min=1) + 1
            column = torch.searchsorted(so_far, number).clamp(max=query.shape[1] - 1)
            yield torch.where(count > 0, query.gather(1, column), -1)


def _sees(inputs: Inputs, query: Tensor, key: Tensor) -> Tensor:
    """Whether these draft queries see these draft keys; the two broadcast."""
    p = inputs.problem
    if p.tree is not None:
        size = len(p.tree)
        seen: Tensor = inputs.visible[query.clamp(max=size - 1), key.clamp(max=size - 1)]
        return seen
    behind = query - key
    return behind >= (0 if p.mask == "causal" else -p.s_qo) if p.window is None else (behind >= 0) & (behind < p.window)


def large_row(problem: Problem, request: int) -> tuple[int, int] | None:
    """KV head, and head of its group, of a request's row with large logits: that of its last query. None if it can spare none."""
    rows = problem.group_size * min(problem.q_lens[request], PLANTED)
    if rows < MIN_ROWS or not context_positions(problem, problem.q_lens[request], problem.kv_lens[request]):
        return None
    kv_head = request % problem.stored_kv_heads
    turn = request + problem.q_lens[request] - 1 + kv_head  # of the group's head to which the last draft key is planted
    return kv_head, (turn + problem.group_size // 2) % problem.group_size


def _enlarge_logits(inputs: Inputs) -> None:
    """Multiplies the query of each request's large row, so that planted logits become `LARGE_LOGIT`."""
    p = inputs.problem
    for request in range(p.batch_size):
        if place := large_row(p, request):
            kv_head, head = place
            row = inputs.queries(request).stop - 1, kv_head * p.group_size + head
            factor = LARGE_LOGIT / planted_logit(p, p.kv_lens[request], inputs.sm_scale * inputs.k_scale)
            inputs.q[row] = (inputs.q[row].float() * factor).to(inputs.q.dtype)


def _keys(inputs: Inputs, at: tuple[Tensor, ...]) -> Tensor:
    """Keys as drawn at pages and slots [n], fp32 [n, K, D], or at pages, slots and KV heads [n], [n, D]."""
    import torch

    key = token_major(inputs.problem, inputs.kv[0])
    if inputs.kv_scales is None:
        return bits(key)[at].view(key.dtype).float()
    return dequantize(key[at], bits(token_major(inputs.problem, inputs.kv_scales[0]))[at].view(torch.float8_e4m3fn))


def _target(inputs: Inputs) -> Tensor:
    """[B]: q.k of a planted key as stored, which the scales turn into its logit."""
    import torch

    p = inputs.problem
    logits = [planted_logit(p, length, inputs.sm_scale * inputs.k_scale) for length in p.kv_lens]
    return torch.tensor(logits, device=inputs.device) / (inputs.sm_scale * inputs.k_scale)


def planted_logit(problem: Problem, kv_len: int, scale: float) -> float:
    """The logit at which one key weighs as much as the whole output over L random keys; `scale` makes a logit of q.k.

    Logits are N(0, s^2): the weights exp(x) sum to L * exp(s^2/2) and their squares to L * exp(2 s^2), so an output over
    values of its own has the size exp(s^2/2) / sqrt(L), in lengths of a value. Values that are the keys, as in MLA, also lean
    towards the query by c * q, where x = c * q.k. A key of logit t weighs exp(t - s^2/2) / L. A window shortens L.
    """
    variance = problem.key_dim * scale**2
    length = kv_len if problem.window is None else min(kv_len, problem.window)
    size = math.sqrt(math.exp(variance) / length + (scale**2 if problem.latent else 0.0))
    return variance / 2 + math.log(length * size)


def sink_logit(problem: Problem, scale: float) -> float:
    """The logit at which a sink weighs about as much as all keys of the longest request: a fixed one is nothing beside 131072.

    Beside a request that is more than `SINK_SPREAD` times shorter it would leave an output below fp16's normal numbers.
    """
    length = min(max(problem.kv_lens), SINK_SPREAD * min(problem.kv_lens), problem.window or problem.s_kv)
    return problem.key_dim * scale**2 / 2 + math.log(length)


def _next_blind(inputs: Inputs, own: Tensor) -> Tensor:
    """The first query after `own` [n] that must not see its key, as in a tree or under a short window; -1 where there is none."""
    import torch

    if inputs.problem.window is not None:
        return own + inputs.problem.window
    if inputs.problem.tree is None:
        return torch.full_like(own, -1)
    later_blind = (~inputs.visible).tril(-1).T  # [key, query]
    first = later_blind.int().argmax(1)
    return torch.where(later_blind.any(1), first, -1)[own]
