"""rerun=suspects: the points that a comparison suspects, measured again on one GPU, into a dataset of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.commands.compare import compared
from orchestrator.commands.invocation import Invocation, command_line
from orchestrator.config.modes import companion
from orchestrator.config.parts import Results
from orchestrator.config.settings import SuspectSettings
from orchestrator.errors import UserError
from orchestrator.point import Point
from orchestrator.storage.row import describe

SUSPECTS = "suspects"  # their dataset is `<results.path>_suspects`


def narrowed(invocation: Invocation[Any], points: Sequence[Point]) -> tuple[Invocation[SuspectSettings], list[Point]]:
    """The command as one that runs the suspects alone: on one worker, into `<results.path>_suspects`, whatever is there already.

    One worker, so that all of them are measured on one card, and those that share inputs interleaved. A dataset of their own, so
    that both sides of an upgrade can be measured into it, one after the other, and so that no row of the comparison is replaced.
    Says so if nothing is suspected. Raises UserError if the sweep has none of the suspects, and for two kinds of GPU.
    """
    settings: SuspectSettings = invocation.settings
    comparison = compared(settings)
    if not comparison.has_gate:
        raise UserError(
            f"rerun=suspects: baseline={comparison.baseline.name} and candidate={comparison.candidate.name} are of two kinds of "
            "GPU, where a slower point is no suspect; type a baseline of the candidate's kind, or rerun=all for every point"
        )
    suspects = _keys(comparison.suspects.to_dict("records"))
    found = [point for point in points if not point.twin and _keys([_columns(point)]) <= suspects]
    if suspects and not found:
        raise UserError(
            f"rerun=suspects: none of the {len(suspects)} suspects is among the {len(points)} points of sweep "
            f"{settings.sweep.name}; type the command that mode=compare prints for them"
        )
    if not found:
        invocation.say("no suspects: the comparison calls no point slower, so nothing was measured again")
    return replace(invocation, settings=_on_one_card(settings)), found


def _on_one_card(settings: SuspectSettings) -> SuspectSettings:
    return settings.model_copy(
        update={
            "rerun": "all",
            "cluster": settings.cluster.model_copy(update={"workers": 1}),
            "results": Results(path=companion(settings.results.path, SUSPECTS)),
        }
    )


def _columns(point: Point) -> dict[str, object]:
    row = dict(describe(point))
    tree = row["tree"]
    return {**row, "tree": " ".join(map(str, tree)) if isinstance(tree, list | tuple) else None}


def _keys(rows: Sequence[dict[str, object]]) -> set[tuple[str, ...]]:
    """What identifies a point in a comparison, as text: Parquet gives other types of numbers and of nothing than a plan."""
    from orchestrator.analysis.compare.pairs import POINT_COLUMNS
    from orchestrator.analysis.value_text import text_of

    return {tuple(text_of(row[name]) for name in POINT_COLUMNS) for row in rows}


def next_words(invocation: Invocation[Any]) -> list[str]:
    """What to type once the suspects have been measured again."""
    path = invocation.settings.results.path
    kept = [override for override in invocation.overrides if override.startswith(("noise=", "cards=", "same="))]
    baseline = [override for override in invocation.overrides if override.startswith("baseline=")]
    before = f"results.path={path.removesuffix('_' + SUSPECTS)}"
    again = command_line(["mode=compare", *baseline, f"candidate={path}", before, "missing=allow", *kept])
    upgrade = command_line(["mode=compare", f"results.path={path}", "baseline=KIND:OLD", "candidate=KIND:NEW", *kept])
    return [
        f"whether they are slower again: {again}",
        f"after an upgrade, type this command once more with the old versions, on the same GPU; then: {upgrade}",
    ]
