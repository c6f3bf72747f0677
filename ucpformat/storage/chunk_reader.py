"""From stored bytes to boxes of a slot: plan, fetch, verify, place (SPEC sections 17.2 and 17.3).

Only the runs of bytes that hold what is asked for are fetched, widened to whole checksum blocks, and a dense
run goes straight into the destination.
"""

from __future__ import annotations

from concurrent.futures import Executor, wait
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from ucpformat.errors import error
from ucpformat.storage.checksum import BLOCK_BYTES, unpacked
from ucpformat.storage.compression import decompress
from ucpformat.storage.scratch import Scratch
from ucpformat.storage.selection import selection
from ucpformat.storage.stretch import stretches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.table import Segment
    from ucpformat.storage.counted import Readable
    from ucpformat.storage.part import StoredSlot
    from ucpformat.storage.stretch import Stretch

__all__ = ["ChunkReader", "compare_blocks", "verify_blocks"]

_INLINE_BYTES = 1 << 22  # less than this is read by the calling thread


def verify_blocks(buffers: Sequence[memoryview], checksums: bytes, first: int, at: str) -> None:
    """Compare the concatenated buffers, which begin at block ``first`` of a segment, with its checksums.

    Raises:
        IntegrityError: ``UCP-E-CHECKSUM``, naming the first block that differs.
    """
    if len(buffers) == 1 and 0 < buffers[0].nbytes <= BLOCK_BYTES:
        _compare(crc32c(buffers[0]), checksums, first, at)
        return
    block, filled, value = first, 0, 0
    for buffer in buffers:
        start = 0
        while start < buffer.nbytes:
            stop = min(buffer.nbytes, start + BLOCK_BYTES - filled)
            value = crc32c(buffer[start:stop], value)
            filled += stop - start
            start = stop
            if filled == BLOCK_BYTES:
                _compare(value, checksums, block, at)
                block, filled, value = block + 1, 0, 0
    if filled:
        _compare(value, checksums, block, at)


def compare_blocks(found: bytes, checksums: bytes, first: int, at: str) -> None:
    """Compare the checksums of blocks, the first of which is block ``first`` of a segment, with those recorded.

    Raises:
        IntegrityError: ``UCP-E-CHECKSUM``, naming the first block that differs.
    """
    if found != checksums[4 * first : 4 * first + len(found)]:
        for block, value in enumerate(unpacked(found), first):
            _compare(value, checksums, block, at)


def _compare(value: int, checksums: bytes, block: int, at: str) -> None:
    recorded = int.from_bytes(checksums[4 * block : 4 * block + 4], "little")
    if value != recorded:
        raise error(
            "UCP-E-CHECKSUM",
            f"block {block} has CRC-32C {value:08x}, recorded is {recorded:08x}; "
            "restore this object from a copy, or load another checkpoint",
            at=at,
        )


class ChunkReader:
    """Reads boxes of slots from a store.

    ``verify`` False leaves the checksums alone; ``executor`` reads the chunks of a large box in parallel.
    ``window``, a multiple of a block, is how many bytes are read at a time where not all of them are wanted.
    """

    def __init__(
        self,
        store: Readable,
        *,
        verify: bool = True,
        executor: Executor | None = None,
        window: int = BLOCK_BYTES,
    ) -> None:
        self._store = store
        self._verify = verify
        self._executor = executor
        self._window = window
        self._scratch = Scratch()

    def read_box(self, stored: StoredSlot, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` (shape of ``box``, numpy type of the slot, any strides) with a box of the slot.

        Raises:
            UcpError: as procedure 17.3 says.
        """
        if box.is_empty:
            return
        chunks = list(stored.grid.chunks_for(box))
        if self._executor is None or len(chunks) == 1 or out.nbytes < _INLINE_BYTES:
            for chunk in chunks:
                self.read_chunk(stored, chunk, box, out)
            return
        futures = [self._executor.submit(self.read_chunk, stored, chunk, box, out) for chunk in chunks]
        wait(futures)
        for future in futures:
            future.result()

    def read_chunk(self, stored: StoredSlot, chunk: int, box: Box, out: NDArray[np.generic]) -> None:
        """Fill what a chunk has of ``box`` into ``out``, which has the shape of ``box``; see `read_box`."""
        self.read_segments(stored, chunk, stored.segments(chunk), box, out)

    def read_segments(
        self,
        stored: StoredSlot,
        chunk: int,
        segments: Sequence[Segment],
        box: Box,
        out: NDArray[np.generic],
    ) -> None:
        """As `read_chunk`, where the chunk's segments are at hand."""
        chunk_box = stored.chunk_box(chunk)
        wanted = chunk_box.intersect(box)
        if wanted is None:  # pragma: no cover - chunks_for yields intersecting chunks
            return
        if not segments:
            out[selection(wanted, box)][...] = np.zeros((), out.dtype)
            return
        for segment in segments:
            held = segment.box.translate(chunk_box.offset) if segment.box is not None else chunk_box
            part = held.intersect(wanted)
            if part is None:
                continue
            target = out[selection(part, box)]
            if stored.compressor is not None:
                whole = self._decoded(stored, stored.compressor, chunk, segment)
                target[...] = whole[selection(part, chunk_box)]
            else:
                self._read_raw(stored, chunk, segment, held, part, target)

    def mapped(self, stored: StoredSlot) -> Iterator[tuple[Box, NDArray[np.generic]]]:
        """The slot as it lies in storage: boxes, and arrays of their elements that cannot be written and own nothing.

        Raises:
            UcpError: ``UCP-E-STORE`` for what is compressed, or lies where nothing can be mapped; else as procedure
                17.3 says.
        """
        if stored.compressor is not None:
            raise error("UCP-E-STORE", "a compressed slot cannot be mapped; read it", at=stored.label)
        kind = stored.dtype.numpy
        for chunk in range(stored.grid.count):
            chunk_box = stored.chunk_box(chunk)
            segments = stored.segments(chunk)
            if not segments:
                yield chunk_box, np.broadcast_to(np.zeros((), kind), chunk_box.shape)
            for segment in segments:
                key = stored.object_key(chunk, segment)
                data = self._store.mapped(key, segment.offset, segment.offset + segment.covered)
                if self._verify:
                    verify_blocks([data], segment.checksums, 0, key)
                held = chunk_box if segment.box is None else segment.box.translate(chunk_box.offset)
                # The padding of an edge chunk lies behind what it has.
                yield held, np.frombuffer(data, kind, held.size).reshape(held.shape)

    def _decoded(
        self, stored: StoredSlot, compressor: Compressor, chunk: int, segment: Segment
    ) -> NDArray[np.generic]:
        key = stored.object_key(chunk, segment)
        data = self._store.read(key, segment.offset, segment.offset + segment.covered)
        if self._verify:
            verify_blocks([memoryview(data)], segment.checksums, 0, key)
        plain = not stored.part.packed
        size = stored.whole_bytes() if plain else stored.raw_bytes(chunk)
        shape = stored.grid.chunk_shape if plain else stored.chunk_shape(chunk)
        decoded = decompress(compressor, data, size, at=stored.place(chunk))
        return np.frombuffer(decoded, stored.dtype.numpy).reshape(shape)

    def _read_raw(
        self,
        stored: StoredSlot,
        chunk: int,
        segment: Segment,
        held: Box,
        part: Box,
        target: NDArray[np.generic],
    ) -> None:
        """Read ``part`` out of an uncompressed segment that holds the box ``held``."""
        local = part.relative_to(held)
        key = stored.object_key(chunk, segment)
        for stretch in stretches(local, held.shape, stored.dtype.item_bytes):
            place = target[selection(stretch.box, local)]
            fetch = stretch.start, stretch.stop
            if self._verify:
                first, last = stretch.in_blocks
                fetch = first, min(segment.covered, last)
            if place.flags.c_contiguous and stretch.stop - stretch.start == place.nbytes:
                self._read_dense(key, segment, stretch, fetch, place)
            else:
                self._read_strided(key, segment, stretch, fetch, place)

    def _read_dense(
        self,
        key: str,
        segment: Segment,
        stretch: Stretch,
        fetch: tuple[int, int],
        target: NDArray[np.generic],
    ) -> None:
        """Read a stretch straight into its place; what lies around it, within blocks, is looked at alone."""
        first, last = fetch
        head, tail = bytearray(stretch.start - first), bytearray(last - stretch.stop)
        buffers = [memoryview(head), target.reshape(-1).view(np.uint8).data, memoryview(tail)]
        self._store.read_into(key, segment.offset + first, buffers)
        if self._verify:
            verify_blocks(buffers, segment.checksums, first // BLOCK_BYTES, key)

    def _read_strided(
        self,
        key: str,
        segment: Segment,
        stretch: Stretch,
        fetch: tuple[int, int],
        target: NDArray[np.generic],
    ) -> None:
        """Read a stretch, some at a time, and copy what is wanted of it while it is in the processor's cache.

        A row, which is all of the target but its outermost dim, may lie in two of those times: what there is of it is
        kept in front of the next.
        """
        position, end = fetch
        lead = next(dim for dim, extent in enumerate(target.shape) if extent > 1)
        rows = target[(0,) * lead]
        steps = stretch.strides[lead:]
        row_bytes = stretch.stop - stretch.start - (len(rows) - 1) * steps[0]
        scratch = self._scratch.take(row_bytes + min(self._window, end - position))
        # Rows that are done, where the next begins; where that begins which was read, and how much it is.
        row, start, low, filled = 0, stretch.start, position, 0
        while position < end:
            kept = max(0, position - max(start, low))
            if kept:
                scratch[:kept] = scratch[filled - kept : filled]
            size = min(self._window, end - position)
            fresh = scratch[kept : kept + size].data
            self._store.read_into(key, segment.offset + position, [fresh])
            if self._verify:
                verify_blocks([fresh], segment.checksums, position // BLOCK_BYTES, key)
            low, filled, position = position - kept, kept + size, position + size
            whole = min(len(rows) - row, (position - start - row_bytes) // steps[0] + 1)
            if whole > 0:
                shape = (whole, *rows.shape[1:])
                rows[row : row + whole] = np.ndarray(shape, rows.dtype, scratch.data, start - low, steps)
                row, start = row + whole, start + whole * steps[0]
