"""DTensors and flat parameters that torch made on six gloo ranks, each moved to every other way of holding them."""

from __future__ import annotations

import pytest

from tests.processes import launch

pytest.importorskip("torch")


@pytest.mark.distributed
@pytest.mark.xdist_group("torch_layouts")
def test_what_ranks_hold_becomes_what_they_hold_otherwise() -> None:
    launch("tests.state_dict.torch_layouts.worker", [], 6, timeout=400)
