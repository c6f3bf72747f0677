"""Leaving out of a conversion what its caller says may be lost, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import translate
from typing import TYPE_CHECKING, TypeVar

from ucpformat.errors import error
from ucpformat.frameworks.kinds.foreign import Lost
from ucpformat.model.state import Optimizer, ParameterGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.frameworks.converting.job import Job

__all__ = ["without"]

_T = TypeVar("_T")


class _Globs:
    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = [(glob, re.compile(translate(glob)), [False]) for glob in globs]
        self.lost: list[Lost] = []

    def drops(self, what: str) -> bool:
        found = False
        for glob, pattern, used in self._globs:
            if pattern.match(what):
                used[0] = True
                if not found:
                    self.lost.append(Lost(what, f"--drop {glob}"))
                found = True
        return found

    def kept(self, scope: str, items: Mapping[str, _T]) -> dict[str, _T]:
        return {name: item for name, item in items.items() if not self.drops(f"{scope}/{name}")}

    def unused(self) -> list[str]:
        return [glob for glob, _, used in self._globs if not used[0]]


def without(job: Job, globs: Sequence[str]) -> tuple[Job, Sequence[Lost]]:
    """The job without what the globs match, and what that is; ``*`` matches any characters, ``/`` too.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a glob that matches nothing, and for something that matters, that the
            importer itself has to leave out, and that no glob allows.
    """
    if not globs and not job.dropped:
        return job, ()
    found = _Globs(globs)
    for loss in job.dropped:
        if found.drops(loss.what):
            continue
        if not loss.matters:
            found.lost.append(loss)
        else:
            raise error(
                "UCP-E-MISMATCH",
                f"{loss.what} would be lost: {loss.why}; allow it with --drop '{loss.what}'",
            )
    atoms = []
    for atom in job.atoms:
        slots = {name: slot for name, slot in atom.slots.items() if not found.drops(f"{atom.name}/{name}")}
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
        for name, optimizer in found.kept("optimizers", job.state.optimizers).items()
    }
    state = replace(
        job.state,
        values=found.kept("values", job.state.values),
        optimizers=optimizers,
    )
    blobs = found.kept("blobs", job.blobs)
    if unused := found.unused():
        raise error("UCP-E-MISMATCH", f"--drop {unused[0]} matches nothing that is there")
    kept = replace(
        job,
        atoms=atoms,
        sources=[source for source in job.sources if (source.atom, source.slot) in left],
        state=state,
        blobs=blobs,
    )
    return kept, tuple(found.lost)
