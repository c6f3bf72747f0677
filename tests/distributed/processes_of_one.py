"""Ranks as forked processes of a test, joined by sockets: cheap enough to kill by the dozen."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tests.processes import die_at

if TYPE_CHECKING:
    from ucpformat.distributed.group import Bytes


class SocketGroup:
    """Sockets between all ranks. Whoever is gone closes its sockets, and the others' calls raise."""

    def __init__(self, rank: int, size: int, sockets: dict[int, socket.socket]) -> None:
        self.rank = rank
        self.ranks = range(size)
        self._sockets = sockets

    def all_gather(self, data: bytes) -> list[bytes]:
        """What every process gave."""
        if self.rank:
            _send(self._sockets[0], data)
            return [_receive(self._sockets[0]) for _ in self.ranks]
        found = [data, *map(_receive, self._sockets.values())]
        for other in self._sockets.values():
            for one in found:
                _send(other, one)
        return found

    def gather(self, data: bytes) -> list[bytes] | None:
        """What every process gave, for the first."""
        if self.rank:
            _send(self._sockets[0], data)
            return None
        return [data, *map(_receive, self._sockets.values())]

    def broadcast(self, data: bytes) -> bytes:
        """What the first process gave."""
        if self.rank:
            return _receive(self._sockets[0])
        for other in self._sockets.values():
            _send(other, data)
        return data

    def exchange(self, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes]) -> None:
        """Messages to and from other processes; what is sent is small enough for the sockets to hold."""
        for rank, message in sends.items():
            if message.size:
                _send(self._sockets[rank], message.tobytes())
        for rank, memory in receives.items():
            if memory.size:
                memory[:] = np.frombuffer(_receive(self._sockets[rank]), np.uint8)


def _send(to: socket.socket, data: bytes) -> None:
    to.sendall(len(data).to_bytes(8, "little") + data)


def _receive(source: socket.socket) -> bytes:
    size = int.from_bytes(_exactly(source, 8), "little")
    return _exactly(source, size)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            raise EOFError("the other process is gone")
        found += part
    return found


CALLS = (
    (os, ("open", "pwritev", "fsync", "link", "unlink", "mkdir", "rename", "close")),
    (SocketGroup, ("all_gather", "gather", "broadcast", "exchange")),
)


def run_processes(size: int, work: Callable[[SocketGroup], None], victim: int, point: int) -> list[int]:
    """Fork ``size`` ranks; ``victim`` is killed at its ``point``-th call that touches a file or another rank.

    Returns what `os.waitpid` says of each: 0 is success, 9 is death by SIGKILL.
    """
    pairs = {pair: socket.socketpair() for pair in itertools.combinations(range(size), 2)}
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                mine = {
                    pair[1 - place]: ends[place]
                    for pair, ends in pairs.items()
                    for place in range(2)
                    if pair[place] == rank
                }
                for ends in pairs.values():
                    for end in ends:
                        if end not in mine.values():
                            end.close()
                if rank == victim:
                    die_at(point, CALLS)
                work(SocketGroup(rank, size, mine))
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    for ends in pairs.values():
        for end in ends:
            end.close()
    return [os.waitpid(child, 0)[1] for child in children]
