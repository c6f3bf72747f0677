"""The replica's process: it makes each step again, saves checkpoints, and gives its state to whoever recovers."""

from __future__ import annotations

import mmap
import os
import select
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import torch

from ucpformat.distributed.group import decided
from ucpformat.errors import UcpError
from ucpformat.manager import CheckpointManager
from ucpformat.replay.replica.company import alone, joined
from ucpformat.replay.replica.held_state import HeldState
from ucpformat.replay.replica.spans import Span, common_step
from ucpformat.replay.replica.ties import Meeting
from ucpformat.replay.replica.wire import (
    PATIENCE,
    Message,
    is_own,
    listening,
    receive,
    receive_document,
    send,
    send_document,
    told_of,
)
from ucpformat.update_log.documents import Epoch
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.pruning import prune
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    from ucpformat.replay.replica.company import Company
    from ucpformat.state_dict.async_save import AsyncSave

__all__ = ["main"]

_LOOK: Final = 0.25
"""Seconds behind which the process looks for a newer epoch, and whether it is time to end."""
_MEET: Final = 0.02
"""Seconds behind which it looks whether the replicas of other ranks have come to the step that all are to save."""
_GRACE: Final = 60.0
"""Seconds for which the replicas of several ranks wait for one another to save a last checkpoint."""
_STOP: Final = 10.0
"""Seconds for which one does so that was told to end: the others may not be, and then its trainer waits for it."""
_SHARE: Final = 10
"""With ``full_every="auto"``, so many times as long as the last save took pass from one to the next."""
_STEPS_OF_SEVERAL: Final = 100
"""With ``full_every="auto"``, the steps from one save to the next where several ranks have to save the same one."""
_AND_OTHERS: Final = Message(b"L", text="the replica of another rank is gone")


def main(channel: int, stream: int, memory: int, trainer: int, *inherited: int) -> None:
    """Be the replica of a trainer; ``inherited`` are sockets that lead to those of other ranks."""
    with socket.socket(fileno=channel) as talk:
        process: Process | None = None
        company = alone()

        def broken() -> None:
            """End with the replica of another rank, in another thread, whatever this one waits for."""
            if process is None or not process.is_for_recovery:
                with suppress(OSError):
                    send(talk, _AND_OTHERS if process is None else process.last_word())
                os._exit(1)

        try:
            with socket.socket(fileno=stream) as come:
                come.settimeout(PATIENCE)
                hello: Any = receive_document(come)
                torch.set_num_threads(hello["threads"])
                if hello["ranks"] > 1:
                    sockets = [socket.socket(fileno=number) for number in inherited]
                    meeting = Meeting(*hello["meeting"])
                    company = joined(meeting, hello["rank"], hello["ranks"], sockets, broken)
                mapped = memoryview(mmap.mmap(memory, hello["ring"]))
                held = HeldState(hello, come, mapped, company.group)
            os.close(memory)
            process = Process(talk, hello, held, company, trainer)
            process.run()
        except OSError:
            pass  # The trainer went before the replica was ready.
        except Exception as problem:
            if isinstance(problem, UcpError) and company.is_broken_by(problem):
                broken()
            with suppress(OSError):
                send(talk, Message(b"D", text=told_of(problem)))


class Process:
    """Waits for steps, for whoever recovers, for the replicas of other ranks, and for the end of the trainer.

    Of a job of several ranks the last step that came is held back until the next one: another rank may have died before
    it, and then nobody can have it. All replicas save the same step, when each of them has said that it has that.
    """

    def __init__(
        self, talk: socket.socket, hello: Any, held: HeldState, company: Company, trainer: int
    ) -> None:
        self._talk = talk
        self._held = held
        self._company = company
        self._full_every = hello["full_every"]
        if self._full_every == "auto" and company.ranks > 1:
            self._full_every = _STEPS_OF_SEVERAL
        self._linger = float.fromhex(hello["linger"])
        self._grace = _GRACE
        self._number = hello["company"]
        self._epoch: Epoch = held.epoch
        self._place = LogPlace(hello["log"])
        self._manager = CheckpointManager(
            hello["run"],
            keep_last=hello["keep_full"],
            asynchronous=True,
            incremental=hello["incremental"],
            group=company.group,
        )
        self._saved = held.step if hello["is_saved"] else -1
        """The step of the last checkpoint that was begun."""
        self._tried = held.step
        """The step at which it was last time for one, whether that was saved or failed."""
        self._save: AsyncSave | None = None
        self._began = time.monotonic()
        self._took = 0.0
        self._is_alone = False
        """Whether the trainer has ended, or is not heard any more."""
        self._lingers_from = 0.0
        self._is_drained = False
        self._is_stopped = False
        self._is_ending = False
        self._is_over = False
        self._served = 0
        self._awaited: str | None = None
        """What the replicas of all ranks have to have said before this one goes on."""
        self._listener = listening(self._epoch.start, hello["rank"])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._serve)
        self._selector.register(talk, selectors.EVENT_READ, self._hear)
        # Processes that the trainer has forked may keep its end of the socket open when it is gone.
        self._parent = trainer
        self._trainer = os.pidfd_open(trainer)
        self._selector.register(self._trainer, selectors.EVENT_READ, self._trainer_ended)
        if os.getppid() != trainer:
            raise ConnectionResetError("the trainer has ended")

    def run(self) -> None:
        """Run until the trainer says so, or has been gone for long enough."""
        signal.signal(signal.SIGTERM, self._stop)
        send(self._talk, Message(b"R"))
        if self._saved < 0 and self._full_every is not None:
            self._begin_save()  # The one before it has died, and nobody knows since when.
        while not self._is_over and not self._is_late():
            for key, _ in self._selector.select(_LOOK if self._awaited is None else _MEET):
                key.data()
            self._meet()
            self._settle_save()
            if self._is_stopped:
                self._is_stopped, self._linger, self._grace = False, 0.0, _STOP
                self._trainer_ended()
            if self._is_alone:
                self._drain()
                if self._fenced() is not None:
                    break  # Somebody has gone on: nobody needs this state any more.
        self._await_save()
        self._manager.close()
        # Where others have not come to their end by now, they do not.
        self._company.leave(0.0 if self._awaited is not None else _GRACE)

    @property
    def is_for_recovery(self) -> bool:
        """Whether the trainer is gone: then this stays, and whoever recovers sees which ranks have no replica."""
        return self._is_alone or os.getppid() != self._parent

    def last_word(self) -> Message:
        """Return what to say where this ends with the replica of another rank."""
        with suppress(Exception):
            if (refusal := self._fenced()) is not None:
                return Message(b"D", text=told_of(refusal))
        return _AND_OTHERS

    def _is_late(self) -> bool:
        """Return whether nobody has come for as long as the replica waits when the trainer is gone."""
        if not self._is_alone:
            return False
        is_settled = self._is_drained and self._awaited is None
        patience = self._linger if is_settled else max(self._linger, self._grace)
        return time.monotonic() >= self._lingers_from + patience

    def _stop(self, *_: object) -> None:
        self._is_stopped = True

    def _fenced(self) -> UcpError | None:
        return self._place.fenced(self._epoch.epoch)

    def _hear(self) -> None:
        """Do what the trainer says, as long as it has said something, and no other rank is waited for."""
        try:
            while self._awaited is None and (message := receive(self._talk, wait=False)) is not None:
                match message.kind:
                    case b"S":
                        self._step(message)
                    case b"F":
                        self._await_others()
                    case b"E":
                        self._is_ending = True
                        self._await_others()
        except OSError:
            self._trainer_ended()

    def _step(self, message: Message) -> None:
        # SPEC UCP-W-039: of a trainer that was taken for dead nothing is taken any more.
        if (refusal := self._fenced()) is not None:
            raise refusal
        if self._held.span.last > self._held.step:
            self._make()  # That the trainer has come to the next step says that all ranks have fed this one.
        self._held.hold(message.a, message.b)
        if self._company.ranks == 1:
            self._make()
        self._settle_save()
        if self._is_full_due():
            self._await_others()

    def _make(self) -> None:
        self._held.make()
        self._tell(Message(b"A", self._held.step - 1))

    def _is_full_due(self) -> bool:
        if self._full_every is None:
            return False
        if self._full_every != "auto":
            return bool(self._held.span.last - self._tried >= self._full_every)
        return self._save is None and time.monotonic() - self._began >= _SHARE * self._took

    def _await_others(self) -> None:
        """Save the last step that came, when the replicas of all ranks have it."""
        self._say(f"step-{self._held.span.last}")

    def _say(self, name: str) -> None:
        """Tell the other replicas what this one has, and wait for them, without hearing the trainer any more."""
        if self._company.ranks == 1:
            self._go_on([self._held.span])
            return
        self._company.tell(name, self._held.span)
        self._awaited = name
        if not self._is_alone:
            self._selector.unregister(self._talk)
        self._meet()

    def _meet(self) -> None:
        if self._awaited is None:
            return
        found = self._company.told(self._awaited)
        if found is None:
            return
        self._awaited = None
        if not self._is_alone:
            self._selector.register(self._talk, selectors.EVENT_READ, self._hear)
        self._go_on(found)

    def _go_on(self, spans: list[Span]) -> None:
        """Save the step that all replicas can have."""
        step = common_step(spans)
        if step is not None:
            self._come_to(step)
            self._begin_save()
        if self._is_ending:
            self._await_save()
            self._is_over = True

    def _come_to(self, step: int) -> None:
        """Make the step that is held, or let go of it."""
        if self._held.step < step:
            self._make()
        elif self._held.span.last > step:
            self._held.forget()

    def _begin_save(self) -> None:
        """Save a checkpoint of the state as it is now; it is copied, and written while further steps are made."""
        self._await_save()
        if self._saved == self._held.step:
            self._tell(Message(b"C", self._saved))
            return
        group = self._company.group
        self._began, self._tried = time.monotonic(), self._held.step
        try:
            if decided(group, lambda: b"fenced" if self._fenced() is not None else b""):
                return
            self._saved = self._held.step
            self._save = self._manager.save(
                self._saved, self._held.content(), log=self._held.position, replace=True
            )
        except UcpError as problem:
            self._failed(problem)

    def _settle_save(self) -> None:
        if self._save is not None and self._save.done():
            self._await_save()

    def _await_save(self) -> None:
        save, self._save = self._save, None
        if save is None:
            return
        try:
            save.wait()
        except UcpError as problem:
            self._failed(problem)
            return
        finally:
            self._took = time.monotonic() - self._began
        self._tell(Message(b"C", self._saved))
        self._prune()

    def _failed(self, problem: UcpError) -> None:
        if self._company.is_broken_by(problem) and not self.is_for_recovery:
            raise problem
        self._saved = -1  # What is not on the disk is to be saved again.
        self._tell(Message(b"X", text=told_of(problem)))

    def _prune(self) -> None:
        """Remove what earlier epochs have logged on the disk, and no recovery needs any more."""
        if self._company.group.rank == self._company.group.ranks[0]:
            with suppress(UcpError), StoredLog(self._place.url) as log:
                prune(log, self._place, min(self._manager.run.steps(), default=0))

    def _tell(self, message: Message) -> None:
        with suppress(OSError):
            send(self._talk, message)

    def _trainer_ended(self) -> None:
        """Make what steps there are, save a checkpoint, and wait for whoever recovers."""
        if self._is_alone:
            return
        if self._awaited is None:
            self._selector.unregister(self._talk)
        self._selector.unregister(self._trainer)
        self._is_alone, self._lingers_from = True, time.monotonic()
        self._drain()

    def _drain(self) -> None:
        """Take what the trainer has said before it ended."""
        with suppress(OSError):
            while self._awaited is None and (message := receive(self._talk, wait=False)) is not None:
                if message.kind == b"S":
                    self._step(message)
        if self._awaited is None and not self._is_drained:
            self._is_drained = True
            self._say("last")

    def _serve(self) -> None:
        """Give the state to a process of the same user that recovers, and save a checkpoint of it meanwhile."""
        stream, _ = self._listener.accept()
        with stream:
            if not is_own(stream) or self._fenced() is not None:
                return
            if not self._is_alone:
                self._hear()
            stream.settimeout(PATIENCE)
            with suppress(OSError):
                said = {**self._held.name, "company": self._number, "span": list(self._held.span)}
                send_document(stream, said)
                asked = self._asked(stream)  # Whoever only looks goes here.
                self._lingers_from = time.monotonic()
                self._served += 1
                self._come_to(asked["step"])
                if self._all_come(f"recovery-{asked['step']}-{self._served}"):
                    self._begin_save()
                self._held.give(stream)
                self._await_save()
                send_document(stream, {"is_saved": self._saved == self._held.step})

    def _asked(self, stream: socket.socket) -> Any:
        """Receive what is asked for. Who asks waits for other ranks, whose replicas may wait for this one to save."""
        limit = time.monotonic() + PATIENCE
        while self._awaited and time.monotonic() < limit and not select.select([stream], [], [], _MEET)[0]:
            self._meet()
        return receive_document(stream)

    def _all_come(self, name: str) -> bool:
        """Return whether the replicas of all ranks say that they have been asked for a step; waits for them."""
        if self._company.ranks == 1:
            return True
        self._company.tell(name, self._held.span)
        limit = time.monotonic() + _GRACE
        while time.monotonic() < limit:
            self._meet()  # What was told before goes first, on all ranks.
            if self._company.told(name) is not None:
                return True
            time.sleep(_MEET)
        return False
