"""An FP8 kernel that rounds probabilities without a scale loses those that are small beside a heavy key."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import small_probabilities
from benchmarks.small_probabilities import KERNELS, Loss, Shape, measured, outputs
from kernels.inputs.generate import draw

ONE_SPLIT = Shape(16, 16384, 1, 1)


@pytest.mark.parametrize("text", ["16:65536:1:128", "16:8192:4:1", "128:65536:4:128", "128:8192:1:2"])
def test_the_splits_of_a_request_hold_each_of_its_keys_once_and_all_processors_suffice(text: str):
    shape = Shape.read(text)
    plan = shape.plan()

    assert len(plan) == shape.batch
    for parts in plan:
        assert (parts[0].start, parts[-1].stop) == (0, shape.tokens)
        assert all(one.stop == after.start and len(one) for one, after in itertools.pairwise(parts))


def test_a_large_batch_has_two_splits_a_request_and_a_small_one_many():
    assert [len(parts) for parts in Shape(16, 65536, 1, 128).plan()[:3]] == [2, 2, 2]
    assert len(Shape(16, 65536, 1, 1).plan()[0]) > 100


def test_what_is_lost_without_a_scale_is_kept_with_one():
    inputs = draw(ONE_SPLIT.problem(1), "cpu")
    plan = [[range(ONE_SPLIT.tokens)]]
    without, scaled = (Loss.of(outputs(inputs, plan, *KERNELS[name]), inputs) for name in ("as it is", "times 256"))

    assert without.worst > 1 > 4 * scaled.worst


def test_a_line_has_what_was_measured_beside_what_is_emulated():
    (line,) = small_probabilities.lines(iter([("as it is", "16:8192:1:1")]), requests=1)
    found = small_probabilities.cells(line)

    assert (line["measured"], line["measured_over"]) == (pytest.approx(measured(Shape(16, 8192, 1, 1))[0], abs=1e-4), 0)
    assert found[:5] == ("as it is", "16", "8,192", "1", "1")
    assert float(found[7]) == pytest.approx(line["worst"], abs=0.005) and 0 < line["worst"] < 1
