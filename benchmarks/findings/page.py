"""A finding, and its two pages: a short answer on docs/findings.md, tables on a page of docs/evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from benchmarks.findings.frames import states
from orchestrator.tables import Grid, markdown

MAX_ROWS = 5  # of a table on docs/findings.md; a longer one begins the page of evidence
MAX_ROWS_OF_EVIDENCE = 10  # of that one, which must be read at once


@dataclass(frozen=True)
class Finding:
    """A question that a dataset answers.

    `name` is its page of evidence. `table` is what the answer is read from. `answer`, `advice` and `limits` are sentences with their figures, one a line.
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

    def short(self) -> str:
        """Its section of docs/findings.md. Raises ValueError if its table is too long for any page."""
        if len(self.table.cells) > MAX_ROWS_OF_EVIDENCE:
            raise ValueError(f"{self.name}: {len(self.table.cells)} rows; its page has room for {MAX_ROWS_OF_EVIDENCE}")
        dirty = [f"`{name}`" for name in self.datasets if "dirty" in states(name)]
        old = (
            f"\nMeasured over [dirty lines](glossary.md), before `clean` became the default, and not again since: {', '.join(dirty)}."
            if dirty
            else ""
        )
        more = f" Tables: [evidence/{self.name}.md](evidence/{self.name}.md)." if self.has_page else ""
        table = "" if self.is_long else f"\n{markdown([self.table])}\n"
        return f"""## {self.question}

{lines(self.answer)}
{table}
**So:** {lines(self.advice)}

**Limits:** {lines(self.limits)}{old}

`{self.command}`.{more}"""

    @property
    def is_long(self) -> bool:
        """Whether its table stands on its page of evidence."""
        return len(self.table.cells) > MAX_ROWS

    @property
    def has_page(self) -> bool:
        return self.is_long or bool(self.evidence)

    def long(self) -> str:
        """Its page of docs/evidence."""
        made = f"Computed from {', '.join(f'`results/h200_{name}`' for name in self.datasets)} by `python -m benchmarks.findings`."
        return (
            "\n\n".join(
                (
                    f"# {self.question}",
                    f"{made}\n[findings.md](../findings.md) has the short answer, and [glossary.md](../glossary.md) explains the words.",
                    *([markdown([self.table])] if self.is_long else []),
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
