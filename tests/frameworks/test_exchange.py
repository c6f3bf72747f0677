"""What ranks send to one another, under gloo: bytes really travel."""

from __future__ import annotations

import pytest

from tests.processes import launch


@pytest.mark.distributed
def test_redistribution_between_dtensors_buffers_and_plain_tensors() -> None:
    launch("tests.frameworks.exchange_worker", [], 4)
