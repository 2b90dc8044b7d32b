"""The pages: docs/findings.md, and one of docs/evidence for each finding that has long tables."""

from __future__ import annotations

from benchmarks.findings import (
    auto,
    cascade,
    decode,
    engines,
    fp8,
    groups,
    host,
    maximum,
    merging,
    mixed,
    mixed_mla,
    mla,
    padded,
    prefill,
    trees,
    verify,
)
from benchmarks.findings.frames import RESULTS
from benchmarks.findings.page import Finding
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

DOCS = RESULTS.parent / "docs"
QUESTIONS = (
    decode,
    fp8,
    engines,
    verify,
    groups,
    trees,
    mixed,
    mixed_mla,
    cascade,
    merging,
    padded,
    maximum,
    host,
    mla,
    prefill,
    auto,
)


def pages() -> dict[str, str]:
    """Text by name of the page under docs/."""
    found = [module.finding() for module in QUESTIONS]
    evidence = {f"evidence/{finding.name}.md": finding.long() for finding in found if finding.evidence}
    return {"findings.md": "\n\n".join((head(found), *(finding.short() for finding in found))) + "\n", **evidence}


def head(found: list[Finding]) -> str:
    names = sorted({name for finding in found for name in finding.datasets})
    cells, first = [], parquet.read(RESULTS / f"h200_{names[0]}").to_pandas().query("status == 'ok'").iloc[0]
    for name in names:
        table = parquet.read(RESULTS / f"h200_{name}").to_pandas()
        counts = table["status"].value_counts()
        runs, commits = (
            ", ".join(sorted(set(column)))
            for column in (table["run_id"], table["orchestrator_version"].str.rpartition("+g")[2].str[:12])
        )
        cells.append((f"`results/h200_{name}`", f"{counts['ok']:,}", f"{counts.get('unsupported', 0):,}", runs, commits))
    contents = "\n".join(f"- [{finding.question}](#{anchor(finding.question)})" for finding in found)
    datasets = markdown([Grid("datasets", ("dataset", "ok", "unsupported by rule", "run", "commit"), tuple(cells))])
    return f"""# What the sweeps found on an H200

Which attention kernel should you use on an H200, and what do the usual choices cost?
Each section has a short answer, a table, advice, and the command that shows it again.

{contents}

`python -m benchmarks.findings` computes every number on this page from the committed datasets, and a test fails if a number differs.
Measured on an {first["device_name"]}, driver {first["driver"]}, torch {first["torch_version"]}, flashinfer-python {first["flashinfer_version"]}.
The answer of every row was checked against an fp32 reference, through the CUDA graph that was timed.
Times are medians without the launch of the graph ([timing.md](timing.md)).
"Ahead by" is the distance between the fastest and the next.
Some sections were measured over dirty lines of the L2, the older setting, and say so at their end.
Other GPUs have no datasets yet; the same commands make them.
The [glossary](glossary.md) explains the words.

{datasets}"""


def anchor(heading: str) -> str:
    """The anchor that Markdown viewers give a heading."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
