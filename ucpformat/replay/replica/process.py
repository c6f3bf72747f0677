"""The replica's process: it makes each step again, saves checkpoints, and gives its state to whoever recovers."""

from __future__ import annotations

import mmap
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import torch

from ucpformat.errors import UcpError, error
from ucpformat.manager import CheckpointManager
from ucpformat.replay.replica.held_state import HeldState
from ucpformat.replay.replica.wire import (
    PATIENCE,
    Message,
    is_own,
    listening,
    receive,
    receive_document,
    send,
    send_document,
)
from ucpformat.update_log.documents import Epoch
from ucpformat.update_log.place import LogPlace, epoch_key

if TYPE_CHECKING:
    from ucpformat.state_dict.async_save import AsyncSave

__all__ = ["main"]

_LOOK: Final = 0.25
"""Seconds behind which the process looks for a newer epoch, and whether it is time to end."""
_SHARE: Final = 10
"""With ``full_every="auto"``, so many times as long as the last save took pass from one to the next."""


def main(channel: int, stream: int, memory: int, trainer: int) -> None:
    """Be the replica of a trainer."""
    with socket.socket(fileno=channel) as talk:
        try:
            with socket.socket(fileno=stream) as come:
                come.settimeout(PATIENCE)
                hello: Any = receive_document(come)
                torch.set_num_threads(hello["threads"])
                mapped = memoryview(mmap.mmap(memory, hello["ring"]))
                held = HeldState(hello, come, mapped)
            os.close(memory)
            Process(talk, hello, held, trainer).run()
        except OSError:
            pass  # The trainer went before the replica was ready.
        except Exception as problem:
            with suppress(OSError):
                send(talk, Message(b"X", text=_told(problem)))


def _told(problem: BaseException) -> str:
    if isinstance(problem, UcpError):
        return f"{problem.code} {problem.message}{problem.where}"
    return f"UCP-E-RANK {type(problem).__name__}: {problem}"


class Process:
    """Waits for steps, for whoever recovers, and for the end of the trainer."""

    def __init__(self, talk: socket.socket, hello: Any, held: HeldState, trainer: int) -> None:
        self._talk = talk
        self._held = held
        self._full_every = hello["full_every"]
        self._linger = float.fromhex(hello["linger"])
        self._epoch: Epoch = held.epoch
        self._place = LogPlace(hello["log"])
        self._manager = CheckpointManager(
            hello["run"],
            keep_last=hello["keep_full"],
            asynchronous=True,
            incremental=hello["incremental"],
        )
        self._saved = held.step
        """The step of the last checkpoint that was begun."""
        self._save: AsyncSave | None = None
        self._began = time.monotonic()
        self._took = 0.0
        self._ends_at: float | None = None
        self._is_stopped = False
        self._listener = listening(self._epoch.start, 0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._serve)
        self._selector.register(talk, selectors.EVENT_READ, self._hear)
        # Processes that the trainer has forked may keep its end of the socket open when it is gone.
        self._trainer = os.pidfd_open(trainer)
        self._selector.register(self._trainer, selectors.EVENT_READ, self._trainer_ended)
        if os.getppid() != trainer:
            raise ConnectionResetError("the trainer has ended")

    def run(self) -> None:
        """Run until the trainer says so, or has been gone for long enough."""
        signal.signal(signal.SIGTERM, self._stop)
        send(self._talk, Message(b"R"))
        while self._ends_at is None or time.monotonic() < self._ends_at:
            for key, _ in self._selector.select(_LOOK):
                key.data()
            self._settle_save()
            if self._is_stopped:
                self._end()
            elif self._ends_at is not None and self._is_fenced():
                break  # Somebody has gone on: nobody needs this state any more.
        self._manager.close()

    def _stop(self, *_: object) -> None:
        self._is_stopped = True

    def _is_fenced(self) -> bool:
        return self._place.store.size(epoch_key(self._epoch.epoch + 1)) is not None

    def _hear(self) -> None:
        """Do what the trainer says, as long as it has said something."""
        try:
            while (message := receive(self._talk, wait=False)) is not None:
                match message.kind:
                    case b"S":
                        self._step(message)
                    case b"F":
                        self._begin_save()
                    case b"E":
                        self._end()
                        return
        except OSError:
            self._trainer_ended()

    def _step(self, message: Message) -> None:
        # SPEC UCP-W-039: of a trainer that was taken for dead nothing is taken any more.
        if self._is_fenced():
            message_ = (
                f"epoch {self._epoch.epoch + 1} has begun: another start of the job went on from this log"
            )
            raise error("UCP-E-FENCED", message_, at=self._place.url)
        self._held.step_of(message.a, message.b)
        self._tell(Message(b"A", self._held.step - 1))
        self._settle_save()
        if self._is_full_due():
            self._begin_save()

    def _is_full_due(self) -> bool:
        if self._full_every is None or self._save is not None:
            return False
        if self._full_every != "auto":
            return bool(self._held.step - self._saved >= self._full_every)
        return time.monotonic() - self._began >= _SHARE * self._took

    def _begin_save(self) -> None:
        """Save a checkpoint of the state as it is now; it is copied, and written while further steps are made."""
        if self._save is not None:
            self._await_save()
        if self._saved == self._held.step:
            self._tell(Message(b"C", self._saved))
            return
        if self._is_fenced():
            return
        self._began = time.monotonic()
        self._saved = self._held.step
        self._save = self._manager.save(
            self._saved, self._held.content(), log=self._held.position, replace=True
        )

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
            self._saved = -1  # What is not on the disk is to be saved again.
            self._tell(Message(b"X", text=_told(problem)))
            return
        finally:
            self._took = time.monotonic() - self._began
        self._tell(Message(b"C", self._saved))

    def _tell(self, message: Message) -> None:
        with suppress(OSError):
            send(self._talk, message)

    def _end(self) -> None:
        """End as the trainer says, with a checkpoint of its last step."""
        self._begin_save()
        self._await_save()
        if self._ends_at is None:
            self._forget_trainer()
        self._ends_at = 0.0

    def _trainer_ended(self) -> None:
        """Make what steps there are, save a checkpoint, and wait for whoever recovers."""
        if self._ends_at is not None:
            return
        self._ends_at = time.monotonic() + self._linger
        with suppress(OSError):
            while (message := receive(self._talk, wait=False)) is not None:
                if message.kind == b"S":
                    self._step(message)
        self._forget_trainer()
        self._begin_save()

    def _forget_trainer(self) -> None:
        self._selector.unregister(self._talk)
        self._selector.unregister(self._trainer)

    def _serve(self) -> None:
        """Give the state to a process of the same user that recovers, and save a checkpoint of it meanwhile."""
        stream, _ = self._listener.accept()
        with stream:
            if not is_own(stream) or self._is_fenced():
                return
            if self._ends_at is None:
                self._hear()
            else:
                self._ends_at = max(self._ends_at, time.monotonic() + self._linger)
            stream.settimeout(PATIENCE)
            self._begin_save()
            with suppress(OSError):
                self._held.give(stream)
                self._await_save()
                send_document(stream, {"is_saved": self._saved == self._held.step})
