"""results/README.md, from results/datasets.yaml and the rows; tools.docs writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from orchestrator.analysis import finder
from orchestrator.config.engine import MAX_DRAFT, selected
from orchestrator.config.model import CUSTOM

RESULTS = Path(__file__).resolve().parent.parent / "results"
REQUIREMENTS = RESULTS.parent / "requirements.txt"
VERSIONS = {"torch_version": "torch", "flashinfer_version": "flashinfer-python", "ray_version": "ray"}
COLUMNS = ("status", "device_name", "started_at", "device_uuid", "run_id", "command", *VERSIONS)
OF_SERVER = ("model", "tp", "kv_dtype", "s_qo", "batch_size", "s_kv", "routine", "backend", "twin", "engine", "engine_version")
QUICK = "timing=quick"
ORDER = ("ok", "unsupported", "mismatch", "skipped", "failed", "timeout", "oom")
ALIKE = "Rows of the same heads answer for these models."
BEGIN = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")


def page() -> str:
    asked: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load((RESULTS / "datasets.yaml").read_text())
    frames = {path: frame(path) for path in sorted(RESULTS.glob("h[12]00_*/*.parquet"))}  # others are the reader's own runs
    if wrong := {path.relative_to(RESULTS) for path in frames} ^ {Path(f, f"{n}.parquet") for f, of in asked.items() for n in of}:
        raise SystemExit(f"in results/ or in datasets.yaml, but not in both: {', '.join(sorted(map(str, wrong)))}")
    parts = [BEGIN, servers(frames)]
    for folder, datasets in asked.items():
        rows = {name: frames[RESULTS / folder / f"{name}.parquet"] for name in datasets}
        gpu = listed(value for of in rows.values() for value in of["device_name"])
        lines = "\n".join(line(name, told, rows[name]) for name, told in datasets.items())
        head = "|name|question|rows|day|command|\n|-|-|-|-|-|"
        parts.append(f"## {folder}\n\n{gpu}.\n\n{head}\n{lines}\n")
    return "\n".join([*parts, versions(frames)])


def servers(frames: dict[Path, pd.DataFrame]) -> str:
    """A table of the servers that rows are of: right points of decode and drafts of named models, none twice and none forced."""
    own_points = {path: rows for path, rows in frames.items() if not path.parent.name.endswith("_rules")}
    named = (rows.assign(dataset=f"{path.parent.name}/{path.stem}") for path, rows in own_points.items())
    rows = pd.concat([one[one["status"].eq("ok") & one["s_qo"].le(MAX_DRAFT) & ~one["twin"].gt(0)] for one in named])
    rows = rows[rows["model"].notna() & rows["model"].ne(CUSTOM)]
    calls = ((call, flag) for engine in selected() for flag in engine.flags for of in flag.calls.values() for call in of)
    own = {"/".join(call) for call, flag in calls if call.backend == flag.own_build}
    running = rows["engine"] + " " + rows["engine_version"]
    built = rows["backend"].where((rows["routine"] + "/" + rows["backend"]).isin(own))
    rows["build"] = running.where(rows["engine"].notna(), built)
    rows["model"] += rows["routine"].eq("gated_delta").map({True: ", gated_delta", False: ""})
    rows["drafts"], rows["GPU"] = rows["s_qo"] - 1, rows["device_name"].str.split().str[1]
    lines = []
    for (model, tp, gpu), one in rows.groupby(["model", "tp", "GPU"]):
        drafts = ", ".join(f"{count:.0f}" for count in sorted(one["drafts"].unique()))
        of, batch = sorted(one["dataset"].unique()), f"{one['batch_size'].min():.0f} to {one['batch_size'].max():.0f}"
        where = ", ".join(f"`{name}`" for name in of) if len(of) < 4 else f"{len(of)} datasets"
        of_server = (model, f"{tp:.0f}", gpu, listed(one["kv_dtype"]), drafts, batch)
        lines.append(f"|{'|'.join((*of_server, listed(one['build']) or '–', f'{len(one):,}', where))}|")
    head = "|model|TP|GPU|cache|drafted tokens|requests|engines' own builds|points|in|\n|-|-|-|-|-|-|-|-|-|"
    said = "## Servers measured\n\nOne GPU of a server has these heads; points of decode and drafts.\n"
    return "\n".join((said, head, *lines, "", most(rows), "", alike(), ""))


def most(rows: pd.DataFrame) -> str:
    """The batches, contexts and drafts that a third of these servers have, or more: others are at few."""
    axes, server = ["batch_size", "s_kv", "drafts"], ["model", "tp", "GPU"]
    counts = rows.drop_duplicates([*axes, *server]).groupby(axes).size()
    found = counts[counts >= len(rows.drop_duplicates(server)) / 3].reset_index()
    contexts = found.groupby("batch_size")["s_kv"].agg(lambda of: ", ".join(f"{size // 1024:.0f}k" for size in sorted(set(of))))
    batches = (f"batch {', '.join(f'{one:.0f}' for one in of.index)} at {kv}" for kv, of in contexts.groupby(contexts, sort=False))
    return f"Mostly measured: {', '.join(batches)}; drafts {', '.join(f'{count:.0f}' for count in sorted(set(found['drafts'])))}."


def alike() -> str:
    """A table of the models that rows of another name answer for, with the TP sizes on each kind of GPU."""
    found = pd.DataFrame(finder.served_alike(), columns=["model", "tp", "device"])
    found["GPU"] = found["device"].str.split().str[1]
    sizes = found.groupby(["model", "GPU"])["tp"].agg(lambda tps: ",".join(map(str, tps))).unstack(fill_value="–")
    head = f"|model|{'|'.join(f'TP, {gpu}' for gpu in sizes)}|\n|-|{'-|' * len(sizes.columns)}"
    return "\n".join((ALIKE, "", head, *(f"|{'|'.join((str(model), *of))}|" for model, *of in sizes.itertuples())))


def frame(path: Path) -> pd.DataFrame:
    """The columns of a dataset that the page reads; those of a later version are null."""
    return pd.read_parquet(path).reindex(columns=[*COLUMNS, *OF_SERVER])


def line(name: str, told: dict[str, Any], rows: pd.DataFrame) -> str:
    """A line of the page. Raises SystemExit if rows are of the ten samples of timing=quick, and the command does not say so."""
    if rows["command"].str.contains(QUICK).any() and QUICK not in told["command"]:
        raise SystemExit(f"{name}: its rows were measured with {QUICK}; say so in its command in datasets.yaml")
    counts = ", ".join(f"{(rows['status'] == status).sum():,} {status}" for status in sorted(set(rows["status"]), key=ORDER.index))
    days = listed(rows["started_at"].dt.strftime("%Y-%m-%d"))
    later = f" Not measured: `{told['not_measured']}`.".replace("'", "") if "not_measured" in told else ""
    cells = (f"`{name}`", told["asks"] + later, counts, days, f"`{told['command']}`")
    return f"|{'|'.join(cells)}|"


def versions(frames: dict[Path, pd.DataFrame]) -> str:
    """A table of the versions in rows that are not those of requirements.txt."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE))
    where: dict[tuple[str, str], list[str]] = {}
    for path, rows in frames.items():
        for column, package in VERSIONS.items():
            for version in rows[column].dropna().unique():
                if version != pinned[package]:
                    where.setdefault((package, version), []).append(f"`{path.parent.name}/{path.stem}`")
    lines = (
        f"|{package}|{version}|{pinned[package]}|{', '.join(names) if len(names) < 4 else f'{len(names)} datasets'}|"
        for (package, version), names in sorted(where.items())
    )
    said = "Rows were measured with these versions, where `requirements.txt` pins others."
    return f"## Other versions\n\n{said}\n\n|package|measured|pinned|in|\n|-|-|-|-|\n" + "\n".join(lines) + "\n"


def listed(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values if not pd.isna(value)}))
