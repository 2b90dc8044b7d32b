"""The page of a committed dataset, from its rows: python -m benchmarks.dataset_page FOLDER QUESTION COMMAND [NOTE] > FOLDER/_README.md"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from benchmarks.seconds_per_point import of_runs
from orchestrator.storage import parquet

VERSIONS = {"flashinfer_version": "flashinfer-python", "ray_version": "ray"}


def page(folder: Path, question: str, command: str, note: str = "") -> str:
    table = parquet.read(folder).to_pandas()
    ran = table[table["attempt"] > 0]
    counts = table["status"].value_counts()
    seconds = sum(run.wall_s for run in of_runs(str(folder)))
    statuses = ", ".join(f"{count:,} `{status}`" for status, count in counts.items() if status not in ("ok", "unsupported"))
    refused = f"{counts['unsupported']:,} `unsupported` with their reasons, " if "unsupported" in counts else ""
    capped = ran["throttle_reasons"].fillna("none").str.contains("SwPowerCap")
    parts, cards, runs = folder.name.partition("_")[2], ran["device_uuid"].nunique(), ran["run_id"].nunique()
    of_one_host = " of one host" if cards > 1 and runs == 1 else ""  # rows do not tell hosts apart, and a run has one here
    return f"""# {parts} on {one_of(ran["device_name"])}

{question}
{len(table):,} rows: {counts["ok"]:,} `ok`, {refused}{statuses or "no other status"}.

| | |
|---|---|
| command | `{command}` |
| run | {listed(f"`{run}`" for run in ran["run_id"])}, {listed(ran["started_at"].dt.strftime("%Y-%m-%d"))} UTC; {spans(runs)} {seconds:,.0f} s |
| machine | {"one" if cards == 1 else cards} {one_of(ran["device_name"])}{of_one_host}, driver {listed(ran["driver"])} |
| versions | torch {listed(ran["torch_version"])} (CUDA {listed(ran["cuda"])}), {libraries(ran)}, this project at commit {commits(ran)} |
| samples | {listed(ran["timer"])}, L2 {listed(ran["l2"])} |
| per point | {seconds / len(ran):.3f} s of wall time (`python benchmarks/seconds_per_point.py {folder}`) |

Nobody changed the GPU's clocks. {int(capped.sum())} of the {len(ran):,} points met the power cap (`throttle_reasons`).
{note or f"`python -m orchestrator mode=report results.path={folder}` prints its tables, and `docs/findings.md` explains them."}
"""


def spans(runs: int) -> str:
    return "from the first point to the last" if runs == 1 else "from the first point of each run to its last, in all"


def listed(values) -> str:
    return ", ".join(sorted({str(value) for value in values if not pd.isna(value)}))


def one_of(values) -> str:
    (value,) = {value for value in values if not pd.isna(value)}
    return str(value)


def commits(ran: pd.DataFrame) -> str:
    return listed(version.rpartition("+g")[2][:12] for version in ran["orchestrator_version"])


def libraries(ran: pd.DataFrame) -> str:
    named = {part for cell in ran["libraries"].dropna() for part in cell.split(", ")} if "libraries" in ran else set()
    named |= {f"{package} {version}" for column, package in VERSIONS.items() for version in ran[column].dropna().unique()}
    return listed(name for name in named if not name.startswith("torch "))


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    print(page(Path(folder), *words), end="")
