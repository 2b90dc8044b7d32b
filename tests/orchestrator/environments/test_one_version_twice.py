"""What docs/compare.md says of one version in two environments, computed from its dataset."""

from __future__ import annotations

from orchestrator import ROOT
from orchestrator.analysis.compare.comparison import Comparison, compare
from tests.helpers.command_line import Invoke
from tests.helpers.datasets import RESULTS

PAGE = (ROOT / "docs" / "compare.md").read_text()
SIDES = ("env:default", "env:twice")
TWICE = str(RESULTS / "h200_releases" / "environment_twice")


def compared(baseline: str, candidate: str) -> Comparison:
    return compare([baseline], [candidate], TWICE, same=0.01)


def test_two_pairs_of_one_version_are_slower_and_the_gate_stays_green():
    found = compared(*SIDES)
    counts = found.points["verdict"].value_counts()

    assert f"differed by {found.points['change'].abs().median():.2%} at the median of {len(found.points)} pairs" in PAGE
    assert (counts["slower"], len(found.suspects)) == (2, 2)
    assert not found.points["red"].any() and not found.groups["red"].any()


def test_with_the_sides_exchanged_the_same_two_are_faster():
    there, back = compared(*SIDES).suspects, compared(*reversed(SIDES)).points
    faster = back[back["verdict"] == "faster"]

    assert not (back["verdict"] == "slower").any()
    assert set(there["point_id_b"]) == set(faster["point_id_a"]) and len(faster) == 2


def test_the_command_of_the_page_exits_with_0(invoke: Invoke):
    _, command = PAGE.split("python -m orchestrator mode=compare results.path=results/h200_releases/environment_twice ")
    done = invoke("mode=compare", f"results.path={TWICE}", *command.splitlines()[0].split())

    assert done.returncode == 0, done.stderr
    assert "no regression: 2 slower, 67 same, 27 undecided; 2 suspects" in done.stdout
