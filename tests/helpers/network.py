"""A network of machines simulated by namespaces, each with its own address, host name, processes and Ray node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import ROOT
from tests.helpers.command_line import RAY_START
from tests.helpers.runs import WITHOUT_WATCHERS

PORT = 6379
FAKES = ROOT / "tests" / "fake_gpus"
# What a worker imports. Each node does it once and forks its workers, since each would take 2 s of CPU time.
OF_WORKERS = {"TESTS_WORKERS_IMPORT": "torch pandas pyarrow.parquet pydantic jsonschema requests"}
QUICK_TO_MISS_A_NODE = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
# Prints how many nodes there are, once they are so many or after so many seconds.
COUNT = """
import sys, time, ray
ray.init(address="auto", log_to_driver=False)
alive, deadline = (lambda: sum(node["Alive"] for node in ray.nodes())), time.monotonic() + float(sys.argv[2])
while alive() != int(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.2)
print(alive())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str:
    """Why no such network can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no {tool!r}: apt-get install iproute2 util-linux"
    name = f"ao{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "br0", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {' '.join(error.stderr.split())}"
    finally:
        with suppress(subprocess.CalledProcessError):
            ip("netns", "del", name)
    return ""


@dataclass
class Node:
    """A Ray node in namespaces of its own. Everything that runs in it ends with `process`."""

    name: str
    address: str
    port_of_switch: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Ends it and all that runs in it at once, as if its power failed."""
        self.process.kill()
        self.process.wait()

    @property
    def first_pid(self) -> int:
        """Its process number 1, as this machine counts."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text().split()[0])

    def inside(self, *command: str) -> list[str]:
        """A command line that runs in this node."""
        return ["nsenter", f"--target={self.first_pid}", "--net", "--mount", "--uts", "--pid", f"--wdns={ROOT}", *command]


@dataclass
class Network:
    """Ray nodes on one switch; the first is the head. Each shows the token that lies in `folder`."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)

    @property
    def switch(self) -> str:
        return f"ao{os.getpid()}-sw"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of every process of the cluster. PYTHONPATH does not have the project, because Ray must bring it."""
        token = self.folder / "auth_token"
        return {**os.environ, **QUICK_TO_MISS_A_NODE, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    def __enter__(self) -> Network:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        (self.folder / "auth_token").write_text(os.urandom(32).hex())
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", node.name)
        ip("netns", "del", self.switch)

    def add(self, *gpus: str) -> Node:
        """Adds a node with simulated GPUs and joins it to the first."""
        number = len(self.nodes) + 1
        as_head = ["--head", f"--port={PORT}", "--include-dashboard=false", *WITHOUT_WATCHERS]
        head = as_head if number == 1 else [f"--address=10.99.0.1:{PORT}", "--include-log-monitor=false"]
        ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", *head, f"--node-ip-address={self.address(number)}"]
        ray += ["--num-cpus=2", f"--num-gpus={len(gpus)}", f"--object-store-memory={100 * 2**20}"]
        return self.start(" ".join(ray), *gpus)

    def address(self, number: int) -> str:
        return f"10.99.0.{number}"

    def start(self, command: str, *gpus: str) -> Node:
        """Adds a node with simulated GPUs that runs a shell command, and has its own address, host name and folder of Ray."""
        number = len(self.nodes) + 1
        name, port, address = f"ao{os.getpid()}-{number}", f"port{number}", self.address(number)
        ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self.switch)
        ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        own = self.folder / f"ray{number}"
        own.mkdir()
        Path("/tmp/ray").mkdir(exist_ok=True)
        setup = f"hostname machine{number} && mount --bind {own} /tmp/ray && {command}; exit $?"
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "sh", "-c", setup],
            env={**self.environment, **OF_WORKERS, "PYTHONPATH": f"{FAKES}{os.pathsep}{RAY_START}", "FAKE_GPUS": ",".join(gpus)},
            stdout=log,
            stderr=log,
            cwd="/",
        )
        self.nodes.append(Node(name, address, port, process))
        return self.nodes[-1]

    def cut_off(self, node: Node) -> None:
        """Takes its link down, as if its cable were pulled."""
        ip("-n", self.switch, "link", "set", node.port_of_switch, "down")

    def wait_for(self, count: int, seconds: float = 90) -> None:
        """Waits until the head counts so many nodes."""
        deadline = time.monotonic() + seconds
        said = ""
        while (left := deadline - time.monotonic()) > 0:
            with suppress(OSError, IndexError):
                done = subprocess.run(
                    self.nodes[0].inside(sys.executable, "-c", COUNT, str(count), str(left)),
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                said = done.stdout + done.stderr
                if done.stdout.split()[-1:] == [str(count)]:
                    return
            time.sleep(1)
        raise AssertionError(f"no {count} nodes after {seconds:g} s: {said[-2000:]}")

    def driver(self, *args: str) -> subprocess.Popen[str]:
        """Starts the command line on the head."""
        path = os.pathsep.join([str(ROOT), str(FAKES), str(RAY_START)])
        typed = [sys.executable, "-m", "orchestrator", *args, "cluster=ray", f"cluster.address={self.nodes[0].address}:{PORT}"]
        return subprocess.Popen(
            self.nodes[0].inside(*typed),
            env={**self.environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
