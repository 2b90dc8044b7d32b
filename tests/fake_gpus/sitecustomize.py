"""Gives the processes of a Ray node GPUs that are not there, where this folder is on their path: `FAKE_GPUS=h200,h200`.

A node then describes itself with devices of `conf/device`, Ray gives each of them to one worker, support rules see what they are,
and kernels run on the CPU, against the oracle.
"""

import os
import sys
from importlib.util import find_spec

import quick_ray  # of tests/ray_start, whose own sitecustomize.py is behind this one on the path

quick_ray.in_programs_of_ray()

# The project is there once a job has brought it.
if os.environ.get("FAKE_GPUS") and any("default_worker.py" in word for word in sys.orig_argv) and find_spec("orchestrator"):
    from kernels.device import Device
    from orchestrator import machines
    from orchestrator.worker import point_runner
    from orchestrator.worker.messages import WorkerConfig

    NAMES = os.environ["FAKE_GPUS"].split(",")
    machines._cuda_devices = lambda: [machines.known_devices()[name] for name in NAMES]
    create = point_runner.PointRunner.create

    def create_on_the_cpu(config: WorkerConfig, device: Device, node_id: str = "") -> point_runner.PointRunner:
        return create(config, device.model_copy(update={"kind": "cpu"}), node_id)

    point_runner.PointRunner.create = create_on_the_cpu
