"""How long the modules of a plan compile: the estimate, and the table that it is from."""

from __future__ import annotations

from statistics import median

import pytest

from kernels.adapter import Module
from orchestrator.planning.cost import COMPILE_SECONDS, compile_seconds, kind_of, not_measured
from tests.helpers.command_line import Invoke
from tools import compile_seconds as tool

FA3 = Module("flashinfer.jit.attention.modules:gen_batch_prefill_module", ("fa3", "bf16"))
XQA = [Module("flashinfer.jit.xqa:gen_xqa_module", ("bf16", tokens)) for tokens in range(40)]
NEW = Module("somewhere:gen_new_module", ())


def test_the_table_is_what_the_committed_rows_say():
    times = tool.measured()
    middle = {kind: round(median(s for several in of.values() for s in several), 1) for kind, of in times.items()}

    assert middle == {kind: seconds for kind, (seconds, _) in COMPILE_SECONDS.items()}
    sources = {kind: count for kind, (_, count) in COMPILE_SECONDS.items()}
    assert tool.table(times, sources) == tool.TABLE.read_text()


def test_a_sum_of_several_modules_gives_the_one_that_is_not_known():
    one, two, three = XQA[:3]
    sums = {frozenset({one}): 10.0, frozenset({one, two}): 25.0, frozenset({one, two, three}): 25.2, frozenset({FA3, NEW}): 50.0}

    assert tool._apart(sums) == {one: 10.0, two: 15.0}  # `three` was compiled before; of two unknown ones nobody knows


def test_many_modules_share_the_cores_and_none_is_faster_than_it_was():
    seconds, sources = COMPILE_SECONDS[kind_of(XQA[0])]

    assert compile_seconds([], 16) == 0
    assert compile_seconds([XQA[0]], 64) == seconds
    assert compile_seconds(XQA, 2) == 40 * seconds * sources / 2
    assert compile_seconds(XQA, 16) == 40 * seconds * sources / 16


def test_a_kind_without_a_measurement_counts_as_the_median_kind():
    core_seconds = sorted(seconds * min(sources, 16) for seconds, sources in COMPILE_SECONDS.values())

    assert not_measured([FA3, NEW, *XQA]) == 1
    assert compile_seconds([NEW], 1) == median(core_seconds)


def test_the_plan_says_it_in_a_line_of_its_own(invoke: Invoke):
    """24 minutes were measured on 2 cores beside other work; the estimate may be half of that, or a tenth more."""
    said = invoke("+sweep=specdec_long_ctx", "mode=plan", "device=h200", "format=csv").stdout
    (line,) = (line for line in said.splitlines() if "compilation, once" in line)
    nothing = invoke("+sweep=smoke", "mode=plan", "device=cpu", "format=csv").stdout
    minutes = int(line.partition(" on 16 cores, about ")[2].partition(" min")[0])

    assert 12 <= minutes <= 26
    assert "a guess for 3 of 14 modules: no committed run has compiled their kind" in line
    assert "compilation, once" not in nothing


@pytest.mark.parametrize("sweep", ["specdec_long_ctx", "servers", "mla_mtp", "sparse_mla model=deepseek_v3"])
def test_a_plan_is_a_screen_with_its_cost_and_full_has_every_table(sweep: str, invoke: Invoke):
    """Of `sparse_mla` most points are of no such model, and have no heads."""
    words = (*f"+sweep={sweep}".split(), "mode=plan", "device=h200")
    short, full = (invoke(*words, *more) for more in ((), ("full=true",)))
    lines = short.stdout.splitlines()

    assert (short.returncode, full.returncode) == (0, 0), short.stderr
    assert len(lines) <= 40 and max(map(len, lines)) <= 80 and "which backends run" in short.stdout
    assert all(words in short.stdout and words in full.stdout for words in ("estimated time", "compilation", "largest point"))
    assert "why not" in " ".join(lines) and len(full.stdout.splitlines()) > len(lines)
