"""The trainer's side of a replica: each step is copied into memory that the process of the replica has as well."""

from __future__ import annotations

import mmap
import os
import warnings
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat import jsonio
from ucpformat.distributed.arena import extent
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.replay.replica.image import image_of, require_known
from ucpformat.replay.replica.link import Link, LostError
from ucpformat.replay.replica.wire import Message
from ucpformat.update_log.batch import BatchHeader, StepRecord
from ucpformat.update_log.drafts import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.errors import UcpError
    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.replica.options import Replica
    from ucpformat.update_log.batch import Entry
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.drafts import BatchDraft, StepDraft

__all__ = ["ReplicaFeed", "Setting", "require_local"]

_HEADER_BYTES: Final = 1 << 20
"""What is left in the ring for the header of a step, with options and values."""


def require_local(url: str, group: Group, optimizer: Optimizer) -> None:
    """Refuse a job that can have no replica.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``.
    """
    if not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        message = "a replica needs memory files and handles of processes, which Linux has; log without one"
        raise error("UCP-E-MISMATCH", message, at="replica")
    if url.startswith("memory://"):
        message = (
            "another process does not see what this one has in its memory; save to a directory or a store"
        )
        raise error("UCP-E-MISMATCH", message, at=url)
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
    held: frozenset[int]
    """Pieces of the epoch that this rank has."""


class ReplicaFeed:
    """Gives a replica each step; `put`, `drain`, `close` and ``durable_step`` are those of a `BatchWriter`.

    A step is copied once, into a ring of at most ``most_bytes``, or one step where that is more; where there is no room
    for it, `copied` waits until the replica has made an earlier one. Call `full` for a checkpoint.

    A replica that is gone is replaced by another one, with the state behind the last step, and a warning; but not of
    several ranks, whose replicas are a job of their own, where it has said why it ended, or has made no step.

    Raises:
        StoreError: ``UCP-E-RANK``, from any method, where the replica is gone, and not replaced; what the replica tells
            of, once.
    """

    def __init__(
        self,
        replica: Replica,
        setting: Setting,
        model: Module,
        optimizer: Optimizer,
        values: Mapping[str, JsonValue],
        *,
        most_bytes: int,
    ) -> None:
        self._replica = replica
        self._setting = setting
        self._epoch = setting.epoch
        self._model = model
        self._optimizer = optimizer
        self._values = values
        self._most_bytes = most_bytes
        self._given = self._durable = self._epoch.first_step
        self._step_bytes = _step_bytes(self._epoch, setting.held)
        self._room: int | None = None
        self._used = 0
        self._lost: LostError | None = None
        try:
            self._link = self._begun(is_saved=True)
        except LostError as reason:
            raise _gone(reason) from reason

    @property
    def durable_step(self) -> int:
        """The newest step of which a checkpoint is known to be committed."""
        self._durable = max(self._durable, self._link.durable_step)
        return self._durable

    @property
    def written_bytes(self) -> int:
        """Bytes of the log on the disk, of which there are none."""
        return 0

    @property
    def process(self) -> int:
        """The replica's number among the processes of this machine."""
        return self._link.process.pid

    def _begun(self, *, is_saved: bool) -> Link:
        """Start a replica with the state of now, that behind the last step that was given."""
        setting, replica, group = self._setting, self._replica, self._setting.group
        image, tensors = image_of(self._model, self._optimizer)
        hello: dict[str, JsonValue] = {
            "run": setting.run,
            "log": setting.url,
            "epoch": self._epoch.to_json(),
            "digest": setting.digest,
            "step": self._given,
            "is_saved": is_saved,
            "full_every": setting.full_every,
            "keep_full": setting.keep_full,
            "image": image.to_json(),
            "values": dict(self._values),
            "linger": float(replica.linger).hex(),
            "incremental": replica.incremental,
            "threads": replica.threads,
            "rank": list(group.ranks).index(group.rank),
            "ranks": len(group.ranks),
        }
        # Replicas of several ranks hold a step back until the next has come.
        held = min(len(group.ranks), 2) * [self._step_bytes, _HEADER_BYTES]
        nbytes = max(self._most_bytes, extent(held) + mmap.PAGESIZE)
        return Link(hello, tensors, nbytes=nbytes, group=group)

    def _replace(self, reason: LostError) -> None:
        """Begin another replica in place of one that is gone.

        Raises:
            StoreError: ``UCP-E-RANK`` where that does not help.
        """
        self._room, self._lost = None, None
        self._durable = self.durable_step
        if len(self._setting.group.ranks) > 1 or reason.was_told or not self._link.made:
            raise _gone(reason) from reason
        message = (
            f"the replica is gone ({reason}); another one has the state of step {self._given} from now on"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        try:
            self._link = self._begun(is_saved=False)
        except LostError as again:
            raise _gone(again) from again

    @property
    def _is_over(self) -> bool:
        """Whether the replica has ended, and is not to be replaced."""
        return self._link.is_over and self._lost is None

    def _require_open(self) -> None:
        if self._is_over:
            raise error("UCP-E-RANK", "the replica has ended; recover(), and begin another one", at="replica")

    def _surely(self, act: Callable[[Link], None]) -> None:
        """Do something with the replica, or with the one that replaces it."""
        self._require_open()
        try:
            act(self._link)
        except LostError as reason:
            self._replace(reason)
            try:
                act(self._link)
            except LostError as again:
                raise _gone(again) from again

    def copied(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return a copy of what a step has, in the ring; waits for room."""
        if self._lost is None:
            try:
                return self._copied(self._link, values)
            except LostError as reason:
                if len(self._setting.group.ranks) > 1:
                    raise _gone(reason) from reason
                self._lost = reason  # The next one begins with the state behind this step.
        return np.copy(values)

    def _copied(self, link: Link, values: NDArray[np.generic]) -> NDArray[np.generic]:
        if self._room is None:
            self._room, self._used = link.take(self._step_bytes), 0
        start = self._room + self._used
        if self._used + values.nbytes > self._step_bytes:
            raise AssertionError("a step has no more than all of its tensors")
        self._used += extent([values.nbytes])
        found = link.memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        np.copyto(found, values)
        return found

    def put(self, batch: BatchDraft) -> None:
        """Hand over a batch of one step, which the replica has from then on."""
        self._given, self._values = batch.first_step + 1, batch.values
        self._require_open()
        try:
            if self._lost is not None:
                raise self._lost
            self._put(self._link, batch)
        except LostError as reason:
            self._replace(reason)

    def _put(self, link: Link, batch: BatchDraft) -> None:
        (step,) = batch.steps
        entries, offsets = self._placed(link, step)
        record = StepRecord(entries, 0, 0, step.options, step.skipped)
        header = BatchHeader(
            self._epoch.log,
            self._epoch.epoch,
            0,
            batch.first_step,
            self._setting.digest,
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
        start = link.take(len(text))
        link.memory[start : start + len(text)] = np.frombuffer(text, np.uint8)
        self._room = None
        link.put(batch.first_step, start, len(text))

    def _placed(self, link: Link, step: StepDraft) -> tuple[tuple[Entry, ...], list[JsonValue]]:
        """Return the entries of a step, and where in the ring the bytes of each lie."""
        entries: list[Entry] = []
        offsets: list[JsonValue] = []
        base = link.memory.ctypes.data
        for one in step.captured:
            piece = self._epoch.pieces[one.piece]
            offset = one.values.ctypes.data - base if one.values.size else 0
            is_here = 0 <= offset < link.memory.nbytes and one.places is None
            # What is in the ring is whole; what a compressor or a sparse gradient has left is copied into it here.
            entry, buffers = encoded(one, piece.shape, is_value=True)
            if not is_here:
                data = np.concatenate([np.frombuffer(buffer, np.uint8) for buffer in buffers])
                offset = self._copied(link, data).ctypes.data - base if data.size else 0
            entries.append(entry)
            offsets.append(offset)
        return tuple(entries), offsets

    def full(self) -> None:
        """Have the replica save a checkpoint of the last step that it was given."""
        self._surely(lambda link: link.tell(Message(b"F")))

    def drain(self) -> None:
        """Return when a checkpoint of the last step is committed."""
        if self.durable_step < self._given:
            self._surely(partial(self._await_save, Message(b"F")))

    def close(self) -> None:
        """End the replica, when a checkpoint of the last step is committed."""
        if self._is_over:
            return
        try:
            self._surely(partial(self._await_save, Message(b"E")))
        finally:
            self._link.end()

    def _await_save(self, message: Message, link: Link) -> None:
        link.tell(message)
        while self.durable_step < self._given:
            link.hear(wait=True)

    def leave(self) -> None:
        """Let the replica go on without this process, which fails: whoever recovers gets the state from it."""
        self._link.leave()


def _gone(reason: LostError) -> UcpError:
    message = f"the replica is gone, or does not answer ({reason}); recover(), and begin another one"
    return error("UCP-E-RANK", message, at="replica")


def _step_bytes(epoch: Epoch, held: frozenset[int]) -> int:
    """Return the most bytes that a step takes in the ring, of pieces that this rank holds."""
    sizes = []
    for piece in map(epoch.pieces.__getitem__, sorted(held)):
        rows = piece.shape[0] if piece.shape else 0
        sizes.append(prod(piece.shape) * dtype(epoch.tensors[piece.tensor].dtype).item_bytes + 4 * rows)
    return extent(sizes)
