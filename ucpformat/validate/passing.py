"""Uncompressed bytes that lie in the store as they do in the chunk: looked at once, as they pass (SPEC section 18).

They are read some at a time into memory that is kept, and one checksum of each byte serves the chunk table, the
content digest and Zarr's codec: the values of parts are combined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.model.dtype import unused_bits_are_zero
from ucpformat.model.table import OBJECT_TRAILER, OWN_OBJECT
from ucpformat.storage.checksum import BLOCK_BYTES, Run, checksum_run, combine, compare_blocks
from ucpformat.storage.stretch import stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.model.table import Segment
    from ucpformat.storage.part import StoredSlot
    from ucpformat.storage.scratch import Scratch
    from ucpformat.storage.store import Store

__all__ = ["CALL_BYTES", "CODEC_MESSAGE", "Passed", "looked_at", "pass_by", "passes"]

CALL_BYTES: Final = 1 << 22
"""Read by one call: what comes back from the system has to wait for other threads of Python."""

CODEC_MESSAGE = "the checksum of Zarr's crc32c codec is wrong"


@dataclass(slots=True)
class Passed:
    """What was found of a chunk: runs with their cuts, as `ContentDigest.add` takes them."""

    runs: list[tuple[int, int, bytes]] = field(default_factory=list)
    nbytes: int = 0
    clean: bool = True
    """Whether unused bits of elements are zero."""

    def look(
        self,
        piece: NDArray[np.uint8],
        stored: StoredSlot,
        segment: Segment,
        start: int,
        logical: int,
        key: str,
    ) -> Run:
        """Check bytes that begin at byte ``start`` of a segment, and ``logical`` of their slot; one pass over them.

        Raises:
            IntegrityError: ``UCP-E-CHECKSUM``.
        """
        run = checksum_run(piece.data, logical)
        compare_blocks(run.blocks, segment.checksums, start // BLOCK_BYTES, key)
        self.runs.append((logical, piece.nbytes, run.cuts))
        self.clean = self.clean and unused_bits_are_zero(piece, stored.dtype)
        return run


def passes(stored: StoredSlot, chunk: int, segments: tuple[Segment, ...]) -> bool:
    """Whether the stored bytes of a chunk, segment after segment, are its logical bytes and nothing else."""
    if stored.compressor is not None:
        return False
    if segments[0].box is None:
        return segments[0].covered == stored.raw_bytes(chunk)
    shape, item = stored.chunk_shape(chunk), stored.dtype.item_bytes
    position = 0
    for segment in segments:
        if segment.box is None:  # pragma: no cover - `StoredSlot.segments` has refused it
            return False
        first = next(stretches(segment.box, shape, item))
        if first.start != position or first.stop - position != segment.length:
            return False
        position = first.stop
    return True


def looked_at(
    store: Store, key: str, start: int, nbytes: int, seen: memoryview | None, scratch: Scratch
) -> NDArray[np.uint8]:
    """``nbytes`` bytes of an object from ``start`` on: those ``seen`` where they lie (`Store.glimpse`), or else read.

    Raises:
        UcpError: what reading raises.
    """
    if seen is not None:
        return np.frombuffer(seen, np.uint8)
    data = scratch.take(nbytes)[:nbytes]
    store.read_into(key, start, [data.data])
    return data


def pass_by(
    store: Store, stored: StoredSlot, chunk: int, segments: tuple[Segment, ...], scratch: Scratch
) -> Passed:
    """Check a chunk for which `passes` holds, byte by byte.

    Raises:
        IntegrityError: ``UCP-E-CHECKSUM``, ``UCP-E-CODEC``, and what the store raises.
    """
    passed = Passed()
    logical = stored.logical_start(chunk)
    for segment in segments:
        key = stored.object_key(chunk, segment)
        trailer_bytes = OBJECT_TRAILER if segment.container == OWN_OBJECT else 0
        total, trailer = 0, b""
        with store.glimpse(key, segment.offset, segment.offset + segment.length) as found:
            most = CALL_BYTES if found is None else segment.covered
            for start in range(0, segment.covered, most):
                size = min(most, segment.covered - start)
                stop = start + size
                if stop == segment.covered:
                    stop += trailer_bytes
                seen = None if found is None else found[start:stop]
                data = looked_at(store, key, segment.offset + start, stop - start, seen, scratch)
                run = passed.look(data[:size], stored, segment, start, logical, key)
                if trailer_bytes:
                    total = combine(total, run.total, size)
                trailer = data[size:].tobytes()
                logical += size
        passed.nbytes += segment.length
        if trailer_bytes and total != int.from_bytes(trailer, "little"):
            raise error("UCP-E-CODEC", CODEC_MESSAGE, at=key)
    return passed
