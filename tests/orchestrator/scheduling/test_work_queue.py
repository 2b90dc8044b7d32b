"""The order in which batches leave the queue."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.scheduling.scheduler import WorkQueue
from tests.helpers.fake_pool import batches_of


def test_batches_leave_in_order_to_devices_that_may_run_them():
    h200, both = batches_of(1, 2, ("h200",)), batches_of(2, 2, ("b200", "h200"))
    queue = WorkQueue()
    queue.append([*h200, *both])

    assert (queue.num_tasks, queue.device_counts) == (6, {"h200": 3, "b200": 2})
    assert queue.take("b200", others_at_work=False) == both[0]
    assert queue.take("h200", others_at_work=False) == h200[0]
    assert queue.take("a100", others_at_work=False) is None
    assert queue.take("b200", others_at_work=False) == both[1]
    assert not queue


def test_what_is_put_first_leaves_before_the_rest_in_its_order():
    (batch, rest), queue = batches_of(2, 3), WorkQueue()
    queue.append([rest])
    queue.put_each_first(batch.tasks, batch.devices)
    queue.put_first([], batch.devices)
    left = [queue.take("gpu", others_at_work=True) for _ in range(4)]

    assert [found.tasks for found in left if found] == [*((task,) for task in batch.tasks), rest.tasks]


def test_a_task_that_lost_a_machine_waits_until_nothing_else_runs():
    (batch, rest), queue = batches_of(2, 1), WorkQueue()
    risky = replace(batch.tasks[0], machines_lost=1)
    queue.put_last(risky, batch.devices)
    queue.append([rest])

    assert queue.take("gpu", others_at_work=False) == rest
    assert queue.take("gpu", others_at_work=True) is None
    found = queue.take("gpu", others_at_work=False)
    assert found is not None and found.tasks == (risky,)
