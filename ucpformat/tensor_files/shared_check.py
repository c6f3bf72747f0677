"""Checks that threads share: all who need something verified do pieces of the work until nothing is left of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Generic, TypeVar

from awscrt.checksums import combine_crc32

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.byte_source import ByteSource
from ucpformat.tensor_files.zip_records import (
    ZipRecord,
    crc_of,
    record_start,
    require_crc,
)

__all__ = ["PIECE_BYTES", "OpenSource", "SharedCheck", "SharedChecks", "Step", "record_steps"]

_Key = TypeVar("_Key", bound=Hashable)

PIECE_BYTES: Final = 8 << 20
"""What one thread checks of a record before it looks for what else is left: about 3 ms."""

Step = Callable[[], Iterable["Step"]]
"""A part of a check; what it returns is to be done as well. Raises `UcpError` where something is damaged."""

OpenSource = Callable[[], AbstractContextManager[ByteSource]]


class SharedCheck:
    """Steps that are each done once, whatever they return included, by as many threads as come. Thread-safe."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._changed = threading.Condition()
        self._left = deque(steps)
        self._running = 0
        self._refusal: UcpError | None = None

    def run(self) -> None:
        """Do the steps that no other thread does, and return when every step is done.

        Raises:
            UcpError: in every thread, now and later, what one step raised; none is begun after that.
            Exception: what else a step raised here: that one is left to others, or to a later call.
        """
        while (step := self._next()) is not None:
            more: Iterable[Step] = (step,)
            refusal: UcpError | None = None
            try:
                more = step()
            except UcpError as found:
                refusal = found
                raise
            finally:
                self._end(more, refusal)

    def _next(self) -> Step | None:
        with self._changed:
            while self._running and not self._left and self._refusal is None:
                self._changed.wait()
            if self._refusal is not None:
                # One of its own for each thread: a traceback belongs to one.
                raise error(self._refusal.code, self._refusal.message, at=self._refusal.at)
            if not self._left:
                return None
            self._running += 1
            return self._left.popleft()

    def _end(self, more: Iterable[Step], refusal: UcpError | None) -> None:
        with self._changed:
            self._running -= 1
            self._left.extend(more)
            if refusal is not None:
                self._refusal = refusal
            self._changed.notify_all()


class SharedChecks(Generic[_Key]):
    """A check for each key, made when that is first asked for; ``steps_of`` says of what steps. Thread-safe."""

    def __init__(self, steps_of: Callable[[_Key], Iterable[Step]]) -> None:
        self._steps_of = steps_of
        self._lock = threading.Lock()
        self._checks: dict[_Key, SharedCheck] = {}
        self._passed: set[_Key] = set()

    def run(self, key: _Key) -> None:
        """Return when the check of ``key`` has been passed, and help until then. Raises as `SharedCheck.run`."""
        with self._lock:
            if key in self._passed:
                return
            check = self._checks.get(key)
            if check is None:
                check = self._checks[key] = SharedCheck(self._steps_of(key))
        check.run()
        with self._lock:
            self._passed.add(key)
            self._checks.pop(key, None)


def record_steps(
    opened: OpenSource, records: Sequence[ZipRecord], piece_bytes: int = PIECE_BYTES
) -> list[Step]:
    """Return steps that compare the data of records with their CRC-32, which torch writes and never looks at.

    ``opened`` opens the archive that they are in; the steps do that anew, since threads come and go.
    They raise ``UCP-E-SOURCE``, naming the record.
    """
    return [_RecordCheck(opened, record, piece_bytes).begin for record in records]


class _RecordCheck:
    """The check of one record in pieces, whose checksums the last one to end combines."""

    def __init__(self, opened: OpenSource, record: ZipRecord, piece_bytes: int) -> None:
        self._opened = opened
        self._record = record
        self._pieces = [
            (start, min(piece_bytes, record.length - start)) for start in range(0, record.length, piece_bytes)
        ]
        self._found: dict[int, int] = {}
        self._lock = threading.Lock()

    def begin(self) -> Iterable[Step]:
        """Find the data; return their pieces as steps of their own."""
        with self._opened() as source:
            start = record_start(source, self._record)
            if not self._pieces:
                require_crc(source, self._record, 0)
        return [partial(self._check, start, number) for number in range(len(self._pieces))]

    def _check(self, start: int, number: int) -> Iterable[Step]:
        offset, length = self._pieces[number]
        with self._opened() as source:
            crc = crc_of(source, start + offset, length)
            with self._lock:
                self._found[number] = crc
                if len(self._found) < len(self._pieces):
                    return ()
            total = 0
            for number, (_, size) in enumerate(self._pieces):
                total = combine_crc32(total, self._found[number], size)
            require_crc(source, self._record, total)
        return ()
