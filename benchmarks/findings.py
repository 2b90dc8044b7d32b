"""Writes docs/findings.md from the committed datasets: python benchmarks/findings.py > docs/findings.md

Every number of that page, in tables and in sentences, is computed here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import cold_code  # noqa: E402
from orchestrator.analysis.dataset import open_dataset  # noqa: E402
from orchestrator.analysis.names import of_references, shown  # noqa: E402
from orchestrator.analysis.questions import ask, crossover, q_len, regret, views_of  # noqa: E402
from orchestrator.storage import parquet  # noqa: E402
from orchestrator.tables import Grid, markdown  # noqa: E402

SWEEPS = (
    "specdec_long_ctx",
    "specdec_paged_decode",
    "xqa_specdec",
    "target_verify",
    "mla_mtp",
    "auto_routing",
    "ragged_prefill",
)
TREES = ("binary", "eagle_top4", "medusa_7b_63")


def rows(sweep: str) -> pd.DataFrame:
    """The `ok` rows of a committed dataset, with `kernel`: routine and backend."""
    table = open_dataset(ROOT / "results" / f"h200_{sweep}").current()
    ok = table[table["status"] == "ok"]
    short = ok["routine"].str.removeprefix("paged_")
    return ok.assign(kernel=short + " " + ok["backend"], group=ok["num_qo_heads"] // ok["num_kv_heads"])


def table_of(title: str, frame: pd.DataFrame, form: str = "{:,.1f}") -> str:
    """A pivoted frame as Markdown; nothing for what was not measured."""
    header = (
        *map(str, frame.index.names),
        *(f"{frame.columns.name} {c:,}" if isinstance(c, int) else named(c) for c in frame.columns),
    )
    cells = [
        (*map(named, at if isinstance(at, tuple) else (at,)), *("–" if pd.isna(v) else form.format(v) for v in values))
        for at, values in zip(frame.index, frame.to_numpy(), strict=True)
    ]
    return markdown([Grid(title, header, tuple(cells))])


def span(values: Iterable[float]) -> str:
    """`1.3 to 3.8`."""
    found = list(values)
    return f"{min(found):.2f} to {max(found):.2f}"


def of_best(ok: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Rows with `ratio`: time over the fastest kernel's of the same `key`. A reference that no engine can run is none of them."""
    able = ok[~ok["backend"].str.contains(of_references())]
    return able.assign(ratio=able["median_us"] / able.groupby(key, dropna=False)["median_us"].transform("min"))


def named(text: object) -> str:
    """A cell, with the library where it ends in a name that could be another library's."""
    rest, _, last = str(text).rpartition(" ")
    return f"{rest} {shown(last)}".strip()


def ratio_table(title: str, ok: pd.DataFrame, by: list[str]) -> str:
    cells = [
        (*map(named, keys), str(len(r)), f"{r.median():.2f}", f"{r.min():.2f}", f"{r.max():.2f}")
        for keys, r in ok.groupby(by, sort=True)["ratio"]
    ]
    return markdown([Grid(title, (*by, "points", "median", "least", "most"), tuple(cells))])


def head() -> str:
    cells = []
    for sweep in SWEEPS:
        table = parquet.read(ROOT / "results" / f"h200_{sweep}").to_pandas()
        counts = table["status"].value_counts()
        runs = ", ".join(sorted(table["run_id"].unique()))
        commit = ", ".join(sorted(v.rpartition("+g")[2] for v in table["orchestrator_version"].unique()))
        cells.append((f"`results/h200_{sweep}`", f"{counts['ok']:,}", f"{counts.get('unsupported', 0):,}", runs, commit))
    libraries = table[table["status"] == "ok"].iloc[0]
    grid = Grid("datasets", ("dataset", "ok", "unsupported by rule", "run", "commit"), tuple(cells))
    return f"""# What the sweeps found on an H200

Every number on this page is computed from the committed datasets by `python benchmarks/findings.py`; a test holds the page to them.
NVIDIA H200, driver {libraries["driver"]}, torch {libraries["torch_version"]}, flashinfer-python {libraries["flashinfer_version"]};
every row passed the fp32 oracle, through the very CUDA graph that was timed, over dirty lines in the L2 (`timing.l2=dirty`, [timing.md](timing.md)). No row of these datasets is a
`mismatch`, `failed`, `timeout` or `oom`. To run one again: `python -m orchestrator +sweep=NAME`; a single point: the `command` of its row.

{markdown([grid])}"""


def noise() -> str:
    ok = rows("target_verify")
    key = ["batch_size", "s_kv", "s_qo", "kv_dtype", "kv_layout", "page_order"]
    one, other = (ok[ok["kernel"] == kernel].set_index(key)["median_us"] for kernel in ("decode fa2_tc", "prefill fa2"))
    apart = (one / other - 1).abs().dropna()
    throttled = (ok["throttle_reasons"] != "none").mean()
    return f"""## How far two times of one kernel lie apart

`fa2_tc` (paged decode) and `fa2` (paged prefill) launch the same kernel. Over {len(apart)} problems of `target_verify` their medians
differ by {apart.median():.2%} at the median point, {apart.quantile(0.9):.1%} at the 90th percentile and {apart.max():.1%} at the worst; {throttled:.0%} of the points ended
with the GPU's power cap active. Where the tables below call two kernels `either`, they are within 2%; differences under that, and single
points that their neighbours do not bear out, are no finding."""


def verify() -> str:
    ok = rows("target_verify")
    usual = ok[(ok["kv_layout"] == "HND") & (ok["page_order"] == "random")]
    ratios = of_best(usual, ["batch_size", "s_kv", "s_qo", "kv_dtype"])
    grids = crossover.grids(views_of(usual))
    layout = ok[(ok["batch_size"] == 8) & (ok["s_kv"] == 50000) & (ok["s_qo"] == 4) & (ok["kv_dtype"] == "bf16")]
    layout = layout.assign(pages=layout["kv_layout"] + " " + layout["page_order"])
    by_layout = layout.pivot_table(index="kernel", columns="pages", values="median_us").rename_axis(columns=None)
    spread = (by_layout.max(axis=1) / by_layout.min(axis=1) - 1).max()
    slow = ratios[ratios["resolved_backend"].isin(["fa3", "cudnn", "trtllm-fmha-v2"])]["ratio"]
    by_kernel = {
        kernel: part.set_index(["kv_dtype", "batch_size", "s_kv", "s_qo"])["median_us"] for kernel, part in usual.groupby("kernel")
    }
    xqa_over_fa2 = by_kernel["decode trtllm-native"] / by_kernel["prefill fa2"]
    few = xqa_over_fa2["bf16"][xqa_over_fa2["bf16"].index.get_level_values("s_qo") == 4]
    fp8 = xqa_over_fa2["fp8_e4m3"]
    batches = fp8[(fp8.index.get_level_values("batch_size") >= 8) & (fp8.index.get_level_values("s_qo") >= 4)]
    return f"""## Verify a draft with the decode kernel or with the prefill kernel? (`target_verify`)

With 16-bit caches it does not matter, as long as it is fa2: decode on tensor cores and prefill are one kernel. XQA's
time at s_qo 4, where a draft fills one tile of 32 rows, is {span(few)} of fa2's. What matters is what not to take: FlashInfer's fa3, cuDNN and FMHAv2
take {span(slow)} times as long as the best, and `auto` in paged prefill takes that fa3. With an FP8 cache XQA is the one to take in
batches: at batch 8 and 32 and s_qo 4 and more its time is {span(batches)} of fa2's; at s_qo 2 or batch 1 look into the table.

{ratio_table("time over the best kernel's of the same problem", ratios, ["kv_dtype", "kernel"])}

{markdown(grids)}

The physical layout, at 8 x 50,000, s_qo 4: no kernel changes by more than {spread:.1%} between head-major and token-major pages in random order or in
sequence.

{table_of("median µs by layout, batch 8, s_kv 50,000, s_qo 4, bf16", by_layout)}"""


def xqa() -> str:
    ok = rows("xqa_specdec")
    key = ["mask", "q_dtype", "kv_dtype", "batch_size", "s_kv", "s_qo"]
    wide = ok.pivot_table(index=key, columns="kernel", values="median_us")
    fa2 = wide[["decode fa2_tc", "prefill fa2"]].min(axis=1)
    ratio = (wide["decode trtllm-native"] / fa2).rename("ratio").reset_index()
    bf16 = ratio[ratio["q_dtype"] == "bf16"]
    shown = bf16.pivot_table(index=["mask", "kv_dtype", "batch_size", "s_kv"], columns="s_qo", values="ratio")
    tree_cost, xqa_cost = (
        (wide[kernel].xs("binary", level="mask") / wide[kernel].xs("causal", level="mask")).dropna()
        for kernel in ("prefill fa2", "decode trtllm-native")
    )
    paths = (
        ok[ok["backend"] == "trtllm-native"]
        .groupby(["kv_dtype", "s_qo"])["resolved_backend"]
        .first()
        .unstack()
        .rename_axis(columns="s_qo")
    )
    worst = ok[ok["backend"] == "trtllm-native"].groupby("resolved_backend")["rel_err"].max()
    half, fp8 = (ratio[(ratio["kv_dtype"] == "fp8_e4m3") == eight] for eight in (False, True))
    linear = half[half["mask"] == "causal"]
    one_tile, more = linear[linear["s_qo"] <= 4]["ratio"], linear[linear["s_qo"] >= 8]["ratio"]
    batches = fp8[(fp8["mask"] == "causal") & (fp8["batch_size"] == 16) & (fp8["s_qo"] >= 4)]["ratio"]
    full = (
        wide["decode trtllm-native"].xs("full", level="mask") / wide["decode trtllm-native"].xs("causal", level="mask")
    ).dropna()
    return f"""## Where does XQA's speculative path pay? (`xqa_specdec`)

Trees: a tree costs XQA {span(xqa_cost)} times what a causal draft of that length costs, and fa2, under its custom mask, {span(tree_cost)} times. Over trees XQA's
time is {span(half[half["mask"].isin(TREES)]["ratio"])} of fa2's with 16-bit caches and {span(fp8[fp8["mask"].isin(TREES)]["ratio"])} with FP8. Linear drafts over 16-bit caches: up to s_qo 4 at 8 heads a
KV head (32 rows, one tile) XQA takes {span(one_tile)} of fa2's time, from s_qo 8 on {span(more)} times as long. With FP8 caches and batches of 16 it
takes {span(batches)} of fa2's time from s_qo 4 on. A full mask costs {span(full)} times what a causal one does.

{table_of("XQA's time over fa2's (the faster of decode and prefill), bf16 queries; under 1, XQA is ahead", shown, "{:.2f}")}

Which kernel served XQA, and how exact it is: worst row of the generic kernel {worst["xqa"]:.4f} off, of the Hopper FP8 kernel
{worst["xqa_hopper_fp8"]:.4f} (it rounds queries and probabilities to 8 bits).

{table_of("XQA's kernel path by cache and s_qo, 8 heads a KV head", paths, "{}")}"""


def decode() -> str:
    ok = rows("specdec_paged_decode")
    causal = ok[(ok["mask"] == "causal") & (ok["seq_lens"] == "fixed") & ok["min_s_qo"].isna()]
    backends = causal[causal["page_size"] == 64].pivot_table(index=["group", "s_qo"], columns="backend", values="median_us")
    pages = causal[causal["group"] == 8].pivot_table(index=["backend", "s_qo"], columns="page_size", values="median_us")
    tc, cudnn = backends["fa2_tc"], backends["cudnn"] / backends["fa2_tc"]
    single = cudnn.xs(1, level="s_qo")
    drafts = cudnn[(cudnn.index.get_level_values("s_qo") > 1) & (cudnn.index.get_level_values("group") > 1)]
    cuda_cores = backends.loc[(16, 1), "fa2"] / backends.loc[(16, 1), "fa2_tc"]
    paging = pages.div(pages[64], axis=0)
    small_xqa = paging.loc["trtllm-native"][[16, 32]].stack()
    cudnn_drafts, tc_pages = paging.loc["cudnn"][1].drop(1), paging.loc["fa2_tc"][1]
    return f"""## How fast is each decode backend at s_qo 1 to 16? (`specdec_paged_decode`: batch 16, s_kv 8,192, bf16)

A draft costs little until its rows (s_qo times query heads a KV head) fill tiles of their own: `fa2_tc` at 8 heads takes
{tc[8, 4] / tc[8, 1]:.2f} times its single-token time at s_qo 4 and {
        tc[8, 16] / tc[8, 1]:.2f} at 16; XQA is flat up to 32 rows and steps up with each further tile of 32. `fa2` on
CUDA cores reads the cache once for one query head: at 16 heads it is {
        cuda_cores:.1f} times slower than on tensor cores. cuDNN is the fastest at s_qo 1
({span(single)} of fa2_tc) and takes {
        span(drafts)
    } times as long with drafts over grouped heads. Only XQA serves full masks and drafts of
different lengths.

{table_of("median µs at page_size 64, by query heads a KV head", backends)}

Against pages of 64 tokens, at 8 heads: XQA takes {span(small_xqa)} times as long at pages of 16 and 32, cuDNN {
        span(cudnn_drafts)
    } times at pages of 1
with drafts, `fa2_tc` {span(tc_pages)} times at pages of 1.

{table_of("median µs by page size, 8 heads a KV head", pages)}"""


def mla() -> str:
    ok = rows("mla_mtp")
    key = ["num_qo_heads", "kv_dtype", "batch_size", "s_kv", "s_qo"]
    ratios = of_best(ok[ok["backend"] != "auto"], key)
    fa2 = ratios[ratios["backend"] == "fa2"]
    data = views_of(ok)
    calls = markdown(q_len.measure_grids(data, "gain"))
    fp8 = ok[ok["backend"] == "fa3"].pivot_table(
        index=["num_qo_heads", "batch_size", "s_kv", "s_qo"], columns="kv_dtype", values="median_us"
    )
    slower = fp8["fp8_e4m3"] / fp8["bf16"]
    best_call = ask(data, "q_len").df().dropna(subset="gain")
    by_heads = {heads: span(part["gain"]) for heads, part in best_call.groupby("num_qo_heads")}
    fa3 = ratios[ratios["backend"] == "fa3"]
    return f"""## DeepSeek MLA with MTP: one spec-as-decode call, or query length 1? (`mla_mtp`)

One call, the more so the fewer heads a GPU holds: it is {by_heads[16]} times faster than the tokens taken apart with 16 heads (TP 8), {by_heads[32]}
with 32, {by_heads[64]} with 64 and {by_heads[128]} with 128. FlashInfer's fa3 is the kernel for a bf16 latent (fa2 takes {span(fa2[fa2["kv_dtype"] == "bf16"]["ratio"])} times the best). With an
FP8 latent fa2 takes {span(fa2[fa2["kv_dtype"] == "fp8_e4m3"]["ratio"])} times the best and fa3 {span(fa3[fa3["kv_dtype"] == "fp8_e4m3"]["ratio"])}; but an FP8 latent does not pay on this GPU: fa3 over it takes
{span(slower)} times as long as over a bf16 one, since its kernels repack it to 16 bits before they multiply.

{ratio_table("time over the faster of fa2 and fa3", ratios, ["kv_dtype", "s_kv", "backend"])}

{calls}"""


def auto() -> str:
    summary, worst = regret.grids(views_of(rows("auto_routing")))
    short = Grid(worst.title, worst.header[:-1], tuple(cells[:-1] for cells in worst.cells))
    return f"""## Does `auto` pick the fastest backend? (`auto_routing`)

For MLA over a bf16 latent always, for prompts nearly. In paged prefill with the few query tokens of a draft over a 16-bit cache never: it takes fa3.
In paged decode it takes fa2 on tensor cores where XQA or cuDNN is faster, and with FP8 queries fa3 where fa2 on CUDA cores is.

{markdown([summary, short])}"""


def ragged() -> str:
    ok = rows("ragged_prefill")
    ok = ok.assign(
        prompt=ok["s_qo"].map("{:,}".format) + " of " + ok["s_kv"].map("{:,}".format),
        head_dims=ok["head_dim_qk"].astype(str) + "/" + ok["head_dim_vo"].astype(str),
    )
    key = ["head_dims", "q_dtype", "mask", "batch_size", "s_kv", "s_qo", "prompt"]
    rate = ok.pivot_table(index=key, columns="backend", values="tflops").droplevel(["s_kv", "s_qo"])
    return f"""## The prompt itself (`ragged_prefill`)

TFLOP/s of each backend over prompts and chunks of them. `trtllm-fmha-v2` serves whole prompts alone without pages: a chunk of a prompt is off
by the size of the answer, and 192/128 leaves NaN; its rule says so, and both are this oracle's finding.

{table_of("TFLOP/s", rate, "{:,.0f}")}"""


def cold() -> str:
    times = cold_code.both()
    times["more"] = times["cold_us"] / times["warm_us"] - 1
    long = times["resolved_backend"].eq("xqa") | (times["resolved_backend"].eq("xqa_hopper_fp8") & times["s_qo"].eq(8))
    lost, others = times[long], times[~long & times["warm_us"].lt(cold_code.SHORT_US)]
    short = lost[lost["warm_us"] < cold_code.SHORT_US]
    table = cold_code.overtaken()
    return f"""## Does it matter what an engine runs between two calls? (`specdec_long_ctx`, `timing.icache=cold`)

For one kernel. Other kernels push its code out of the instruction caches; with 256 KB of other code before each call XQA's kernels of 94 KB of code and more
take {short["more"].min():.0%} to {short["more"].max():.0%} longer where they take less than {cold_code.SHORT_US} µs, {short["more"].median():.0%} at the median, and all others {others["more"].median():.1%}. At {len(table.cells)} of
{len(times.groupby(cold_code.PROBLEM))} problems another kernel is the fastest then, by more than 2%; [measurement.md](measurement.md#how-a-time-is-taken) has the rest.

{markdown([table])}"""


SECTIONS: tuple[Callable[[], str], ...] = (head, noise, decode, xqa, verify, mla, auto, ragged, cold)


def page() -> str:
    """`docs/findings.md`."""
    return "\n\n".join(section() for section in SECTIONS) + "\n"


if __name__ == "__main__":
    print(page(), end="")
