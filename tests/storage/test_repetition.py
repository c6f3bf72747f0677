"""Requests to object stores that are refused for a moment, and listings that are late (SPEC 8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.builders import save
from tests.storage.test_remote import STATE
from ucpformat.errors import UcpError
from ucpformat.storage.stores.remote import repetition
from ucpformat.storage.stores.remote.repetition import NotRepeatedError
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.validation import LEVELS, examine, validate


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
    with patch("ucpformat.storage.stores.remote.repetition.time.sleep") as slept, conflicting(3, code):
        save(url, STATE)
    assert slept.call_count == 3
    assert validate(url) == []


def test_a_put_that_meets_others_for_ever_fails(url: str) -> None:
    with (
        patch("ucpformat.storage.stores.remote.repetition.time.sleep"),
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
        patch("ucpformat.storage.stores.remote.repetition.time.sleep") as slept,
        patch("ucpformat.storage.stores.remote.repetition.random.uniform", draw),
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
        patch("ucpformat.storage.stores.remote.repetition.time.sleep", side_effect=AssertionError),
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
        patch("ucpformat.storage.stores.remote.repetition.time.sleep"),
        conflicting(1, "ConditionalRequestConflict"),
        pytest.raises(UcpError, match="UCP-E-EXISTS"),
    ):
        store.publish(b"{}")
    store.discard()
    assert validate(url) == []


TRIES = 5
"""Of botocore, each time that s3fs has it begin anew."""


@pytest.fixture
def servers() -> Iterator[None]:
    """Nothing is known of any server, before or after."""
    repetition._stores.clear()
    yield
    repetition._stores.clear()


async def _request(*statuses: int | None, host: str = "http://one", begins: int = TRIES) -> int:
    """A request of s3fs whose tries are answered so, or not at all; the last for ever. Returns how many there were."""
    tried = 0

    async def made() -> None:
        nonlocal tried
        for attempt in [number for _ in range(begins) for number in range(1, TRIES + 1)]:
            status = statuses[min(tried, len(statuses) - 1)]
            tried += 1
            repetition._heard(
                response=None if status is None else (SimpleNamespace(status_code=status), {}),
                endpoint=SimpleNamespace(host=host),
                attempts=attempt,
                caught_exception=ConnectionError("closed") if status is None else None,
            )
            await asyncio.sleep(0)
            if status is not None and status not in (429, 500, 503):
                return

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repetition._LOG, "disabled", True)
        task = asyncio.create_task(made())
        await asyncio.wait([task])
    await asyncio.sleep(0)
    if isinstance(reason := task.exception(), NotRepeatedError):
        return tried
    if reason is not None:
        raise reason
    return tried


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("status", [None, 503, 500, 429])
def test_a_store_that_failed_a_request_for_good_is_asked_once_until_it_answers(status: int | None) -> None:
    async def requests() -> list[int]:
        return [
            await _request(status),
            await _request(status),
            await _request(status),
            await _request(status, host="http://another"),
            await _request(200),
            await _request(status, status, 404),
            await _request(status),
        ]

    assert asyncio.run(requests()) == [25, 1, 1, 25, 1, 3, 25]


@pytest.mark.usefixtures("servers")
def test_requests_that_are_being_repeated_end_when_another_has_failed_for_good() -> None:
    async def together() -> tuple[int, int]:
        return await asyncio.gather(_request(None), _request(None, begins=1))

    first, other = asyncio.run(together())
    assert first < 25
    assert other == TRIES


@pytest.mark.usefixtures("servers")
def test_loops_within_loops_of_a_client_are_cut_short() -> None:
    """s3fs 2026.9 reads an object by two, 125 tries."""
    assert asyncio.run(_request(503, begins=25)) == 5 * TRIES + 1


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("status", [200, 404, 412, 501])
def test_what_a_server_cannot_or_will_not_do_is_an_answer(status: int) -> None:
    async def requests() -> list[int]:
        return [await _request(status, begins=1), await _request(None)]

    assert asyncio.run(requests()) == [1, 25]


@pytest.mark.usefixtures("servers")
def test_after_a_minute_without_a_failure_requests_are_repeated_again() -> None:
    async def requests() -> list[int]:
        found = [await _request(None), await _request(None)]
        real = time.monotonic
        with patch("ucpformat.storage.stores.remote.repetition.time.monotonic", lambda: real() + 61):
            found.append(await _request(None, None, 200))
        return found

    assert asyncio.run(requests()) == [25, 1, 3]


@pytest.mark.usefixtures("servers")
def test_a_request_that_is_given_up_by_its_caller_says_nothing_about_the_store() -> None:
    async def cancelled() -> int:
        held = asyncio.create_task(_hold())
        await asyncio.sleep(0)
        held.cancel()
        await asyncio.wait([held])
        return await _request(None, 200)

    async def _hold() -> None:
        repetition._heard(endpoint=SimpleNamespace(host="http://one"), caught_exception=OSError())
        await asyncio.sleep(60)

    assert asyncio.run(cancelled()) == 2


@pytest.mark.parametrize("level", LEVELS)
def test_a_store_that_does_not_answer_is_one_problem(url: str, level: Any) -> None:
    """And not one of each object that it could not be asked for."""
    save(url, STATE)
    asked: list[str] = []

    def silent(self: Any, path: str, *_: Any, **__: Any) -> Any:
        asked.append(path)
        if path.endswith("ucp.json"):
            return real(self, path)
        raise NotRepeatedError(5, "HTTP 503; not repeated")

    real = MemoryFileSystem.cat_file
    with patch.object(MemoryFileSystem, "cat_file", silent):
        examined = examine(url, level)
    assert [(problem.code, problem.severity) for problem in examined.problems] == [("UCP-E-STORE", "error")]
    assert examined.survey is None
    assert len(asked) == 2


def test_a_store_that_ceases_to_answer_while_tensors_are_read_is_one_problem(url: str) -> None:
    save(url, STATE)
    real = MemoryFileSystem.cat_file

    def silent(self: Any, path: str, start: int | None = None, end: int | None = None) -> Any:
        if "/packs/" in path:
            raise NotRepeatedError(5, "HTTP 503; not repeated")
        return real(self, path, start=start, end=end)

    with patch.object(MemoryFileSystem, "cat_file", silent):
        examined = examine(url)
    assert [problem.code for problem in examined.problems] == ["UCP-E-STORE"]
    assert examined.survey is None
