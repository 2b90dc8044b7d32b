"""What is typed is bounded and refused in words before Hydra composes anything."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.composing.overrides import checked
from orchestrator.errors import UserError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smoke"], "smoke: it gives no key a value; type +sweep=smoke"),
        (["mode"], "mode: it gives no key a value; type KEY=VALUE, without spaces around the ="),
        (["report"], "report: it gives no key a value; type mode=report"),
        (["mode=plan", "mode=report"], "mode=plan mode=report: a command has one mode; type one of them"),
        (["--mode=plan"], "--mode=plan: keys have no dashes; type mode=plan"),
        (["--report"], "--report: keys have no dashes; type mode=report"),
        (["where=batch_size=1"], "where=batch_size=1: a mapping stands in braces; type 'where={batch_size: 1}'"),
        (["sweep.s_qo=1,8"], "sweep.s_qo=1,8: several values; a list stands in brackets, sweep.s_qo=[1,8]; to run the command"),
        (["model=a,b"], "model=a,b: several values; it takes one; to run the command once for each, add -m"),
        (["=3"], "=3: a key is needed"),
        (["sweep.s_qo=[1"], "sweep.s_qo=[1: it cannot be read as KEY=VALUE"),
        (["sweep.s_qo=foo(3)"], "cannot be read as KEY=VALUE"),
        (["sweep.s_qo=${a"], "cannot be read as KEY=VALUE"),
        (["sweep.s_qo=\x1b[31m"], "cannot be read as KEY=VALUE"),
        (["sweep.s_qo=" + "[" * 300], "cannot be read as KEY=VALUE"),
        (["mode=run,plan"], "mode=run,plan: several values; it takes one; to run the command once for each, add -m"),
        (["sweep.s_qo=range(1,10000000000000000)"], "several values"),
        (["-m", "sweep.s_qo=range(1,10000000000000000)"], "these values make 1e+16 jobs; allowed: up to 1,000"),
        (["-m", "a=" + ",".join(map(str, range(40))), "b=" + ",".join(map(str, range(40)))], "1.6e+03 jobs"),
        (["-m", "sweep.s_qo=interval(1,2)"], "allowed with -m: values with commas"),
        (["-m", "mode=glob(*)"], "allowed with -m: values with commas"),
        (["sweep.s_qo=[" + "1," * 30_000 + "1]"], "characters; allowed: up to 20,000"),
        (["timing=null"], "timing: there is no 'null'; allowed: default, nvbench"),
        (["timing=3"], "timing: there is no '3'; allowed: default, nvbench"),
        (
            ["device=[a,b]"],
            "device=[a,b]: device takes one file; type one of them, or -m device=a,b to run the command once for each",
        ),
        (["+sweep=[a,b]"], "+sweep=[a,b]: sweep takes one file; type one of them, or -m +sweep=a,b to run"),
        (
            ["sweep.s_kv=[1]", "sweep.s_kv=[2]"],
            "sweep.s_kv: given twice, by sweep.s_kv=[1] and by sweep.s_kv=[2]; type one of them",
        ),
        (["rerun=all", "++rerun=none"], "rerun: given twice, by rerun=all and by ++rerun=none"),
        (["where={tp: 1}", "where={s_qo: 1}"], "where: given twice, by where={tp: 1} and by where={s_qo: 1}; put both into one"),
        (["where={tp: 1}", "where.tp=8"], "where.tp: given twice, by where={tp: 1} and by where.tp=8"),
        (["--experimental-rerun", "a.pickle"], "--experimental-rerun a.pickle: this option is not taken, since its file could run"),
        (["--experimental", "a.pickle"], "--experimental-rerun a.pickle: this option is not taken"),
        (
            ["--shell-completion", "query=bash"],
            "--shell-completion query=...: only a shell asks this, for the words that somebody types",
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense; type python -m orchestrator --help"),
        (["results.path=~nobody-of-this-name/x"], "there is no user 'nobody-of-this-name'"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COMP_LINE", raising=False)
    begun = time.process_time()
    with pytest.raises(UserError) as refused:
        checked(words)

    assert message in str(refused.value)
    assert not any(word in str(refused.value) for word in ("hydra", "Hydra", "Lexer", "EOF", "NoneType"))
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "true", "1,2"])
def test_a_size_of_batches_that_would_end_in_a_traceback_is_refused(value: str):
    with pytest.raises(
        UserError, match=f"max_batch_size={value}: allowed: a whole number from 1, or null for no limit; type hydra"
    ):
        checked(["-m", f"hydra.sweeper.max_batch_size={value}", "device=h200,b200"])


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("results.path=~/rows", "results.path={home}/rows"),
        ("results.path=~", "results.path={home}"),
        ("results.path=~/my rows", "results.path='{home}/my rows'"),
        ("baseline=[~/a,~/b]", "baseline=[{home}/a,{home}/b]"),
        ("~sweep.s_qo", "~sweep.s_qo"),
        ("where={device_name: '~x'}", "where={device_name: '~x'}"),
    ],
)
def test_a_tilde_is_the_home_folder_as_people_type_it(typed: str, read: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))

    assert checked([typed]) == [read.replace("{home}", str(tmp_path))]


@pytest.mark.parametrize(
    "words",
    [
        ["device=[h200]"],
        ["hydra.sweeper.max_batch_size=1"],
        ["~sweep.s_qo", "+sweep.s_qo=[4]"],
        ["where={tp: 1}", "where.s_kv=8192"],
        ["rerun=all", "rerun=all"],
    ],
)
def test_what_loses_nothing_is_taken(words: list[str]):
    assert checked(words) == words


def test_m_goes_first_and_the_rest_stays_as_it_is():
    words = ["+sweep=smoke", "sweep.s_qo=[1,4]", "-m", "cluster=local,inline", "+trees.mine={branches: [3, 2, 1]}"]

    assert checked(words) == ["-m", *(word for word in words if word != "-m")]
