"""One process of a replica as the trainer has it: the memory that both have in common, and what they say."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.distributed.arena import Arena
from ucpformat.distributed.group import agreed, decided
from ucpformat.errors import error
from ucpformat.replay.replica.image import send_tensors
from ucpformat.replay.replica.ties import Meeting, opened, tied
from ucpformat.replay.replica.wire import PATIENCE, Message, receive, send, send_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ucpformat.distributed.group import Group
    from ucpformat.errors import UcpError
    from ucpformat.jsonio import JsonValue

__all__ = ["Link", "LostError"]


class LostError(Exception):
    """The process is gone, or does not answer; ``is_own`` unless it has ended with that of another rank."""

    def __init__(self, reason: str, *, is_own: bool) -> None:
        super().__init__(reason)
        self.is_own = is_own


class Link:
    """A replica that was started with a state, and is ready; all ranks of the group start theirs.

    Attributes:
        durable_step: the newest step of which it has committed a checkpoint, -1 for none yet.
        made: how many steps it has made.
        has_died: whether it has said what it died of.

    What the replica tells of is raised by `raise_told`, and nowhere in the midst of something.

    Raises:
        LostError: from any method, where the process is gone.
    """

    def __init__(
        self, hello: dict[str, JsonValue], tensors: Sequence[Any], *, nbytes: int, group: Group
    ) -> None:
        self.durable_step = -1
        self.made = 0
        self.is_over = False
        self.has_died = False
        self._other = ""
        self._told: UcpError | None = None
        self._regions: dict[int, int] = {}
        self._pending_regions = 0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream, their_stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.process: subprocess.Popen[bytes] | None = None
        with ExitStack() as stack:
            stack.enter_context(theirs)
            stack.enter_context(their_stream)
            inherited: list[socket.socket] = []

            def open_meeting() -> bytes:
                nonlocal inherited
                meeting, inherited = stack.enter_context(opened())
                return json.dumps(meeting).encode()

            place = json.loads(decided(group, open_meeting)) if len(group.ranks) > 1 else None

            def start() -> bytes:
                if place is not None and not inherited:
                    inherited.append(stack.enter_context(tied(Meeting(*place))))
                self._start(stack, theirs, their_stream, inherited, nbytes)
                return b""

            try:
                agreed(group, start)  # Where one rank cannot, the others do not wait for its replica.
            except BaseException:
                stream.close()
                self.discard()
                raise
        with stream:
            stream.settimeout(PATIENCE)
            try:
                send_document(stream, {**hello, "ring": self._ring.nbytes, "meeting": place})
                send_tensors(stream, tensors)
            except OSError as reason:
                raise self._lost(reason) from reason
        try:
            while self.hear(wait=True).kind != b"R":
                self.raise_told()
        except BaseException:
            self.discard()
            raise

    def _start(
        self,
        stack: ExitStack,
        theirs: socket.socket,
        their_stream: socket.socket,
        inherited: Sequence[socket.socket],
        nbytes: int,
    ) -> None:
        try:
            self._memory = os.memfd_create("ucp-replica", os.MFD_CLOEXEC)
            stack.callback(os.close, self._memory)
            self._ring = Arena(allocate=self._allocated)
            self._ring.prepare(nbytes)
            self.process = _started(theirs, their_stream, self._memory, inherited)
        except OSError as reason:
            raise error("UCP-E-RANK", f"no replica can be started: {reason}", at="replica") from reason

    def _allocated(self, nbytes: int) -> NDArray[np.uint8]:
        os.ftruncate(self._memory, nbytes)
        return np.frombuffer(mmap.mmap(self._memory, nbytes), np.uint8)

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The ring in which steps wait for the replica."""
        return self._ring.memory

    def take(self, nbytes: int) -> int:
        """Return where a region of the ring begins, when there is one; it belongs to the next step that is put."""
        while (start := self._ring.take(nbytes, block=False)) is None:
            self.hear(wait=True)
        self._pending_regions += 1
        return start

    def put(self, step: int, start: int, nbytes: int) -> None:
        """Hand over a step, whose header lies in the ring."""
        self._regions[step], self._pending_regions = self._pending_regions, 0
        self.tell(Message(b"S", start, nbytes))
        while self.hear(wait=False) is not None:
            pass

    def tell(self, message: Message) -> None:
        """Say something to the replica."""
        try:
            send(self._channel, message)
        except OSError as reason:
            # It may have said why.
            with suppress(LostError):
                while self.hear(wait=False) is not None:
                    pass
            raise self._lost(reason) from reason

    def hear(self, *, wait: bool) -> Any:
        """Take the next message of the replica, None where there is none."""
        try:
            message = receive(self._channel, wait=wait)
        except OSError as reason:
            raise self._lost(reason) from reason
        match message:
            case Message(kind=b"A"):
                self._ring.give(self._regions.pop(message.a))
                self.made += 1
            case Message(kind=b"C"):
                self.durable_step = max(self.durable_step, message.a)
            case Message(kind=b"X" | b"D"):
                self._told = message.problem()
                self.has_died |= message.kind == b"D"
            case Message(kind=b"L"):
                self._other = message.text
        return message

    def raise_told(self) -> None:
        """Raise what the replica has told of, once."""
        problem, self._told = self._told, None
        if problem is not None:
            raise problem

    def _lost(self, reason: OSError) -> LostError:
        self.discard()
        return LostError(self._other or str(reason), is_own=not self._other)

    def leave(self) -> None:
        """Let the replica go on without this process, which fails: whoever recovers gets the state from it."""
        self.is_over = True
        self._channel.close()

    def end(self) -> None:
        """Let it end, and wait for that."""
        self.leave()
        self._wait()

    def discard(self) -> None:
        """End it at once, whatever it does: another one is to have its name and its memory."""
        self.leave()
        if self.process is not None:
            self.process.kill()
            self._wait()

    def _wait(self) -> None:
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)


def _started(
    channel: socket.socket, stream: socket.socket, memory: int, inherited: Sequence[socket.socket]
) -> subprocess.Popen[bytes]:
    """Start the process, in a session of its own, so that nothing that ends the trainer's ends it."""
    package = str(Path(__file__).parents[3])
    paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    numbers = [channel.fileno(), stream.fileno(), memory]
    others = [one.fileno() for one in inherited]
    arguments = [*numbers, os.getpid(), *others]
    return subprocess.Popen(  # noqa: S603 - this interpreter, and a module of the library
        # -P: no module of the working directory is taken for one of the library.
        [sys.executable, "-P", "-m", "ucpformat.replay.replica", *map(str, arguments)],
        pass_fds=[*numbers, *others],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # A pipe of the trainer's would stay open as long as the replica lives.
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
