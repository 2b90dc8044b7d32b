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
    mixed,
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
QUESTIONS = (decode, fp8, engines, verify, groups, trees, mixed, cascade, padded, maximum, host, mla, prefill, auto)


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

{contents}

Every number on this page is computed from the committed datasets by `python -m benchmarks.findings`; a test holds the page to them.
{first["device_name"]}, driver {first["driver"]}, torch {first["torch_version"]}, flashinfer-python {first["flashinfer_version"]}.
Every row passed the check against an fp32 reference, through the CUDA graph that was timed.
Times are medians without the launch of the graph ([timing.md](timing.md)).
Sections say so if their times are from before the L2 held clean lines.
Other GPUs have no datasets yet: the same commands make them.

{datasets}"""


def anchor(heading: str) -> str:
    """The anchor that Markdown viewers give a heading."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
