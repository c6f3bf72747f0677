"""Save a training state and load it again, everybody in turn."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.ballast import Ballast, prepare
from benchmarks.cache import cool
from benchmarks.facts import machine_facts
from benchmarks.measure import Footprint, Reading, footprint, measured
from benchmarks.results import Run, Series, Task
from benchmarks.workloads import workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.contenders.base import Contender
    from benchmarks.state import TrainingState
    from ucpformat.storage.stores.store import Durability

_T = TypeVar("_T")

__all__ = ["SAVES", "Room", "compare", "in_turn"]


def compare(
    contenders: Sequence[Contender],
    *,
    state_name: str,
    nbytes: int,
    repeats: int,
    directory: Path,
    command: str,
    report: Callable[[str], None],
    in_place: bool = False,
    cold: bool = False,
    ballast: Ballast | None = None,
) -> Run:
    """Run ``repeats`` rounds of everybody, after one that warms up and checks what was loaded.

    ``in_place``: load into the arrays that were saved, which takes half of the memory. ``cold``: what is loaded lies
    on the disk alone. ``ballast``: what the page cache is filled with before each reading.
    """
    facts = machine_facts(directory, steady=ballast is not None)
    state = workload(state_name, nbytes)
    into = state if in_place else state.blank()
    room = Room(directory)
    for contender in contenders:
        report(f"{contender.name} warms up")
        wrong = (_wrong_in_place if in_place else _wrong)(contender, state, into, room)
        if wrong is not None:
            raise ValueError(f"{contender.name} brought back other values of {wrong}")
    series: dict[Task, Series] = defaultdict(Series)
    for number in range(repeats):
        report(f"round {number + 1} of {repeats}")
        for contender in in_turn(contenders, number):
            for what, reading in _round(contender, state, into, room, cold=cold, ballast=ballast).items():
                series[Task(contender.name, what)].readings.append(reading)
    notes = {contender.name: contender.note for contender in contenders}
    return Run(command, facts, state.nbytes, len(state.flat), notes, dict(series), room.footprints)


def _wrong(contender: Contender, state: TrainingState, into: TrainingState, room: Room) -> str | None:
    into.erase()
    _round(contender, state, into, room)
    return state.differing(into)


def _wrong_in_place(
    contender: Contender, state: TrainingState, into: TrainingState, room: Room
) -> str | None:
    target = room.next()
    wanted = state.checksums()
    contender.save(state, target, "none")
    into.erase()
    contender.load(target, into)
    found = into.checksums()
    return next((name for name, checksum in wanted.items() if found[name] != checksum), None)


def in_turn(contenders: Sequence[_T], number: int) -> list[_T]:
    """Another one begins each round, and every other round runs backwards: nobody always follows the same."""
    start = number % len(contenders)
    order = [*contenders[start:], *contenders[:start]]
    return order[::-1] if number % 2 else order


def _round(
    contender: Contender,
    state: TrainingState,
    into: TrainingState,
    room: Room,
    *,
    cold: bool = False,
    ballast: Ballast | None = None,
) -> dict[str, Reading]:
    readings = {}
    for what, durability in SAVES.items():
        target = room.next()
        prepare(ballast, room=state.nbytes * 5 // 4)
        readings[what] = measured(partial(contender.save, state, target, durability))
        if durability == "none":
            if cold:
                cool(target)
            prepare(ballast, *([] if cold else [target]))
            readings["load"] = measured(partial(contender.load, target, into))
            room.footprints[contender.name] = footprint(target)
    return readings


class Room:
    """Gives out empty directories, one after the other, such that each user finds the machine the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last: Path | None = None
        self.footprints: dict[str, Footprint] = {}

    def next(self) -> Path:
        """Empty the files of the last directory, and make the next one.

        Emptied at the last moment, they leave their pages for the next page cache, where none is kept full: on a
        virtual machine that hands free memory back to its host, a page that was free for seconds costs a fault there.
        Emptied and not removed, because ext4 goes around inodes that were deleted in the last half minute,
        one by one, so that creating files soon after a deletion costs thirty times as much.
        """
        target = Path(tempfile.mkdtemp(dir=self._directory))
        os.sync()  # what others left to be written does not count against the next one
        if self._last is not None:
            for path, _, names in os.walk(self._last):
                for name in names:
                    os.truncate(Path(path) / name, 0)
        self._last = target
        return target


SAVES: dict[str, Durability] = {"save": "none", "save durable": "fsync"}
