"""Requests to object stores that are repeated, and how that is told (SPEC section 8).

The client repeats what did not arrive or was not answered: botocore under s3fs, the SDK under adlfs, gcsfs itself. What
they leave are refusals that say "ask again", with which the store has done nothing: those are repeated here. Whatever
may have been done is looked at before it is asked for again, and that is for whoever asks.

A store that has failed a request for good is not asked so often for each further one (`Answers`).
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable

__all__ = ["Answers", "NotRepeatedError", "answer_code", "is_not_repeated", "repeated", "watch"]

_T = TypeVar("_T")

_LOG: Final = logging.getLogger("ucpformat.storage")
"""Requests that failed and are made again, at level WARNING."""

_TRIES: Final = 7
_FIRST_WAIT: Final = 0.2
"""Seconds at most before the first repetition, and twice as many before each next: 12.6 in all, on average half."""

_ROUNDS: Final = 5
"""How often s3fs has its client begin anew; where it reads an object, one such loop is within another."""

_WARY: Final = 60.0
"""Seconds without a failed request, after which a store is taken for one that answers."""

_MAY_PASS: Final = frozenset((429, 500, 502, 503, 504))
"""What HTTP calls a failure of the server that may be none later; 501 says what it cannot do."""

_WAS_NOT_DONE: Final = frozenset(
    (
        # AWS, API reference of PutObject, If-None-Match: another request for the same key is under way.
        *("ConditionalRequestConflict", "OperationAborted", "409"),
        # AWS, error responses: what arrived is not what was sent, and was not kept.
        *("BadDigest", "XAmzContentChecksumMismatch"),
    )
)


def answer_code(reason: BaseException | None) -> str:
    """Return what an S3 server has called its refusal; empty for anything else.

    s3fs makes errors of Python of it, and what botocore raised is their cause (s3fs/errors.py).
    """
    while reason is not None:
        response = getattr(reason, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        reason = reason.__cause__
    return ""


def repeated(call: Callable[[], _T], at: str) -> _T:
    """Make a request, and make it again where the store refuses it for a moment and has done nothing.

    Waits at random within bounds that double, so that clients which were refused at once do not come back at once.

    Raises:
        Exception: what the last request raises.
    """
    for tried in range(1, _TRIES):
        try:
            return call()
        except OSError as reason:
            code = answer_code(reason)
            if code not in _WAS_NOT_DONE:
                raise
        _LOG.warning("%s: request %d of at most %d was refused (%s); asking again", at, tried, _TRIES, code)
        time.sleep(random.uniform(0, _FIRST_WAIT * 2 ** (tried - 1)))  # noqa: S311 - not for secrets
    return call()


def watch(filesystem: Any) -> None:
    """Log what a client of S3 finds failed and may repeat, and let it repeat nothing while its store does not answer.

    Clients of other stores log by loggers of their own, and repeat as they like.
    """
    if not hasattr(type(filesystem), "call_s3"):
        return
    with suppress(Exception):  # the first request says what is wrong
        events = filesystem.s3.meta.events
        # First, since the client's own handler raises what the last of its tries has met.
        events.register_first("needs-retry.s3", _heard, unique_id="ucpformat-needs-retry")


class NotRepeatedError(OSError):
    """A request that failed and is not repeated, because the store has not answered an earlier one either."""


def is_not_repeated(reason: BaseException | None) -> bool:
    """Return whether an error comes of a request that was not repeated."""
    while reason is not None:
        if isinstance(reason, NotRepeatedError):
            return True
        reason = reason.__cause__
    return False


class Answers:
    """Whether a store answers: a circuit breaker.

    A request that has failed with all its repetitions opens it: from then on each request is made once, also those that
    are being repeated, until one is answered or none has failed for a minute.
    """

    def __init__(self) -> None:
        self._failing: WeakKeyDictionary[Task[Any], int] = WeakKeyDictionary()
        """Requests whose last try has failed, with how often the client has begun anew: a task makes one at a time."""
        self._failed_at: float | None = None

    def answered(self) -> None:
        """Note that the store has answered the request that is being made."""
        self._failed_at = None
        task = _current_task()
        if task is not None:
            self._failing.pop(task, None)

    def failed(self, attempts: int, reason: str) -> None:
        """Note that a try of the request that is being made has failed: the client counts its ``attempts`` from 1.

        Raises:
            NotRepeatedError: it is not to be made again.
        """
        if self._is_open():
            self._open()
            message = f"{reason}; not repeated, since the store has not answered an earlier request either"
            raise NotRepeatedError(errno.EIO, message)
        task = _current_task()
        if task is None:
            return
        if task not in self._failing:
            task.add_done_callback(self._ended)
        rounds = self._failing[task] = self._failing.get(task, 0) + (attempts == 1)
        if rounds > _ROUNDS:
            self._open()
            raise NotRepeatedError(errno.EIO, f"{reason}; given up after {_ROUNDS} rounds of repetitions")

    def _is_open(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at < _WARY

    def _open(self) -> None:
        self._failed_at = time.monotonic()

    def _ended(self, task: Task[Any]) -> None:
        if task in self._failing and not task.cancelled():
            self._open()


def _current_task() -> Task[Any] | None:
    # Imported late: who asks no object store needs none of it.
    from asyncio import current_task

    return current_task()


_stores: Final[defaultdict[str, Answers]] = defaultdict(Answers)
"""By the address of the server: fsspec makes a client for each thread."""


def _heard(
    response: tuple[Any, Any] | None = None,
    endpoint: Any = None,
    operation: Any = None,
    attempts: int = 1,
    caught_exception: BaseException | None = None,
    **_: object,
) -> None:
    """Hear how a try of a request has ended; log it where it failed for a reason that may pass."""
    answers = _stores[str(getattr(endpoint, "host", ""))]
    if caught_exception is not None:
        reason = f"{type(caught_exception).__name__}: {caught_exception}"
    elif response is not None and response[0].status_code in _MAY_PASS:
        reason = f"HTTP {response[0].status_code}"
    else:
        answers.answered()
        return
    name = getattr(operation, "name", "request")
    _LOG.warning("S3 %s failed at try %d of its client: %s", name, attempts, reason)
    answers.failed(attempts, reason)
