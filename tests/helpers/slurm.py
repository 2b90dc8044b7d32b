"""A Slurm cluster of simulated machines: the controller and a daemon a node, each node in namespaces of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator import ROOT
from tests.helpers import network
from tests.helpers.command_line import RAY_START
from tests.helpers.network import FAKES, Network

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
CONF = """
ClusterName=lab
SlurmctldHost=machine1(10.99.0.1)
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
KillWait=5
InactiveLimit=0
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP
"""
NODE = "NodeName=machine{number} NodeAddr={address} CPUs=2 RealMemory=1000 Gres=gpu:1 State=UNKNOWN"


def why_not() -> str:
    """Why no such cluster can be made here; empty if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        return f"there is no {missing[0]!r}: apt-get install munge slurmctld slurmd slurm-client"
    return network.why_not()


class Slurm(Network):
    """Nodes with one simulated GPU each. The first has the controller too, and is where jobs are submitted.

    `folder` is a filesystem that all of them see. It holds a checkout, as far as a job needs one.
    """

    @property
    def environment(self) -> dict[str, str]:
        """Variables of every process of the cluster, and of the jobs: Slurm hands those of `sbatch` on."""
        return {
            **super().environment,
            "HOME": str(self.folder),
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": os.pathsep.join([str(FAKES), str(RAY_START)]),
            "FAKE_GPUS": "h200",
            "FAKE_HOLD": str(self.hold),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    @property
    def hold(self) -> Path:
        """While this file exists, the simulated kernels wait."""
        return self.folder / "hold"

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    def start_nodes(self, count: int) -> None:
        """Starts the daemons of all nodes, and waits until Slurm gives out every node."""
        numbers = range(1, count + 1)
        lines = "\n".join(NODE.format(number=number, address=self.address(number)) for number in numbers)
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder, nodes=lines))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (self.folder / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/zero\n")
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{self.address(n)} machine{n}\n" for n in numbers))
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        (self.folder / "state").mkdir()
        self._make_checkout()
        for number in numbers:
            (self.folder / f"spool-machine{number}").mkdir()
            self.start(self._daemons(number), "h200")
        self.wait_for_nodes("idle", count)

    def _daemons(self, number: int) -> str:
        """A shell command that starts what a node runs. Its /run and /etc/hosts are its own."""
        munge = f"munged --force --key-file={self.folder}/munge.key --log-file={self.folder}/munge{number}.log"
        controller = "slurmctld && " if number == 1 else ""
        return (
            f"mount -t tmpfs none /run && mkdir -m 755 /run/munge && mount --bind {self.folder}/hosts /etc/hosts && "
            f"mount -t tmpfs none /sys/fs/cgroup && {munge} && {controller}exec slurmd -D -N machine{number}"
        )

    def _make_checkout(self) -> None:
        """The files of this project, and the environment that runs its tests as its .venv."""
        self.checkout.mkdir()
        for name in ("conf", "kernels", "orchestrator", "docs", "pyproject.toml"):
            (self.checkout / name).symlink_to(ROOT / name)
        (self.checkout / ".venv").symlink_to(sys.prefix)

    def ask(self, *words: str) -> str:
        """What a command of Slurm prints on the first node."""
        done = subprocess.run(
            self.nodes[0].inside(*words), env=self.environment, cwd=self.checkout, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def wait_for_nodes(self, state: str, count: int, seconds: float = 60) -> None:
        """Waits until so many nodes are in a state."""
        self.wait(lambda: self.ask("sinfo", "-h", "-N", "-o", "%t").split().count(state) == count, seconds, ("sinfo", "-N", "-l"))

    def submit(self, *words: str) -> str:
        """Submits docs/slurm.sbatch from the checkout, as its page says. Returns the number of the job."""
        inside = ["sh", "-c", f"cd {self.checkout} && exec sbatch --parsable {' '.join(words)}"]
        said = self.ask(*inside).strip()
        assert said.isdigit(), said
        return said

    def wait_for_end(self, job: str, seconds: float = 200) -> dict[str, str]:
        """Waits until a job has ended, and returns what Slurm says of it: `JobState`, `ExitCode`, `NodeList` and so on."""

        def ended() -> bool:
            return self.job(job).get("JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")

        self.wait(ended, seconds, ("scontrol", "show", "job", job))
        return self.job(job)

    def job(self, job: str) -> dict[str, str]:
        words = self.ask("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, true: Callable[[], bool], seconds: float, shown: tuple[str, ...]) -> None:
        """Waits until something is true; if it never is, raises AssertionError with what a command shows then, and the logs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError, IndexError):  # a node that is about to start has no process yet
                if true():
                    return
            time.sleep(0.5)
        files = [*self.folder.glob("ao*.log"), *self.checkout.glob("slurm-*.out")]
        logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in files)
        raise AssertionError(f"not within {seconds:g} s:\n{self.ask(*shown)}\n{logs}")
