"""One boot for all tests of a module: a module names what its guest runs, and how long that may take."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uml.boot import boot, lack


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The JSON lines that the guest of this module, GUEST, wrote within PATIENCE seconds."""
    if reason := lack():
        pytest.skip(reason)
    return boot(request.module.GUEST, request.module.PATIENCE)
