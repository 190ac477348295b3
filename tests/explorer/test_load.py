"""Many clients at once: no error, and memory that stays."""

import sys

import pytest

from tests.explorer.load import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


def test_fifty_clients_for_two_minutes():
    outcome = run(clients=50, seconds=120, warm_up=60, pause=1.0)
    assert set(outcome.statuses) == {"200"}, outcome
    assert outcome.statuses["200"] > 500
    assert outcome.end <= 1.1 * outcome.warm, outcome
