"""Draft trees: their shapes by name, and what is refused."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from kernels.problem.trees import Tree, TreeTooSmall
from orchestrator import ROOT

NAMED = {name: Tree.model_validate(spec) for name, spec in yaml.safe_load((ROOT / "conf/trees/default.yaml").read_text()).items()}


@pytest.mark.parametrize(
    ("spec", "parents"),
    [
        ({"branches": (1,)}, (-1, 0, 1, 2, 3)),
        ({"branches": (2,)}, (-1, 0, 0, 1, 1)),
        ({"branches": (3, 1)}, (-1, 0, 0, 0, 1)),
        ({"paths": ((0,), (1,), (0, 0), (1, 0), (2,))}, (-1, 0, 0, 0, 1)),
        ({"top_k": 2, "depth": 2}, (-1, 0, 0, 1, 2)),
        ({"top_k": 1}, (-1, 0, 1, 2, 3)),
    ],
)
def test_a_tree_gives_the_parents_of_its_first_tokens(spec: dict[str, object], parents: tuple[int, ...]):
    assert Tree.model_validate(spec).parents(5) == parents


def test_the_likeliest_drafts_come_first():
    """Ranks cost 1, 2, ...: the best child (1), then the second (2) and the best grandchild (2), then those of cost 3."""
    assert Tree(top_k=3, depth=3).parents(8) == (-1, 0, 0, 1, 0, 2, 1, 3)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("s_qo", [1, 2, 8, 32])
def test_every_named_tree_is_a_tree_whose_prefixes_are_trees(name: str, s_qo: int):
    parents = NAMED[name].parents(s_qo)

    assert len(parents) == s_qo
    assert parents[0] == -1
    assert all(0 <= parent < i for i, parent in enumerate(parents) if i)
    assert NAMED[name].parents(32)[:s_qo] == parents


def test_medusa_s_choices_are_64_tokens():
    assert len(NAMED["medusa_7b_63"].parents(64)) == 64
    with pytest.raises(TreeTooSmall, match="64 tokens, its root included, fewer than s_qo=65"):
        NAMED["medusa_7b_63"].parents(65)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "this one has none"),
        ({"branches": (2,), "top_k": 3}, "one of branches, top_k"),
        ({"branches": (2,), "depth": 3}, "one of branches, top_k"),
        ({"paths": ((0, 1),)}, "path [0, 1] hangs on [0]"),
        ({"branches": (0,)}, "greater than 0"),
    ],
)
def test_a_wrong_tree_raises_with_a_message(spec: dict[str, object], words: str):
    with pytest.raises(ValidationError) as caught:
        Tree.model_validate(spec)

    assert words in str(caught.value)
