"""The trainer's side of a replica: it starts the process, and copies each step into memory that both have in common."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ucpformat import jsonio
from ucpformat.distributed.arena import Arena, extent
from ucpformat.distributed.group import decided
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.replay.replica.company import opened
from ucpformat.replay.replica.image import image_of, require_known, send_tensors
from ucpformat.replay.replica.wire import PATIENCE, Message, receive, send, send_document
from ucpformat.update_log.batch import BatchHeader, StepRecord
from ucpformat.update_log.drafts import encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.replica.options import Replica
    from ucpformat.update_log.batch import Entry
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.drafts import BatchDraft, StepDraft

__all__ = ["ReplicaFeed", "Setting", "require_local"]

_HEADER_BYTES: Final = 1 << 20
"""What is left in the ring for the header of a step, with options and values."""


def require_local(group: Group, optimizer: Optimizer) -> None:
    """Refuse a job that can have no replica.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``.
    """
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        message = "a replica needs memory files and handles of processes, which Linux has; log without one"
        raise error("UCP-E-MISMATCH", message, at="replica")
    if len(group.ranks) > 1 and list(group.ranks) != list(range(_world())):
        message = "replicas are of all ranks of a job, and not of a group of some; log without them"
        raise error("UCP-E-MISMATCH", message, at="replica")
    require_known(optimizer)


def _world() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Setting(NamedTuple):
    """What a replica is of: a run, the log there, an epoch of it, and how its checkpoints are saved and kept."""

    run: str
    url: str
    epoch: Epoch
    digest: str
    full_every: int | str | None
    keep_full: int
    group: Group


class ReplicaFeed:
    """Gives a replica each step; `put`, `drain`, `close` and ``durable_step`` are those of a `BatchWriter`.

    A step is copied once, into a ring of at most ``most_bytes``, or one step where that is more; where there is no room
    for it, `copied` waits until the replica has made an earlier one. Call `full` for a checkpoint.

    Raises:
        StoreError: ``UCP-E-RANK``, from any method, where the replica is gone; what the replica tells of, once.
    """

    def __init__(
        self,
        replica: Replica,
        setting: Setting,
        model: Module,
        optimizer: Optimizer,
        values: dict[str, JsonValue],
        *,
        most_bytes: int,
    ) -> None:
        epoch = setting.epoch
        self._epoch = epoch
        self._digest = setting.digest
        self.durable_step = epoch.first_step
        self._given = epoch.first_step
        self._regions: dict[int, int] = {}
        self._pending_regions = 0
        self._room: int | None = None
        self._used = 0
        self._is_ended = False
        self._step_bytes = _step_bytes(epoch)
        group = setting.group
        self._ranks = len(group.ranks)
        # Replicas of several ranks hold a step back until the next has come.
        held = min(self._ranks, 2) * [self._step_bytes, _HEADER_BYTES]
        nbytes = max(most_bytes, extent(held) + mmap.PAGESIZE)
        image, tensors = image_of(model, optimizer)
        self._memory = os.memfd_create("ucp-replica", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream, their_stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = ours
        with ExitStack() as stack:
            stack.callback(os.close, self._memory)
            stack.enter_context(theirs)
            stack.enter_context(their_stream)
            self._ring = Arena(allocate=self._allocated)
            self._ring.prepare(nbytes)
            listener: socket.socket | None = None

            def open_meeting() -> bytes:
                nonlocal listener
                meeting, listener = stack.enter_context(opened())
                return json.dumps(meeting).encode()

            place = json.loads(decided(group, open_meeting)) if self._ranks > 1 else None
            self._process = _started(theirs, their_stream, self._memory, listener)
        with stream:
            stream.settimeout(PATIENCE)
            hello: dict[str, JsonValue] = {
                "run": setting.run,
                "log": setting.url,
                "epoch": epoch.to_json(),
                "digest": setting.digest,
                "full_every": setting.full_every,
                "keep_full": setting.keep_full,
                "ring": self._ring.nbytes,
                "image": image.to_json(),
                "values": values,
                "linger": float(replica.linger).hex(),
                "incremental": replica.incremental,
                "threads": replica.threads,
                "rank": list(group.ranks).index(group.rank),
                "ranks": self._ranks,
                "meeting": place,
            }
            try:
                send_document(stream, hello)
                send_tensors(stream, tensors)
            except OSError as reason:
                self._fail(reason)
        try:
            while self._heard(wait=True).kind != b"R":
                pass
        except BaseException:
            self._end()
            raise

    def _allocated(self, nbytes: int) -> NDArray[np.uint8]:
        os.ftruncate(self._memory, nbytes)
        return np.frombuffer(mmap.mmap(self._memory, nbytes), np.uint8)

    def copied(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return a copy of what a step has, in the ring; waits for room."""
        if self._room is None:
            self._room, self._used = self._taken(self._step_bytes), 0
        start = self._room + self._used
        if self._used + values.nbytes > self._step_bytes:
            raise AssertionError("a step has no more than all of its tensors")
        self._used += extent([values.nbytes])
        found = self._ring.memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        np.copyto(found, values)
        return found

    def _taken(self, nbytes: int) -> int:
        """Return where a region of the ring begins, when there is one."""
        while (start := self._ring.take(nbytes, block=False)) is None:
            self._heard(wait=True)
        self._pending_regions += 1
        return start

    def put(self, batch: BatchDraft) -> None:
        """Hand over a batch of one step, which the replica has from then on."""
        (step,) = batch.steps
        entries, offsets = self._placed(step)
        record = StepRecord(entries, 0, 0, step.options, step.skipped)
        header = BatchHeader(
            self._epoch.log,
            self._epoch.epoch,
            0,
            batch.first_step,
            self._digest,
            (record,),
            batch.values,
            tuple(batch.sums),
            batch.options,
        )
        # Any piece of a tensor stands for the gradient that others have.
        elsewhere: list[JsonValue] = [
            next(number for number, piece in enumerate(self._epoch.pieces) if piece.tensor == one)
            for one in step.elsewhere
        ]
        text = jsonio.dumps_canonical({"batch": header.to_json(), "offsets": offsets, "elsewhere": elsewhere})
        start = self._taken(len(text))
        self._ring.memory[start : start + len(text)] = np.frombuffer(text, np.uint8)
        self._regions[batch.first_step], self._pending_regions = self._pending_regions, 0
        self._room = None
        self._given = batch.first_step + 1
        self._tell(Message(b"S", start, len(text)))
        while self._heard(wait=False) is not None:
            pass

    def _placed(self, step: StepDraft) -> tuple[tuple[Entry, ...], list[JsonValue]]:
        """Return the entries of a step, and where in the ring the bytes of each lie."""
        entries: list[Entry] = []
        offsets: list[JsonValue] = []
        base = self._ring.memory.ctypes.data
        for one in step.captured:
            piece = self._epoch.pieces[one.piece]
            offset = one.values.ctypes.data - base if one.values.size else 0
            is_here = 0 <= offset < self._ring.nbytes and one.places is None
            # What is in the ring is whole; what a compressor or a sparse gradient has left is copied into it here.
            entry, buffers = encoded(one, piece.shape, is_value=True)
            if not is_here:
                data = np.concatenate([np.frombuffer(buffer, np.uint8) for buffer in buffers])
                offset = self.copied(data).ctypes.data - base if data.size else 0
            entries.append(entry)
            offsets.append(offset)
        return tuple(entries), offsets

    def full(self) -> None:
        """Have the replica save a checkpoint of the last step that it was given."""
        self._tell(Message(b"F"))

    def drain(self) -> None:
        """Return when a checkpoint of the last step is committed."""
        if self.durable_step < self._given:
            self.full()
        while self.durable_step < self._given:
            self._heard(wait=True)

    def close(self) -> None:
        """End the replica, when a checkpoint of the last step is committed."""
        if self._is_ended:
            return
        try:
            self._tell(Message(b"E"))
            while self.durable_step < self._given:
                self._heard(wait=True)
        finally:
            self._end()

    def leave(self) -> None:
        """Let the replica go on without this process, which fails: whoever recovers gets the state from it."""
        self._is_ended = True
        self._channel.close()

    def _end(self) -> None:
        self._is_ended = True
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)

    def _tell(self, message: Message) -> None:
        if self._is_ended:
            raise error("UCP-E-RANK", "the replica has ended; recover(), and begin another one", at="replica")
        try:
            send(self._channel, message)
        except OSError as reason:
            # It may have said why.
            with suppress(OSError):
                while self._heard(wait=False) is not None:
                    pass
            self._fail(reason)

    def _heard(self, *, wait: bool) -> Any:
        """Take the next message of the replica, None where there is none; raises what it tells of."""
        try:
            message = receive(self._channel, wait=wait)
        except OSError as reason:
            self._fail(reason)
        match message:
            case Message(kind=b"A"):
                self._ring.give(self._regions.pop(message.a))
            case Message(kind=b"C"):
                self.durable_step = max(self.durable_step, message.a)
            case Message(kind=b"X"):
                raise message.problem()
        return message

    def _fail(self, reason: OSError) -> None:
        self._end()
        message = f"the replica is gone, or does not answer ({reason}); recover(), and begin another one"
        raise error("UCP-E-RANK", message, at="replica") from reason


def _step_bytes(epoch: Epoch) -> int:
    """Return the most bytes that a step takes in the ring."""
    sizes = []
    for piece in epoch.pieces:
        rows = piece.shape[0] if piece.shape else 0
        sizes.append(prod(piece.shape) * dtype(epoch.tensors[piece.tensor].dtype).item_bytes + 4 * rows)
    return extent(sizes)


def _started(
    channel: socket.socket, stream: socket.socket, memory: int, listener: socket.socket | None
) -> subprocess.Popen[bytes]:
    """Start the process, in a session of its own, so that nothing that ends the trainer's ends it."""
    package = str(Path(__file__).parents[3])
    paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    numbers = [channel.fileno(), stream.fileno(), memory]
    arguments = [*numbers, os.getpid()]
    if listener is not None:
        numbers.append(listener.fileno())
        arguments.append(listener.fileno())
    return subprocess.Popen(  # noqa: S603 - this interpreter, and a module of the library
        # -P: no module of the working directory is taken for one of the library.
        [sys.executable, "-P", "-m", "ucpformat.replay.replica", *map(str, arguments)],
        pass_fds=numbers,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # A pipe of the trainer's would stay open as long as the replica lives.
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
