"""Groups of processes, and steps after which all of them go on or all of them raise.

What travels is bytes of our own making: nothing is pickled.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ucpformat.errors import UcpError, error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Bytes",
    "Divisible",
    "Group",
    "OneProcess",
    "Reply",
    "agreed",
    "another",
    "decided",
    "reply_of",
    "unpack",
]

Bytes = NDArray[np.uint8]
"""Bytes in host memory, 1-D and contiguous."""


class Group(Protocol):
    """Processes that call the same methods in the same order, each from one thread.

    Where one of them is gone, a method raises `StoreError` (``UCP-E-RANK``), at the group's own time limit at the
    latest; it never returns with less.
    """

    @property
    def rank(self) -> int:
        """The rank of this process, as meshes name it."""
        ...

    @property
    def ranks(self) -> Sequence[int]:
        """All processes, in the group's order; the first one commits."""
        ...

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return what every process gave, in the order of `ranks`."""
        ...

    def gather(self, data: bytes) -> list[bytes] | None:
        """Gather as `all_gather`, for the first process; None for the others."""
        ...

    def broadcast(self, data: bytes) -> bytes:
        """Return what the first process gave."""
        ...

    def exchange(self, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes]) -> None:
        """Send bytes to other ranks, and fill memory with the bytes that they send; both sides know how many.

        Ranks that neither send nor receive need not call. Between two ranks what is sent
        arrives in order. Empty messages do not travel. ``sends`` may change when this returns.
        """
        ...


@runtime_checkable
class Divisible(Protocol):
    """A group that can make others like itself.

    A save in the background calls `another` once, on all processes, before it begins; it raises as methods of `Group`.
    """

    def another(self) -> Group:
        """Return a group of the same processes, whose calls never meet those of this one; all processes make it."""
        ...


def another(group: Group) -> Group:
    """Return a group of the same processes of its own, so that two threads of each may talk at the same time.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a group that cannot make one.
    """
    if not isinstance(group, Divisible):
        message = f"a {type(group).__name__} has no `another()`, which what goes on in the background needs"
        raise error("UCP-E-MISMATCH", message)
    return group.another()


class OneProcess:
    """The group of a process alone."""

    rank: int = 0
    ranks: Sequence[int] = (0,)

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the data themselves."""
        return [data]

    def gather(self, data: bytes) -> list[bytes] | None:
        """Return the data themselves."""
        return [data]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data themselves."""
        return data

    def another(self) -> OneProcess:
        """Return this group: a single process meets no other."""
        return OneProcess()

    def exchange(self, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes]) -> None:
        """Do nothing: a single process exchanges with no other."""
        if sends or receives:  # pragma: no cover - a plan for one rank has no copies to others
            raise AssertionError("a process alone has nobody to send to")


class Reply(NamedTuple):
    """What a process has to say after a step: ``data``, or the failure that kept it from saying that."""

    data: bytes
    failure: BaseException | None

    def pack(self, rank: int) -> bytes:
        """Return the bytes that other processes get; ``rank`` is the one that says it."""
        if self.failure is None:
            return b"+" + self.data
        if isinstance(self.failure, UcpError):
            parts = [self.failure.code, self.failure.message, self.failure.at, rank]
        else:
            parts = ["UCP-E-RANK", f"{type(self.failure).__name__}: {self.failure}", "", rank]
        return b"-" + json.dumps(parts).encode()


def reply_of(step: Callable[[], bytes]) -> Reply:
    """Run a step; whatever it raises is kept, for the others to hear of it."""
    try:
        return Reply(step(), None)
    except BaseException as failure:
        return Reply(b"", failure)


def unpack(group: Group, packed: Sequence[bytes]) -> list[bytes]:
    """Return the data of all replies, in the order of ranks.

    Raises:
        UcpError: the failure of the first rank that has one, with its code and place.
    """
    for one in packed:
        if one[:1] == b"-":
            code, message, at, rank = json.loads(one[1:])
            raise error(code, f"{message} (on rank {rank})" if len(group.ranks) > 1 else message, at=at)
    return [one[1:] for one in packed]


def agreed(group: Group, step: Callable[[], bytes]) -> list[bytes]:
    """Run a step on every process, and gather what each returned; all raise where one did.

    Raises:
        UcpError: what the step raised on the first rank where it did, on all ranks; on that rank itself, the
            original.
    """
    reply = reply_of(step)
    packed = group.all_gather(reply.pack(group.rank))
    if reply.failure is not None:
        raise reply.failure
    return unpack(group, packed)


def decided(group: Group, step: Callable[[], bytes]) -> bytes:
    """Run a step on the first process alone, and return what it returned on all of them; all raise where it did.

    Raises:
        UcpError: what the step raised; on the first process itself, the original.
    """
    if group.rank != group.ranks[0]:
        return unpack(group, [group.broadcast(b"")])[0]
    reply = reply_of(step)
    group.broadcast(reply.pack(group.rank))
    if reply.failure is not None:
        raise reply.failure
    return reply.data
