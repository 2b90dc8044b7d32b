"""Hostile configuration files, and what Hydra says of them, end in a sentence and exit code 2."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.composing.compose import composed as compose
from orchestrator.config.settings import Settings
from orchestrator.errors import UserError, explain
from orchestrator.planning import expand
from tests.helpers.command_line import Invoke

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
        (
            f"{HEAD}s_qo: ${{foo:1}}\n",
            "sweep.s_qo: Unsupported interpolation type foo; a list stands in brackets, KEY: [1, 2]; ${KEY} is",
        ),
        (f"{HEAD}s_kv: {{a: 1}}\n", "DIR/sweep/bad.yaml: s_kv: its value is a list; type s_kv: [...]"),
    ],
)
def test_a_hostile_sweep_is_refused_by_file_and_line(planned, text: str, words: str):
    assert words in planned(bad=text)


def test_defaults_that_lead_back_are_named(planned):
    said = planned(bad="defaults: [other]\nname: bad\n", other="defaults: [bad]\nname: other\n")

    assert "--config-dir=DIR: a defaults list in it leads back to its own file; leave one name out" in said


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
        ("+bach_size=1", "bach_size: unknown key; did you mean 'sweep.batch_size'?"),
        ("++limits.point_second=3", "limits.point_second: unknown key; did you mean 'limits.point_seconds'?"),
        ("+timing.min_sample=3", "did you mean 'timing.min_samples'?"),
        ("+timing.ci95_rel=0.1", "timing.ci95_rel: unknown key; did you mean 'timing.limit'?"),  # its name of today
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
        ("~modle", "~modle: unknown key"),
        ("+mode=plan", "+mode: the config has this key already; type mode=... without the +"),
        ("limit.point_seconds=3", "limit.point_seconds: unknown key; did you mean 'limits.point_seconds'?"),
        ("sweep.num_qo_heads=[12]", "type +sweep.num_qo_heads=..."),
        ("where.s_qo=1", "where.s_qo=1: where takes columns with their values in braces; type 'where={s_qo: 1}'"),
        ("where.s_qo=[1,4]", "type 'where={s_qo: [1,4]}'"),
        ("where.device_name='NVIDIA H200'", "type 'where={device_name: NVIDIA H200}'"),
    ],
)
def test_hydras_refusals_are_said_in_words(key: str, words: str, invoke: Invoke):
    done = invoke("+sweep=smoke", key)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {words}") or words in done.stderr


def test_a_key_of_hydra_is_not_taken(invoke: Invoke):
    done = invoke("+sweep=smoke", "hydra.searchpath=[file:///nowhere]")

    assert done.returncode == 2
    assert done.stderr.startswith("error: hydra.searchpath=[file:///nowhere]: such a key is the project's own to set; leave it out")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("${same}", "same: Recursive interpolation detected; "),
        (
            "${oc.env:NO_SUCH_NAME}",
            "same: KeyError raised while resolving interpolation: \"Environment variable 'NO_SUCH_NAME' not found\"; ",
        ),
        ("${nothing}", "same: Interpolation key 'nothing' not found; "),
        ("${oc.env:NO_SUCH_NAME,0.1}", ""),
    ],
)
def test_a_reference_to_nothing_is_said_in_words(value: str, words: str):
    if not words:
        assert compose([f"same={value}"])["same"] == "0.1"
        return
    with pytest.raises(UserError) as failed:
        compose([f"same={value}"])

    assert str(failed.value).startswith(words) and "${oc.env:NAME,VALUE} a variable" in str(failed.value)


def test_a_long_list_of_wrong_values_is_cut():
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.config.parts import Texts

    with pytest.raises(ValidationError) as failed:
        TypeAdapter(Texts).validate_python([[number] for number in range(100)])

    assert explain(failed.value).endswith("and 80 more")
