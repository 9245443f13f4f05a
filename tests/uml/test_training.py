"""A real training over netem, through the rig's own pipeline: the traffic is exact, the verdict a pass, netem named."""

from __future__ import annotations

from typing import Any

import pytest

GUEST, PATIENCE = "tests.uml.training", 800.0  # s, for at most three runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(850)]


@pytest.fixture(scope="module")
def case(said: list[dict[str, Any]]) -> dict[str, Any]:
    """The record of the case with two nodes."""
    (line,) = said
    (found,) = line["record"]["cases"]
    return dict(found)


def test_passes(case: dict[str, Any]) -> None:
    assert case["status"] == "pass", case["reason"]
    assert case["params"]["nodes"] == 2


def test_traffic_is_exact(case: dict[str, Any]) -> None:
    (traffic,) = (check for check in case["checks"] if check["metric"] == "payload_tx")
    assert traffic["predicted"] > 10**6
    assert traffic["measured"] == traffic["predicted"]


def test_netem_was_used_and_its_delay_was_there(case: dict[str, Any]) -> None:
    assert {link["shaper"] for link in case["links"]} == {"netem"}
    for link in case["links"]:
        assert link["asked"]["rtt"] == pytest.approx(0.010)
        assert link["measured"]["rtt"] > 0.010
