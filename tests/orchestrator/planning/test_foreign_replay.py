"""A replay of somebody else's dataset takes what describes the point, and runs nothing that the dataset names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.composing.compose import from_words, with_sweep_of_row
from orchestrator.errors import UserError
from orchestrator.planning import replay
from orchestrator.storage.folder import FolderStore
from tests.helpers.command_line import Invoke
from tests.helpers.stored_rows import made

POINT = "0123456789ab"


@pytest.fixture
def friend(tmp_path: Path):
    """A dataset whose row has a command with these words."""

    def write(*words: str) -> list[str]:
        store = FolderStore(str(tmp_path / "friend"))
        store.add([made(POINT, command=shlex.join(["python", "-m", "orchestrator", *words]))])
        store.close()
        return ["mode=replay", f"point={POINT}", f"results.path={tmp_path / 'friend'}"]

    return write


@pytest.mark.parametrize(
    "word",
    [
        "adapters=[results.from_a_friend._kernels]",
        "+adapters=[evil]",
        "+env.x={requirements: ['evil @ file:///tmp/evil']}",
        "+env.x={python: /tmp/evil}",
        "sweep.env=[evil:1.0]",
        "+sweep.include=[{backend: fa2, env: 'evil:1.0'}]",
        "import=evil.yaml",
        "traffic=evil.jsonl",
        "--config-dir=evil",
        "sweep.about=${oc.env:HOME}",
        "timing=../../evil",
        "model=/tmp/evil",
        r"+sweep.x=$\{oc.decode\:\\\[\\\{e$\{oc.decode\:n\}v\\\:evilpkg-1.0\\\}\\\]\}",  # Hydra takes backslashes away
        r"sweep.name=$\{oc.$\{oc.decode:e$\{oc.decode:n\}v\}:HOME\}",
    ],
)
def test_what_runs_or_reads_what_the_dataset_names_must_be_typed(friend, invoke: Invoke, word: str):
    done = invoke(*friend("+sweep=smoke", word))

    assert (done.returncode, done.stdout) == (2, "")
    assert f"its command has {shlex.quote(word)}, which runs or reads what the dataset names" in done.stderr


@pytest.mark.parametrize(
    "word", ["into=/elsewhere", "profile=ncu", "cluster=ray", "cluster.address=ray://evil:1", "modules=evil.tar", "where={a: 1}"]
)
def test_what_says_nothing_of_the_point_is_left_out(friend, word: str):
    typed = friend("+sweep=smoke", "timing=quick", word)
    config, words = with_sweep_of_row(from_words(typed), typed)

    assert words == ["+sweep=smoke", "timing=quick", *typed]
    assert (config["into"], config["modules"], config["cluster"]["name"]) == (None, None, "local")


def test_an_environment_that_no_word_spells_is_found_in_what_was_composed(friend, monkeypatch: pytest.MonkeyPatch):
    typed = friend("+sweep=smoke", "+sweep.include=[{backend: fa2, env: evilpkg-1.0}]")
    monkeypatch.setattr(replay, "_needs_trust", lambda word: False)
    with pytest.raises(UserError, match="names an environment; if you trust it, type"):
        with_sweep_of_row(from_words(typed), typed)


@pytest.mark.parametrize("command", ["python -m evil mode=check_power", "python -m orchestrator ; touch /tmp/x # mode=check_power"])
def test_a_command_that_is_none_of_this_project_is_not_printed(tmp_path: Path, invoke: Invoke, command: str):
    store = FolderStore(str(tmp_path))
    store.add([made(POINT, command=command)])
    store.close()

    assert "its row has no command of this project" in invoke("mode=replay", f"point={POINT}", f"results.path={tmp_path}").stderr


def test_a_command_to_type_is_quoted(friend, invoke: Invoke):
    assert (
        "type its own command: python -m orchestrator 'a=1;x' mode=check_power"
        in invoke(*friend("a=1;x", "mode=check_power")).stderr
    )


@pytest.mark.parametrize("brackets", [400, 3000])
def test_stored_words_pass_the_doors_of_typed_ones(friend, brackets: int):
    typed = friend("+sweep=smoke", f"sweep.batch_size={'[' * brackets}{']' * brackets}")
    with pytest.raises(UserError, match=r"sweep\.batch_size"):
        with_sweep_of_row(from_words(typed), typed)


def test_a_word_that_is_typed_again_counts(friend, invoke: Invoke):
    done = invoke(*friend("+sweep=smoke", "adapters=[evil]", "timing=quick"), "adapters=[tests.backends.hostile]", "cluster=inline")

    assert "none of the 24 points of sweep smoke has this point_id" in done.stderr
