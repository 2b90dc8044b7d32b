"""A finding, and its two pages: a short answer on docs/findings.md, tables on a page of docs/evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from benchmarks.findings.frames import folder_of, states
from orchestrator.tables import Grid, markdown

LONGEST = 200  # characters of a line of prose
MAX_ROWS = 10  # of the table that begins a page of evidence, which must be read at once


@dataclass(frozen=True)
class Finding:
    """A question that a dataset answers.

    `name` is its page of evidence. `table` is what the answer is read from. `answer`, `advice` and `limits` are sentences with their figures, one a line.
    `in_readme` is the answer in one line of README's table; empty if it is not listed there.
    """

    name: str
    question: str
    answer: str
    table: Grid
    advice: str
    limits: str
    command: str
    datasets: tuple[str, ...]
    evidence: tuple[str, ...] = field(default=())
    in_readme: str = ""

    def short(self) -> str:
        """Its section of docs/findings.md."""
        dirty = [f"`{name}`" for name in self.datasets if "dirty" in states(name)]
        old = f"\nMeasured over [dirty lines](glossary.md), before `clean` became the default: {', '.join(dirty)}." if dirty else ""
        return f"""## {self.question}

{lines(self.answer)}

**So:** {lines(self.advice)}

**Limits:** {lines(self.limits)}{old}

`{self.command}`.
Tables: [evidence/{self.name}.md](evidence/{self.name}.md)."""

    def long(self) -> str:
        """Its page of docs/evidence. Raises ValueError if its first table is too long to be read at once."""
        if len(self.table.cells) > MAX_ROWS:
            raise ValueError(f"{self.name}: {len(self.table.cells)} rows; allowed: {MAX_ROWS}, and longer tables behind it")
        folders = [f"`results/{folder_of(name)}`" for name in self.datasets]
        made = f"Computed from {', '.join(folders)} by `python -m benchmarks.findings`."
        if len(made) > LONGEST:
            made = "\n".join(
                ("Computed by `python -m benchmarks.findings` from these:\n", *(f"- {folder}" for folder in folders), "")
            )
        return (
            "\n\n".join(
                (
                    f"# {self.question}",
                    f"{made}\n[findings.md](../findings.md) has the short answer, and [glossary.md](../glossary.md) explains the words.",
                    markdown([self.table]),
                    *self.evidence,
                )
            )
            + "\n"
        )


def lines(text: str) -> str:
    """One sentence a line, as in all Markdown of this project."""
    return re.sub(r"(?<=\.) (?=[A-Z`])", "\n", text)


def checked(sentence: str, *holds: bool) -> str:
    """A sentence that words alone make. Raises ValueError if what it says is no longer so, and the page is not written."""
    if not all(holds):
        raise ValueError(f"the datasets no longer say: {sentence}")
    return sentence
