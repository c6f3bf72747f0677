"""Damage to real files, and what an importer may do about it: refuse with a registered error, or read something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from tests.conversion.jobs import whole
from ucpformat.conversion.contract.job import Job
from ucpformat.errors import UcpError


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` cut, or with bytes changed, put in, or taken out."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        # Half of the damage is near the start, where headers are.
        place = draw(st.one_of(st.integers(0, min(200, len(found))), st.integers(0, len(found))))
        match draw(st.sampled_from(["cut", "flip", "fill", "insert", "remove"])):
            case "cut":
                del found[place:]
            case "flip" if place < len(found):
                found[place] ^= 1 << draw(st.integers(0, 7))
            case "fill":
                found[place : place + 8] = draw(st.sampled_from([b"\0", b"\xff", b"9", b'"'])) * 8
            case "insert":
                found[place:place] = draw(st.binary(max_size=9))
            case "remove":
                del found[place : place + draw(st.integers(1, 64))]
            case _:
                pass
    return bytes(found)


def outcome(plan: Callable[[], Job]) -> UcpError | None:
    """The refusal of a job, or of reading all of it; any other exception is a failure of the test."""
    try:
        whole(plan())
    except UcpError as refusal:
        return refusal
    return None


def replaced(path: Path, data: bytes) -> None:
    """Put ``data`` into the place of a file."""
    path.unlink()
    path.write_bytes(data)
