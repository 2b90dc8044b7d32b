"""README's first commands run as they stand, in a fresh checkout: the reader's without torch, then `make run` in the same venv.

There is no network in a test, so pip is shown the packages that this machine has: a reader's, and later all of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import ROOT

README = (ROOT / "README.md").read_text()
READ, MEASURE = re.findall(r"```\n(.*?)```", README, re.DOTALL)
A_POINT = "cluster=inline timing=quick sweep.batch_size=[1] sweep.s_qo=[1] sweep.s_kv=[8192]"  # of 1,920
FIRST = "import sys; sys.path.insert(0, '{}')\n"  # a line of a .pth file: before the setuptools that a venv begins with
ENV = {
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "PIP_NO_INDEX": "1",
    "PIP_NO_COMPILE": "1",  # what is imported is compiled then
    "PIP_NO_BUILD_ISOLATION": "0",  # which pip takes for yes
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "COLUMNS": "80",
}


def bash(checkout: Path, lines: str, **env: str) -> str:
    """What the lines print together, of which each must end with 0."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", lines],
        cwd=checkout,
        env={**ENV, "HOME": str(checkout), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def needed(*names: str) -> dict[str, Distribution]:
    """Distributions with what they need, and what that needs."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found[name] = distribution(name)
            wanted = map(Requirement, found[name].requires or [])
            waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout, with nothing installed; in its venv only what the reader's project needs can be found."""
    place = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(Path.exists, map(ROOT.joinpath, listed.stdout.splitlines())):
        copy = place / name.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(name.read_bytes())
    bash(place, READ.splitlines()[0])
    packages = place / ".packages"
    packages.mkdir()
    ours = [Requirement(one).name for one in distribution("attention-orchestrator").requires or [] if "extra ==" not in one]
    for one in needed(*ours, "setuptools").values():
        for top in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(one.locate_file(top))
    (site,) = place.glob(".venv/lib/python*/site-packages")
    (site / "shown.pth").write_text(FIRST.format(packages))
    return place


@pytest.fixture(scope="module")
def read(checkout: Path) -> str:
    """What the reader's lines print."""
    return bash(checkout, READ)


def test_a_reader_has_an_answer_on_one_screen_without_torch(checkout: Path, read: str):
    answer = read[read.index("llama_3_1_70b · NVIDIA H200") :]

    assert "drafts of 3: vLLM 0.33.0: FLASH_ATTN (default) " in answer
    assert len(answer.splitlines()) <= 40 and max(map(len, answer.splitlines())) <= 80
    assert not (checkout / ".packages" / "torch").exists()
    assert "no torch" in bash(checkout, ".venv/bin/python -c 'import torch' 2>/dev/null || echo no torch")


@pytest.mark.usefixtures("read")
def test_without_torch_a_run_says_what_to_type(checkout: Path):
    said = bash(checkout, "source .venv/bin/activate; python -m orchestrator +sweep=smoke cluster=inline || test $? = 2")

    assert "in the checkout, type pip install '.[run]', or make install" in said


@pytest.mark.usefixtures("read")
def test_make_run_goes_on_in_the_same_venv_and_ends_with_what_an_h200_said(checkout: Path):
    (site,) = checkout.glob(".venv/lib/python*/site-packages")
    (site / "shown.pth").write_text(FIRST.format(Path(distribution("torch").locate_file("")).resolve()))  # as `make install` does
    (checkout / ".venv" / ".run").touch()
    run, test = MEASURE.splitlines()
    said = bash(checkout, run, ARGS=A_POINT).rstrip().splitlines()

    begun = said.index("this machine has no GPU, so only backends that run on a CPU do (Ctrl-C ends it); see what an H200 said:")
    assert begun < len(said) / 2 and said[begun + 1] == said[-1]
    assert said[-2] == "this machine has no GPU; see what an H200 said:"
    assert "960 ok, 960 unsupported" in bash(checkout, f"source .venv/bin/activate; {said[-1]}")
    assert "pytest" in bash(checkout, test, MAKEFLAGS="n")


def test_readme_has_900_words_at_most():
    assert len(README.split()) <= 900
    assert "?" in README.splitlines()[2] and "![" in README.partition("## Start")[0]  # the question and a picture come first
