"""What a conversion leaves out: what its caller says may be lost, and files that the importer did not look at."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import translate
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.errors import error
from ucpformat.model.state import Optimizer, ParameterGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.conversion.contract.job import Job
    from ucpformat.tensor_files.source_files import Watched

__all__ = ["LostGroup", "grouped", "parts_of", "remedy", "told", "unread_files", "without"]

_T = TypeVar("_T")
_SCOPES: Final = ("values", "optimizers", "blobs", "images", "files", "items")
_TOLD: Final = 5


class _Globs:
    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = [(glob, re.compile(translate(glob)), [False]) for glob in globs]
        self.lost: list[Lost] = []
        self.seen: list[str] = []

    def drops(self, what: str) -> bool:
        is_dropped = False
        self.seen.append(what)
        for glob, pattern, used in self._globs:
            if pattern.match(what):
                used[0] = True
                if not is_dropped:
                    self.lost.append(Lost(what, f"--drop {glob}"))
                is_dropped = True
        return is_dropped

    def kept(self, scope: str, items: Mapping[str, _T]) -> dict[str, _T]:
        return {name: item for name, item in items.items() if not self.drops(f"{scope}/{name}")}

    def unused(self) -> list[str]:
        return [glob for glob, _, used in self._globs if not used[0]]


@dataclass(frozen=True, slots=True)
class LostGroup:
    """Losses of one reason: a glob that names them all and nothing else, how many there are, and the reason."""

    glob: str
    count: int
    why: str

    def __str__(self) -> str:
        """Return the group on one line."""
        return f"{self.glob} ({self.why})" if self.count == 1 else f"{self.glob} ({self.count}: {self.why})"


def parts_of(job: Job) -> Iterator[str]:
    """Yield the name that ``--drop`` knows each part of a job by."""
    for atom in job.atoms:
        for slot in atom.slots:
            yield f"{atom.name}/{slot}"
    yield from (f"values/{name}" for name in job.state.values)
    yield from (f"optimizers/{name}" for name in job.state.optimizers)
    yield from (f"blobs/{name}" for name in job.blobs)
    yield from (f"images/{name}" for name in job.images)


def grouped(lost: Sequence[Lost], parts: Iterable[str] = ()) -> list[LostGroup]:
    """Return ``lost`` in groups of one reason and one slot or scope; ``parts`` are all names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in lost:
        scope, _, name = one.what.partition("/")
        pattern = f"{scope}/*" if scope in _SCOPES else f"*/{one.what.rpartition('/')[2] if name else scope}"
        groups.setdefault((pattern, one.why), []).append(one.what)
    gone = {one.what for one in lost}
    kept = [part for part in parts if part not in gone]
    lost_groups = []
    for (pattern, why), names in groups.items():
        is_exact = re.compile(translate(pattern)).match
        if len(names) > 1 and not any(map(is_exact, kept)):
            lost_groups.append(LostGroup(pattern, len(names), why))
        else:
            lost_groups += [LostGroup(escape(name), 1, why) for name in names]
    return lost_groups


def told(lost: Sequence[Lost], parts: Iterable[str] = ()) -> str:
    """Return what is lost and why, in a phrase of bounded length."""
    groups = grouped(lost, parts)
    rest = f"; and {len(groups) - _TOLD} more" if len(groups) > _TOLD else ""
    return "; ".join(map(str, groups[:_TOLD])) + rest


def remedy(lost: Sequence[Lost], parts: Iterable[str] = ()) -> str:
    """Return how to allow the losses."""
    globs = list(dict.fromkeys(group.glob for group in grouped(lost, parts)))
    more = f", and {len(globs) - _TOLD} more" if len(globs) > _TOLD else ""
    return "allow it with " + " ".join(f"--drop '{one}'" for one in globs[:_TOLD]) + more


def without(job: Job, globs: Sequence[str]) -> tuple[Job, Sequence[Lost]]:
    """Return the job without what the globs match, and what that is; ``*`` matches any characters, ``/`` too.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a glob that matches nothing, and for something that matters, that the
            importer itself has to leave out, and that no glob allows.
    """
    if not globs and not job.dropped:
        return job, ()
    matcher = _Globs(globs)
    refused = []
    for loss in job.dropped:
        if matcher.drops(loss.what):
            continue
        if loss.matters:
            refused.append(loss)
        matcher.lost.append(loss)
    if refused:
        parts = list(parts_of(job))
        raise error("UCP-E-MISMATCH", f"{told(refused, parts)} would be lost; {remedy(refused, parts)}")
    atoms = []
    for atom in job.atoms:
        slots = {name: slot for name, slot in atom.slots.items() if not matcher.drops(f"{atom.name}/{name}")}
        if slots:
            atoms.append(replace(atom, slots=slots, aliases=atom.aliases if "value" in slots else ()))
    left = {(atom.name, slot) for atom in atoms for slot in atom.slots}
    names = {atom.name for atom in atoms}
    optimizers = {
        name: Optimizer(
            tuple(
                ParameterGroup(tuple(atom for atom in group.atoms if atom in names), group.options)
                for group in optimizer.groups
            )
        )
        for name, optimizer in matcher.kept("optimizers", job.state.optimizers).items()
    }
    state = replace(
        job.state,
        values=matcher.kept("values", job.state.values),
        optimizers=optimizers,
    )
    blobs, images = matcher.kept("blobs", job.blobs), matcher.kept("images", job.images)
    if unused := matcher.unused():
        near = get_close_matches(unused[0], matcher.seen, n=1, cutoff=0.4)
        hint = f"; there is {near[0]!r}" if near else ""
        raise error(
            "UCP-E-MISMATCH",
            f"--drop {unused[0]!r} matches nothing: names are ATOM/SLOT, values/NAME, optimizers/NAME, blobs/NAME, "
            f"images/NAME and files/NAME{hint}",
        )
    kept = replace(
        job,
        atoms=atoms,
        sources=[source for source in job.sources if (source.atom, source.slot) in left],
        state=state,
        blobs=blobs,
        images=images,
    )
    return kept, tuple(matcher.lost)


_STATE: Final = re.compile(
    r".*\.(pt|pth|bin|pkl|pickle|ckpt|safetensors|distcp|npy|npz|msgpack|h5|gguf|ot|onnx)", re.IGNORECASE
)
"""Files that by their names may hold states: beside files that were read, they are not left out unasked."""

_BESIDE: Final = "a file that belongs to nothing that was read"
_FOLDER: Final = "a directory of which nothing was read"
_LISTED: Final = 100_000


def unread_files(source: str, seen: Watched, named: Sequence[Lost]) -> list[Lost]:
    """Return what lies in the directory ``source`` and was not read, other than what an importer ``named`` itself.

    A directory of which nothing was read is one entry, ``files/NAME/``. A file beside others that were read, which by
    its suffix may hold states, matters; the rest is reported alone. Nothing is said of a source that is one file, nor
    where the importer opened nothing through `SourceFiles`.
    """
    root = Path(source)
    if not root.is_dir() or not (seen.files or seen.folders):
        return []
    top = os.path.realpath(root)
    touched = {_within(top, path) for path in (*seen.files, *seen.folders)}
    busy = {parent for path in touched if path is not None for parent in Path(path).parents}
    taken = {_within(top, path) for path in seen.folders}
    known = {one.what for one in named}
    unread = []
    for name, is_folder in _entries(root, {str(path) for path in busy}, taken):
        what = f"files/{name}"
        if name in touched or _is_told(name, known):
            continue
        if is_folder:
            unread.append(Lost(f"{what}/", _FOLDER, matters=False))
        else:
            unread.append(Lost(what, _BESIDE, matters=_STATE.fullmatch(name) is not None))
    return unread


def _within(top: str, path: Path) -> str | None:
    """Return the path relative to ``top``, of a link itself and not of its target; None where it is elsewhere."""
    absolute = os.path.join(os.path.realpath(path.parent), path.name) if path.name else os.path.realpath(path)
    relative = os.path.relpath(absolute, top)
    return None if relative.startswith("..") else relative


def _is_told(name: str, known: set[str]) -> bool:
    """Return whether an importer has named this, or a directory above; it may have named it from further below."""
    parts = Path(name).parts
    return any(
        f"{scope}/{'/'.join(parts[first:stop])}" in known
        for scope in ("files", "items")
        for first in range(len(parts))
        for stop in range(first + 1, len(parts) + 1)
    )


def _entries(root: Path, busy: set[str], taken: set[str | None]) -> Iterator[tuple[str, bool]]:
    """Yield files and directories below ``root`` by name; directories are entered where something in them was read."""
    pending = ["."]
    left = _LISTED
    while pending and left > 0:
        folder = pending.pop()
        if folder in taken:
            continue
        with os.scandir(root / folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            name = os.path.normpath(f"{folder}/{entry.name}")
            left -= 1
            if not entry.is_dir(follow_symlinks=False):
                yield name, False
            elif name in busy or name in taken:
                pending.append(name)
            else:
                yield name, True
