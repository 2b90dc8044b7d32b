"""What is typed is bounded and refused in words before Hydra composes anything."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator import api, commands
from orchestrator.composing.overrides import read
from orchestrator.errors import UserError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smoke"], "smoke: it gives no key a value; type +sweep=smoke"),
        (["mode"], "mode: it gives no key a value; type KEY=VALUE, without spaces around the ="),
        (["report"], "report: it gives no key a value; type mode=report"),
        (["mode=plan", "mode=report"], "mode: given twice, by mode=plan and by mode=report; type one of them"),
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
        (["sweep.s_kv=range(256,1024,256)"], "in brackets, 'sweep.s_kv=[{from: 256, to: 768, step: 256}]'; to run"),
        (
            ["sweep.s_kv=[range(256,1024,256)]"],
            "type its values, or a range of an axis: {from: 256, to: 768, step: 256}",
        ),
        (["sweep.s_kv=choice(256,512)"], "in brackets, sweep.s_kv=[256,512]; to run"),
        (["-m", "sweep.s_qo=range(1,10000000000000000)"], "-m: more than 1,000 jobs; allowed: up to 1,000"),
        (["-m", "a=" + ",".join(map(str, range(40))), "b=" + ",".join(map(str, range(40)))], "more than 1,000 jobs"),
        (["-m", "sweep.s_qo=interval(1,2)"], "allowed with -m: values with commas"),
        (["-m", "mode=glob(*)"], "allowed with -m: values with commas"),
        (["sweep.s_qo=[" + "1," * 30_000 + "1]"], "characters; allowed: up to 20,000"),
        (["timing=null"], "timing: unknown 'null'; allowed: default, nvbench"),
        (["timing=3"], "timing: unknown '3'; allowed: default, nvbench"),
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
        (["--experimental-rerun", "a.pickle"], "unrecognized arguments: --experimental-rerun"),
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
        read(words)

    assert message in str(refused.value)
    assert not any(word in str(refused.value) for word in ("hydra", "Hydra", "Lexer", "EOF", "NoneType"))
    assert time.process_time() - begun < 3


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("results.path=~/rows", "results.path={home}/rows"),
        ("results.path=~", "results.path={home}"),
        ("results.path=~/my rows", "results.path='{home}/my rows'"),
        ("noise=[~/a,~/b]", "noise=[{home}/a,{home}/b]"),
        ("~sweep.s_qo", "~sweep.s_qo"),
        ("where={device_name: '~x'}", "where={device_name: '~x'}"),
    ],
)
def test_a_tilde_is_the_home_folder_as_people_type_it(typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))

    assert read([typed]).words[:1] == [meant.replace("{home}", str(tmp_path))]


@pytest.mark.parametrize(
    "words",
    [
        ["device=[h200]", "mode=plan"],
        ["~sweep.s_qo", "+sweep.s_qo=[4]"],
        ["where={tp: 1}", "where.s_kv=8192"],
        ["rerun=all", "rerun=all"],
    ],
)
def test_what_loses_nothing_is_taken(words: list[str]):
    assert read(words).words == words


@pytest.mark.parametrize(
    ("typed", "mode"),
    [
        ("question=one_backend model=llama_3_1_70b tp=8 device=h200 engine=vllm", "report"),
        ("+sweep=smoke question=best", "report"),
        ("model=llama_3_1_70b tp=8 device=h200 engine=vllm", "report"),
        ("results.path=mine full=true", "report"),
        ("baseline=a candidate=b where={tp:8}", "compare"),
        ("good=flashinfer:0.6.13 bad=flashinfer:0.7.2", "bisect"),
        ("+sweep=auto_guard watch.since=[flashinfer:0.6.13]", "watch"),
        ("dashboard.port=0 results.path=mine", "dashboard"),
    ],
)
def test_the_mode_that_alone_has_the_keys_is_meant(typed: str, mode: str):
    words = typed.split()

    assert read(words).words == [*words, f"mode={mode}"]


def test_a_command_from_python_names_the_mode_that_is_meant_too(monkeypatch: pytest.MonkeyPatch):
    given: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(commands, "execute", lambda config, words: given.append((config["mode"], words)))
    api.run("question=best", "results.path=mine")

    assert given == [("report", ["question=best", "results.path=mine", "mode=report"])]


@pytest.mark.parametrize(
    "typed",
    [
        "+sweep=smoke draft.acceptance=0.7",  # a run prints a report
        "+sweep=smoke device=h200",  # to plan, or to compile
        "+sweep=smoke backend=[fa2]",  # an axis was meant
        "+sweep=smoke rerun=suspects baseline=a candidate=b",
        "export=vllm model=llama_3_1_70b tp=8 device=h200",
        "import=results.csv device=h200",
        "traffic=mine.csv",
        "mode=plan question=best",
    ],
)
def test_no_mode_is_meant_by_keys_of_a_run_or_of_several_modes_of_a_sweep(typed: str):
    assert read(typed.split()).words == typed.split()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("into=mine.parquet", "into: mode=run does not read it; leave it out, or type mode=replay, donate"),
        ("question=best baseline=a", "question: mode=run does not read it; leave it out, or type mode=report"),
    ],
)
def test_a_key_of_several_modes_names_them(typed: str, words: str):
    with pytest.raises(UserError, match=words):
        read(typed.split())


def test_m_may_stand_anywhere_and_makes_a_job_of_each_combination():
    found = read(["+sweep=smoke", "sweep.s_qo=1,4", "-m", "cluster=local,inline", "+trees.mine={branches: [3, 2, 1]}"])

    assert list(found.jobs()) == [
        ["+sweep=smoke", f"sweep.s_qo={s_qo}", f"cluster={cluster}", "+trees.mine={branches: [3, 2, 1]}"]
        for s_qo in (1, 4)
        for cluster in ("local", "inline")
    ]


def test_what_only_shows_something_goes_to_hydra():
    found = read(["+sweep=smoke", "--cfg", "job", "cluster=inline", "--config-dir", "mine"])

    assert (found.words, found.shows, found.config_dir) == (["+sweep=smoke", "cluster=inline"], ("--cfg", "job"), "mine")
