"""Starts of a job that log steps in an object store, with the real `LogPlace`, `StoredLog` and `BatchWriter`.

No request comes from another thread than the actor's: what is fetched ahead is fetched when it is asked for, and
batches are written when they are handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn
from unittest.mock import patch

import numpy as np

from tests.simulation import stores
from tests.simulation.directories import refusals
from tests.simulation.object_store import ObjectStore
from tests.simulation.schedule import Schedule, ViolationError
from ucpformat.errors import UcpError
from ucpformat.model.references import sha256_digest
from ucpformat.update_log import objects
from ucpformat.update_log.batch_writer import BatchWriter
from ucpformat.update_log.creation import create_epoch, create_log, drawn_id
from ucpformat.update_log.documents import After, Epoch, LoggedTensor, LogPiece
from ucpformat.update_log.drafts import BatchDraft, Captured, StepDraft
from ucpformat.update_log.durability import extent_of
from ucpformat.update_log.place import LogPlace, sorted_keys
from ucpformat.update_log.reading import StoredLog

__all__ = ["Logs", "simulated"]

PATH = "run/updates.ucplog"
URL = f"gs://{PATH}"
STEPS = 2


class _Writer(BatchWriter):
    """Writes what it is given when it is told to."""

    def _run(self) -> None:
        pass

    def write(self, draft: BatchDraft) -> None:
        self._queue.append(draft)
        self._write()
        self._queue.clear()


@dataclass
class Logs:
    """A log without checkpoints but one of state 0, and starts of its job.

    Each goes on from the last durable step, begins the next epoch, and logs two steps. ``jobs`` is how many there are.
    """

    schedule: Schedule
    jobs: int = 2
    owners: dict[int, str] = field(default_factory=dict)
    """Who was told to have begun each epoch."""
    durable: dict[int, int] = field(default_factory=dict)
    """The state of each epoch that its owner was told to be durable."""
    wrong: str | None = None
    medium: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.medium = ObjectStore(self.schedule)
        stores._install(self.medium)

    def actors(self) -> Sequence[Callable[[], None]]:
        """As many starts of the job."""
        return [partial(self._job, f"job-{number}") for number in range(self.jobs)]

    def _job(self, name: str) -> None:
        try:
            with refusals():
                try:
                    self._start(name)
                except UcpError as refusal:
                    if refusal.code != "UCP-E-FENCED":
                        raise
        finally:
            self.schedule.done()

    def _say(self, wrong: str) -> NoReturn:
        """End with a violation, which `check` raises as well: an actor that is refused raises nothing."""
        self.wrong = self.wrong or wrong
        raise ViolationError(wrong)

    def _start(self, name: str) -> None:
        known = {**self.durable}
        place = LogPlace(URL)
        number, log, after, step, begin = 0, drawn_id(), None, 0, create_epoch
        try:
            with StoredLog(URL) as stored:
                log = stored.document.id
                if stored.keys.epochs:
                    last = stored.epoch(stored.keys.epochs[-1])
                    after = After(last.epoch.epoch, last.digest)
                    number, step = last.epoch.epoch + 1, self._recovered(stored)
        except UcpError as problem:
            if problem.code != "UCP-E-NOT-FOUND":
                raise
            begin = create_log
        if after is not None and step < known.get(after.epoch, 0):
            self._say(f"{name} recovers step {step} of epoch {after.epoch}, and {known} was told")
        epoch = Epoch(
            log,
            number,
            drawn_id(),
            step,
            after,
            1,
            (LoggedTensor("w", "gradient", "float32", (2,)),),
            (LogPiece(0, 0, (0,), (2,)),),
            ((0,),),
            "ucp.sgd",
            {},
            "bitwise",
        )
        data = begin(place, epoch)
        if number in self.owners:
            self._say(f"{name} and {self.owners[number]} have both begun epoch {number}")
        self.owners[number] = name
        writer = _Writer(place, epoch, sha256_digest(data), 0, most_bytes=1 << 20)
        for done in range(step, step + STEPS):
            steps = [StepDraft([Captured(0, np.full(2, done, np.float32))], ({"lr": 0.5},))]
            writer.write(BatchDraft(done, steps, {"by": name}, ()))
            self.durable[number] = done + 1
            self.schedule.done()

    def _recovered(self, stored: StoredLog) -> int:
        """The step at which a recovery ends; nothing was damaged, so that nothing is lost."""
        extent = extent_of(stored, (0, 0))
        if extent.lost or extent.faults:
            self._say(f"a recovery finds {[str(fault) for fault in extent.faults]}")
        for part in extent.replayed:
            for batch in part.batches():
                for step in stored.steps_of(batch):
                    del step  # verified
        return extent.stop_step

    def check(self) -> None:
        """What the owner of the newest epoch was told to be durable is there."""
        if self.wrong is not None:
            raise ViolationError(self.wrong)
        for step in range(self.durable.get(self._newest(), 0)):
            if not any(key.endswith(f"/{step}.batch") for key in self.medium.objects):
                raise ViolationError(f"step {step} was told to be durable, and no epoch has it")

    def _newest(self) -> int:
        keys = sorted_keys(key.removeprefix(f"{PATH}/") for key in self.medium.objects)
        return keys.epochs[-1] if keys.epochs else -1

    def finish(self) -> None:
        """A start afterwards goes on from all that was durable, and logs its steps."""
        self.check()
        # Of an epoch that another one goes on from, only what was durable before somebody looked stays.
        told = self.durable.get(self._newest(), 0)
        self._start("afterwards")
        number = max(self.owners)
        if self.owners[number] != "afterwards" or self.durable[number] < told + STEPS:
            raise ViolationError(f"{told} was told, and {self.durable[number]} is what comes of it")
        self.check()


@contextmanager
def simulated() -> Iterator[None]:
    """Logs in remote stores send their requests to the simulation."""
    with stores.simulated(), patch.object(objects, "ForkedExecutor", stores._AtOnce):
        yield
