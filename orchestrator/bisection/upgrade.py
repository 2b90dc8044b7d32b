"""What a new release of a library changed beside an older one, as Markdown to be pasted into an issue of the library. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.bisection.evidence import Round
from orchestrator.bisection.predicate import Predicate
from orchestrator.bisection.report import Context, lines_of, typed_below
from orchestrator.tables import markdown
from orchestrator.untrusted.text import for_markdown

if TYPE_CHECKING:
    from orchestrator.analysis.compare.comparison import Comparison

OF_STATUS = {"mismatch": "wrong", "failed": "failing", "timeout": "too slow to end", "oom": "out of memory"}


@dataclass(frozen=True)
class Upgrade:
    """Two releases that were measured in turns. Without a comparison the new one could not be measured, and `why` says why."""

    library: str
    old: str
    new: str
    found: Comparison | None = None
    pairs: Round = ()
    why: str = ""

    @property
    def problems(self) -> dict[str, str]:
        """What became worse or other: a word for it, with a sentence. Empty if nothing did.

        Slower is what the gate of mode=compare calls so. Another kernel counts whatever its time.
        """
        from orchestrator.analysis.compare.tables import headline

        if self.found is None:
            return {"cannot be measured": self.why}
        words, points, of = dict[str, str](), self.found.points, f"of {len(self.pairs)} points"
        for status, word in OF_STATUS.items():
            reasons = Counter(pair.other.reason for pair in self.pairs if (pair.good.status, pair.other.status) == ("ok", status))
            if reasons:
                words[word] = f"{reasons.total()} {of} are {status}: {reasons.most_common(1)[0][0]}"
        if lost := int((points["red"] & points["verdict"].isin(["lost", "missing"])).sum()):
            words["unsupported"] = f"{lost} {of} ran before and do not now"
        if self.found.red_groups or (points["red"] & points["comparable"]).any():
            words["slower"] = headline(self.found)
        ran = tuple(pair for pair in self.pairs if pair.good.status == pair.other.status == "ok")
        if ran and (found := Predicate("resolved_backend").judge([ran])).verdict == "bad":
            words["another kernel"] = found.words
        return words

    @property
    def headline(self) -> str:
        return (
            f"{self.library} {self.new} beside {self.old}: {', '.join(self.problems) or 'nothing slower, wrong or another kernel'}"
        )

    def report(self, context: Context) -> str:
        """The whole report: what changed, where it was measured, the tables of mode=compare, and commands."""
        from orchestrator.analysis.compare import tables

        said = [f"- {word}: {for_markdown(words)}" for word, words in self.problems.items()]
        parts = [f"### {self.headline}", "\n".join(said)]
        if self.found is not None:
            gate = " ".join(f"{for_markdown(words)}." for words in tables.of_gate(self.found))
            parts += [
                lines_of(context, self.pairs),
                f"Both were measured in turns, on the same device and inputs. The gate: {gate}",
            ]
            parts.append(markdown(tables.of_points(self.found)))
        return "\n\n".join(filter(None, [*parts, typed_below({"the watch": context.command, **context.commands})])) + "\n"
