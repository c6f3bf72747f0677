"""The ranks of a job as one executor: the first one hands out work, takes part in it, and commits.

The first rank talks to each other one alone, so that a rank gets its next task when it is done with the last one,
whatever the others do. What travels is pickled: these are processes of one job, which trust one
another as those of any process pool do.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import numpy as np

from ucpformat.distributed.group import Group, another
from ucpformat.errors import StoreError, UcpError, error

__all__ = ["RankExecutor", "together"]

_T = TypeVar("_T")
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_Item = tuple["Future[Any]", _Call]

_WORK: Final = b"w"
_DONE: Final = b"d"
_ALIVE: Final = b"a"
_PULSE: Final = 60.0
"""Seconds after which a rank that has nothing to say says that: groups give up where nothing comes for half an hour."""


class _Line:
    """Messages between this rank and another one, of any length; one at a time."""

    def __init__(self, group: Group, peer: int) -> None:
        self._group = group
        self.peer = peer

    def send(self, kind: bytes, content: object) -> None:
        """Send a message. Raises ``UCP-E-RANK`` where the other one is gone."""
        data = np.frombuffer(kind + pickle.dumps(content), np.uint8)
        length = np.frombuffer(data.size.to_bytes(8, "little"), np.uint8)
        with self._noticing():
            self._group.exchange({self.peer: length}, {})
            self._group.exchange({self.peer: data}, {})

    def receive(self) -> tuple[bytes, Any]:
        """Wait for a message. Raises ``UCP-E-RANK`` where the other one is gone."""
        length = np.empty(8, np.uint8)
        with self._noticing():
            self._group.exchange({}, {self.peer: length})
            data = np.empty(int.from_bytes(length.tobytes(), "little"), np.uint8)
            self._group.exchange({}, {self.peer: data})
        return data[:1].tobytes(), pickle.loads(data[1:].tobytes())  # noqa: S301

    def answer(self) -> Any:
        """Wait for a message that is more than a sign of life."""
        while True:
            kind, content = self.receive()
            if kind != _ALIVE:
                return content

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except Exception as reason:
            raise _GoneError("UCP-E-RANK", f"rank {self.peer} is gone: {reason}") from reason


class _GoneError(StoreError):
    """A rank no longer answers."""


class RankExecutor(Executor):
    """Runs picklable calls, one at a time on each rank; `together` makes it on the first one.

    A call whose rank is gone fails with ``UCP-E-RANK``, and no more calls go there.
    """

    def __init__(self, lines: Sequence[_Line]) -> None:
        self._waiting: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(line,), name=f"ucp-rank-{number}", daemon=True)
            for number, line in enumerate((None, *lines))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def workers(self) -> int:
        """How many calls may run at once."""
        return len(self._threads)

    def submit(self, fn: Callable[..., _T], /, *arguments: Any, **named: Any) -> Future[_T]:
        """Run a call on whatever rank is free first."""
        future: Future[_T] = Future()
        self._waiting.put((future, (fn, arguments, named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the ranks finish what they are at, and send them no more."""
        for _ in self._threads:
            self._waiting.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self, line: _Line | None) -> None:
        """Give calls to another rank, or run them here, until there are no more."""
        while (item := self._next(line)) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(_run(call) if line is None else _run_there(line, call))
                except _GoneError as gone:
                    future.set_exception(gone)
                    return
                except BaseException as failure:
                    future.set_exception(failure)

    def _next(self, line: _Line | None) -> _Item | None:
        while True:
            try:
                return self._waiting.get(timeout=_PULSE)
            except queue.Empty:
                # A rank that is gone is noticed with the next call.
                with suppress(_GoneError):
                    if line is not None:
                        line.send(_ALIVE, None)


def _run_there(line: _Line, call: _Call) -> Any:
    line.send(_WORK, call)
    result, failure = line.answer()
    if failure is not None:
        raise _placed(failure, line.peer)
    return result


def _run(call: _Call) -> Any:
    function, arguments, named = call
    return function(*arguments, **named)


def _placed(failure: BaseException, rank: int) -> BaseException:
    """Return a failure that says on which rank it was."""
    if isinstance(failure, UcpError):
        return error(failure.code, f"{failure.message} (on rank {rank})", at=failure.at)
    return failure


def _portable(failure: BaseException) -> BaseException:
    """Return a failure as other processes can have it: with its code, or as what it says."""
    if isinstance(failure, UcpError):
        return failure
    return error("UCP-E-RANK", f"{type(failure).__name__}: {failure}")


def together(group: Group, call: Callable[[RankExecutor | None], _T]) -> _T:
    """Run ``call`` on the first rank, which the others serve, and give what it returned to all; every rank calls this.

    ``call`` is given the executor of all ranks, or None where there is one alone.

    Raises:
        UcpError: on all ranks what the call raised on the first one; ``UCP-E-RANK`` where a rank is gone, and for what
            no code of the format describes; on the first one the original.
    """
    if len(group.ranks) == 1:
        return call(None)
    own = another(group)  # the caller's may be in use, and cannot carry messages of two
    first, *others = own.ranks
    if own.rank != first:
        answer: _T = _serve(_Line(own, first))
        return answer
    lines = [_Line(own, rank) for rank in others]
    outcome: tuple[_T | None, BaseException | None] = (None, None)
    try:
        with RankExecutor(lines) as executor:
            result = call(executor)
        outcome = (result, None)
    except BaseException as failure:
        outcome = (None, _portable(failure))
        raise
    finally:
        for line in lines:
            with suppress(UcpError):  # a rank that is gone hears nothing
                line.send(_DONE, outcome)
    return result


def _serve(line: _Line) -> Any:
    """Do what the first rank says until it says what became of all."""
    with ThreadPoolExecutor(1, thread_name_prefix="ucp-rank") as worker:
        while True:
            kind, content = line.receive()
            if kind == _DONE:
                result, failure = content
                if failure is not None:
                    raise failure
                return result
            if kind == _WORK:
                reply = worker.submit(_reply, content)
                while not wait([reply], timeout=_PULSE).done:
                    line.send(_ALIVE, None)
                line.send(_WORK, reply.result())


def _reply(call: _Call) -> tuple[Any, BaseException | None]:
    try:
        return _run(call), None
    except Exception as failure:
        return None, _portable(failure)
