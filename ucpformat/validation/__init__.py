"""The validator: all problems of a checkpoint in one pass, as data (SPEC section 18).

A few stored bytes can stand for many (SPEC section 19): compressed chunks, zero entries, segments that share their
bytes. What they expand to is known from shapes and tables before data are read, so that what is too much is passed over
whole.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ucpformat.errors import Problem, StoreError, UcpError, error, naming, require_one_of
from ucpformat.html_facts import html_facts
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.remote.repetition import is_not_repeated
from ucpformat.storage.stores.urls import open_store
from ucpformat.storage.workers import worker_count
from ucpformat.validation.documents import Documents
from ucpformat.validation.findings import Damage, Findings
from ucpformat.validation.integrity import check_integrity
from ucpformat.validation.semantics import CheckedCheckpoint, check_semantics
from ucpformat.validation.survey import Loss, Survey, UnreadPart, surveyed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ucpformat.model.state import StateDocument
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.stores.store import Objects

__all__ = [
    "LEVELS",
    "Examination",
    "Level",
    "Loss",
    "Survey",
    "UnreadPart",
    "examine",
    "examine_store",
    "validate",
    "validate_store",
]

Level = Literal["structure", "semantics", "integrity"]
LEVELS: tuple[Level, ...] = ("structure", "semantics", "integrity")

EXPANSION: Final = 64
"""How many bytes are looked at for each that is stored, unless the user says otherwise."""

LEAST_BYTES: Final = 256 << 20
"""What is looked at however little is stored."""

_ZEROS_AS_ONE: Final = 512
"""Bytes of a zero entry, whose checksums are combined and not computed, that cost as much as one that is read."""


def _ignore(_: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What came of looking at a checkpoint: its problems, and what they mean for the tensors in it.

    ``survey`` is None where that is not known: below the level *integrity*, and without a root document that can be
    read, when nothing can.

    >>> report = ucp.save("run.ucp", {"w": np.ones(4)})
    >>> ucp.examine("run.ucp").survey.is_whole
    True
    """

    problems: list[Problem]
    survey: Survey | None

    def __repr__(self) -> str:
        return f"<Examination: {self._summary()}>"

    def _repr_html_(self) -> str:
        lost = [] if self.survey is None else [*self.survey.losses, *self.survey.parts, *self.survey.blobs]
        rows = [(problem.code, problem.at, problem.message) for problem in self.problems]
        return html_facts({"validation": self._summary()}, ("code", "place", "problem"), rows) + (
            html_facts({}, ("lost",), [(one,) for one in lost]) if lost else ""
        )

    def _summary(self) -> str:
        count = len(self.problems)
        return f"{count:,} problem{'s' if count > 1 else ''}" if count else "no problems"


def validate(
    path: str | os.PathLike[str],
    level: Level = "integrity",
    *,
    workers: int | None = None,
    layout_work: int | None = None,
    expand: int | None = None,
    progress: Callable[[int], None] = _ignore,
) -> list[Problem]:
    """Return every problem of the checkpoint at ``path`` up to ``level``; none is an empty list.

    Each level contains the ones before it. ``progress`` is told of every so many stored bytes checked.
    Problems that can only be reached through a broken document are not found before it is mended.
    ``layout_work`` bounds the ranges that layouts are taken apart into, in all; what would exceed it is a warning,
    ``UCP-W-UNCHECKED``. Without one it is 2^18, some seconds, and one more for every 16 bytes of documents and tables.
    ``expand`` bounds the bytes that are looked at: compressed chunks, zero entries and shared segments stand for more
    than is stored, and slots that would exceed it are such a warning too. Without one it is 64 times what is stored,
    and at least 256 MiB. Decoded chunks take 256 MiB at a time, or one alone what it has.

    Raises:
        StoreError: ``UCP-E-STORE`` where the store itself fails.

    >>> report = ucp.save("run.ucp", {"w": np.ones(4)})
    >>> ucp.validate("run.ucp")
    []
    >>> from pathlib import Path
    >>> Path("run.ucp/ucp.json").write_text("{")
    1
    >>> [problem.code for problem in ucp.validate("run.ucp")]
    ['UCP-E-JSON']
    """
    return examine(
        path, level, workers=workers, layout_work=layout_work, expand=expand, progress=progress
    ).problems


def examine(
    path: str | os.PathLike[str],
    level: Level = "integrity",
    *,
    workers: int | None = None,
    layout_work: int | None = None,
    expand: int | None = None,
    progress: Callable[[int], None] = _ignore,
) -> Examination:
    """Validate, and return which tensors and elements are lost by the problems, and what survives.

    An element is lost where a reader that verifies refuses to read it: its block of 1 MiB, or its compressed chunk, is
    damaged or missing.

    Raises:
        StoreError: ``UCP-E-STORE`` where the store itself fails.

    >>> report = ucp.save("run.ucp", {"fc1.weight": np.ones((256, 64), "float32"), "fc1.bias": np.ones(256)})
    >>> from pathlib import Path
    >>> next(Path("run.ucp/packs").iterdir()).unlink()
    >>> survey = ucp.examine("run.ucp").survey
    >>> for loss in survey.losses:
    ...     print(loss)
    fc1.bias value all of [256]
    fc1.weight value all of [256, 64]
    >>> survey.tensors, survey.gone, survey.partly
    (2, 2, 0)
    """
    with naming(path):
        store = open_store(path)
        try:
            return examine_store(store, level, workers, layout_work, expand, progress)[0]
        finally:
            store.close()


def validate_store(
    store: Objects,
    level: Level = "integrity",
    *,
    workers: int | None = None,
    layout_work: int | None = None,
    expand: int | None = None,
    progress: Callable[[int], None] = _ignore,
) -> list[Problem]:
    """Validate the checkpoint in an open store."""
    return examine_store(store, level, workers, layout_work, expand, progress)[0].problems


def examine_store(
    store: Objects,
    level: Level = "integrity",
    workers: int | None = None,
    layout_work: int | None = None,
    expand: int | None = None,
    progress: Callable[[int], None] = _ignore,
) -> tuple[Examination, CheckedCheckpoint | None, Damage]:
    """Examine the checkpoint in an open store; also return what of it could be checked, and the damage to it.

    Neither is known of a store that does not answer, which is one problem.
    """
    require_one_of("a level", level, LEVELS)
    if layout_work is not None and level == "structure":
        raise error(
            "UCP-E-MISMATCH",
            "layout_work= is without effect at the level structure: layouts are looked at later",
        )
    if expand is not None and level != "integrity":
        raise error(
            "UCP-E-MISMATCH",
            f"expand= is without effect at the level {level}: data are looked at by integrity",
        )
    findings = Findings()
    checked: CheckedCheckpoint | None = None
    survey: Survey | None = None
    try:
        documents = Documents(store, findings)
        if level != "structure":
            checked = check_semantics(store, documents, findings, layout_work)
        if checked is not None and level == "integrity":
            passed = _passed_over(store, checked, findings, documents.nbytes, expand)
            with ThreadPoolExecutor(worker_count(workers, store.calls.at_once)) as executor:
                check_integrity(store, checked, findings, passed, executor=executor, progress=progress)
            survey = surveyed(checked, findings.damage)
        if checked is not None and checked.complete and checked.state is not None:
            _report_unreferenced(store, checked, checked.state, findings)
    except StoreError as refusal:
        if not is_not_repeated(refusal):
            raise
        findings.give_up(refusal)
        return Examination(findings.told(), None), None, Damage()
    return Examination(findings.told(), survey), checked, findings.damage


def _passed_over(
    store: Objects, checked: CheckedCheckpoint, findings: Findings, nbytes: int, expand: int | None
) -> list[NDArray[np.int64]]:
    """Return numbers of the slots of each part that are more work than is allowed; a warning says so of each.

    ``nbytes`` are those of documents, ``expand`` what the user allows.
    """
    costs = [_costs(part) for part in checked.parts]
    left = float(_allowed(store, checked, nbytes) if expand is None else expand)
    if sum(float(cost.sum()) for cost in costs) <= left:
        return [np.zeros(0, np.int64) for _ in costs]
    found = []
    for part, cost in zip(checked.parts, costs, strict=True):
        numbers = []
        for number, bytes_looked_at in enumerate(cost.tolist()):
            if bytes_looked_at <= left:
                left -= bytes_looked_at
                continue
            numbers.append(number)
            message = (
                f"not checked: {int(bytes_looked_at)} bytes are more than what is stored may expand to unasked; "
                "allow more (--expand) to check it"
            )
            findings.add(Problem("UCP-W-UNCHECKED", part.slot(number).at, message))
        found.append(np.array(numbers, np.int64))
    return found


def _allowed(store: Objects, checked: CheckedCheckpoint, nbytes: int) -> int:
    """Return the allowed bytes by what packs hold, not by what documents say; for chunks' own objects see `_costs`."""
    packs = sum(min(pack.length, _size(store, pack.key)) for pack in checked.packs or ())
    tables = sum(part.table.rows.nbytes + part.table.counts.nbytes for part in checked.parts)
    return max(LEAST_BYTES, EXPANSION * (nbytes + tables + packs))


def _size(store: Objects, key: str) -> int:
    """Return bytes of an object; 0 if it cannot be inspected: a read of it says what is wrong."""
    try:
        return store.size(key) or 0
    except UcpError:
        return 0


def _costs(part: StoredPart) -> NDArray[np.float64]:
    """Return bytes that are looked at, of each slot; of objects of their own, those beyond what their lengths allow."""
    counts, lengths = part.table.counts, part.table.rows["length"].astype(np.float64)
    chunks = np.array([grid.count for _, grid in part.forms], np.int64)
    rows = np.concatenate(([0], np.cumsum(chunks)))
    segments = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))[rows]
    stored = np.diff(np.concatenate(([0.0], np.cumsum(lengths)))[segments])
    zeros = np.diff(np.concatenate(([0], np.cumsum(counts == 0)))[rows]).astype(np.float64)
    whole = np.array([math.prod(grid.chunk_shape) * kind.item_bytes for kind, grid in part.forms], np.float64)
    total = np.array([math.prod(grid.shape) * kind.item_bytes for kind, grid in part.forms], np.float64)
    decoded = np.minimum(total, (chunks - zeros) * whole)
    looked_at = np.maximum(decoded, stored) + np.minimum(total, zeros * whole) / _ZEROS_AS_ONE
    return looked_at if part.packed else np.maximum(0.0, looked_at - EXPANSION * stored)


def _report_unreferenced(
    store: Objects, checked: CheckedCheckpoint, state: StateDocument, findings: Findings
) -> None:
    """Report objects that the root does not reach (UCP-V-002)."""
    root = checked.root
    reached = {ROOT_KEY, *(reference.key for _, reference in root.references())}
    reached.update(pack.key for pack in checked.packs or ())
    reached.update(reference.key for _, reference in state.objects())
    plain = root.storage == "plain"
    if plain:
        reached.add("atoms/zarr.json")
        for stored in checked.slots():
            reached.add(f"atoms/{stored.atom.key}/zarr.json")
            reached.add(f"{stored.prefix}/zarr.json")
    chunks = {stored.prefix: stored for stored in checked.slots()} if plain else {}
    for key in sorted(store.keys()):
        if key in reached:
            continue
        stored_slot = chunks.get("/".join(key.split("/")[:3]))
        if stored_slot is not None and stored_slot.has_object(key):
            continue
        message = "the root document does not reach this object: debris of an attempt that failed"
        findings.add(Problem("UCP-W-UNREFERENCED", key, message))
