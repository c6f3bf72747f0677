"""Draws checkpoints and damage, and judges what validation and every path make of it."""

from __future__ import annotations

import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ucpformat as ucp
from tests.campaigns.damage.drawing import draw
from tests.campaigns.damage.harm import Harm, do_harm
from tests.campaigns.damage.media import Directory, Medium
from tests.campaigns.damage.paths import PATHS, UNVERIFIED, Given, Reading
from ucpformat.errors import Problem, UcpError
from ucpformat.reader import open_checkpoint
from ucpformat.validation import validate

__all__ = ["DAMAGES_PER_CHECKPOINT", "Campaign"]

DAMAGES_PER_CHECKPOINT = 8


@dataclass
class Campaign:
    """Damage below ``scratch``, on media that ``medium`` makes. ``counts`` says what came of it, ``wrong`` what is not
    right: bytes that are not those that were saved and no error, errors that are not registered, damage that
    validation does not name.
    """

    scratch: Path
    medium: Callable[[], Medium]
    paths: Mapping[str, Callable[[Reading], Given]] = field(default_factory=lambda: PATHS)
    validate: Callable[[str], list[Problem]] = lambda url: validate(url, workers=1)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self, seed: int, damages: int = DAMAGES_PER_CHECKPOINT) -> None:
        """One checkpoint, and so many damages to it, each to the good one."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as directory:
            scratch = Path(directory)
            drawn = draw(seed)
            older = Directory(scratch / "older.ucp")
            drawn.save(older.url, 1)
            medium = self.medium()
            drawn.save(medium.url, 2)
            good = medium.objects()
            intact = Directory(scratch / "good.ucp")
            for key, data in good.items():
                intact.put(key, data)
            expected = self._expected(Reading(medium.url, intact.url, drawn, seed, scratch))
            unused = _unused(intact.url)
            for number in range(damages):
                chance = random.Random(f"{seed}/{number}")
                harm = self._harm(chance, medium, good, older.objects(), scratch)
                if harm.changed and _is_unused(good, medium.objects(), unused):
                    self.counts["damages of shared bytes that nothing uses"] += 1
                    medium.restore(good)
                    continue
                reading = Reading(medium.url, intact.url, drawn, seed, scratch)
                self._judge(reading, harm, expected, f"seed {seed}/{number}")
                medium.restore(good)
            medium.restore({})

    def _harm(
        self,
        chance: random.Random,
        medium: Medium,
        good: Mapping[str, bytes],
        older: Mapping[str, bytes],
        scratch: Path,
    ) -> Harm:
        """Damage that has an effect: where there is nothing of a kind to damage, another one is drawn."""
        while not (harm := do_harm(chance, medium, good, older, scratch)).has_effect:
            self.counts["drawn again, without effect"] += 1
        return harm

    def _expected(self, reading: Reading) -> Mapping[str, Given | UcpError]:
        """What each path gives before any damage, where it applies at all; and that is what was saved."""
        problems = self.validate(reading.url)
        if problems:
            raise AssertionError(f"{reading.drawn.what} is not valid: {problems}")
        with open_checkpoint(reading.url, workers=1) as checkpoint:
            for (atom, slot), data in reading.drawn.tensors(2).items():
                if checkpoint[atom][slot].read().tobytes() != data.tobytes():
                    raise AssertionError(f"{reading.drawn.what}: {atom}/{slot} is not what was saved")
        found: dict[str, Given | UcpError] = {}
        for name, path in self.paths.items():
            try:
                found[name] = path(reading)
            except UcpError as refusal:
                found[name] = refusal
        return found

    def _judge(
        self, reading: Reading, harm: Harm, expected: Mapping[str, Given | UcpError], what: str
    ) -> None:
        drawn, medium = reading.drawn, reading.url.partition("://")[0] if "://" in reading.url else "local"
        what = f"{what}, {drawn.what}, {medium}: {harm}"
        self.counts["damages"] += 1
        self.counts[f"damages, {medium}"] += 1
        self.counts[f"damages, {drawn.what.split(', by')[0].split(', of')[0]}"] += 1
        self.counts[f"kind of damage: {harm.kind.rstrip(':')}"] += 1
        self._judge_validation(reading.url, harm, what)
        for name, path in self.paths.items():
            before = expected[name]
            if isinstance(before, UcpError) or all(isinstance(one, UcpError) for one in before.values()):
                self.counts[f"{name}: does not apply"] += 1
                continue
            try:
                given: Given = path(reading)
            except UcpError:
                self.counts[f"{name}: refused"] += 1
                continue
            except Exception:
                self.wrong.append(f"{what}: {name} raises what is not registered\n{traceback.format_exc()}")
                continue
            self._judge_given(name, before, given, harm, what)

    def _judge_given(self, name: str, before: Given, given: Given, harm: Harm, what: str) -> None:
        refused = 0
        for entry, value in given.items():
            if isinstance(before.get(entry), UcpError) and isinstance(value, UcpError):
                continue  # as it was: a mapping of what is compressed
            if isinstance(value, UcpError):
                refused += 1
            elif entry in before and value == before[entry]:
                continue
            elif name == UNVERIFIED and harm.is_in_data:
                self.counts[f"{name}: other bytes, as announced"] += 1
                return
            else:
                self.wrong.append(f"{what}: {name} gives other bytes for {entry}")
                return
        if before.keys() != given.keys():
            self.wrong.append(f"{what}: {name} leaves out {before.keys() - given.keys()}")
            return
        self.counts[f"{name}: {'right, but what is refused' if refused else 'right'}"] += 1

    def _judge_validation(self, url: str, harm: Harm, what: str) -> None:
        try:
            problems = self.validate(url)
        except ucp.UcpError as refusal:
            self.wrong.append(f"{what}: validate itself fails: {refusal}")
            return
        except Exception:
            self.wrong.append(f"{what}: validate raises what is not registered\n{traceback.format_exc()}")
            return
        errors = [problem for problem in problems if problem.severity == "error"]
        self.counts[f"validate: {'errors' if errors else 'warnings' if problems else 'nothing'}"] += 1
        if harm.changed and not errors:
            self.wrong.append(f"{what}: validate names no error")
        elif harm.added and not problems:
            self.wrong.append(f"{what}: validate does not see what was added")


def _unused(url: str) -> Mapping[str, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Which bytes of each shared pack no segment of the checkpoint has: what others wrote, and do not need either."""
    with open_checkpoint(url, workers=1) as checkpoint:
        packs = checkpoint.packs or ()
        found = [np.full(pack.length, pack.shared) for pack in packs]
        for part in checkpoint.parts() if packs else ():
            for row in part.table.rows:
                start = int(row["offset"])
                found[row["container"]][start : start + int(row["length"])] = False
        return {pack.key: mask for pack, mask in zip(packs, found, strict=True)}


def _is_unused(
    good: Mapping[str, bytes],
    now: Mapping[str, bytes],
    unused: Mapping[str, np.ndarray[Any, np.dtype[np.bool_]]],
) -> bool:
    """Say whether nothing but such bytes differs; lengths are always checked."""
    if good.keys() != now.keys():
        return False
    for key, data in good.items():
        if data == now[key]:
            continue
        if key not in unused or len(data) != len(now[key]):
            return False
        differs = np.frombuffer(data, np.uint8) != np.frombuffer(now[key], np.uint8)
        if (differs & ~unused[key]).any():
            return False
    return True
