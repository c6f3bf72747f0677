"""What trainer, replica and whoever recovers say to one another, over local sockets; nothing is pickled.

Trainer and replica have a pair of sockets for messages of a fixed size (`Message`), and memory in common for steps.
State goes over streams: a JSON document with its length before it, then the bytes of tensors (`send_document`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ucpformat import jsonio
from ucpformat.errors import REGISTRY, UcpError, error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.jsonio import JsonValue

__all__ = [
    "PATIENCE",
    "Message",
    "listening",
    "reached",
    "receive",
    "receive_document",
    "receive_into",
    "send",
    "send_document",
    "told_of",
]

PATIENCE: Final = 300.0
"""Seconds without an answer behind which the other process is taken for dead."""
_FRAME: Final = struct.Struct("<cQQ")
_LENGTH: Final = struct.Struct("<Q")
_TEXT_BYTES: Final = 1 << 14
_MOST_BYTES: Final = 1 << 30


class Message(NamedTuple):
    """What one process tells the other.

    From the trainer: ``S`` a step, whose header lies at ``a`` and has ``b`` bytes; ``F`` save a checkpoint now; ``E``
    save one, and end. From the replica: ``R`` ready; ``A`` step ``a`` is done, and its memory free; ``C`` the
    checkpoint of step ``a`` is committed; ``X`` an error that it survives, ``D`` one that it dies of, a code and a text
    each; ``L`` that it ends with the replica of another rank, and a text.
    """

    kind: bytes
    a: int = 0
    b: int = 0
    text: str = ""

    def problem(self) -> UcpError:
        """Return the error that an ``X`` or a ``D`` tells of."""
        code, _, text = self.text.partition(" ")
        return error(code if code in REGISTRY else "UCP-E-RANK", f"the replica failed: {text}")


def send(channel: socket.socket, message: Message) -> None:
    """Send a message; raises `OSError` where the other process is gone."""
    text = message.text.encode()[:_TEXT_BYTES]
    poll = select.poll()
    poll.register(channel, select.POLLOUT)
    if not poll.poll(1000 * PATIENCE):
        raise TimeoutError(f"no answer for {PATIENCE:.0f} s")
    channel.send(_FRAME.pack(message.kind, message.a, message.b) + text, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket, *, wait: bool) -> Message | None:
    """Return the next message, None where there is none yet.

    Raises:
        OSError: where the other process is gone, and all that it said was heard; `TimeoutError` where it does not
            answer.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if not poll.poll(1000 * PATIENCE if wait else 0):
        if wait:
            raise TimeoutError(f"no answer for {PATIENCE:.0f} s")
        return None
    try:
        data = channel.recv(_FRAME.size + _TEXT_BYTES)
    except ConnectionResetError:
        # Said once where the other process has ended without having read all; what it had said comes after that.
        data = channel.recv(_FRAME.size + _TEXT_BYTES)
    if not data:
        raise ConnectionAbortedError("the process has ended")
    kind, a, b = _FRAME.unpack_from(data)
    return Message(kind, a, b, data[_FRAME.size :].decode(errors="replace"))


def send_document(stream: socket.socket, document: Mapping[str, JsonValue]) -> None:
    """Send a JSON document; raises `OSError`."""
    data = jsonio.dumps_canonical(dict(document))
    stream.sendall(_LENGTH.pack(len(data)) + data)


def receive_document(stream: socket.socket) -> JsonValue:
    """Return a JSON document; raises `OSError`, and ``UCP-E-JSON`` or ``UCP-E-LIMIT`` for bytes that are none."""
    length = bytearray(_LENGTH.size)
    receive_into(stream, memoryview(length))
    (nbytes,) = _LENGTH.unpack(length)
    if nbytes > _MOST_BYTES:
        raise error("UCP-E-LIMIT", f"a message of {nbytes} bytes", at="replica")
    data = bytearray(nbytes)
    receive_into(stream, memoryview(data))
    return jsonio.loads(bytes(data), at="replica")


def receive_into(stream: socket.socket, memory: memoryview) -> None:
    """Fill memory with what comes; raises `OSError` where the stream ends before."""
    while memory:
        count = stream.recv_into(memory)
        if not count:
            raise ConnectionResetError("the other process has ended")
        memory = memory[count:]


def _address(start: str, rank: int) -> bytes:
    # An abstract name, which goes with the process and lies in no file system. Nobody can guess the start of an epoch.
    return f"\0ucp-replica-{start}-{rank}".encode()


def listening(start: str, rank: int) -> socket.socket:
    """Return the socket on which the replica of a rank is found, by the start of its epoch.

    Raises:
        StoreError: ``UCP-E-STORE`` where the name is taken.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(_address(start, rank))
        listener.listen()
    except OSError as reason:
        listener.close()
        raise error("UCP-E-STORE", f"no socket to be found on: {reason}; go on without a replica") from reason
    return listener


def reached(start: str, rank: int) -> socket.socket | None:
    """Return a stream to the replica of a rank, None where none of this user is alive on this machine."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "SO_PEERCRED"):
        return None
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        stream.settimeout(PATIENCE)
        stream.connect(_address(start, rank))
        if is_own(stream):
            return stream
    except OSError:
        pass
    stream.close()
    return None


def is_own(stream: socket.socket) -> bool:
    """Return whether the process at the other end is of this process's user."""
    found = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return bool(user == os.geteuid())


def told_of(problem: BaseException) -> str:
    """Return the text of a message that tells of a problem."""
    if isinstance(problem, UcpError):
        return f"{problem.code} {problem.message}{problem.where}"
    return f"UCP-E-RANK {type(problem).__name__}: {problem}"
