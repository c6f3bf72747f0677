"""Requests to object stores that are refused for a moment, and listings that are late (SPEC 8)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.builders import save
from tests.storage.test_remote import STATE
from ucpformat.errors import UcpError
from ucpformat.storage.stores.remote import RemoteStore
from ucpformat.validation import validate


@pytest.fixture
def url() -> str:
    return f"memory://{uuid4().hex}"


class _RefusedError(Exception):
    """As botocore's ClientError carries the answer."""

    def __init__(self, code: str) -> None:
        self.response = {"Error": {"Code": code}}


@pytest.mark.parametrize(
    ("code", "expected"), [("PreconditionFailed", "UCP-E-EXISTS"), ("AccessDenied", "UCP-E-STORE")]
)
def test_a_failed_condition_is_an_object_that_exists(url: str, code: str, expected: str) -> None:
    """UCP-W-004: s3fs raises an OSError whose cause has the code, where the server does not name the condition."""

    def refuse(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        raise OSError(22, "At least one of the pre-conditions you specified did not hold") from _RefusedError(
            code
        )

    store = RemoteStore(url)
    with patch.object(MemoryFileSystem, "pipe_file", refuse), pytest.raises(UcpError, match=expected):
        store.create("index/x", [memoryview(b"x")])


def conflicting(times: int, code: str) -> Any:
    """Puts under a condition meet another request so many times."""
    real = MemoryFileSystem.pipe_file
    met = [0]

    def pipe(self: Any, path: str, value: bytes, mode: str = "overwrite") -> None:
        if mode == "create" and path.endswith("ucp.json") and met[0] < times:
            met[0] += 1
            raise OSError(5, "The conditional request cannot succeed now") from _RefusedError(code)
        real(self, path, value, mode)

    return patch.object(MemoryFileSystem, "pipe_file", pipe)


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted", "409"])
def test_a_put_that_met_another_under_way_is_repeated(url: str, code: str) -> None:
    """UCP-W-004: S3 answers 409 to a put under a condition, and wants it repeated."""
    with patch("ucpformat.storage.stores.repetition.time.sleep") as slept, conflicting(3, code):
        save(url, STATE)
    assert slept.call_count == 3
    assert validate(url) == []


def test_a_put_that_meets_others_for_ever_fails(url: str) -> None:
    with (
        patch("ucpformat.storage.stores.repetition.time.sleep"),
        conflicting(1 << 30, "ConditionalRequestConflict"),
        pytest.raises(UcpError, match=r"UCP-E-STORE.*cannot succeed now"),
    ):
        save(url, STATE)
    assert RemoteStore(url).size("ucp.json") is None


def test_waits_are_drawn_within_bounds_that_double_and_repetitions_are_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    bounds: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        bounds.append((low, high))
        return high / 2

    with (
        patch("ucpformat.storage.stores.repetition.time.sleep") as slept,
        patch("ucpformat.storage.stores.repetition.random.uniform", draw),
        conflicting(1 << 30, "BadDigest"),
        pytest.raises(UcpError, match="UCP-E-STORE"),
    ):
        save(url, STATE)
    assert bounds == [(0, 0.2 * 2**tried) for tried in range(6)]
    assert [call.args[0] for call in slept.call_args_list] == [high / 2 for _, high in bounds]
    assert len(caplog.messages) == 6
    assert caplog.messages[0].endswith(
        "ucp.json: request 1 of at most 7 was refused (BadDigest); asking again"
    )


def test_what_may_have_been_done_is_not_repeated(url: str) -> None:
    """An error that does not say that nothing was done is for whoever asked."""
    with (
        patch("ucpformat.storage.stores.repetition.time.sleep", side_effect=AssertionError),
        conflicting(1, "InternalError"),
        pytest.raises(UcpError, match="UCP-E-STORE"),
    ):
        save(url, STATE)


def test_a_listing_that_is_late_costs_a_look_and_no_save(url: str) -> None:
    """Objects that a listing does not show are asked for, and objects that it still shows."""
    real = RemoteStore.keys
    with patch.object(RemoteStore, "keys", lambda self: iter(())):
        save(url, STATE)
    assert validate(url) == []
    gone = patch.object(RemoteStore, "keys", lambda self: iter([*real(self), "packs/gone.pack"]))
    with gone:
        save(f"{url}2", STATE, storage="plain")
    assert validate(f"{url}2") == []


def test_a_root_that_appears_while_a_put_is_repeated_wins(url: str) -> None:
    """UCP-W-004: 409 while the other is under way, then 412."""
    save(url, STATE)
    store = RemoteStore(url)
    with (
        patch("ucpformat.storage.stores.repetition.time.sleep"),
        conflicting(1, "ConditionalRequestConflict"),
        pytest.raises(UcpError, match="UCP-E-EXISTS"),
    ):
        store.publish(b"{}")
    store.discard()
    assert validate(url) == []
