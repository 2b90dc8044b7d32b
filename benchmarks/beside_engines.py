"""Does this project install beside an engine without moving a package that the engine pins? Asks uv's resolver; installs nothing.

Usage: python benchmarks/beside_engines.py [vllm==0.33.0 sglang==0.5.23 ...]

For each engine uv resolves the engine alone, then the engine with this project's extra `run` while every package of the first
answer is held where it was. Exits with 1 if the second has no answer. Needs `uv` and a package index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from orchestrator import ROOT

ENGINES = ("vllm==0.33.0", "sglang==0.5.23")
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_35")
# vLLM 0.33.0 asks for a release of certifi that an index may not have yet; which one it is says nothing about this project.
ANY_CERTIFI = "certifi\n"


def main() -> int:
    engines = sys.argv[1:] or ENGINES
    return max(int(not installs_beside(engine)) for engine in engines)


def installs_beside(engine: str) -> bool:
    """Prints what the resolver says, and returns whether it found an answer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = [*project["dependencies"], *project["optional-dependencies"]["run"]]
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        alone = resolve(folder, [engine])
        if alone.returncode:
            print(f"{engine}: cannot be resolved by itself: {alone.stderr.strip()}")
            return False
        pins.write_text(alone.stdout)
        both = resolve(folder, [engine, *ours], "--constraint", str(pins))
    if both.returncode:
        print(f"{engine}: a package has to move: {both.stderr.strip()}")
        return False
    new = sorted(packages(both.stdout) - packages(alone.stdout))
    print(f"{engine}: none of its {len(packages(alone.stdout))} packages moves; {len(new)} are new: {', '.join(new)}")
    return True


def resolve(folder: str, requirements: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """What uv resolves requirements to; nothing is installed."""
    wanted, override = Path(folder) / "wanted.in", Path(folder) / "override.txt"
    wanted.write_text("\n".join(requirements))
    override.write_text(ANY_CERTIFI)
    command = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--prerelease", "allow", "--override", str(override)]
    return subprocess.run([*command, *PLATFORM, *more, str(wanted)], capture_output=True, text=True, check=False)


def packages(resolved: str) -> set[str]:
    """The packages of an answer, with their versions."""
    return {line.split(" ")[0] for line in resolved.splitlines() if "==" in line and not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main())
