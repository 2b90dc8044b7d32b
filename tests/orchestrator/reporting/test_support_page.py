"""The support page follows the rules, and the golden plans keep how many points of each sweep each GPU runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from orchestrator import ROOT
from orchestrator.config.settings import Settings
from orchestrator.machines import known_devices
from orchestrator.planning.decide import make_plan
from orchestrator.planning.expand import expand
from orchestrator.reporting import support_page
from tests.helpers.command_line import Invoke


def test_the_committed_page_is_made_of_the_rules():
    assert (ROOT / "docs" / "support.md").read_text() == support_page.page(), "type make docs"


def test_the_mode_prints_the_page_without_a_sweep(invoke: Invoke):
    done = invoke("mode=support")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (ROOT / "docs" / "support.md").read_text(), "type make docs"


# Points that run: what flashinfer-python 0.7.2.post1 serves of each sweep, by GPU. The H100 and H200 column was run, but
# for engines' builds of FlashAttention and the edges that are as new.
GOLDEN = {
    "auto_guard": (24, 36, 36, 32, 32, 32),
    "auto_routing": (211, 428, 428, 354, 354, 263),
    "in_step": (3, 6, 6, 5, 5, 5),
    "engine_maximum": (72, 198, 198, 174, 174, 138),
    "mla_mtp": (392, 1176, 1176, 1184, 1184, 424),
    "ragged_prefill": (117, 276, 276, 160, 160, 136),
    "rule_edges_mla": (129, 214, 214, 197, 197, 153),
    "rule_edges_paged": (494, 860, 860, 589, 589, 599),
    "rule_edges_ragged": (110, 225, 225, 141, 141, 119),
    "smoke": (16, 24, 24, 24, 24, 24),
    "specdec_long_ctx": (428, 956, 960, 816, 816, 531),
    "specdec_paged_decode": (825, 1436, 1436, 1325, 1325, 1106),
    "target_verify": (783, 1566, 1566, 1368, 1368, 1077),
    "xqa_specdec": (376, 840, 840, 460, 460, 640),
}
GPUS = ("a100", "h100", "h200", "b200", "b300", "rtx5090")


@pytest.mark.parametrize("sweep", GOLDEN)
def test_the_golden_plan_of_a_sweep(sweep: str, settings: Callable[..., Settings]):
    found = settings(f"+sweep={sweep}")
    points = expand(found)
    plans = [make_plan(points, [known_devices()[gpu]], found) for gpu in GPUS]

    assert tuple(len(plan.decisions_of("run")) for plan in plans) == GOLDEN[sweep]
    assert all(Counter(bool(d.reason) for d in plan.decisions)[False] == len(plan.decisions_of("run")) for plan in plans)
