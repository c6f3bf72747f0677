"""Ties between the replicas of a job: each has a connection to the first one's, which tells all when one is gone.

The replicas of a job are of use together alone: where one is gone, no checkpoint can be saved, and nobody can recover
from the others. Whoever waits for one that is gone would hear nothing, so that a thread listens for its end. A
connection is made by the trainer, ahead of the process that inherits it: there is no time at which a death is not seen.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Meeting", "Ties", "opened", "tied"]

_SECRET_BYTES: Final = 16
"""What the first replica knows the others by: whoever else connects is no replica, and may go."""
_LEFT: Final = b"."
_BROKEN: Final = b"!"
_CONNECT: Final = 30.0


class Meeting(NamedTuple):
    """Where the replicas of a job meet: a host, ports of the store and of `Ties`, and what they know one another by."""

    host: str
    port: int
    ties: int
    secret: str


@contextmanager
def opened(host: str | None = None) -> Iterator[tuple[Meeting, list[socket.socket]]]:
    """Open ports on which the replica of the first rank serves the others; it inherits the sockets."""
    with socket.socket() as store, socket.socket() as ties:
        for one in (store, ties):
            one.bind(("", 0))
            one.listen(socket.SOMAXCONN)
        host = host or os.environ.get("MASTER_ADDR") or socket.gethostname()
        secret = secrets.token_hex(_SECRET_BYTES)
        yield Meeting(host, store.getsockname()[1], ties.getsockname()[1], secret), [store, ties]


@contextmanager
def tied(meeting: Meeting) -> Iterator[socket.socket]:
    """Connect to the replica of the first rank, for a process that inherits the connection.

    Raises:
        StoreError: ``UCP-E-RANK`` where it cannot be reached.
    """
    try:
        tie = socket.create_connection((meeting.host, meeting.ties), timeout=_CONNECT)
    except OSError as reason:
        where = f"{meeting.host}, port {meeting.ties}"
        message = f"the first rank's replica cannot be reached at {where} ({reason})"
        raise error("UCP-E-RANK", f"{message}; set MASTER_ADDR to that rank's host", at="replica") from reason
    with tie:
        tie.settimeout(None)
        tie.sendall(bytes.fromhex(meeting.secret))
        yield tie


class Ties:
    """Calls ``broken``, in a thread of its own, when the replica of another rank has ended without a word.

    The first rank's replica has a ``listener``, those of others have a ``tie``.
    """

    def __init__(
        self,
        *,
        listener: socket.socket | None = None,
        tie: socket.socket | None = None,
        secret: bytes = b"",
        broken: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._broken = broken
        self._heard: dict[socket.socket, bytes] = {}
        """What has come on each connection."""
        self._has_left = False
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ)
        if tie is not None:
            self._add(tie)
        Thread(target=self._watch, name="ucp-ties", daemon=True).start()

    def leave(self) -> None:
        """Say that this replica ends as it should."""
        self._has_left = True
        self._tell(_LEFT)

    def _tell(self, word: bytes) -> None:
        for one in [*self._heard]:
            with suppress(OSError):
                one.send(word, socket.MSG_DONTWAIT)

    def _add(self, tie: socket.socket) -> None:
        self._heard[tie] = b""
        self._selector.register(tie, selectors.EVENT_READ)

    def _watch(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                one = key.fileobj
                if not isinstance(one, socket.socket):  # pragma: no cover - nothing else is registered
                    continue
                if one is self._listener:
                    with suppress(OSError):
                        self._add(one.accept()[0])
                else:
                    self._hear(one)

    def _hear(self, tie: socket.socket) -> None:
        try:
            said = tie.recv(_SECRET_BYTES)
        except OSError:
            said = b""
        self._heard[tie] += said
        is_whole = self._listener is None or self._heard[tie].startswith(self._secret)
        words = self._heard[tie] if self._listener is None else self._heard[tie][len(self._secret) :]
        if said and (is_whole or self._secret.startswith(self._heard[tie])):
            if _BROKEN in words:
                self._break()
            return
        self._selector.unregister(tie)
        del self._heard[tie]
        tie.close()
        if is_whole and _LEFT not in words:
            self._break()

    def _break(self) -> None:
        if not self._has_left:
            if self._listener is not None:
                self._tell(_BROKEN)
            self._broken()
