"""A sweep over a checkpoint that a framework wrote: whatever happens to one of its files, nothing is lost in silence.

Every file is removed, truncated, and exchanged with its counterpart of another rank; all files of one rank are removed,
and those of all ranks but the first; one harm at a time. What is left is read as ``ucp convert`` reads it: its format
is detected, its importer plans, every element is read. What comes of a harm is one of `OUTCOMES`; a test asks
`Sweep.check` that none is silent, unnamed or a crash.

A file that is neither opened nor named in the report of the whole checkpoint counts as lost in silence already.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ucpformat.conversion.contract.foreign import ImportOptions
from ucpformat.conversion.convert import detect_format
from ucpformat.conversion.engine.work_order import Recipe, url_of
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.source_files import watched

__all__ = ["OUTCOMES", "Outcome", "Sweep", "counterpart", "sweep", "take_figures"]

OUTCOMES = {
    "refused": "an error of ours that names the file",
    "reported": "read, and the report names the file as not carried",
    "same": "read, and nothing is missing: what the file held lies in another one, too",
    "blind": "read as another checkpoint; the test says why no reader could tell",
    "unnamed": "an error of ours that does not name the file",
    "silent": "read as another checkpoint, and the report says nothing",
    "crash": "an error that is none of ours",
}
_BAD = ("unnamed", "silent", "crash")
_figures: list[Mapping[str, int]] = []


def take_figures() -> list[Mapping[str, int]]:
    """Return the counts of each sweep since the last call; pytest prints their sums at the end of a run."""
    taken = _figures.copy()
    _figures.clear()
    return taken


@dataclass(frozen=True)
class Outcome:
    """What was done to which file, and what came of it (`OUTCOMES`)."""

    harm: str
    victim: str
    found: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.found}: {self.harm} {self.victim}: {self.why:.300}"


@dataclass(frozen=True)
class Sweep:
    """All outcomes for one checkpoint."""

    outcomes: Sequence[Outcome]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many harms came to what."""
        return Counter(outcome.found for outcome in self.outcomes)

    def check(self) -> None:
        """Fail where a harm was silent, refused without the file's name, or made the importer crash."""
        bad = [str(outcome) for outcome in self.outcomes if outcome.found in _BAD]
        assert not bad, f"{len(bad)} of {len(self.outcomes)}:\n" + "\n".join(bad)
        assert self.counts.get("refused"), "no harm was refused: nothing was tried"


def counterpart(name: str) -> str | None:
    """What files of several ranks have in common: their paths without numbers. None for a file of no rank."""
    found = re.sub(r"\d+", "#", name)
    return found if "#" in found else None


def sweep(
    source: Path,
    scratch: Path,
    *,
    source_format: str | None = None,
    settings: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    family: Callable[[str], str | None] = counterpart,
    blind: Mapping[str, str] | None = None,
    known_as: Callable[[str], str | None] = lambda name: None,
) -> Sweep:
    """Harm every file of the checkpoint ``source``, one at a time, in copies below ``scratch``.

    ``source_format`` is what is said with ``--from``; left out, it is detected anew each time. ``settings`` are the
    importer's, ``drop`` what is allowed to be lost. Files with an equal ``family`` are exchanged with each other.
    ``blind`` has, by a regular expression over ``FILE <-> FILE`` (an exchange) or a file's name, why no reader could
    tell: nothing in the format does. An entry that is not needed is an error, so that the list stays honest.
    ``known_as`` has what a refusal may name instead of a file: a library that reads it may know it by another name.
    """
    whole_copy = scratch / "whole"
    shutil.copytree(source, whole_copy, symlinks=True)
    source = whole_copy
    files = sorted(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    read = _Reading(source_format, dict(settings or {}), tuple(drop))
    reasons = {re.compile(pattern): why for pattern, why in (blind or {}).items()}
    used: set[str] = set()
    with _opened_files() as opened, watched() as door:
        whole = read(source)
        # A library that opens files by itself is given folders, and no hook of Python's sees what it does there.
        folders = tuple(f"{os.path.realpath(folder)}/" for folder in door.folders)
        paths = {name: os.path.realpath(source / name) for name in files}
        seen = {name for name, path in paths.items() if path in opened or path.startswith(folders)}
    outcomes = []
    for harm, contents in _harms(source, files, family):
        copy, victims = scratch / "copy", list(contents)
        try:
            _harmed(source, copy, contents)
            found, why = _outcome(read, copy, whole, victims, seen)
            if found == "unnamed" and any((name := known_as(victim)) and name in why for victim in victims):
                found = "refused"
        finally:
            shutil.rmtree(copy)
        if found == "silent":
            what = " <-> ".join(victims)
            reason = next((pattern for pattern in reasons if pattern.fullmatch(what)), None)
            if reason is not None:
                used.add(reason.pattern)
                found, why = "blind", reasons[reason]
        outcomes.append(Outcome(harm, " <-> ".join(victims), found, why))
    idle = sorted(pattern.pattern for pattern in reasons if pattern.pattern not in used)
    assert not idle, f"said to be undetectable, and no harm was: {idle}"
    done = Sweep(outcomes)
    _figures.append(dict(done.counts))
    return done


@dataclass(frozen=True)
class _Content:
    """What a reading carries, by name, as comparable as can be, and what its report says is not carried."""

    items: Mapping[str, object]
    report: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Reading:
    """Reads a checkpoint to the last element, as ``ucp convert`` would."""

    source_format: str | None
    settings: Mapping[str, str]
    drop: tuple[str, ...]

    def __call__(self, path: Path) -> _Content:
        source_format = self.source_format or detect_format(path)
        recipe = Recipe(url_of(path), source_format, ImportOptions(settings=self.settings), self.drop)
        with recipe.open() as opened:
            job = opened.job
            slots = {atom.name: atom for atom in job.atoms}
            items: dict[str, object] = {"step": job.step}
            items |= {f"atoms/{atom.name}": (atom.aliases, _plain(atom.annotations)) for atom in job.atoms}
            for source in job.sources:
                slot = slots[source.atom].slots[source.slot]
                data = np.zeros(slot.shape, dtype(slot.dtype).numpy)
                source.read(Box((0,) * len(slot.shape), tuple(slot.shape)), data)
                digest = hashlib.blake2b(data.tobytes()).hexdigest()
                items[f"{source.atom}/{source.slot}"] = (slot.dtype, tuple(slot.shape), digest)
            items |= {f"values/{name}": _plain(value) for name, value in job.state.values.items()}
            items |= {f"optimizers/{name}": _plain(value) for name, value in job.state.optimizers.items()}
            items |= {f"blobs/{name}": value for name, value in job.blobs.items()}
            items["annotations"] = (_plain(job.state.annotations), _plain(job.annotations))
            return _Content(items, {loss.what: loss.why for loss in opened.dropped})


def _plain(value: object) -> str:
    """Text that is equal for equal values, NaN too."""
    return repr(value)


def _outcome(
    read: _Reading, copy: Path, whole: _Content, victims: Sequence[str], seen: set[str]
) -> tuple[str, str]:
    bases = [victim.rpartition("/")[2] for victim in victims]
    try:
        found = read(copy)
    except UcpError as refusal:
        text = str(refusal)
        return ("refused" if any(base in text for base in bases) else "unnamed"), text
    except Exception as failure:  # what is none of ours is what the sweep is for
        return "crash", f"{type(failure).__name__}: {failure}"
    for report in (found.report, whole.report):
        named = [what for what, why in report.items() if any(base in f"{what} {why}" for base in bases)]
        if named and (report is found.report or found.items == whole.items):
            return "reported", f"{named[0]}: {report[named[0]]}"
    if found.items != whole.items:
        return "silent", f"differs: {', '.join(_differences(whole, found)[:5])}"
    left = [what for what in whole.report if what.startswith("files/") and what.endswith("/")]
    unread = [victim for victim in victims if victim not in seen]
    if all(any(f"files/{victim}".startswith(what) for what in left) for victim in unread):
        return ("reported", f"one of {left}") if unread else ("same", "")
    return "silent", "never opened, and not in the report"


def _differences(one: _Content, other: _Content) -> list[str]:
    names = sorted(one.items.keys() | other.items.keys())
    return [name for name in names if one.items.get(name) != other.items.get(name)]


Contents = Mapping[str, bytes | None]
"""What files become; None for one that goes."""


def _harms(
    source: Path, files: Sequence[str], family: Callable[[str], str | None]
) -> Iterator[tuple[str, Contents]]:
    """What is done, and what it makes of the files that it is done to."""
    for name in files:
        yield "remove", {name: None}
        data = (source / name).read_bytes()
        for length in sorted({0, len(data) // 2, max(len(data) - 1, 0)} - {len(data)}):
            yield f"truncate to {length} of {len(data)}", {name: data[:length]}
    families: dict[str, list[str]] = {}
    for name in files:
        if (key := family(name)) is not None:
            families.setdefault(key, []).append(name)
    for members in families.values():
        # Of many, each with the next one: every file, and not every pair.
        for one, other in combinations(members, 2) if len(members) <= 4 else pairwise(members):
            first, second = (source / one).read_bytes(), (source / other).read_bytes()
            if first != second:
                yield "exchange", {one: second, other: first}
    for victims in _of_ranks(files):
        yield "remove all of", dict.fromkeys(victims)


def _of_ranks(files: Sequence[str]) -> Iterator[Sequence[str]]:
    """The files of each rank (layer, expert, ...) by a number in their names, and those of all but the first."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for name in files:
        for kind, number in re.findall(r"((?:[A-Za-z]+_)?[A-Za-z]+)[_-]?(\d+)", name):
            kinds.setdefault(kind, {}).setdefault(number, []).append(name)
    done: set[tuple[str, ...]] = set()
    for held in kinds.values():
        groups = list(held.values())
        if len(groups) > 1:
            groups.append([name for name in files if any(name in group for group in groups[1:])])
        for group in groups:
            if 1 < len(group) < len(files) and tuple(group) not in done:
                done.add(tuple(group))
                yield group


def _harmed(source: Path, copy: Path, contents: Contents) -> None:
    """Make ``copy`` of ``source``: links to its files, but where they get other content."""
    shutil.copytree(source, copy, copy_function=os.link, symlinks=True)
    for name, data in contents.items():
        (copy / name).unlink()
        if data is not None:
            (copy / name).write_bytes(data)


_watchers: list[set[str]] = []
_is_hooked: list[bool] = []


@contextmanager
def _opened_files() -> Iterator[set[str]]:
    """The real paths of files that are opened meanwhile, in whatever thread."""
    if not _is_hooked:  # a hook cannot be taken away again
        _is_hooked.append(True)
        sys.addaudithook(_hook)
    found: set[str] = set()
    _watchers.append(found)
    try:
        yield found
    finally:
        _watchers.remove(found)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watchers and isinstance(arguments[0], str | os.PathLike):
        for watcher in _watchers:
            watcher.add(os.path.realpath(arguments[0]))
