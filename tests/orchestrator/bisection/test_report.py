"""The report of a search."""

from __future__ import annotations

from orchestrator.bisection.predicate import Predicate
from orchestrator.bisection.releases import Range
from orchestrator.bisection.report import Context, report
from orchestrator.bisection.search import Search, most_looks
from tests.helpers.histories import POINTS, History, steps

CONTEXT = Context(
    {"device": "NVIDIA H200"}, "python -m orchestrator mode=bisect", {"both alone": "python -m orchestrator sweep.env=[a,b]"}
)


def written(history: History, predicate: Predicate | None = None, *, backwards: bool = False) -> str:
    predicate = predicate or Predicate(looks=most_looks(len(history.releases), 3))
    releases = tuple(reversed(history.releases)) if backwards else history.releases
    found = Search(history.measure, predicate, 3).find(releases)
    return report(found, Range("mine", releases, (("0.3rc1", "a pre-release"),)), predicate, CONTEXT)


def test_it_has_the_releases_of_the_change_the_shapes_the_kernels_and_the_commands():
    kernels = {f"0.{i}": "fa3" for i in range(5, 9)}
    text = written(History(steps(9, 5, 2.5), kernels=kernels, broken={"0.4": "it does not import"}))

    assert text.startswith("### mine 0.5 is slower by 5.0% or more than 0.0, and 0.3 is not\n\n0.5: ×2.5 (")
    assert "The change came in 0.4 or 0.5. 0.4 could not be measured.\n" in text
    assert "Releases that could not be measured:\n\n- 0.4: it does not import\n" in text
    assert "| 0.0 | good: the others are compared with it |  | fa2 |  |\n" in text
    assert "| 0.3 | good | " in text
    assert "| 0.4 | not measured | – | – | 0 |\n" in text
    assert "| 0.5 | bad | ×2.5 (" in text
    assert "| 0.8 | bad | ×2.5 (" in text
    assert "| point | median, kernel in 0.0 | median, kernel in 0.5 | change (95% interval) |" in text
    assert all(f"| {point} | 100" in text or f"| {point} | 99." in text for point in POINTS)
    assert " µs, fa3 | ×2.5" in text
    assert "Releases that were left out:\n\n- a pre-release: 0.3rc1\n" in text
    assert text.endswith(
        "```\n# the search\npython -m orchestrator mode=bisect\n# both alone\npython -m orchestrator sweep.env=[a,b]\n```\n"
    )


def test_a_release_that_was_left_out_may_hold_the_change():
    assert "The change came in 0.3rc1 or 0.3. 0.3rc1 was left out.\n" in written(History(steps(9, 3, 2.5)))


def test_if_the_newer_release_is_the_good_one_it_says_where_the_change_was_undone():
    history = History({f"0.{i}": 2.0 if i < 4 else 1.0 for i in range(9)})

    text = written(history, backwards=True)

    assert text.startswith("### mine 0.3 is slower by 5.0% or more than 0.8, and 0.4 is not\n\n0.3: +99.8% (")
    assert "The change was undone in 0.4.\n" in text


def test_without_a_change_it_says_so_and_names_no_boundary():
    text = written(History(steps(9, 99, 1.0)))

    assert text.startswith("### mine 0.8 is not slower by 5.0% or more than 0.0\n\n0.8: ")
    assert "sweep.env" not in text


def test_what_noise_leaves_open_is_said_in_the_headline():
    assert written(History(steps(9, 5, 1.05), noise=0.3)).startswith("### Undecided: noise hides whether mine 0.8 is slower")


def test_a_release_that_cannot_be_measured_is_the_result_if_it_is_the_bad_one():
    assert written(History(steps(9, 5, 2.0), broken={"0.8": "no wheel"})).startswith(
        "### mine 0.8 could not be measured\n\n0.8: no wheel.\n"
    )


def test_a_kernel_that_changed_is_named_in_the_headline():
    history = History(steps(9, 99, 1.0), kernels={f"0.{i}": "fa3" for i in range(5, 9)})
    text = written(history, Predicate("resolved_backend"))

    assert text.startswith(
        "### mine 0.5 runs other kernels than 0.0, and 0.4 does not\n\n0.5: fa2 became fa3 at 3 of 3. The change came in 0.5.\n"
    )
