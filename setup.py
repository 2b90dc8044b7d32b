"""Builds the wheel with everything under one package, attention_orchestrator.

A checkout has the top-level folders conf, kernels and orchestrator. Installed under these names they would overwrite the files of
other distributions: Hugging Face has one whose package is `kernels`. So the wheel holds attention_orchestrator.kernels and so on,
and the imports in it say so. An editable install changes nothing: it is for a checkout with an environment of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

PACKAGE = "attention_orchestrator"
FOLDERS = ("conf", "kernels", "orchestrator")
TEXTS = (".py", ".yaml")
COMMIT = "COMMIT"  # the file that tells an installed copy its commit: orchestrator/code_version.py reads it
HERE = Path(__file__).resolve().parent


class UnderOnePackage(build_py):
    """Copies the packages as usual, then moves them into PACKAGE."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built = Path(self.build_lib)
        for folder in FOLDERS:
            shutil.rmtree(built / PACKAGE / folder, ignore_errors=True)  # what an earlier build left here
            (built / folder).rename(built / PACKAGE / folder)
        for path in sorted((built / PACKAGE).rglob("*")):
            if path.suffix in TEXTS:
                path.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
        if commit := _commit():
            (built / PACKAGE / COMMIT).write_text(commit, encoding="utf-8")


class OneTopLevelName(egg_info):
    """Metadata that names PACKAGE alone: an installed copy owns no `kernels`."""

    def run(self) -> None:
        super().run()
        (Path(self.egg_info) / "top_level.txt").write_text(f"{PACKAGE}\n", encoding="utf-8")


def renamed(text: str) -> str:
    """A source file's text as it stands in the wheel: its imports, and commands to type, name PACKAGE."""
    names = "|".join(FOLDERS)
    text = re.sub(rf"^(\s*)from ({names})(?=[. ])", rf"\1from {PACKAGE}.\2", text, flags=re.MULTILINE)
    text = re.sub(rf"^(\s*)import ({names})$", rf"\1from {PACKAGE} import \2", text, flags=re.MULTILINE)
    if dotted := re.search(rf"^\s*import ({names})\b.*", text, flags=re.MULTILINE):
        raise ValueError(f"{dotted[0].strip()!r} has no form in the wheel; write `from ... import ...`")
    return text.replace("python -m orchestrator", f"python -m {PACKAGE}")


def _commit() -> str:
    """The commit that the wheel is built from; empty without git, or if a file of the packages differs from it."""
    try:
        git = ["git", "-C", str(HERE)]
        changed = subprocess.run([*git, "status", "--porcelain", "--", *FOLDERS], capture_output=True, text=True, check=True)
        named = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if changed.stdout else named.stdout.strip()


if __name__ == "__main__":
    setup(cmdclass={"build_py": UnderOnePackage, "egg_info": OneTopLevelName})
