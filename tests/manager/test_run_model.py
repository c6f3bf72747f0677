"""The manager against a model: any sequence of saves, crashes, damage, collections, restarts and resumptions."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import ucpformat as ucp
from ucpformat.errors import UcpError
from ucpformat.manager import Retention
from ucpformat.storage.writing.piece_writer import PieceWriter

STEPS = st.integers(0, 12)
LOSSES = st.sampled_from([0.5, 1.0, 2.0, math.nan])
NUMBERS = st.none() | st.integers(1, 3)


def refuse(path: Path, ignore_errors: bool = False) -> None:
    if not ignore_errors:
        raise OSError(5, "no")


class Runs(RuleBasedStateMachine):
    """``committed`` has loss and content by step, ``debris`` and ``aside`` count what was left without a root."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="ucp-run-"))
        # Thousands of files are made durable here, for nobody.
        self.quick = mock.patch("os.fsync")
        self.quick.start()
        self.committed: dict[int, tuple[float, int]] = {}
        self.broken: set[int] = set()
        self.debris: set[int] = set()
        self.aside = 0
        self.count = 0

    def teardown(self) -> None:
        self.manager.close()
        self.quick.stop()
        shutil.rmtree(self.path)

    @initialize(last=NUMBERS, every=NUMBERS, best=NUMBERS, old=st.booleans(), background=st.booleans())
    def begin(
        self, last: int | None, every: int | None, best: int | None, old: bool, background: bool
    ) -> None:
        self.keep = (last, every, best, None if best is None else "loss")
        self.age = 0.0 if old else 3600.0
        self.background = background
        self.start()

    def start(self) -> None:
        last, every, best, metric = self.keep
        self.manager = ucp.CheckpointManager(
            self.path,
            keep_last=last,
            keep_every=every,
            keep_best=best,
            metric=metric,
            asynchronous=self.background,
            debris_age=self.age,
        )
        self.passed: set[int] = set()
        self.own: set[int] = set()

    def state(self) -> dict[str, Any]:
        self.count += 1
        return {"model": {"w": np.full(300, self.count, np.float32)}}

    def collected(self, *protected: int) -> None:
        """What a collection does to the model."""
        good = self.committed.keys() - self.passed
        losses = {step: {"loss": self.committed[step][0]} for step in good}
        for step in good - Retention(*self.keep).kept(good, losses) - set(protected):
            del self.committed[step]
            self.broken.discard(step)
        if self.age == 0:
            self.debris.clear()
            self.aside = 0

    def saved(self, step: int, loss: float) -> None:
        self.debris.discard(step)
        self.passed.discard(step)
        self.broken.discard(step)
        self.own.add(step)
        self.committed[step] = (loss, self.count)
        self.collected(step)

    @rule(step=STEPS, loss=LOSSES, replace=st.booleans())
    def save(self, step: int, loss: float, replace: bool) -> None:
        taken = step in self.committed and not replace and step not in self.passed | self.own
        if taken:
            with pytest.raises(UcpError, match="UCP-E-EXISTS"):
                self.manager.save(step, self.state(), metrics={"loss": loss}, replace=replace)
            return
        self.manager.save(step, self.state(), metrics={"loss": loss}, replace=replace)
        self.manager.wait()
        self.saved(step, loss)

    @rule(step=STEPS)
    def fail_to_write(self, step: int) -> None:
        """The disk is full: there is an error, and neither a checkpoint nor debris."""
        if step in self.committed:
            return
        with mock.patch.object(PieceWriter, "drain", side_effect=OSError("no space left")):
            with pytest.raises(OSError, match="no space left"):
                self.manager.save(step, self.state()).wait()
            self.manager.wait()
        self.debris.discard(step)

    @rule(step=STEPS)
    def die_while_writing(self, step: int) -> None:
        """Some other process has begun this step and is gone: its lock with it, its files not."""
        if step in self.committed:
            return
        spec = ucp.AtomSpec("w", {"value": ucp.SlotSpec("float32", (2,))})
        writer = ucp.CheckpointWriter(self.path / f"step-{step}.ucp", [spec])
        writer.write("w", "value", np.ones(2, np.float32))
        writer.flush()
        writer._store.close()
        writer.pieces.close()
        self.debris.add(step)

    @rule(step=STEPS, loss=LOSSES)
    def fail_to_remove(self, step: int, loss: float) -> None:
        """Removal breaks off behind the root document: the save is good, and what is left is debris."""
        if step in self.committed:
            return
        with mock.patch("ucpformat.manager.local_place.shutil.rmtree", side_effect=refuse):
            before = len(self.committed) + len(self.debris) + self.aside
            self.manager.save(step, self.state(), metrics={"loss": loss})
            self.manager.wait()
        self.saved(step, loss)
        if self.age == 0:
            # Debris moves aside as well, and what lay aside already stays there: nothing is gone.
            self.aside = before + 1 - len(self.committed)
        else:
            self.aside = before + 1 - len(self.committed) - len(self.debris)

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.committed)))
        (pack,) = (Path(self.manager.path(step)) / "packs").iterdir()
        raw = bytearray(pack.read_bytes())
        raw[0] ^= 1 if step not in self.broken else 0
        pack.write_bytes(raw)
        self.broken.add(step)

    @rule()
    def collect(self) -> None:
        self.manager.collect()
        self.collected()

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.start()

    @rule()
    def resume(self) -> None:
        state = {"model": {"w": np.zeros(300, np.float32)}}
        good = self.committed.keys() - self.broken
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if self.committed and not good:
                with pytest.raises(UcpError, match="CHECKSUM"):
                    self.manager.resume(state)
                return
            step = self.manager.resume(state)
        assert step == max(good, default=None)
        if step is None:
            return
        assert (state["model"]["w"] == self.committed[step][1]).all()
        self.own.add(step)
        passed = {one for one in self.broken if one > step}
        assert sum("passed over" in str(one.message) for one in told) == len(passed)
        self.passed |= passed

    @invariant()
    def directory_is_as_the_model_says(self) -> None:
        names = {path.name for path in self.path.iterdir()}
        aside = {name for name in names if ".debris-" in name}
        plain = [re.sub(r"\.r[0-9]+", "", name) for name in names - aside]
        assert sorted(plain) == sorted(f"step-{step}.ucp" for step in (*self.committed, *self.debris))
        assert len(aside) == self.aside
        assert self.manager.steps() == sorted(self.committed)
        assert self.manager.latest() == max(self.committed, default=None)


TestRuns = pytest.mark.filterwarnings("ignore:.*could not be removed:RuntimeWarning")(Runs.TestCase)
TestRuns.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
