"""`adapters=` of what is no module is refused with the way to write one."""

from __future__ import annotations

import pytest

from kernels import registry


@pytest.mark.parametrize("name", ["", ".", "..x", "./mine", "a b", "/etc/passwd", "mine.py:X", "os\0", "a..b", "3"])
def test_what_is_no_name_of_a_module_is_refused(name: str):
    with pytest.raises(registry.BadPlugin, match="is not the name of a module; type it with dots"):
        registry.registered((name,))


@pytest.mark.parametrize("name", ["os", "os.path", "kernels.problem"])
def test_a_module_without_adapters_is_refused(name: str):
    with pytest.raises(registry.BadPlugin, match="has no tuple ADAPTERS"):
        registry.registered((name,))


def test_a_plugin_that_ends_the_process_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "ends_at_once.py").write_text("import sys; sys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(registry.BadPlugin, match="ends_at_once cannot be imported"):
        registry.registered(("ends_at_once",))


def test_a_file_of_a_checkout_that_an_installed_copy_cannot_import_is_told_how(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_own.py").write_text("from kernels.no_such import Adapter\n")  # as `kernels.adapter` is there
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(registry.BadPlugin, match=r"sed -i 's/from kernels/from attention_orchestrator.kernels/' my_own.py$"):
        registry.registered(("my_own",))


@pytest.mark.parametrize(("old", "new"), [("extra_bytes", "workspace_bytes"), ("at", "for_versions")])
def test_a_plugin_that_overrides_a_method_by_its_old_name_is_told_the_new_one(
    tmp_path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
):
    """Its override would never be called."""
    module = f"overrides_{old}"
    (tmp_path / f"{module}.py").write_text(
        "from kernels.adapters.torch_sdpa import TorchSdpa\n\n\n"
        f"class Mine(TorchSdpa):\n    def {old}(self, _):\n        return self\n\n\n"
        "ADAPTERS = (Mine(routine='paged_decode', name='mine'),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(registry.BadPlugin, match=f"{module}: {old} is now called {new}; rename the method"):
        registry.registered((module,))
