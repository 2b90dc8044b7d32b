"""One sweep over several clusters and several kinds of devices: what is planned for each, and how their rows stand side by side."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from orchestrator import ROOT
from orchestrator.code_version import COMMIT_VARIABLE, OWN_FOLDERS
from orchestrator.config.settings import Settings
from orchestrator.machines import Machine, known_devices, mixed
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.planning.resume import Resume
from orchestrator.storage.row import describe, finish, library_column, to_table
from tests.helpers import network
from tests.helpers.command_line import run
from tests.helpers.network import Network

TWO_KINDS = [known_devices()["h200"], known_devices()["b200"]]
SWEEP = ["+sweep=smoke", "sweep.backend=[fa2_tc,trtllm-native,trtllm-gen]", "sweep.batch_size=[1]", "sweep.s_kv=[256]"]


@pytest.fixture
def each_device(settings: Callable[..., Settings]) -> Settings:
    return settings(*SWEEP, "cluster.spread=each_device")


def test_a_point_goes_to_any_kind_that_serves_it(settings: Callable[..., Settings]):
    asked = settings(*SWEEP)
    plan = make_plan(expand(asked), TWO_KINDS, asked)

    assert {d.point.backend: d.devices for d in plan.decisions_of("run")} == {
        "fa2_tc": ("NVIDIA H200", "NVIDIA B200"),
        "trtllm-native": ("NVIDIA H200", "NVIDIA B200"),
        "trtllm-gen": ("NVIDIA B200",),
    }


def test_each_device_decides_every_point_for_every_kind(each_device: Settings):
    points = expand(each_device)
    plan = make_plan(points, TWO_KINDS, each_device)
    decided = Counter((d.point, d.devices) for d in plan.decisions)
    runs = Counter((d.point.backend, *d.devices) for d in plan.decisions_of("run"))

    assert decided == {(point, (device.name,)): 1 for point in points for device in TWO_KINDS}
    assert runs.keys() >= {("fa2_tc", "NVIDIA H200"), ("fa2_tc", "NVIDIA B200"), ("trtllm-native", "NVIDIA H200")}
    assert ("trtllm-gen", "NVIDIA H200") not in runs
    assert all(len(group.devices) == 1 for group in plan.groups)


def test_a_row_of_one_kind_answers_for_no_other(each_device: Settings):
    plan = make_plan(expand(each_device), TWO_KINDS, each_device)
    versions = dict.fromkeys(("torch_version", "flashinfer_version", "orchestrator_version"), "1")
    common = {"cluster": "lab", **versions}
    on_h200 = [
        finish({**describe(d.point), **common, **library_column(d.point, {}), "device_name": "NVIDIA H200"}, "ok")
        for d in plan.decisions_of("run")
        if d.devices == ("NVIDIA H200",)
    ]
    resume = Resume(to_table(on_h200), each_device, common)
    left = {d.devices for d in plan.decisions_of("run") if not resume.is_answered(d)}

    assert on_h200
    assert left == {("NVIDIA B200",)}
    assert sum(resume.counts(plan.decisions).values()) == len(on_h200)


@pytest.mark.parametrize(("names", "refused"), [(("h200", "h200"), False), (("h200", "a100"), True), (("cpu",), False)])
def test_a_machine_with_gpus_of_several_kinds_is_refused(names: tuple[str, ...], refused: bool):
    machine = Machine("lab1", tuple(known_devices()[name] for name in names), {})

    assert ("lab1 has GPUs of several kinds (NVIDIA A100-SXM4-80GB, NVIDIA H200)" in mixed(machine)) == refused


@pytest.mark.parametrize(("name", "kind"), [("slurm", "ray"), ("kuberay", "ray"), ("local", "local"), ("inline", "inline")])
def test_every_cluster_file_goes_through_the_door(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, name: str, kind: str
):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    cluster = settings("+sweep=smoke", f"cluster={name}").cluster

    assert (cluster.name, cluster.kind) == (name, kind)
    assert cluster.address == ("10.0.0.1:6379" if kind == "ray" else None)


def test_the_files_of_the_clusters_page_are_of_this_project(settings: Callable[..., Settings]):
    """What they type goes through the door, and what they start has a token and this project's version of Ray."""
    script = (ROOT / "docs" / "slurm.sbatch").read_text()
    manifest = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())
    typed = script.partition("python -m orchestrator ")[2].partition(";")[0].replace('"$@"', "+sweep=smoke").split()

    assert settings(*typed).cluster.name == "slurm"
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "RAY_AUTH_MODE=token" in script
    assert manifest["spec"]["authOptions"] == {"mode": "token"}
    assert f"ray=={manifest['spec']['rayVersion']}\n" in (ROOT / "requirements.txt").read_text()


def test_the_image_is_of_files_that_there_are_and_is_the_one_that_kuberay_starts():
    text = (ROOT / "Dockerfile").read_text()
    manifest = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())["spec"]
    pods = [manifest["headGroupSpec"], *manifest["workerGroupSpecs"]]
    images = {container["image"] for pod in pods for container in pod["template"]["spec"]["containers"]}
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [extra for of in re.findall(r"EXTRAS=([\w,]+)", text) for extra in of.split(",")]

    assert {*OWN_FOLDERS, "conf", "attention_orchestrator", "requirements.txt", "pyproject.toml", *project["license-files"]} <= {
        *copied
    }
    assert all((ROOT / name).exists() for name in copied)
    assert len(named) > 2 and {*named} <= {*project["optional-dependencies"]}
    assert images == {f"{re.findall(r'-t (.*) [.]$', text, re.MULTILINE)[0]}:latest"}
    assert re.findall(r"^WORKDIR (.*)$", text, re.MULTILINE) == [pods[0]["template"]["spec"]["containers"][0]["workingDir"]]
    assert re.search(r"^ARG BASE=nvidia/cuda:13\.[\d.]+-devel-ubuntu24\.04\nFROM \$\{BASE\}$", text, re.MULTILINE)
    assert f"ARG COMMIT=\nENV {COMMIT_VARIABLE}=${{COMMIT}}\n" in text


@pytest.mark.netns
def test_the_probes_of_kuberay_find_ports_that_the_nodes_open(tmp_path: Path):
    """Each pod as KubeRay starts it: `ray start --block` with the manifest's parameters, and the first with `--head`."""
    if why := network.why_not():
        pytest.skip(why)
    spec = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())["spec"]
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    with Network(tmp_path) as lab:
        for pod in pods:
            place = [f"--address={lab.address(1)}:6379"] if lab.nodes else ["--head"]
            given = [f"--{name}={value}" for name, value in pod["rayStartParams"].items()]
            ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--object-store-memory={100 * 2**20}"]
            ray += [f"--node-ip-address={lab.address(len(lab.nodes) + 1)}"]
            lab.start(" ".join([*ray, *place, *given]))
        lab.wait_for(len(pods))
        for node, pod in zip(lab.nodes, pods, strict=True):
            (container,) = pod["template"]["spec"]["containers"]
            for probe in ("readinessProbe", "livenessProbe"):
                asked = (node.address, container[probe]["tcpSocket"]["port"])
                connect = [sys.executable, "-c", f"import socket; socket.create_connection({asked}, 5)"]
                assert subprocess.run(node.inside(*connect), check=False).returncode == 0, probe


@pytest.mark.parametrize(
    ("image", "started"),
    [
        ("", "ray symmetric-run --address 10.0.0.7:6379"),
        ("my.sqsh", "--container-image=my.sqsh --container-mount-home --container-mounts={0}:{0} --container-workdir={0} ray symm"),
        ("my.sif", "apptainer exec --nv --bind {0},{0}/.ray my.sif ray symmetric-run"),
    ],
)
def test_the_job_of_slurm_runs_the_checkout_with_the_packages_of_venv_or_of_an_image(tmp_path: Path, image: str, started: str):
    """On a Slurm of scripts: `srun` notes what it is given, and runs what follows `--` as the first node would."""
    scripts = {
        "srun": 'echo "$@" >> asked; while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done; [ $# = 0 ] || { shift; exec "$@"; }',
        "scontrol": "echo machine1",
        "getent": "echo 10.0.0.7 STREAM",
        "python": 'echo "$@ commit=$ORCHESTRATOR_COMMIT" > ran; exit 7',
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("touch activated")
    job = {name: "1" for name in ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_NODELIST")}
    place = {"HOME": str(tmp_path), "SLURM_SUBMIT_DIR": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    given = {**job, **place, "IMAGE": image, COMMIT_VARIABLE: "of-the-image"}
    done = subprocess.run(["bash", ROOT / "docs" / "slurm.sbatch", "+sweep=smoke", "a b"], env=given, check=False)

    assert done.returncode == 7
    assert started.format(tmp_path) in (tmp_path / "asked").read_text().splitlines()[-1]
    assert (
        tmp_path / "ran"
    ).read_text() == f"-m orchestrator +sweep=smoke a b cluster=slurm commit={'' if image else 'of-the-image'}\n"
    assert (tmp_path / "activated").exists() == (not image) and not list((tmp_path / ".ray").iterdir())


def test_a_sweep_over_two_clusters_is_one_dataset_that_can_be_compared(tmp_path: Path):
    keys = ["sweep.backend=torch_sdpa", "sweep.s_kv=256", "sweep.batch_size=1"]
    done = run("+sweep=smoke", "timing=quick", *keys, f"results.path={tmp_path}", "-m", "cluster=inline,local")
    table = pd.read_parquet(tmp_path)
    compared = run("mode=compare", "baseline=cluster:inline", "candidate=cluster:local", f"results.path={tmp_path}", "full=true")
    wrong = run("mode=compare", "baseline=cluster:inline", "candidate=cluster:lab", f"results.path={tmp_path}")

    assert done.returncode == 0, done.stderr
    assert table.groupby("cluster")["point_id"].nunique().to_dict() == {"inline": 2, "local": 2}
    assert set(table["status"]) == {"ok"} and len(table) == 4
    assert compared.returncode in (0, 1), compared.stderr
    assert "what changed: cluster:inline → cluster:local" in compared.stdout
    assert wrong.returncode == 2 and "cluster: inline, local" in wrong.stderr
