"""The trainer's side of a replica: each step is copied into memory that the process of the replica has as well."""

from __future__ import annotations

import mmap
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat import jsonio
from ucpformat.distributed.arena import extent
from ucpformat.errors import UcpError, error
from ucpformat.replay.replica.image import image_of
from ucpformat.replay.replica.link import Link, LostError
from ucpformat.replay.replica.options import Replica
from ucpformat.replay.replica.roll_call import RollCall, Standing
from ucpformat.replay.replica.wire import Message
from ucpformat.state_dict.torch_group import TorchGroup
from ucpformat.update_log.batch import BatchHeader, StepRecord
from ucpformat.update_log.drafts import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.jsonio import JsonValue
    from ucpformat.replay.replica.setting import Setting
    from ucpformat.update_log.batch import Entry
    from ucpformat.update_log.drafts import BatchDraft, StepDraft

__all__ = ["ReplicaFeed"]

_HEADER_BYTES: Final = 1 << 20
"""What is left in the ring for the header of a step, with options and values."""


class ReplicaFeed:
    """Gives a replica each step; `put`, `drain`, `close` and ``durable_step`` are those of a `BatchWriter`.

    A step is copied once, into a ring of at most ``most_bytes``, or one step where that is more; where there is no room
    for it, `copied` waits until the replica has made an earlier one. Call `full` for a checkpoint.

    A replica that is gone is replaced by another one, with the state behind the last step, and a warning; but not where
    it has said why it ended, or has made no step. Those of several ranks are replaced together, in `begin_step`: each
    rank tells all others of a loss, and they know of it at their next step.

    Raises:
        StoreError: ``UCP-E-RANK``, from any method, where the replica is gone, and not replaced; what the replica tells
            of, once.
    """

    def __init__(
        self,
        replica: bool | Replica,
        setting: Setting,
        model: Module,
        optimizer: Optimizer,
        values: Mapping[str, JsonValue],
        *,
        most_bytes: int,
    ) -> None:
        self._replica = replica if isinstance(replica, Replica) else Replica()
        self._setting = setting
        self._epoch = setting.epoch
        self._model = model
        self._optimizer = optimizer
        self._values = values
        self._most_bytes = most_bytes
        self._given = self._durable = self._epoch.first_step
        self._step_bytes = setting.step_bytes
        self._pieces = self._epoch.pieces_by_tensor()
        self._room: int | None = None
        self._used = 0
        self._lost: LostError | None = None
        self._company = 0
        """How often the replicas of all ranks were replaced."""
        self._position = list(setting.group.ranks).index(setting.group.rank)
        self._roll = RollCall(TorchGroup().another()) if len(setting.group.ranks) > 1 else None
        self.buffers: Callable[[], Mapping[int, Tensor]] = dict
        """Returns what buffers were behind the last step, by the identity of each."""
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
        """The replica's number among the processes of this machine, 0 where it was not started."""
        return 0 if self._link.process is None else self._link.process.pid

    def _begun(self, *, is_saved: bool) -> Link:
        """Start a replica with the state of now, that behind the last step that was given."""
        setting, replica, group = self._setting, self._replica, self._setting.group
        image, found = image_of(self._model, self._optimizer)
        behind = self.buffers()
        tensors = [behind.get(id(one), one) for one in found]
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
            "rank": self._position,
            "ranks": len(group.ranks),
            "company": self._company,
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
        self._lost = None
        if self._link.has_died or not self._link.made:
            self._link.raise_told()
            raise _gone(reason) from reason
        self._begin_again()
        self._warn(reason)

    def _begin_again(self) -> None:
        """Begin the replica that replaces the one that is gone, or is to be."""
        self._room, self._lost = None, None
        with suppress(LostError):
            while not self._link.is_over and self._link.hear(wait=False) is not None:
                pass
        self._durable = self.durable_step
        self._link.discard()
        self._company += 1
        try:
            self._link = self._begun(is_saved=False)
        except LostError as again:
            raise _gone(again) from again

    def _warn(self, reason: LostError | str) -> None:
        message = (
            f"the replica is gone ({reason}); another one has the state of step {self._given} from now on"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    def begin_step(self) -> None:
        """Begin new replicas of all ranks, where one is gone; each rank calls this, at one and the same step.

        Raises:
            UcpError: what the replica has told of, once; ``UCP-E-RANK`` where one is not to be replaced, on all ranks.
        """
        self._require_open()
        if self._roll is not None:
            self._answer(self._roll.heard())
        # Here, where nothing of the step is made yet: who catches it, and goes on, loses none.
        self._link.raise_told()

    @property
    def _standing(self) -> Standing:
        """How this rank's replica is, for all others to hear."""
        reason = self._lost
        if self._link.has_died:
            return Standing(is_lost=True, rank=self._position, is_final=True)
        if reason is None or not reason.is_own:
            return Standing(is_lost=reason is not None)
        return Standing(is_lost=True, rank=self._position, is_final=not self._link.made)

    def _answer(self, said: Standing) -> None:
        """Do what is to be done about a loss that all ranks know of now, on all of them."""
        if not said.is_lost:
            return
        mine = self._lost
        whose = "that of another rank is gone" if said.rank is None else f"that of rank {said.rank} is gone"
        reason = mine if mine is not None and mine.is_own else whose
        if said.is_final:
            self._link.discard()
            self._lost = None
            self._link.raise_told()
            raise _gone(reason)
        self._begin_again()
        # Of many ranks the one that it is about says so, or the first one where nobody knows.
        if reason is mine or (said.rank is None and self._position == 0):
            self._warn(reason)

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
        if self._roll is not None:
            self._all_surely(self._roll, act)
            return
        try:
            act(self._link)
        except LostError as reason:
            self._replace(reason)
            try:
                act(self._link)
            except LostError as again:
                raise _gone(again) from again

    def _all_surely(self, roll: RollCall, act: Callable[[Link], None]) -> None:
        """Do something with the replicas of all ranks, or with those that replace them; returns when all have done it.

        Raises:
            StoreError: ``UCP-E-RANK`` where they are gone again.
        """
        self._answer(roll.heard())
        for _ in range(2):
            failure: UcpError | None = None
            try:
                if self._lost is None:
                    act(self._link)
            except LostError as reason:
                self._lost = reason
            except UcpError as problem:
                failure = problem
            said = roll.asked(self._standing)
            if failure is not None and (said.is_final or not said.is_lost):
                raise failure
            self._answer(said)
            if not said.is_lost:
                return
        raise _gone("it was begun twice")

    def copied(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return a copy of what a step has, in the ring; waits for room."""
        if self._lost is None:
            try:
                return self._copied(self._link, values)
            except LostError as reason:
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
            if self._roll is None:
                self._replace(reason)
            else:
                self._lost = reason
        finally:
            if self._roll is not None:
                self._roll.say(self._standing)

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
        elsewhere: list[JsonValue] = [self._pieces[one][0] for one in step.elsewhere]
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
        if self._roll is None:
            self._surely(lambda link: link.tell(Message(b"F")))
            return
        self._require_open()
        try:
            if self._lost is None:
                self._link.tell(Message(b"F"))
        except LostError as reason:
            self._lost = reason  # All hear of it at the next step; those that replace them save one.

    def drain(self) -> None:
        """Return when a checkpoint of the last step is committed."""
        if self._roll is not None or self.durable_step < self._given:
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
        if message.kind == b"F" and self.durable_step >= self._given:
            return
        link.tell(message)
        while self.durable_step < self._given:
            link.hear(wait=True)
            link.raise_told()

    def leave(self) -> None:
        """Let the replica go on without this process, which fails: whoever recovers gets the state from it."""
        self._link.leave()


def _gone(reason: LostError | str) -> UcpError:
    message = f"the replica is gone, or does not answer ({reason}); recover(), and begin another one"
    return error("UCP-E-RANK", message, at="replica")
