"""The wheel: one package, beside Hugging Face's `kernels`, and of use without torch and Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import setup
from orchestrator import ROOT

FOLDERS = ("attention_orchestrator", *setup.FOLDERS)
GONE = "kernels/gone.py"
# In an installed copy `kernels` is Hugging Face's, and no module of this project has a name outside the package.
RUN = """
import sys
import kernels
import attention_orchestrator as ao
assert kernels.__file__.startswith(sys.argv[1]) and kernels.hub, kernels
path = sys.argv[2]
one_point = ("sweep.backend=[torch_sdpa]", "sweep.batch_size=[1]", "sweep.s_qo=[1]", "sweep.s_kv=[64]")
code = ao.run("+sweep=smoke", "cluster=inline", *one_point, f"results.path={path}")
assert code == 0, code
rows = ao.open(path).records("SELECT status, command FROM rows")
assert rows and all(row["status"] == "ok" for row in rows), rows
assert all(row["command"].startswith("python -m attention_orchestrator ") for row in rows), rows
ours = [name for name in sys.modules if name.split(".")[0] in ("conf", "kernels", "orchestrator")]
assert ours == ["kernels"], ours
"""
WITHOUT = """
import sys
for name in ("torch", "ray", "flashinfer", "pynvml"):
    sys.modules[name] = None
from attention_orchestrator.orchestrator.cli import main
assert main(["mode=report", "question=best", f"results.path={sys.argv[1]}"]) == 0
assert main(["+sweep=smoke", "cluster=inline", f"results.path={sys.argv[2]}"]) == 2
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages as an installer leaves it: this project's wheel, and a package named `kernels`.

    The wheel is the second that is built in its checkout. The first one had a module more.
    """
    checkout, site = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("site")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, checkout)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    (checkout / GONE).touch()
    subprocess.run([*build, "."], cwd=checkout, check=True)
    (checkout / GONE).unlink()
    subprocess.run([*build, "."], cwd=checkout, check=True)
    (wheel,) = checkout.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "kernels").mkdir()  # fails if the wheel brought one
    (site / "kernels" / "__init__.py").write_text("hub = True\n")
    return site


def python(site: Path, program: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, args)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(site), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=site, env=env, capture_output=True, text=True, check=False)


def test_the_wheel_has_one_package(site: Path):
    folders = {path.name.removesuffix(".dist-info").split("-")[0] for path in site.iterdir()}
    (top_level,) = site.glob("*.dist-info/top_level.txt")

    assert folders == {"attention_orchestrator", "kernels"}
    assert top_level.read_text().split() == ["attention_orchestrator"]


def test_a_second_build_has_no_module_that_is_gone(site: Path):
    assert not (site / "attention_orchestrator" / GONE).exists()


def test_the_wheel_has_every_file_of_the_packages(site: Path):
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", *FOLDERS], capture_output=True, text=True, check=True)
    inside = "attention_orchestrator/"
    places = [path if path.startswith(inside) else f"{inside}{path}" for path in listed.stdout.split()]

    assert [place for place in places if not (site / place).exists() and not place.endswith(".md")] == []


def test_an_installed_copy_measures_beside_another_package_named_kernels(site: Path, tmp_path: Path):
    done = python(site, RUN, site, tmp_path / "rows")

    assert done.returncode == 0, done.stderr


def test_datasets_are_read_without_torch_and_ray(site: Path, tmp_path: Path):
    done = python(site, WITHOUT, ROOT / "results" / "h200_engines/engine_maximum", tmp_path / "none")

    assert done.returncode == 0, done.stderr
    assert "is not installed, and this command measures; in the checkout, type pip install '.[run]'" in done.stderr
    assert not (tmp_path / "none").exists()


def test_an_import_that_has_no_form_in_the_wheel_is_refused():
    with pytest.raises(ValueError, match=r"'import kernels\.adapters' has no form"):
        setup.renamed("import kernels.adapters\n")


def test_the_extra_run_is_what_a_missing_library_asks_for():
    from orchestrator.cli import MEASURING

    modules = {"flashinfer-python": "flashinfer", "nvidia-ml-py": "pynvml"}
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["run"]
    names = [requirement.partition(">=")[0] for requirement in extra]

    assert sorted(modules.get(name, name) for name in names) == sorted(MEASURING)
