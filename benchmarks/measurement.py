"""Tables of pages of docs/ (NAMES, below), computed from committed data.

python benchmarks/measurement.py [--check]    # --check writes nothing and ends with 1 where the page would change
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import pandas as pd

from orchestrator import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import (
    agreement,
    capped_steps,
    capture_seconds,
    captures,
    cold_code,
    fa3,
    false_alarms,
    in_step,
    instructions,
    l2_states,
    long_code,
    longest_steps,
    neighbours_table,
    power,
    power_everywhere,
    published_fa3,
    report_examples,
    step_profile,
    step_seconds,
    timing_advice,
    timing_cupti,
    timing_study,
    timing_study_all,
)
from benchmarks.rows import compute_dtype, frame_of, limit_of, records_of
from orchestrator import tables
from orchestrator.reporting import quality
from orchestrator.tables import Grid

NAMES = (
    "measurement",
    "evidence/measurement",
    "evidence/correctness",
    "flash_attention_3",
    "timing",
    "evidence/timing",
    "one_backend",
    "draft",
)
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in NAMES)
RESULTS = ROOT / "results"
OF_A_GPU = "h[12]00_*"  # the folders of committed datasets
MAIN = "h200_specdec_dirty"  # the main sweep of which docs/measurement.md speaks, over dirty lines
BESIDE = "h200_specdec_long_ctx"  # whose pairs were measured with it
L2_STATES = ROOT / "benchmarks" / "data" / "h200_l2_states.parquet"
CAPTURES = ROOT / "benchmarks" / "data" / "h100_captures.parquet"
STEP_PROFILE = ROOT / "benchmarks" / "data" / "h100_step_profile.parquet"
NEIGHBOURS = ROOT / "benchmarks" / "data" / "h100_neighbours.parquet"
CAPPED = ROOT / "benchmarks" / "data" / "h100_neighbours_64.parquet"
# Since then a row's own tolerance is today's. Move it if the formula changes.
OWN_TOLERANCE_SINCE = pd.Timestamp("2026-11-25 22:00", tz="UTC")
KERNEL = ["resolved_backend", "q_dtype", "kv_dtype", "out_dtype"]


def read(name: str) -> pd.DataFrame:
    return frame_of(RESULTS / name)


def judged_answers() -> pd.DataFrame:
    """Every committed row of a kernel whose answer was judged, with `limit`, today's tolerance of it.

    That is the row's own if it was written since the formula last changed. Otherwise it is that of a row whose values do not
    cancel, because what widens a row's is not known without its values (docs/tolerance.md).
    Rows that were a `mismatch` then are among them; those that a rule forbids and that failed when forced have another status.
    Rows of fp32 are left out: their errors are as small as the reference's, which is not part of `limit`.
    """
    folders = [folder for folder in sorted(RESULTS.glob(OF_A_GPU)) if not folder.name.endswith(("_noise", "_check_power"))]
    table = pd.concat([read(folder.name) for folder in folders])
    judged = table[table["status"].isin(["ok", "mismatch"]) & (table["q_dtype"] != "fp32")]
    least = pd.Series([limit_of(row) for row in records_of(judged)], index=judged.index)
    own = judged["tolerance"].where(judged["finished_at"] >= OWN_TOLERANCE_SINCE)
    return judged.assign(limit=own.fillna(least))


def tolerances() -> Grid:
    """By kernel and dtypes: the worst error on a GPU, today's tolerances, and the worst error in tolerances."""
    right = judged_answers()
    right = right[~right["resolved_backend"].str.contains(r"[+:]", regex=True)]  # two calls are judged like their parts
    right = right.assign(of_limit=right["rel_err"] / right["limit"])
    cells = []
    for (kernel, *dtypes), rows in right.groupby(KERNEL):
        least, most = f"{rows['limit'].min():.4f}", f"{rows['limit'].max():.4f}"
        limits = least if least == most else f"{least} – {most}"
        figures = (f"{len(rows):,}", f"{rows['rel_err'].max():.4f}", limits, f"{rows['of_limit'].max():.2f}")
        cells.append((kernel, ", ".join(dtypes), *figures))
    return Grid("", ("kernel", "queries, keys, output", "rows", "worst `rel_err`", "tolerance", "of it"), tuple(cells))


def mutants(card: str) -> Grid:
    """What became of kernels made wrong, by context and cache."""
    return quality.power_grids(read(f"{card}_specdec_long_ctx_check_power"))[0]


def noise() -> Grid:
    """|A'/A - 1| by how long a kernel takes, and the same between two runs."""
    pairs = read(f"{BESIDE}_noise")
    interleaved = quality.noise_grids(pairs)[0]
    key = ["group_id", "backend"]
    runs = [t[(t["status"] == "ok") & (t["twin"] == 0)].set_index(key) for t in (read(MAIN), pairs)]
    rel_diff = (runs[0]["median_us"] / runs[1]["median_us"] - 1).abs().dropna()
    where = "the same" if set(runs[0]["device_uuid"]) == set(runs[1]["device_uuid"]) else "another"
    between = (
        f"all, another run on {where} H200",
        str(len(rel_diff)),
        *(f"{rel_diff.quantile(q):.2%}" for q in (0.5, 0.95, 0.99, 1.0)),
    )
    return Grid("", interleaved.header, (*interleaved.cells, between))


def stops() -> Grid:
    """How the main sweep's points ended."""
    ok = read(MAIN).query("status == 'ok'")
    cells = []
    for reason, rows in sorted(ok.groupby("stop_reason"), key=lambda part: -len(part[1])):
        blocks = rows["block_sizes"].map(len)
        figures = (rows["num_samples"].median(), blocks.median(), rows["measure_s"].median() * 1e3)
        widest = f"{rows['ci95_rel'].max():.2%}"
        aside = int((rows["num_set_aside"] > 0).sum())
        cells.append((f"`{reason}`", str(len(rows)), *(f"{figure:.0f}" for figure in figures), widest, str(aside)))
    header = ("`stop_reason`", "points", "samples, median", "blocks", "ms", "widest `ci95_rel`", "with samples set aside")
    return Grid("", header, tuple(cells))


def spread() -> Grid:
    """How samples scatter: quantiles of the columns that say so, over the main sweep."""
    ok = read(MAIN).query("status == 'ok'")
    forms = {"within_block_rel": "{:.2%}", "between_blocks_rel": "{:.2%}", "ci95_rel": "{:.2%}", "lag1_autocorr": "{:.2f}"}
    quantiles = (0.05, 0.5, 0.95, 1.0)
    cells = [(f"`{name}`", *(form.format(ok[name].quantile(q)) for q in quantiles)) for name, form in forms.items()]
    cells.append(("`bimodal`", "", f"{int(ok['bimodal'].sum())} of {len(ok)}", "", ""))
    return Grid("", ("column", "5%", "median", "95%", "largest"), tuple(cells))


def ceilings() -> Grid:
    """What the main sweep's rows were compared with, and how near the best of each kernel came."""
    ok = read(MAIN).query("status == 'ok'")
    cells = []
    for (kernel, kv), rows in ok.groupby(["resolved_backend", "kv_dtype"]):
        best = rows.loc[rows["frac_of_peak"].idxmax()]
        shape = f"{best['batch_size']} × {best['s_kv']:,}, s_qo {best['s_qo']}"
        rates = (f"{best['tb_per_sec']:.2f}", f"{best['peak_tb_per_sec']:.2f}", f"{best['frac_of_peak']:.1%}")
        cells.append((str(kernel), str(kv), shape, *rates, f"{best['kv_read_amplification']:.2f}"))
    header = ("kernel", "keys", "where", "TB/s", "measured read ceiling", "`frac_of_peak`", "`kv_read_amplification`")
    return Grid("", header, tuple(cells))


def peaks() -> Grid:
    """The ceilings that committed rows were compared with, by device."""
    folders = [folder for folder in sorted(RESULTS.glob(OF_A_GPU)) if not folder.name.endswith("_check_power")]
    table = pd.concat([read(folder.name) for folder in folders])
    table = table[(table["status"] == "ok") & table["peak_tb_per_sec"].notna()]
    of_dtype = table.assign(dtype=[compute_dtype(row) for row in records_of(table)])
    cells = []
    for (name, uuid), rows in of_dtype.groupby(["device_name", "device_uuid"]):
        rates = [rows[rows["dtype"] == dtype]["peak_tflops"].median() for dtype in ("fp16", "bf16", "fp8_e4m3")]
        shown = ("–" if pd.isna(rate) else f"{rate:,.0f}" for rate in rates)
        cells.append((f"{str(name).split()[1]} {str(uuid)[:12]}", f"{rows['peak_tb_per_sec'].max():.2f}", *shown))
    return Grid("", ("device", "read, TB/s", "fp16, TFLOP/s", "bf16", "fp8_e4m3"), tuple(cells))


def bursts() -> Grid:
    """By its place in a block of ten: how far a sample lies from its row's median, at the median block. Of kernels under 100 µs."""
    rows = pd.concat([read(MAIN), read(f"{BESIDE}_noise")]).query("status == 'ok' and median_us < 100")
    kinds = rows.groupby(["resolved_backend", rows["s_qo"].gt(1).map({False: "1", True: "2 to 8"})])
    places, cells = (1, 2, 3, 5, 10), []
    for (kernel, s_qo), part in kinds:
        blocks = pd.DataFrame([block for row in part.to_dict("records") for block in _blocks_of_ten(row)])
        if len(blocks):
            cells.append((kernel, s_qo, str(len(blocks)), *(f"{blocks[place - 1].median():+.1%}" for place in places)))
    return Grid("", ("kernel", "s_qo", "blocks", *(f"sample {place}" for place in places)), tuple(cells))


def _blocks_of_ten(row: dict[Hashable, Any]) -> Iterator[list[float]]:
    ends = list(itertools.accumulate(row["block_sizes"]))
    rel_diff = [us / row["median_us"] - 1 for us in row["samples_us"]]
    yield from (rel_diff[end - 10 : end] for end, size in zip(ends, row["block_sizes"], strict=True) if size == 10)


TABLES: dict[str, Callable[[], Grid]] = {
    "pad_up": report_examples.pad_up,
    "one_backend": report_examples.answer,
    "draft": report_examples.drafts,
    "tolerances": tolerances,
    "mutants": partial(mutants, "h200"),
    "mutants_h100": partial(mutants, "h100"),
    "drawn": power.drawn,
    "drawn_h100": partial(power.drawn, "h100"),
    "false_alarms": false_alarms.table,
    "fa3_leads": fa3.leads,
    "fa3_plans": fa3.plans,
    "fa3_published": published_fa3.agreement,
    "fa3_published_builds": published_fa3.agreement_of_builds,
    "fa3_token_pages": published_fa3.token_pages,
    "reach": power.reach,
    "reach_of_sweeps": power_everywhere.of_sweeps,
    "once_passed": power_everywhere.faults,
    "noise": noise,
    "stops": stops,
    "spread": spread,
    "peaks": peaks,
    "ceilings": ceilings,
    "agreement": agreement.agreement,
    "outside": agreement.outside,
    "bursts": bursts,
    "instructions": instructions.table,
    "long_code": long_code.table,
    "cold_code": cold_code.costs,
    "l2_states": partial(l2_states.table, L2_STATES),
    "l2_differences": partial(l2_states.differences, L2_STATES),
    "study_settings": timing_study.settings,
    "study_lengths": timing_study.by_length,
    "study_kernels": timing_study.by_kernel,
    "study_choices": timing_study.other_choices,
    "study_dirty_choices": partial(timing_study.other_choices, "dirty"),
    "study_misses": timing_study.misses,
    "study_twins": timing_study.twins,
    "study_queries": timing_study.by_queries,
    "step_profile": partial(step_profile.neighbours, STEP_PROFILE),
    "neighbours": partial(neighbours_table.cost_by_variant, NEIGHBOURS),
    "neighbours_product": partial(neighbours_table.product_by_variant, NEIGHBOURS),
    "study_settings_h100": partial(timing_study.settings, card="h100"),
    "study_lengths_h100": partial(timing_study.by_length, card="h100"),
    "study_kernels_h100": partial(timing_study.by_kernel, card="h100"),
    "study_choices_h100": partial(timing_study.other_choices, card="h100"),
    "study_misses_h100": partial(timing_study.misses, card="h100"),
    "study_twins_h100": partial(timing_study.twins, card="h100"),
    "mla_in_step": lambda: in_step.table(read("h100_mla_in_step"), []),
    "study_all_settings": timing_study_all.settings,
    "study_all_one_card": timing_study_all.one_card,
    "study_advice": timing_advice.grid,
    "study_all_shapes": timing_study_all.by_shape,
    "study_all_kernels": timing_study_all.by_kernel,
    "study_all_choices": timing_study_all.other_choices,
    "study_all_misses": timing_study_all.misses,
    "study_all_settings_h200": partial(timing_study_all.settings, "h200"),
    "study_all_shared_h200": partial(timing_study_all.shared, "h200"),
    "study_all_cards_h200": timing_study_all.cards_apart,
    "study_all_shapes_h200": partial(timing_study_all.by_shape, "h200"),
    "study_all_kernels_h200": partial(timing_study_all.by_kernel, "h200"),
    "study_all_choices_h200": partial(timing_study_all.other_choices, "h200"),
    "study_all_misses_h200": partial(timing_study_all.misses, "h200"),
    "study_all_dirty_choices_h200": partial(timing_study_all.other_choices, "h200", "dirty, on another card"),
    "cupti_h200": timing_cupti.differences,
    "cupti_h200_choices": timing_cupti.choices,
    "step_seconds": step_seconds.table,
    "captures": partial(captures.table, CAPTURES),
    "capture_seconds": capture_seconds.table,
    "longest_steps": longest_steps.table,
    "capped_steps": lambda: capped_steps.table(CAPPED, read("h100_study_all_in_step")),
}


def filled(page: str) -> str:
    """The page with every table that has a place in it made again, between `<!-- NAME -->` and `<!-- /NAME -->`."""
    for name in re.findall(r"<!-- (\w+) -->", page):
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        body = "\n".join(_lines(TABLES[name]()))
        page = marks.sub(lambda found, body=body: f"{found[1]}{body}\n{found[2]}", page)  # type: ignore[misc]
    return page


def _lines(table: Grid) -> Iterator[str]:
    """A table without its title, or with it as a sentence."""
    if table.title:
        yield f"{table.title}:\n"
    yield tables.markdown([table]).partition("\n\n")[2]


if __name__ == "__main__":
    changed = False
    for path in PAGES:
        page = path.read_text()
        made = filled(page)
        changed |= made != page
        if "--check" not in sys.argv:
            path.write_text(made)
    sys.exit("--check" in sys.argv and changed)
