"""A library with its version: many spellings are understood, and one is shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from orchestrator import ROOT
from orchestrator.analysis.compare.selection import _one_spelling
from orchestrator.config import environment
from orchestrator.config.environment import parsed, shown
from orchestrator.config.settings import Settings
from orchestrator.planning.expand import expand
from orchestrator.storage.row import to_table
from tests.helpers.timed_rows import made

SPELLINGS = ("flashinfer:0.6.13", "flashinfer-0.6.13", "flashinfer==0.6.13", "flashinfer@0.6.13", "flashinfer 0.6.13")
PLACES = ["README.md", *(str(path.relative_to(ROOT)) for folder in ("docs", "conf") for path in (ROOT / folder).rglob("*.[my]*"))]


@pytest.mark.parametrize("typed", SPELLINGS)
def test_every_spelling_is_understood_and_one_is_shown(typed: str):
    assert parsed(typed) == ("flashinfer", "0.6.13")
    assert shown(typed) == "flashinfer:0.6.13"


@pytest.mark.parametrize(
    ("typed", "library", "version", "distribution"),
    [
        ("fa4-4.0.0b1", "fa4", "4.0.0b1", "flash-attn-4"),
        ("flash-attn-4-4.0.0", "flash-attn-4", "4.0.0", "flash-attn-4"),
        ("flash-attn-3:3.0", "flash-attn-3", "3.0", "tokenspeed-fa3"),
        ("nvidia-cudnn-frontend==1.32.0", "nvidia-cudnn-frontend", "1.32.0", "nvidia-cudnn-frontend"),
        ("flashinfer-python:0.7.2.post1", "flashinfer-python", "0.7.2.post1", "flashinfer-python"),
    ],
)
def test_names_may_hold_hyphens_and_digits(typed: str, library: str, version: str, distribution: str):
    found = parsed(typed)

    assert found is not None and (*found, found.distribution) == (library, version, distribution)


@pytest.mark.parametrize("typed", ["flashinfer", "mine", "flashinfer_0_6", "0.6.13", "device:NVIDIA H200", "flashinfer:new", ""])
def test_anything_else_stays_as_it_is(typed: str):
    assert parsed(typed) is None and shown(typed) == typed


def test_all_spellings_of_an_environment_are_the_same_points(settings: Callable[..., Settings]):
    ids = {tuple(point.point_id for point in expand(settings("+sweep=smoke", f"sweep.env=['{typed}']"))) for typed in SPELLINGS[:3]}
    (env,) = {point.env for point in expand(settings("+sweep=smoke", "sweep.env=[flashinfer-0.6.13]"))}

    assert len(ids) == 1
    assert env == "flashinfer:0.6.13"
    assert environment.find(env, {}).requirements == ("flashinfer-python==0.6.13",)
    assert environment.find(env, {"flashinfer-0.6.13": {"python": "/x"}}).python == "/x"  # its own one, as it was typed


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *((spelling, "flashinfer:0.6.13") for spelling in SPELLINGS),
        ("flashinfer-python==0.6.13", "flashinfer-python:0.6.13"),
        ("fa3-3.0.0", "tokenspeed-fa3:3.0.0"),
        ("env:flashinfer==0.6.13", "env:flashinfer:0.6.13"),
        ("env:mine-1.0", "env:mine-1.0"),  # a value as the rows have it
        ("host-7", "host-7"),
        ("run:20261121T0718", "run:20261121T0718"),
        ("NVIDIA H200", "NVIDIA H200"),
    ],
)
def test_a_side_of_a_comparison_takes_every_spelling(typed: str, meant: str):
    libraries = "flashinfer-python 0.6.13, tokenspeed-fa3 3.0.0"
    rows = to_table([made("a", 1.0, libraries=libraries, env="mine-1.0", host="host-7", flashinfer_version="0.6.13")]).to_pandas()

    assert _one_spelling(typed, rows) == meant


def test_documents_show_one_spelling():
    """Two others have a reason: a requirement is pip's, and a row names the distribution."""
    other = re.compile(r"(?<![/\w-])(?:flashinfer(?:-python)?|fa3|fa4)(?:-|==)\d+\.\d[\w.]*|flashinfer-python:\d[\w.]*")
    found = {
        (name, word)
        for name in PLACES
        for line in (ROOT / name).read_text().splitlines()
        if "requirements" not in line and "mean the same" not in line
        for word in other.findall(line)
    }

    assert found <= {("docs/backends.md", "flashinfer-python-0.7.2.post1")}  # the name of a folder
