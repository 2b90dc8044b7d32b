"""The row of a task, begun and finished in the same way by the worker that runs it and by the driver if no worker can."""

from __future__ import annotations

from orchestrator.storage.row import Row, Status, begin, finish, of_forced
from orchestrator.worker.messages import Task


def begin_row(task: Task, common: Row, arch: str, node_id: str) -> Row:
    """What is known of a task before it runs; `arch` is the compiler architecture of its device."""
    about_task: Row = {"command": task.command, "attempt": task.attempt, "compile_s": task.compile_s.get(arch)}
    return {**begin(task.point, common), **about_task, "node_id": node_id}


def finish_row(row: Row, task: Task, status: Status, reason: str) -> Row:
    """The whole row. If the task's support rule was overridden, status and reason say what that showed."""
    finished = finish(row, status, reason)
    return {**finished, **of_forced(finished, task.forced_rule, task.not_passed)} if task.forced_rule else finished
