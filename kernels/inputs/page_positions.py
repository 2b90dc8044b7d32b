"""Where keys are planted in a context: at the edges of pages, since kernels split and tile there, and then inside of pages."""

from __future__ import annotations

import math

MAX_EDGES, MAX_INSIDE = 4096, 2048  # keys of one request
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples fall evenly between 0 and 1


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
