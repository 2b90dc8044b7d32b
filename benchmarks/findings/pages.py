"""The pages: docs/findings.md, of docs/evidence one for each finding and one of the datasets, and a table of README."""

from __future__ import annotations

from benchmarks.findings import (
    auto,
    bisects,
    builds,
    cards,
    cascade,
    chunks,
    decode,
    engine_kernels,
    engines,
    fp8,
    groups,
    host,
    joules,
    maximum,
    merging,
    mixed,
    mixed_mla,
    mla,
    mla_engines,
    padded,
    prefill,
    routing,
    sharded,
    sinks,
    sinks_on_h100,
    sustained_load,
    torch_release,
    trees,
    upgrade,
    verify,
)
from benchmarks.findings.frames import RESULTS, folder_of
from benchmarks.findings.page import Finding
from orchestrator.storage import parquet
from orchestrator.tables import Grid, markdown

ROOT = RESULTS.parent
README, BEGIN, END = "README.md", "<!-- findings -->\n", "<!-- /findings -->\n"
QUESTIONS = (
    decode,
    sustained_load,
    cards,
    sharded,
    fp8,
    engines,
    engine_kernels,
    builds,
    verify,
    sinks,
    sinks_on_h100,
    groups,
    trees,
    mixed,
    mixed_mla,
    cascade,
    merging,
    chunks,
    padded,
    maximum,
    host,
    joules,
    mla,
    mla_engines,
    prefill,
    auto,
    upgrade,
    torch_release,
    routing,
    bisects,
)


def pages() -> dict[str, str]:
    """Text by the path of the page."""
    found = [module.finding() for module in QUESTIONS]
    evidence = {f"docs/evidence/{finding.name}.md": finding.long() for finding in found}
    text = "\n\n".join((head(found), *(finding.short() for finding in found))) + "\n"
    return {README: readme(found), "docs/findings.md": text, "docs/evidence/datasets.md": datasets(found), **evidence}


def readme(found: list[Finding]) -> str:
    """README with its table of findings."""
    before, _, rest = (ROOT / README).read_text().partition(BEGIN)
    lines = [f"| [{one.question}](docs/findings.md#{anchor(one.question)}) | {one.in_readme} |" for one in found if one.in_readme]
    return before + BEGIN + "\n".join(("| question | answer |", "|---|---|", *lines, "")) + END + rest.partition(END)[2]


def datasets(found: list[Finding]) -> str:
    """The page that lists the datasets of the findings."""
    names = sorted({folder_of(name) for finding in found for name in finding.datasets})
    cells = []
    for name in names:
        table = parquet.read(RESULTS / name).to_pandas()
        counts = table["status"].value_counts()
        runs, commits = (
            ", ".join(sorted(set(column)))
            for column in (table["run_id"], table["orchestrator_version"].str.rpartition("+g")[2].str[:12])
        )
        cells.append((f"`results/{name}`", f"{counts['ok']:,}", f"{counts.get('unsupported', 0):,}", runs, commits))
    table = markdown([Grid("datasets", ("dataset", "ok", "unsupported by rule", "run", "commit"), tuple(cells))])
    return f"""# Which datasets are the findings from?

Listed by `python -m benchmarks.findings`.
[findings.md](../findings.md) has the answers, and [results/README.md](../../results/README.md) has the question and the command of each dataset.

{table}
"""


def head(found: list[Finding]) -> str:
    contents = "\n".join(f"- [{finding.question}](#{anchor(finding.question)})" for finding in found)
    return f"""# What the sweeps found on an H200 and an H100

Which attention kernel should you use on an H200 or an H100, and what do the usual choices cost?
Each section has a short answer, advice, what limits it, and the command that shows it again.
The tables are on the pages that the sections name.

{contents}

`python -m benchmarks.findings` computes every number on this page from the committed datasets, and a test fails if a number differs.
Measured on H200s and H100s; [evidence/datasets.md](evidence/datasets.md) lists the datasets, and [results/README.md](../results/README.md) names their versions.
The answer of every row was checked against an fp32 reference, through the CUDA graph that was timed.
Times are medians without the launch of the graph ([timing.md](timing.md)), if a table does not say otherwise.
If a section does not name the card, it is about an H200; [one section](#{anchor(cards.QUESTION)}) compares it with an H100.
The [glossary](glossary.md) explains the words."""


def anchor(heading: str) -> str:
    """The anchor that Markdown viewers give a heading."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
