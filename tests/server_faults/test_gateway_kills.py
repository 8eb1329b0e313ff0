"""kill -9 of the gateway, at random, under real clients."""

from __future__ import annotations

import os

import kill_gateway
import pytest

KILLS = int(os.environ.get("ASSAY_GATEWAY_KILLS", "20"))


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled() -> None:
    result = kill_gateway.run(KILLS)
    assert (result.lost, result.doubled, result.disordered) == (0, 0, 0), result
    assert result.problems == []
    assert result.unanswered == 0  # the clients decided all the time
    assert result.acknowledged == result.stored > 4 * KILLS
    assert result.sessions > KILLS // 2


def test_the_loop_notices_a_gateway_that_acknowledges_too_early() -> None:
    result = kill_gateway.run(6, learner="", clients=2, hasty=True)
    assert result.lost > 0 or result.disordered > 0
