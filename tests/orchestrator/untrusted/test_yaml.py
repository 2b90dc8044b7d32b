"""YAML of others: bounded, without tags and double keys, and every refusal by file and line."""

from __future__ import annotations

import time

import pytest

from orchestrator.errors import UserError
from orchestrator.untrusted import yaml as untrusted_yaml
from tests.helpers.yaml_bomb import BOMB


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a:\n\t- 1\n", 2, "a tab"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' is in line 1 too"),
        ("x: [{q: 1, q: 2}]\n", 1, "the key 'q' is in line 1 too"),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "the tag !!python/object/apply:os.system"),
        ("a: !mine [1]\n", 1, "the tag !mine"),
        ("a: !!set {1, 2}\n", 1, "the tag !!set"),
        ("a: !!binary aGVsbG8=\n", 1, "the tag !!binary"),
        (BOMB, 6, "more than 100,000 values, each alias counted"),
        ("a: 1\nb: &b [*b]\n", 2, "a value is inside of itself by an alias"),
        ("b: &b {x: *b}\n", 1, "a value is inside of itself by an alias"),
        ("a: *nothing\n", 1, "an alias or an anchor without a name that is known"),
        ("a: " + "[" * 5000 + "]" * 5000, 1, "more than 30 deep"),
        ("a: 1\n? [1, 2]\n: 3\n", 2, "a key is a word"),
        ("<<: 3\n", 1, "it merges a mapping"),
        ("a: &a [1]\nb: {<<: *a}\n", 2, "it merges a mapping, and this is none"),
        ("a: 1\n---\nb: 2\n", 2, "a second document"),
        ("a: [1, 2\nb: 3\n", 2, "a bracket, a quote, a colon"),
        ("a: b: c\n", 1, "a colon in a wrong place"),
        ("a: \0\n", 1, "a control character"),
        (f"a: {'9' * 5000}\n", 1, "a whole number of 5000 digits"),
        ("a: 1\nb: 0x_\n", 1, "a value looks like a number and is not one"),
    ],
)
def test_hostile_yaml_is_refused_by_line(text: str, where: int, words: str):
    begun = time.process_time()
    with pytest.raises(UserError) as refused:
        untrusted_yaml.load(text, "sweep.yaml")

    assert str(refused.value).startswith(f"sweep.yaml:{where}: "), str(refused.value)
    assert words in str(refused.value)
    assert time.process_time() - begun < 2


def test_what_people_write_is_read():
    text = "a: &a [1, 2.5, yes, null, 2020-99-99]\nb: *a\nc: {<<: {x: 1}, y: 'two'}\n"

    assert untrusted_yaml.load(text, "x") == {
        "a": [1, 2.5, True, None, "2020-99-99"],
        "b": [1, 2.5, True, None, "2020-99-99"],
        "c": {"x": 1, "y": "two"},
    }
