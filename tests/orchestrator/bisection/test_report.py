"""The report of a search."""

from __future__ import annotations

from orchestrator.bisection.predicate import Predicate
from orchestrator.bisection.releases import Range
from orchestrator.bisection.report import Context, report
from orchestrator.bisection.search import Search, most_looks
from tests.helpers.histories import POINTS, History, steps

CONTEXT = Context({"device": "NVIDIA H200"}, "python -m orchestrator mode=bisect", ("python -m orchestrator sweep.env=[a,b]",))


def written(history: History, predicate: Predicate | None = None) -> str:
    predicate = predicate or Predicate(looks=most_looks(len(history.releases), 3))
    found = Search(history.measure, predicate, 3).find(history.releases)
    return report(found, Range("mine", history.releases, (("0.3rc1", "a pre-release"),)), predicate, CONTEXT)


def test_it_has_the_releases_of_the_change_the_shapes_the_kernels_and_the_commands():
    kernels = {f"0.{i}": "fa3" for i in range(5, 9)}
    text = written(History(steps(9, 5, 2.5), kernels=kernels, broken={"0.4": "it does not import"}))

    assert text.startswith("### mine changed between 0.3 and 0.5: slower by 5.0% or more (×2.5 (")
    assert "0.4 in between could not be measured.\n" in text
    assert "- 0.4: it does not import\n" in text
    assert "| 0.3 | good | " in text
    assert "| 0.5 | bad | ×2.5 (" in text
    assert "| 0.8 | bad | ×2.5 (" in text
    assert all(f"| {point} | 100" in text or f"| {point} | 99." in text for point in POINTS)
    assert " µs, fa3 | ×2.5" in text
    assert "- a pre-release: 0.3rc1\n" in text
    assert text.endswith("```\npython -m orchestrator mode=bisect\npython -m orchestrator sweep.env=[a,b]\n```\n")


def test_without_a_change_it_says_so_and_names_no_boundary():
    text = written(History(steps(9, 99, 1.0)))

    assert text.startswith("### mine 0.8 is no different from 0.0: it is not slower by 5.0% or more (")
    assert "sweep.env" not in text


def test_what_noise_leaves_open_is_said_in_the_headline():
    assert written(History(steps(9, 5, 1.05), noise=0.3)).startswith("### Undecided: whether mine 0.8 is slower")


def test_a_release_that_cannot_be_measured_is_the_result_if_it_is_the_bad_one():
    assert written(History(steps(9, 5, 2.0), broken={"0.8": "no wheel"})).startswith(
        "### mine 0.8 could not be measured: no wheel."
    )


def test_a_kernel_that_changed_is_named_in_the_headline():
    history = History(steps(9, 99, 1.0), kernels={f"0.{i}": "fa3" for i in range(5, 9)})
    text = written(history, Predicate("resolved_backend"))

    assert text.startswith("### mine changed between 0.4 and 0.5: another resolved_backend (fa2 became fa3 at 3 of 3).")
