"""Which files a plugin's hash covers, and that one module of this project has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.code_version import own_version, plugin_code, with_plugin


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of plugins that can be imported, with a single file and a package."""
    files = {
        "one.py": "import torch\ndef prepare():\n    from one_helper import scale\n",
        "one_helper.py": "KERNEL = 'csrc/one.cu'\nBUILD = 'one_build:spec'\nimport json\n",
        "one_build.py": "",
        "csrc/one.cu": "__global__ void one() {}",
        "other.py": "",
        "pack/__init__.py": "",
        "pack/two.py": "from . import two_helper\nfrom .deep.more import thing\n",
        "pack/two_helper.py": "",
        "pack/deep/__init__.py": "",
        "pack/deep/more.py": "from pack.third import thing\n",
        "pack/third.py": "",
        "pack/unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", {name: m for name, m in sys.modules.items() if name.partition(".")[0] != "pack"})
    return tmp_path


def fresh(module: str) -> str:
    plugin_code.cache_clear()
    return plugin_code(module)


@pytest.mark.parametrize(
    ("module", "file", "counts"),
    [
        ("one", "one.py", True),
        ("one", "one_helper.py", True),
        ("one", "one_build.py", True),
        ("one", "csrc/one.cu", True),
        ("one", "other.py", False),
        ("one", "pack/two.py", False),
        ("pack.two", "pack/__init__.py", True),
        ("pack.two", "pack/two_helper.py", True),
        ("pack.two", "pack/deep/__init__.py", True),
        ("pack.two", "pack/deep/more.py", True),
        ("pack.two", "pack/third.py", True),
        ("pack.two", "pack/unused.py", False),
    ],
)
def test_a_plugin_s_hash_covers_its_file_and_its_helpers(folder: Path, module: str, file: str, counts: bool):
    before = fresh(module)
    (folder / file).write_text((folder / file).read_text() + "\n# edited\n")

    assert len(before) == 8
    assert (fresh(module) != before) == counts


def test_a_helper_with_a_syntax_error_still_enters_the_hash(folder: Path):
    before = fresh("one")
    (folder / "one_helper.py").write_text("def broken(:\n")

    assert fresh("one") not in ("", before)


def test_a_module_of_this_project_has_the_project_s_version_alone():
    assert plugin_code("kernels.adapters.torch_sdpa") == plugin_code("kernels.mutants") == ""
    assert with_plugin(own_version(), "") == own_version()
    assert with_plugin("0.1.0", "1a2b3c4d") == "0.1.0.1a2b3c4d"
