"""Requests to object stores that are repeated, and how that is told (SPEC section 8).

The client repeats what did not arrive or was not answered: botocore under s3fs, the SDK under adlfs, gcsfs itself. What
they leave are refusals that say "ask again", with which the store has done nothing: those are repeated here. Whatever
may have been done is looked at before it is asked for again, and that is for whoever asks.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["answer_code", "repeated", "tell_repetitions"]

_T = TypeVar("_T")

_LOG: Final = logging.getLogger("ucpformat.storage")
"""Requests that failed and are made again, at level WARNING."""

_TRIES: Final = 7
_FIRST_WAIT: Final = 0.2
"""Seconds at most before the first repetition, and twice as many before each next: 12.6 in all, on average half."""

_WAS_NOT_DONE: Final = frozenset(
    (
        # AWS, API reference of PutObject, If-None-Match: another request for the same key is under way.
        *("ConditionalRequestConflict", "OperationAborted", "409"),
        # AWS, error responses: what arrived is not what was sent, and was not kept.
        *("BadDigest", "XAmzContentChecksumMismatch"),
    )
)


def answer_code(reason: BaseException | None) -> str:
    """What an S3 server has called its refusal; empty for anything else.

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


def tell_repetitions(filesystem: Any) -> None:
    """Log what a client of S3 finds failed and may repeat; others log by loggers of their own."""
    if not hasattr(type(filesystem), "call_s3"):
        return
    with suppress(Exception):  # the first request says what is wrong
        events = filesystem.s3.meta.events
        events.register("needs-retry.s3", _tell, unique_id="ucpformat-needs-retry")


def _tell(
    response: tuple[Any, Any] | None = None,
    operation: Any = None,
    attempts: int = 1,
    caught_exception: BaseException | None = None,
    **_: object,
) -> None:
    """Log a request that failed for a reason that may pass."""
    if caught_exception is not None:
        reason = f"{type(caught_exception).__name__}: {caught_exception}"
    elif response is not None and _may_pass(response[0].status_code):
        reason = f"HTTP {response[0].status_code}"
    else:
        return
    name = getattr(operation, "name", "request")
    _LOG.warning("S3 %s failed at try %d of its client: %s", name, attempts, reason)


def _may_pass(status: int) -> bool:
    return status == 429 or status >= 500
