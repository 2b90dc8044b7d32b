"""The models of the project follow from their public config.json, of which excerpts are here, with their own key names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import ROOT
from orchestrator.config import config_json
from orchestrator.config.model import Model, layers_of, window_of
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand

FILES = {path.stem: path for path in (ROOT / "conf" / "model").glob("*.yaml")}
# model -> where its config.json is, and what it says of attention
PUBLIC: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "public_configs.json").read_text())


def read(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load(FILES[name].read_text())
    assert isinstance(loaded, dict)
    return loaded


def written(folder: Path, name: str, **changes: object) -> str:
    """The path of the config.json of a model, as its page has it, with other keys."""
    path = folder / PUBLIC[name]["source"].rpartition("/")[2] / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**PUBLIC[name]["config"], **changes}))
    return str(path)


def test_every_model_has_its_public_numbers_here_and_the_other_way_round() -> None:
    assert set(FILES) == set(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_model_is_its_public_config(name: str, tmp_path: Path) -> None:
    found = config_json.read(written(tmp_path, name))
    ours = Model.model_validate({**read(name), "weights_gb": None})  # which no config.json has
    shape = {key: value for key, value in found.items() if key not in ("name", "tp", "page_size", "layer")}
    layer = {key: value for key, value in read(name).get("layer", {}).items() if key != "mlp_gpus"}

    assert Model.model_validate(found) == ours
    assert shape == {key: getattr(ours, key) for key in shape}
    assert all(found.get("layer", {}).get(key) == value for key, value in layer.items())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_config_plans_what_its_model_plans(name: str, tmp_path: Path, settings: Callable[..., Settings]) -> None:
    routine = "mla" if "head_dim_ckv" in read(name) else "paged_decode"
    axes = ("+sweep=base", "sweep.backend=[torch_sdpa]", f"sweep.routine={routine}", "sweep.batch_size=[1]", "sweep.s_kv=[1024]")
    dense = ["model.index_topk=null"] if "index_topk" in read(name) else []
    asked = settings(*axes, f"model={name}", *dense, f"sweep.tp={read(name)['tp']}")
    of_file = Model.model_validate({**config_json.read(written(tmp_path, name)), "index_topk": None})

    assert expand(asked) == expand(asked.model_copy(update={"model": of_file}))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_first_line_names_the_source(name: str) -> None:
    first = FILES[name].read_text().splitlines()[0]
    assert first.startswith(f"# {PUBLIC[name]['source']} config.json")


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_heads_are_split_or_copied_evenly(name: str) -> None:
    model = Model.model_validate(read(name))
    heads = model.num_kv_heads

    assert list(model.tp) == sorted(set(model.tp))
    assert model.num_qo_heads % heads == 0
    assert [tp for tp in model.tp if model.num_qo_heads % tp or (heads % tp and tp % heads)] == []
    assert model.page_size == 64
    assert model.name == name


def test_layers_that_do_not_attend_do_not_count() -> None:
    assert (layers_of("qwen3_next_80b_a3b"), window_of("qwen3_next_80b_a3b")) == (12, None)
    assert (layers_of("gpt_oss_120b"), window_of("gpt_oss_120b")) == (36, 128)


@pytest.mark.parametrize("name", ["../model/llama_3_1_70b", "{folder}/evil", "../sweep/smoke", "..", "", "a\0b", "x" * 5000])
def test_a_models_name_opens_no_file_elsewhere(name: str, tmp_path: Path):
    (tmp_path / "evil.yaml").write_text("layer: {num_layers: 77}\n")

    assert layers_of(name.format(folder=tmp_path)) is None
    assert layers_of("llama_3_1_70b") == 80
