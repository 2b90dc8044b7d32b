"""Runs tests with the oldest and the newest releases that pyproject.toml allows, and prints a table of what passed.

    python -m tools.bounds 3.11 3.12 3.13            # what reads datasets
    python -m tools.bounds 3.12 --extra run          # what measures, on a CPU: installs torch, 3 GB or more
    python -m tools.bounds engines                   # whether it installs beside vLLM and SGLang, by a resolver alone

A Python is a version that uv finds, or a path. The oldest set has the oldest release of each dependency with a wheel for it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from orchestrator import ROOT

RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
TOOLS = ("flask", "flask-cors", "hypothesis", "moto[s3]", "pytest", "pytest-timeout", "pytest-xdist")
OF_HYDRA = ("--only-binary", ":all:", "--no-binary", "antlr4-python3-runtime")  # the one dependency that has no wheel
UNDER = "tests/orchestrator/"
READING = (
    "tests/test_answers.py",
    *(f"{UNDER}{name}" for name in ("analysis", "composing", "config", "reporting", "untrusted")),
    *(f"{UNDER}storage/test_{name}.py" for name in ("checksum", "columns", "folder", "hostile_folder", "row", "row_line")),
    *(f"{UNDER}formats/test_{name}.py" for name in ("aiconfigurator", "engine_config", "hostile_files", "vllm_config")),
)
MEASURING = ("tests/kernels/conformance", f"{UNDER}pools/test_ray.py", f"{UNDER}storage/test_s3.py", f"{UNDER}worker")
ENGINES = ("vllm==0.33.0", "sglang==0.5.23")
PLATFORM = "x86_64-manylinux_2_34"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", help="versions or paths of Python, or the word engines")
    parser.add_argument("--extra", choices=["report", "run"], default="report")
    given = parser.parse_args()
    if given.pythons == ["engines"]:
        return beside_engines()
    names = direct(given.extra)
    print(f"| Python | set | {' | '.join(names)} | tests |\n|---|---|{'---|' * len(names)}---|", flush=True)
    good = True
    for python in given.pythons:
        for label, resolution in RESOLUTIONS.items():
            version, found, passed, code = tried(python, resolution, given.extra)
            print(f"| {version} | {label} | {' | '.join(found[name] for name in names)} | {passed} |", flush=True)
            good &= code == 0
    return 0 if good else 1


def direct(extra: str) -> list[str]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return [canonicalize_name(re.split(r"[<>=!]", one)[0]) for one in wanted]


def tried(python: str, resolution: str, extra: str) -> tuple[str, dict[str, str], str, int]:
    """The version of Python, those of all packages, what pytest said last, and its exit code."""
    with tempfile.TemporaryDirectory(prefix="bounds-") as folder:
        there = Path(folder) / "bin" / "python"
        uv("venv", "--quiet", "--python", python, folder)
        install = ("pip", "install", "--quiet", "--python", str(there))
        uv(*install, "--resolution", resolution, *OF_HYDRA, "-r", "pyproject.toml", "--extra", extra)
        found = dict(line.split("==") for line in uv("pip", "freeze", "--python", str(there)).splitlines())
        found = {canonicalize_name(name): version for name, version in found.items()}
        pinned = Path(folder) / "set.txt"  # the tools of the tests leave it as it is
        pinned.write_text("".join(f"{name}=={found[name]}\n" for name in direct(extra)))
        uv(*install, "--constraints", str(pinned), *TOOLS)
        tests = READING if extra == "report" else MEASURING
        command = [str(there), "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", *tests]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        counts = [line for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
        if done.returncode:
            print(done.stdout[-6000:], file=sys.stderr)
        said = re.sub(r" in .*", "", counts[-1]) if counts else "none ran"
        version = subprocess.run([str(there), "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    return version, found, said, done.returncode


def beside_engines() -> int:
    """Resolves each engine alone, and then with this project for what it had: nothing that it had may move."""
    print("| engine | packages | with `attention-orchestrator` | with `attention-orchestrator[run]` |\n|---|---|---|---|")
    good = True
    for engine in ENGINES:
        alone = resolved([engine])
        said = [verdict(alone, engine, extra) for extra in ("report", "run")]
        print(f"| {engine} | {len(alone)} | {' | '.join(said)} |", flush=True)
        good &= all(one.startswith("none moves") for one in said)
    return 0 if good else 1


def verdict(alone: dict[str, str], engine: str, extra: str) -> str:
    pins = [f"{name}=={version}" for name, version in alone.items()]
    try:
        both = resolved([engine, *pins], "pyproject.toml", "--extra", extra)
    except subprocess.CalledProcessError as error:
        return f"no: {' '.join(error.stderr.split())[-300:]}"
    return f"none moves, {len(both.keys() - alone.keys())} come"


def resolved(requirements: Sequence[str], *more: str) -> dict[str, str]:
    """What a resolver would install under Python 3.12. Raises CalledProcessError if nothing fits."""
    options = ("--no-header", "--no-annotate", "--python-version", "3.12", "--python-platform", PLATFORM, *OF_HYDRA)
    with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
        file.write("\n".join(requirements))
        file.flush()
        said = uv("pip", "compile", "--quiet", "--prerelease", "allow", *options, file.name, *more)
    return dict(re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", said, re.MULTILINE))


def uv(*words: str) -> str:
    return subprocess.run([sys.executable, "-m", "uv", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
