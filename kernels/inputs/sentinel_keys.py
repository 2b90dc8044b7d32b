"""Keys that a check can see: among thousands of random keys, one more or one less changes nothing.

A planted key keeps its random value and is moved along one query until its logit with that query is so high that it weighs
there about as much as the spread of the whole output. A kernel that misses it, or sees it where it must not, is wrong by as
much as the answer holds. Shapes and bytes stay what they were, and so does what is timed.

One row of each request has logits that differ by 100: a softmax that subtracts the maximum of some keys alone overflows there.
Where a KV head has too few rows to spare one, a running maximum grows at the middle planted key of each row, from either end.
Besides, the logits of each row are moved alike (`shifted_logits.py`), which these keys do not touch.

Keys are planted at the edges of pages first, since kernels split and tile there, and then inside of pages.
"""

from __future__ import annotations

import math
from functools import lru_cache

from kernels.inputs import Inputs
from kernels.inputs.draft_keys import plant_drafts
from kernels.inputs.sentinel_logit import PLANTED, before_cap, keys_at, narrowest, planted_logit, queries_at, target_products
from kernels.inputs.shifted_logits import shift_logits, without_shift
from kernels.inputs.tensors import bits, drawn_scale, slots, write
from kernels.lazy import Tensor, torch
from kernels.problem import Problem
from kernels.problem.dtypes import SIZE_BITS

# Context keys aimed at one output row, by (values are the keys, some kernel rounds to 8 bits). A row that holds n + 2 keys of equal
# weight moves by 1 / sqrt(n + 2) when one is missed: by 0.35, over a tolerance of up to 0.19, or by 0.15, over one of 0.012.
# Values that are the keys all lean towards the query: an average of many such hardly moves when one is missed.
PLANTS_A_ROW = {(False, True): 6, (False, False): 40, (True, True): 1, (True, False): 2}
MAX_PLANTS = 8192  # of one request
PLANTS_AT_ONCE = 2**16
LARGE_LOGIT = 110.0  # exp of it overflows fp32
LARGEST = 1.3  # of it: the logit of the one key that the row with large logits answers with
LARGEST_QUERY = 448.0  # of fp8_e4m3, to which a kernel may round queries
MIN_ROWS = 4  # of a KV head, to spare one for large logits
HEAVIER = {True: 1.7, False: 1.3}  # times the weight of its row's others: the middle key elsewhere; True in 8 bits
MAX_EDGES, MAX_INSIDE = 4096, 2048  # keys of one request
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples fall evenly between 0 and 1


def plant(inputs: Inputs) -> None:
    """Shifts the logits of all rows, and plants the keys of the draft and of the context, in place."""
    shift_logits(inputs)
    plant_drafts(inputs)
    _plant_key_of_next_request(inputs)  # before the context, whose first keys keep the logits that they get there
    _plant_context(inputs)
    _enlarge_logits(inputs)


def tail(problem: Problem, q_len: int) -> int:
    """Query tokens at a request's end that plants are aimed at; a tree or a full mask joins all of them."""
    return q_len if problem.tree is not None or problem.mask == "full" else min(q_len, PLANTED)


@lru_cache(maxsize=256)
def context_positions(problem: Problem, q_len: int, kv_len: int) -> list[int]:
    """The context's first and last key, the first and the last key of every page, and one inside; behind a shared prefix.

    Where its rows cannot bear so many, one key of every page, or of every 2, 4, 8, ... pages: the last of one range and the first
    of the next, so that a key lies on either side of a split of the KV cache, which kernels make at multiples of pages and tiles.
    """
    return _positions(problem, q_len, kv_len)[0]


def _positions(problem: Problem, q_len: int, kv_len: int) -> tuple[list[int], int]:
    start = problem.prefix_tokens if problem.window is None else max(0, kv_len - problem.window)
    heads = problem.stored_kv_heads
    capacity = heads * _a_head_bears(problem, q_len)
    return planted_positions(start, kv_len - tail(problem, q_len), problem.slots_per_page, capacity, heads)


def _a_head_bears(problem: Problem, q_len: int) -> int:
    """Context keys that can be aimed at the rows of one KV head, those of a shared prefix apart."""
    return plants_a_row(problem) * problem.group_size * min(q_len, PLANTED)


def plants_a_row(problem: Problem) -> int:
    """Context keys that one row bears. Half of them lie in the shared prefix, if there is one."""
    bears = PLANTS_A_ROW[problem.latent, SIZE_BITS[narrowest(problem)] <= 8]
    return bears if problem.shared_prefix is None else bears // 2


@lru_cache(maxsize=256)
def context_plants(problem: Problem, q_len: int, kv_len: int) -> Tensor:
    """int64 [4, n]: token position and KV head of each planted key, and the head of the group and the tail query it is aimed at.

    KV heads take neighbouring positions in turns, and so do the rows of a head; together they cover all.
    """
    group, (positions, edges) = problem.group_size, _positions(problem, q_len, kv_len)
    position, kv_head, row = in_turns(positions, problem.stored_kv_heads, min(edges, _a_head_bears(problem, q_len)))
    grid = torch.stack((position, kv_head, row % group, row // group % min(q_len, PLANTED)))
    return torch.cat((grid, torch.tensor(_window_edges(problem, q_len, kv_len), dtype=torch.int64).view(-1, 4).T), dim=1)


def in_turns(positions: list[int], heads: int, bears: int) -> tuple[Tensor, Tensor, Tensor]:
    """Position, KV head and number within the head of each planted key, [n] each: `bears` a head, no key twice.

    Every head has the first position and the last, whosever turn they are: no other key stands for the ends of a context.
    """
    least = -(-len(positions) // heads)  # the two ends may be one more than the rows of a head were counted for
    each = torch.arange(max(least, min(len(positions), MAX_PLANTS // heads, bears)))
    kv_head = torch.arange(heads)[:, None]
    # After so many laps over all positions each would get the same head again; then it is the next head's turn.
    laps = each * heads // max(1, len(positions)) // (heads // math.gcd(heads, len(positions)))
    turn = (each * heads + kv_head + laps) % max(1, len(positions))
    ends = torch.tensor(sorted({0, len(positions) - 1}) if positions else [], dtype=torch.int64)
    added = (turn[:, :, None] != ends).all(1)  # [heads, ends]: those that are not there
    kept = torch.cat((torch.ones_like(turn, dtype=torch.bool), added), dim=1)
    turn = torch.cat((turn, ends.expand(heads, -1)), dim=1)[kept]
    number = torch.arange(kept.shape[1]).expand(heads, -1)[kept]
    return torch.tensor(positions, dtype=torch.int64)[turn], kv_head.expand(kept.shape)[kept], number


def prefix_plants(problem: Problem) -> Tensor:
    """int64 [5, n]: position, KV head, head of the group, tail query and request of each key planted in the shared prefix.

    The prefix lies in memory once, so each of its keys is aimed at a row of one request, and all requests read it. Requests take
    turns. A row with large logits is left out, as in `plants_of`.
    """
    p, requests = problem, torch.arange(problem.batch_size)
    tails = torch.tensor([min(q, PLANTED) for q in p.q_lens])
    bears = plants_a_row(p) * p.group_size * int(tails.sum())
    positions, edges = planted_positions(0, p.prefix_tokens, p.slots_per_page, p.stored_kv_heads * bears, p.stored_kv_heads)
    position, kv_head, each = in_turns(positions, p.stored_kv_heads, min(edges, bears))
    request, row = each % p.batch_size, each // p.batch_size
    query = row // p.group_size % tails[request]
    plants = torch.stack((position, kv_head, row % p.group_size, query, request))
    places = [large_row(p, number) or (-1, -1) for number in range(p.batch_size)]
    large = torch.cat((torch.tensor(places).T, (tails - 1)[None], requests[None]))  # [4, B]: KV head, head, query, request
    return plants[:, ~(plants[1:] == large[:, request]).all(0)]


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


def plants_of(problem: Problem, q_len: int, kv_len: int, place: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """The context plants of a request with its large row at `place`, and how many times the usual logit each gets [n].

    The row with large logits keeps one plant alone, and a larger one: several would share the row by rounding errors. A soft cap
    makes these small, and there it has two.
    """
    plants = context_plants(problem, q_len, kv_len)
    if place is None:
        return plants, _sizes_that_grow(problem, kv_len, plants)
    kv_head, head = place
    positions = context_positions(problem, q_len, kv_len)
    sizes = [*_size_of_second(problem), LARGEST][-len(positions) :]
    own = torch.tensor([[at, kv_head, head, min(q_len, PLANTED) - 1] for at in positions[len(positions) // 2 :][: len(sizes)]]).T
    same_row = (plants[1:] == own[1:, :1]).all(0)
    same_key = (plants[:2, :, None] == own[:2, None]).all(0).any(1)
    plants = torch.cat((plants[:, ~(same_row | same_key)], own), dim=1)
    return plants, torch.cat((torch.ones(plants.shape[1] - len(sizes)), torch.tensor(sizes)))


def _sizes_that_grow(problem: Problem, kv_len: int, plants: Tensor) -> Tensor:
    """How many times the usual logit each plant [4, n] gets: more in the middle of each row that has two or more, `HEAVIER`."""
    sizes, logit = torch.ones(plants.shape[1]), planted_logit(problem, kv_len, drawn_scale(problem))
    if not plants.numel() or logit < 1:  # of few keys, among which random ones grow
        return sizes
    counts = torch.bincount(row := (plants[1] * problem.group_size + plants[2]) * PLANTED + plants[3])
    in_order = torch.argsort(row * (kv_len + 1) + plants[0])  # row by row
    middle = in_order[(counts.cumsum(0) - counts + counts // 2)[counts > 1]]
    more = logit + math.log(HEAVIER[SIZE_BITS[narrowest(problem)] <= 8])
    sizes[middle] = before_cap(problem, more) / before_cap(problem, logit)
    return sizes


def _size_of_second(problem: Problem) -> list[float]:
    """Of a second plant in the row with large logits, where logits have a soft cap: it takes the logit to 1 below the largest.

    Without the cap it is far below, so a kernel that leaves the cap out, or applies another, gives the row to the largest alone.
    """
    if (cap := problem.soft_cap) is None:
        return []
    below = cap * math.tanh(LARGEST * LARGE_LOGIT / cap) - 1
    return [max(0.0, cap * math.atanh(below / cap) / LARGE_LOGIT)] if below > -cap else [0.0]


def heavy_behind(problem: Problem, request: int) -> list[tuple[int, int]]:
    """KV head, and head of its group, of the rows of a request's last query to which the next request's first key is planted.

    Where pages are full, that key is what a kernel reads that reads on: no unused slot lies between. No row if the key is a draft
    token or of a shared prefix.
    """
    p, after = problem, request + 1
    if after >= p.batch_size or p.shared_prefix is not None or not p.kv_lens[request] or p.kv_lens[request] % p.slots_per_page:
        return []
    if p.kv_lens[after] <= tail(p, p.q_lens[after]):
        return []
    rows = [(kv_head, (request + kv_head) % p.group_size) for kv_head in range(p.stored_kv_heads)]
    return [row for row in rows if row != large_row(p, request)]


def _plant_key_of_next_request(inputs: Inputs) -> None:
    """Plants the first key of each request to rows of the request before it."""
    p, device = inputs.problem, inputs.device
    found = [(request, *row) for request in range(p.batch_size) for row in heavy_behind(p, request)]
    if not found:
        return
    request, kv_head, head = torch.tensor(found, device=device).T
    at = (*slots(inputs, request + 1, torch.zeros_like(request)), kv_head)
    row = inputs.qo_indptr[1:].long()[request] - 1
    move(inputs, at, queries_at(inputs, row, kv_head * p.group_size + head), target_products(inputs)[request])


def move(inputs: Inputs, at: tuple[Tensor, ...], q: Tensor, products: Tensor) -> None:
    """Moves the keys [n, D] at pages, slots and KV heads [n] along queries [n, D], until their products are these [n]."""
    drawn = keys_at(inputs, at)
    short = products - (drawn * q).sum(-1)
    write(inputs, 0, at, drawn + (short / q.square().sum(-1))[:, None] * q)


def _plant_context(inputs: Inputs) -> None:
    p, device = inputs.problem, inputs.device
    which = [(p.q_lens[request], p.kv_lens[request], large_row(p, request)) for request in range(p.batch_size)]
    found = {one: plants_of(p, *one) for one in set(which)}  # many requests have the same
    of_request = [found[one] for one in which]
    counts = torch.tensor([plants.shape[1] for plants, _ in of_request], device=device)
    request = torch.repeat_interleave(torch.arange(p.batch_size, device=device), counts)
    position, kv_head, head, query = torch.cat([plants for plants, _ in of_request], dim=1).to(device)
    size = torch.cat([size for _, size in of_request]).to(device)
    if p.shared_prefix is not None:
        shared = prefix_plants(p).to(device)
        position, kv_head, head, query = torch.cat((torch.stack((position, kv_head, head, query)), shared[:4]), dim=1)
        request, size = torch.cat((request, shared[4])), torch.cat((size, size.new_ones(shared.shape[1])))
    queries = inputs.q_lens.long().clamp(max=PLANTED)
    row = inputs.qo_indptr[1:].long()[request] - queries[request] + query
    target = target_products(inputs)
    for start in range(0, request.numel(), PLANTS_AT_ONCE):
        part = slice(start, start + PLANTS_AT_ONCE)
        at = (*slots(inputs, request[part], position[part]), kv_head[part])
        q = queries_at(inputs, row[part], kv_head[part] * p.group_size + head[part])  # [n, D]
        move(inputs, at, q, target[request[part]] * size[part])


def large_row(problem: Problem, request: int) -> tuple[int, int] | None:
    """KV head, and head of its group, of a request's row with large logits: that of its last query. None if it can spare none."""
    rows = problem.group_size * min(problem.q_lens[request], PLANTED)
    if rows < MIN_ROWS or not context_positions(problem, problem.q_lens[request], problem.kv_lens[request]):
        return None
    kv_head = request % problem.stored_kv_heads
    turn = request + problem.q_lens[request] - 1 + kv_head  # of the group's head to which the last draft key is planted
    return kv_head, (turn + problem.group_size // 2) % problem.group_size


def _enlarge_logits(inputs: Inputs) -> None:
    """Multiplies the query of each request's large row, so that planted logits become `LARGE_LOGIT`.

    They become less over few keys, whose planted logits are small, if a query would be larger than `LARGEST_QUERY`.
    """
    p, found = inputs.problem, list[tuple[int, int, float]]()
    for request in range(p.batch_size):
        if place := large_row(p, request):
            logit = before_cap(p, planted_logit(p, p.kv_lens[request], drawn_scale(p)))
            found.append((inputs.queries(request).stop - 1, place[0] * p.group_size + place[1], LARGE_LOGIT / logit))
    if found:
        rows, heads, factors = (torch.tensor(one).to(inputs.device, non_blocking=True) for one in zip(*found, strict=True))
        q = bits(inputs.q)[rows, heads].view(inputs.q.dtype).float()  # [n, D]
        drawn = without_shift(p, q)
        factor = (LARGEST_QUERY / drawn.abs().amax(-1)).minimum(factors.to(q.dtype))
        bits(inputs.q)[rows, heads] = bits((drawn * factor[:, None] + (q - drawn)).to(inputs.q.dtype))


def planted_positions(start: int, stop: int, n: int, capacity: int, heads: int) -> tuple[list[int], int]:
    """Keys of [start, stop) to plant, in pages of n keys, and how many of them are at edges of pages. At most `capacity` in all.

    Keys inside of pages follow where rows bear both edges of every page. They are so many that the KV heads can plant all in turns,
    each no more than it would plant at edges alone: with more, its rows would tell less of all other keys. One head alone plants
    an eighth more.
    """
    edges = page_edges(start, stop, n, capacity)
    pages = -(-stop // n) - start // n
    room = min(capacity - len(edges), (heads - 1) * len(edges) or len(edges) // 8) if 2 * pages <= min(MAX_EDGES, capacity) else 0
    return sorted({*edges, *inner_keys(start, stop, n, room)}), len(edges)


def page_edges(start: int, stop: int, n: int, capacity: int) -> list[int]:
    """The first and the last key of [start, stop), and of its pages of n keys as many as `capacity` allows."""
    if stop <= start:
        return []
    capacity = min(MAX_EDGES, capacity)
    pages = -(-stop // n) - start // n
    if 2 * pages <= capacity:
        firsts = [start, *range((start // n + 1) * n, stop, n)]
        return sorted({*firsts, *(first - 1 for first in firsts[1:]), stop - 1})
    step = n * 2 ** math.ceil(math.log2(max(1.0, pages / capacity)))
    borders = range((start // step + 1) * step, stop, 2 * step)
    return sorted({start, stop - 1, *borders, *(border - 1 for border in borders)})


def inner_keys(start: int, stop: int, n: int, room: int) -> list[int]:
    """A key inside of every page of n keys of [start, stop), or of every 2, 4, 8, ... pages, at most `room`. Slots take turns."""
    pages = range(start // n, -(-stop // n))
    if n < 3 or not pages or (room := min(MAX_INSIDE, room)) < 1:
        return []
    step = 2 ** math.ceil(math.log2(max(1.0, len(pages) / room)))
    keys = [page * n + 1 + int(number * GOLDEN % 1 * (n - 2)) for number, page in enumerate(pages[::step], 1)]
    return [key for key in keys if start < key < stop - 1]
