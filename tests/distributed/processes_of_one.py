"""Ranks as forked processes of a test, joined by sockets: cheap enough to kill by the dozen."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any


class SocketGroup:
    """A star of sockets around the first rank. Whoever is gone closes its sockets, and the others' calls raise."""

    def __init__(self, rank: int, size: int, sockets: list[socket.socket]) -> None:
        self.rank = rank
        self.ranks = range(size)
        self._sockets = sockets

    def all_gather(self, data: bytes) -> list[bytes]:
        """What every process gave."""
        if self.rank:
            _send(self._sockets[0], data)
            return [_receive(self._sockets[0]) for _ in self.ranks]
        found = [data, *map(_receive, self._sockets)]
        for other in self._sockets:
            for one in found:
                _send(other, one)
        return found

    def gather(self, data: bytes) -> list[bytes] | None:
        """What every process gave, for the first."""
        if self.rank:
            _send(self._sockets[0], data)
            return None
        return [data, *map(_receive, self._sockets)]

    def broadcast(self, data: bytes) -> bytes:
        """What the first process gave."""
        if self.rank:
            return _receive(self._sockets[0])
        for other in self._sockets:
            _send(other, data)
        return data


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


def run_processes(size: int, work: Callable[[SocketGroup], None], victim: int, point: int) -> list[int]:
    """Fork ``size`` ranks; ``victim`` is killed at its ``point``-th call that touches a file or another rank.

    Returns what `os.waitpid` says of each: 0 is success, 9 is death by SIGKILL.
    """
    pairs = [socket.socketpair() for _ in range(size - 1)]
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                mine = [pair[0] for pair in pairs] if rank == 0 else [pairs[rank - 1][1]]
                for pair in pairs:
                    for end in pair:
                        if end not in mine:
                            end.close()
                if rank == victim:
                    _die_at(point)
                work(SocketGroup(rank, size, mine))
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    for pair in pairs:
        for end in pair:
            end.close()
    return [os.waitpid(child, 0)[1] for child in children]


def _die_at(point: int) -> None:
    """Kill this process, by SIGKILL, when it is about to make the ``point``-th of the calls that matter."""
    count = itertools.count(1)
    lock = threading.Lock()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            with lock:
                if next(count) == point:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for name in ("open", "pwritev", "fsync", "link", "unlink", "mkdir", "rename", "close"):
        setattr(os, name, counted(getattr(os, name)))
    for name in ("all_gather", "gather", "broadcast"):
        setattr(SocketGroup, name, counted(getattr(SocketGroup, name)))
