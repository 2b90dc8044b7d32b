"""Which releases lie between two."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.bisection import releases
from orchestrator.bisection.releases import Release, between, of_folder
from orchestrator.errors import UserError

KNOWN = [Release(v) for v in ("0.6.10", "0.5.3", "0.6.0", "0.6.0rc1", "0.6.9", "0.6.0.post1")] + [Release("0.6.1", yanked=True)]


def versions(good: str, bad: str, **keys: bool) -> tuple[str, ...]:
    return between(f"flashinfer-python:{good}", f"flashinfer-python:{bad}", KNOWN, **keys).versions


def test_releases_stand_in_the_order_of_their_versions_without_pre_releases_and_those_taken_back():
    found = between("flashinfer-python:0.5.3", "flashinfer_python:0.6.10", KNOWN)
    assert between("flashinfer:0.5.3", "flashinfer-python:0.6.10", KNOWN) == found
    assert between("flashinfer-0.5.3", "flashinfer-python==0.6.10", KNOWN) == found

    assert found.versions == ("0.5.3", "0.6.0", "0.6.0.post1", "0.6.9", "0.6.10")
    assert found.left_out == (("0.6.0rc1", "a pre-release"), ("0.6.1", "taken back"))
    assert versions("0.5.3", "0.6.1") == ("0.5.3", "0.6.0", "0.6.0.post1", "0.6.1")  # one that was named
    assert versions("0.6.0rc1", "0.6.0") == ("0.6.0rc1", "0.6.0")


def test_they_are_taken_if_they_are_asked_for_and_the_bad_one_may_be_the_older():
    assert versions("0.5.3", "0.6.0", pre=True) == ("0.5.3", "0.6.0rc1", "0.6.0")
    assert versions("0.6.9", "0.6.0", yanked=True) == ("0.6.9", "0.6.1", "0.6.0.post1", "0.6.0")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (
            "flashinfer-python",
            "flashinfer-python:0.6.0",
            "allowed: a library with its version; type good=flashinfer:0.6.3",
        ),
        ("flashinfer-python:0.5.3", "flashinfer-python:new", "bad=flashinfer-python:new: allowed"),
        ("flashinfer-python:0.5.3", "torch:2.11", "good=flashinfer-python:0.5.3 is a release of flashinfer-python"),
        ("flashinfer-python:0.5.3", "flashinfer-python:0.5.3", "good is the same release"),
        ("flashinfer-python:0.5.3", "flashinfer-python:0.6.7", "the index has no such release; it has 0.5.3, 0.6.0rc1"),
    ],
)
def test_what_is_no_pair_of_releases_is_refused(good: str, bad: str, words: str):
    with pytest.raises(UserError, match=words):
        between(good, bad, KNOWN)


def test_a_folder_of_wheels_has_the_releases_of_its_files(tmp_path: Path):
    for name in ("mine_too-0.2-py3-none-any.whl", "mine-0.10-py3-none-any.whl", "mine-0.9.post1-py3-none-any.whl", "mine-x.txt"):
        (tmp_path / name).touch()

    assert [release.version for release in of_folder("Mine", str(tmp_path))] == ["0.9.post1", "0.10"]
    with pytest.raises(UserError, match="no such folder"):
        of_folder("mine", str(tmp_path / "none"))


def test_a_release_is_taken_back_if_all_its_files_are():
    files = [
        {"filename": "mine-1.0-py3-none-any.whl", "yanked": False},
        {"filename": "mine-1.0.tar.gz", "yanked": "broken"},
        {"filename": "mine-1.1-py3-none-any.whl", "yanked": "broken"},
        {"filename": "mine-latest.zip"},
    ]

    assert releases._of_files(files) == [Release("1.0"), Release("1.1", yanked=True)]


def test_an_index_that_does_not_answer_is_said_in_words():
    with pytest.raises(UserError, match=r"the package index does not list mine.*bisect\.wheels=FOLDER"):
        releases.of_index("mine", environment={"PIP_INDEX_URL": "http://127.0.0.1:9"})


def test_an_index_that_answers_in_html_only_lists_the_same_releases():
    page = """<a href="mine-1.0-py3-none-any.whl#sha256=0">mine-1.0-py3-none-any.whl</a><br/>
        <a data-yanked="broken" href="../mine-1.1.tar.gz">mine-1.1.tar.gz</a> <a href="/">up</a>"""

    assert releases._of_files(releases._of_html(page)) == [Release("1.0"), Release("1.1", yanked=True)]


def test_the_index_is_that_of_the_users_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://mine.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))

    assert releases.index({}) == "http://mine.example/simple"
    assert releases.index({"PIP_INDEX_URL": "http://other.example"}) == "http://other.example"


def test_a_watch_begins_at_a_release_and_goes_to_the_newest():
    def versions_since(first: str, is_here: bool = False, **keys: bool) -> tuple[str, ...]:
        return releases.since(f"flashinfer:{first}", KNOWN, is_here, "the index", **keys).versions

    assert versions_since("0.6.0.post1") == ("0.6.0.post1", "0.6.9", "0.6.10")
    assert versions_since("0.6.10") == versions_since("0.6.10", pre=True) == ("0.6.10",)
    assert versions_since("0.7.0", is_here=True) == ("0.7.0",)  # built here, and newer than any that is published
    for unknown in ("0.5.2", "0.7.0"):
        with pytest.raises(
            UserError, match=rf"watch\.since=flashinfer-python:{unknown}: the index has no such release; it has 0\.5\.3"
        ):
            versions_since(unknown)
    with pytest.raises(UserError, match="the index has no such release; it has none"):
        releases.since("flashinfer:9.9", [], False, "the index")
