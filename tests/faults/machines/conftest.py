"""A Ray head for all tests of a session, and machines for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.command_line import environment
from tests.helpers.forked import CONTEXT
from tests.helpers.machines import Machines
from tests.helpers.runs import IMPATIENT
from tests.ray_start import quick_ray, template


@pytest.fixture(scope="session")
def head() -> Iterator[Any]:
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]  # of the cluster's processes, which inherit it
    quick_ray.in_this_process(template.origin_in(CONTEXT))
    from ray.cluster_utils import Cluster

    without = {"include_log_monitor": False, "no_monitor": True, "include_dashboard": False}  # nobody reads logs or wants machines
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": IMPATIENT, **without})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def machines(head: Any) -> Iterator[Machines]:
    machines = Machines(head)
    yield machines
    machines.leave()
