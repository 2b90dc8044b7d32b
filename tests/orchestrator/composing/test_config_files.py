"""Hostile configuration files, and what Hydra says of them, end in a sentence and exit code 2."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.composing.words import in_words
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError, explain
from orchestrator.planning import expand
from tests.helpers.command_line import Invoke, composed

HEAD = "defaults: [base, _self_]\nname: bad\nbackend: [fa2_tc]\n"
# What the words of a message must not be.
FOREIGN = ("Traceback", "hydra", "Hydra", "omegaconf", "DictConfig", "full_key", "object_type", "NoneType", "Error")


@pytest.fixture
def planned(invoke: Invoke, tmp_path: Path):
    """Plans the sweep `bad` of a folder of configuration with these files."""

    def plan(**files: str | bytes) -> str:
        (tmp_path / "sweep").mkdir()
        for name, text in files.items():
            (tmp_path / "sweep" / f"{name}.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        done = invoke("--config-dir", str(tmp_path), "+sweep=bad", "mode=plan", "device=h200")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert not any(word in done.stderr for word in FOREIGN), done.stderr
        return done.stderr.replace(str(tmp_path), "DIR")

    return plan


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}s_qo:\n\t- 1\n", "DIR/sweep/bad.yaml:5: not YAML from column 1 on: a tab"),
        ("- 1\n", "DIR/sweep/bad.yaml:1: a list; allowed: keys with values"),
        (f"{HEAD}s_qo: ${{foo:1}}\n", "sweep.s_qo: ${foo:...}: allowed: ${KEY}"),
        (f"{HEAD}s_kv: {{a: 1}}\n", "write the mapping as an item of a list"),
    ],
)
def test_a_hostile_sweep_is_refused_by_file_and_line(planned, text: str, words: str):
    assert words in planned(bad=text)


def test_defaults_that_lead_back_are_named(planned):
    said = planned(bad="defaults: [other]\nname: bad\n", other="defaults: [bad]\nname: other\n")

    assert "the defaults of sweep/bad -> sweep/other -> sweep/bad lead back to the first" in said


def test_a_grid_that_nobody_could_run_is_refused_before_it_is_made(planned):
    axes = "".join(f"{axis}: [{','.join(map(str, range(1, 41)))}]\n" for axis in ("batch_size", "s_qo", "s_kv", "page_size"))

    assert "2,560,000 combinations" in planned(bad=HEAD + axes)


def test_sigterm_ends_planning(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(expand, "_expanded", lambda settings: os.kill(os.getpid(), signal.SIGTERM))
    done = invoke("+sweep=smoke", f"results.path={tmp_path / 'rows'}")

    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("+bach_size=1", "bach_size: there is no such key; did you mean 'sweep.batch_size'?"),
        ("++limits.point_second=3", "limits.point_second: there is no such key; did you mean 'limits.point_seconds'?"),
        ("+timing.min_sample=3", "did you mean 'timing.min_samples'?"),
        ("+timing.ci95_rel=0.1", "timing.ci95_rel: there is no such key; did you mean 'timing.limit'?"),  # its name of today
        ("results=null", "results=null: allowed: a mapping of keys to values"),
        ("limits.attempts=1e30", "limits.attempts=1e+30: allowed: a smaller whole number"),
        ("sweep.name=..", "sweep.name='..': allowed: letters, digits"),
    ],
)
def test_a_key_that_is_none_is_answered_with_the_nearest(key: str, words: str, settings: Callable[..., Settings]):
    with pytest.raises(UserError) as refused:
        settings("+sweep=smoke", key)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("~modle", "~modle: there is no such key"),
        ("+mode=plan", "+mode: the config has this key already; type mode=... without the +"),
        ("limit.point_seconds=3", "limit.point_seconds: there is no such key; did you mean 'limits.point_seconds'?"),
        ("sweep.num_qo_heads=[12]", "type +sweep.num_qo_heads=..."),
        ("where.s_qo=1", "where.s_qo=1: where takes columns with their values in braces; type 'where={s_qo: 1}'"),
        ("where.s_qo=[1,4]", "type 'where={s_qo: [1,4]}'"),
        ("where.device_name='NVIDIA H200'", "type 'where={device_name: NVIDIA H200}'"),
    ],
)
def test_hydras_refusals_are_said_in_words(key: str, words: str):
    with pytest.raises(HydraException) as refused:
        composed("+sweep=smoke", key)

    assert words in in_words(refused.value)


def test_a_folder_of_configuration_that_is_not_there_is_said(invoke: Invoke):
    done = invoke("+sweep=smoke", "hydra.searchpath=[file:///nowhere]")

    assert (done.returncode, done.stderr) == (2, "error: /nowhere: there is no such folder for configuration files\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ${b}\nb: ${a}\n", "a: a ${...} in it leads back to itself"),
        ("a: ${oc.env:NO_SUCH_NAME}\n", "the environment has no NO_SUCH_NAME; export it"),
        ("a: ${nothing}\n", "${nothing}: there is no key 'nothing'"),
    ],
)
def test_a_reference_to_nothing_is_said_in_words(text: str, words: str):
    with pytest.raises(OmegaConfBaseException) as failed:
        OmegaConf.to_container(OmegaConf.create(text), resolve=True)

    assert words in in_words(failed.value)


def test_a_long_list_of_wrong_values_is_cut():
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.config.parts import Texts

    with pytest.raises(ValidationError) as failed:
        TypeAdapter(Texts).validate_python([[number] for number in range(100)])

    assert explain(failed.value).endswith("and 80 more")
