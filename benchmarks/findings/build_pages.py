"""FlashAttention-3's builds by page size and page order, and for chunks of prompts, on an H100 and on an H200."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import FA3, SAME, rows, span, steady, table_of
from benchmarks.findings.page import checked

CARDS = ("H100", "H200")
BUILDS = {card: f"{card.lower()}_engines/engine_builds" for card in CARDS}
CHUNKS = {"H100": BUILDS["H100"], "H200": "h200_prefill/engine_prefill"}
VLLM, SGLANG = f"{FA3}_vllm", f"{FA3}_sglang"
OF_ALL = (FA3, VLLM, SGLANG)
PAGE = ["kv_dtype", "batch_size", "s_kv", "page_order"]
CHUNK = ["batch_size", "s_qo", "s_kv"]
BF16, FP8 = "bf16", "fp8_e4m3"
MANY = 8  # requests


def over_first(us: pd.DataFrame) -> pd.DataFrame:
    """Each build's time over `tokenspeed-fa3`'s."""
    return us.div(us[FA3], axis=0).drop(columns=FA3)


def many_of(part: pd.DataFrame) -> pd.DataFrame:
    return part[part.index.get_level_values("batch_size") >= MANY]


def page_times(card: str) -> pd.DataFrame:
    """µs of one query token by build, over pages of 1 and of 64 tokens."""
    ok = rows(BUILDS[card])
    paged = ok[(ok["routine"] == "paged_decode") & ok["backend"].isin(OF_ALL) & (ok["s_qo"] == 1)]
    return paged.pivot_table(index=[*PAGE, "page_size"], columns="backend", values="own_us")


def page_costs(card: str) -> pd.DataFrame:
    """Time with pages of one token over that with pages of 64, in the same order."""
    us = page_times(card)
    return us.xs(1, level="page_size") / us.xs(64, level="page_size")


def order_costs(card: str) -> pd.DataFrame:
    """Time with pages in random order over that with pages in sequence."""
    us = page_times(card)
    return us.xs("random", level="page_order") / us.xs("sequential", level="page_order")


def best_costs(card: str) -> pd.Series:
    """Over an FP8 cache, from `MANY` requests on: the fastest build with pages of one token over the fastest with pages of 64."""
    best = many_of(page_times(card)).loc[FP8].min(axis=1)
    return best.xs(1, level="page_size") / best.xs(64, level="page_size")


def beside_first(card: str, page_size: int) -> pd.DataFrame:
    """Over an FP8 cache, from `MANY` requests on: each build over `tokenspeed-fa3`'s, with pages of one size."""
    return many_of(over_first(page_times(card)).xs(page_size, level="page_size")).loc[FP8]


def of_pages() -> str:
    """What pages of one token cost beside pages of 64, and what they leave of the builds' differences, on both cards."""
    costs = {card: many_of(page_costs(card)) for card in CARDS}
    bf16, fp8 = ({card: cost.loc[kv] for card, cost in costs.items()} for kv in (BF16, FP8))
    small, large = ({card: beside_first(card, size) for card in CARDS} for size in (1, 64))
    return "\n".join(
        (
            checked(
                f"Pages of one token, as SGLang has them, take {of_cards({card: bf16[card].stack() for card in CARDS})} times as long as pages of 64 in bf16, from {MANY} requests on, over all three builds.",
                *(part.max().max() < 1.06 for part in bf16.values()),
            ),
            checked(
                "In FP8 they cost more, and most in SGLang's build.",
                *(bool((part[SGLANG] > part[VLLM]).all() and (part[VLLM] > part[FA3]).all()) for part in fp8.values()),
                *(part.min().min() > 1.1 for part in fp8.values()),
            ),
            *(f"{name} takes {of_cards({card: fp8[card][build] for card in CARDS})} times as long there." for build, name in NAMES.items()),
            checked(
                f"So with pages of one token SGLang's build loses its lead over an FP8 cache.\nIt takes {of_cards({card: small[card][SGLANG] for card in CARDS})} times the time of `tokenspeed-fa3`'s,"
                f" and with pages of 64 {of_cards({card: large[card][SGLANG] for card in CARDS})} times.",
                small["H200"][SGLANG].median() > 1 - SAME > large["H200"][SGLANG].max(),
                small["H100"][SGLANG].median() > 1 > large["H100"][SGLANG].max(),
            ),
            f"vLLM's takes {of_cards({card: small[card][VLLM] for card in CARDS})} times with pages of one, and {of_cards({card: large[card][VLLM] for card in CARDS})} times with pages of 64.",
            of_order(),
        )
    )  # fmt: skip


NAMES = {FA3: "`tokenspeed-fa3`'s build", VLLM: "vLLM's", SGLANG: "SGLang's"}


def of_order() -> str:
    """What a random order of pages costs."""
    small, large = ({card: many_of(order_costs(card).xs(size, level="page_size")).stack() for card in CARDS} for size in (1, 64))
    return checked(
        f"Pages in random order take {of_cards(small)} times as long as in sequence if they hold one token, and {of_cards(large)} times if they hold 64.",
        *(found.max() < 1.05 for found in (*small.values(), *large.values())),
    )


def of_cards(found: dict[str, pd.Series]) -> str:
    """`1.00 to 1.10 (H100) and 0.90 to 1.00 (H200)`."""
    return " and ".join(f"{span(values)} ({card})" for card, values in found.items())


def advice() -> str:
    costs = {card: best_costs(card) for card in CARDS}
    return checked(
        f"Over an FP8 cache give pages more than one token: from {MANY} requests on the fastest build takes {of_cards(costs)} times as long over pages of one as over pages of 64.",
        *(cost.min() > 1.15 for cost in costs.values()),
    )


def chunk_rows(card: str) -> pd.DataFrame:
    """Chunks of prompts in pages whose clocks the power cap did not hold down."""
    return steady(rows(CHUNKS[card]).query("routine == 'paged_prefill'"), CHUNK)


def chunk_times(card: str) -> pd.DataFrame:
    return chunk_rows(card).pivot_table(index=CHUNK, columns="backend", values="own_us")


def of_chunks() -> str:
    chunks = {card: over_first(chunk_times(card)) for card in CARDS}
    counts = " and ".join(f"{len(chunks[card])} ({card})" for card in CARDS)
    return checked(
        f"For chunks of prompts vLLM's build is the fastest on both cards.\nIt takes {of_cards({card: found[VLLM] for card, found in chunks.items()})} times, and SGLang's"
        f" {of_cards({card: found[SGLANG] for card, found in chunks.items()})} times.\nThat is over {counts} shapes, at which the power cap did not hold the clocks down.",
        *(bool((found[VLLM] < found[SGLANG]).all()) for found in chunks.values()),
        *(found[VLLM].max() < 1 for found in chunks.values()),
    )


def capped() -> int:
    """How many points of chunks met the power cap, of FlashAttention-3's builds."""
    ok = pd.concat([rows(name).query("routine == 'paged_prefill' and backend in @OF_ALL") for name in CHUNKS.values()])
    return int(ok["throttle_reasons"].fillna("none").str.contains("SwPowerCap").sum())


def two_h200s(other: str) -> pd.DataFrame:
    """By point that both have: `ratio`, the time in `BUILDS` of the H200 over that in another dataset of an H200.

    `sharp`: whether the other was measured until its interval was narrow. Else it was stopped early, as certainly not the fastest.
    """
    here, there = (rows(name).set_index("point_id") for name in (BUILDS["H200"], other))
    both = here.join(there, rsuffix="_there", how="inner")
    return pd.DataFrame({"ratio": both["own_us"] / both["own_us_there"], "sharp": both["stop_reason_there"] == "ci95"})


def evidence() -> tuple[str, ...]:
    tables = [
        (
            table_of(f"µs by page size, one query token, {card}", page_times(card)),
            table_of(f"time with pages of one token over that with pages of 64, {card}", page_costs(card), "{:.2f}"),
            table_of(f"time with pages in random order over that in sequence, {card}", order_costs(card), "{:.2f}"),
            table_of(f"times {FA3}'s time, {card}", over_first(page_times(card)), "{:.2f}"),
            table_of(f"µs of chunks of prompts, bf16, pages of 64, {card}", chunk_times(card)),
        )
        for card in CARDS
    ]
    return tuple(table for of_card in tables for table in of_card)
