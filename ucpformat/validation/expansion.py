"""How many bytes a validator looks at for those that are stored (SPEC section 19).

A few stored bytes can stand for many: compressed chunks, zero entries, segments that share their bytes. What they
expand to is known from shapes and tables before anything is read, so that what is too much is passed over whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import Problem, UcpError
from ucpformat.geometry import element_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.stores.store import Objects
    from ucpformat.validation.findings import Findings
    from ucpformat.validation.semantics import CheckedCheckpoint

__all__ = ["EXPANSION", "LEAST_BYTES", "passed_over"]

EXPANSION: Final = 64
"""How many bytes are looked at for each that is stored, unless the user says otherwise."""

LEAST_BYTES: Final = 256 << 20
"""What is looked at however little is stored."""

_ZEROS_AS_ONE: Final = 512
"""Bytes of a zero entry, whose checksums are combined and not computed, that cost as much as one that is read."""


def passed_over(
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
    whole = np.array(
        [element_count(grid.chunk_shape) * kind.item_bytes for kind, grid in part.forms], np.float64
    )
    total = np.array([element_count(grid.shape) * kind.item_bytes for kind, grid in part.forms], np.float64)
    decoded = np.minimum(total, (chunks - zeros) * whole)
    looked_at = np.maximum(decoded, stored) + np.minimum(total, zeros * whole) / _ZEROS_AS_ONE
    return looked_at if part.packed else np.maximum(0.0, looked_at - EXPANSION * stored)
