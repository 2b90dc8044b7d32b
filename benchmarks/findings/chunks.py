"""A long context in one call, or in chunks that are merged."""

from __future__ import annotations

import pandas as pd

from benchmarks.findings.frames import folder_of, grid_of, rows, span, table_of
from benchmarks.findings.page import Finding, checked
from kernels.problem import batch_spec

SWEEP = "chunked_prefill"
KEY = ["heads", "requests"]
IN_ONE, CHUNKED = ["fa3", "cudnn", "fa2"], ["fa3_chunks", "fa2_chunks", "fa2_chunks_8k"]
LONG = "q512s64k_3q512s1k"  # one long context beside three short ones
COLUMNS = {"own_us_one": "one call, µs", "own_us": "chunks, µs", "copy_us": "copy at peak rate, µs",
           "ratio": "chunks over one call", "rest": "without the copy over one call"}  # fmt: skip


def finding() -> Finding:
    ok = rows(SWEEP)
    lens = [lengths(row) for row in ok.to_dict("records")]
    ok = ok.assign(
        heads=ok["num_qo_heads"],
        requests=[batch_spec.name(each) for each in lens],
        tokens=[sum(kv for _, kv in each) for each in lens],
    )
    wide = ok.pivot_table(index=[*KEY, "return_lse"], columns="backend", values="own_us")
    plain, lse = (wide.xs(written, level="return_lse") for written in (False, True))
    parts = in_chunks(ok[~ok["return_lse"].astype(bool)])
    fa2, fa3, small = (parts[parts["backend"] == name] for name in ("fa2_chunks", "fa3_chunks", "fa2_chunks_8k"))
    large, most = pd.concat([fa2, fa3]), small.loc[small["rel_err"].idxmax()]
    many, few = (ok[(ok["requests"] == LONG) & (ok["heads"] == heads)].iloc[0] for heads in (128, 16))
    work, time = few["flops"] / many["flops"], plain.loc[16][["fa3", "fa2"]] / plain.loc[128][["fa3", "fa2"]]
    others = time.drop(index=LONG).stack()
    return Finding(
        name="chunked_prefill",
        question="A long context in one call, or in chunks that are merged?",
        answer=checked("One call is faster than chunks of the same kernel, at every shape.", bool((parts["ratio"] > 1).all()))
        + f" With a workspace of 64k tokens, chunks take {span(fa3['ratio'])} times as long as one call of fa3, and {span(fa2['ratio'])} times as"
        " long as one call of fa2.\n"
        + checked(f"Much of it is the copy of keys and values into the workspace: at the memory's peak rate, it takes {span(large['share'], '{:.0%}')} of the"
        f" added time. Without that time, chunks take {span(large['rest'])} times as long as one call.", large["share"].min() > 0.5)
        + f"\nA workspace of 8k tokens takes {span((plain['fa2_chunks_8k'] / plain['fa2_chunks']).dropna())} times as long as one of 64k.\n"
        + checked(f"Few heads slow down one long context with few query tokens: with 16 heads, `{LONG}` has {work:.3f} of the FLOPs of 128 heads, but one"
        f" call takes {time.loc[LONG, 'fa3']:.2f} of the time with fa3 and {time.loc[LONG, 'fa2']:.2f} with fa2. The other shapes take {span(others)}.",
        time.loc[LONG].min() > 1.2 * work, others.max() < 1.2 * work),
        table=grid_of("µs by heads and requests (batch spec)", plain[[*IN_ONE, *CHUNKED]], "{:,.0f}"),
        advice=f"use one call of fa3 if its keys and values fit into memory: of `{LONG}` they take {many['tokens'] * token_bytes(many) / 1e9:.1f} GB with 128"
        f" heads, and {few['tokens'] * token_bytes(few) / 1e9:.1f} GB with 16. Otherwise use large chunks and fa3: its chunks take"
        f" {span(plain['fa3_chunks'] / plain['fa2'])} times as long as one call of fa2.",
        limits="keys and values are given, and chunks copy all of them. An engine computes those of the context from the latent instead, which no time here"
        " includes. Most times of chunks are rough, known to about 5%."
        f" Chunks of fa3 ran at {span(fa3['mhz'] / fa3['mhz_one'])} times the SM clock of its one call, and no time is corrected for that."
        f" Every merge rounds the output once more: the error is {most['rel_err']:.2%} of a row's size after {most['calls'] - 1} merges, and at most"
        f" {ok[ok['backend'].isin(IN_ONE)]['rel_err'].max():.2%} in one call. Why 16 heads take so long was not examined; they may be too few tiles for all SMs.",
        command=f"python -m orchestrator +sweep={SWEEP} mode=report results.path=results/{folder_of(SWEEP)}",
        datasets=(SWEEP,),
        evidence=(
            table_of("chunks against one call of the same kernel", parts.set_index([*KEY, "backend", "calls"]).sort_index()[[*COLUMNS]].rename(columns=COLUMNS), "{:,.2f}"),
            table_of("TFLOP/s", ok[~ok["return_lse"].astype(bool)].pivot_table(index=KEY, columns="backend", values="tflops"), "{:,.0f}"),
            table_of("time with the log-sum-exp written over the time without", (lse / plain)[IN_ONE], "{:.3f}"),
        ),
    )  # fmt: skip


def lengths(row: dict[str, object]) -> tuple[tuple[int, int], ...]:
    """(query tokens, KV tokens) of each request."""
    equal = f"{row['batch_size']}q{row['s_qo']}s{row['s_kv']}"
    return batch_spec.lengths(str(row["batch_spec"]) if pd.notna(row["batch_spec"]) else equal)


def token_bytes(row: pd.Series) -> int:
    """Of the bf16 keys and values of one token."""
    return int(row["num_kv_heads"] * (row["head_dim_qk"] + row["head_dim_vo"]) * 2)


def in_chunks(ok: pd.DataFrame) -> pd.DataFrame:
    """Chunked calls beside one call of their kernel, and the least time of their copy, which reads and writes each key and value."""
    ok = ok.assign(kernel=ok["backend"].str[:3], mhz=[float(pd.Series(found).median()) for found in ok["samples_mhz"]])
    one = ok[ok["backend"] == ok["kernel"]].set_index([*KEY, "kernel"])[["own_us", "mhz"]]
    made = ok[ok["backend"].isin(CHUNKED)].join(one, on=[*KEY, "kernel"], rsuffix="_one")
    copy = 2 * made["tokens"] * made.apply(token_bytes, axis=1) / made["peak_tb_per_sec"] / 1e6
    one_us, calls = made["own_us_one"], made["resolved_backend"].str.extract(r"over (\d+) parts")[0].astype(int)
    return made.assign(calls=calls, copy_us=copy, ratio=made["own_us"] / one_us, share=copy / (made["own_us"] - one_us),
                       rest=(made["own_us"] - copy) / one_us)  # fmt: skip
