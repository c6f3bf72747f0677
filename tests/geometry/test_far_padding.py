"""Padding beyond what a local tensor may have, on the way: a split takes it back, or does not (SPEC 12)."""

from __future__ import annotations

import pytest

from ucpformat.errors import UcpError
from ucpformat.geometry import Flatten, Layout, Mesh, MeshAxis, Pad, Shard, lower

MESH = Mesh((MeshAxis("a", 4),))


def test_extents_are_counted_where_all_steps_leave_them() -> None:
    """UCP-D-065: 2^54 elements on the way, 2^52 in each local tensor."""
    found = lower(Layout(MESH, (Pad(0, to=2**52), Shard("a", 0, "even"))), (1, 4))
    first, second = found.at((0,)), found.at((1,))
    assert first is not None
    assert second is not None
    assert first.shape == second.shape == (2**50, 4)
    assert (len(first.pieces), len(second.pieces)) == (1, 0)


def test_extents_are_counted_before_they_are_flattened() -> None:
    """UCP-D-065."""
    with pytest.raises(UcpError) as caught:
        lower(Layout(MESH, (Pad(0, to=2**52), Flatten(), Shard("a", 0, "even"))), (1, 4)).at((0,))
    assert caught.value.code == "UCP-E-LIMIT"


def test_no_extent_is_padded_beyond_what_an_integer_can_say() -> None:
    """UCP-D-064."""
    with pytest.raises(UcpError) as caught:
        lower(Layout(MESH, (Pad(0, multiple=2**52), Shard("a", 0, "even"))), (2**52 + 1,)).at((0,))
    assert caught.value.code == "UCP-E-LIMIT"
