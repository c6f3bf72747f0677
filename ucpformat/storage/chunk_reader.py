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
from ucpformat.geometry import Box, row_major_strides
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.compression import decompress
from ucpformat.storage.selection import selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ucpformat.model.compressor import Compressor
    from ucpformat.model.table import Segment
    from ucpformat.storage.counted import Readable
    from ucpformat.storage.part import StoredSlot

__all__ = ["ChunkReader", "verify_blocks"]

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
    """

    def __init__(self, store: Readable, *, verify: bool = True, executor: Executor | None = None) -> None:
        self._store = store
        self._verify = verify
        self._executor = executor

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
        chunk_box = stored.chunk_box(chunk)
        wanted = chunk_box.intersect(box)
        if wanted is None:  # pragma: no cover - chunks_for yields intersecting chunks
            return
        segments = stored.segments(chunk)
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
        item = stored.dtype.item_bytes
        strides = row_major_strides(held.shape)
        local = part.relative_to(held)
        first = sum(offset * stride for offset, stride in zip(local.offset, strides, strict=True))
        last = sum((stop - 1) * stride for stop, stride in zip(local.stop, strides, strict=True))
        start, stop = first * item, (last + 1) * item
        fetch_start, fetch_stop = start, stop
        if self._verify:
            fetch_start = start // BLOCK_BYTES * BLOCK_BYTES
            fetch_stop = min(segment.covered, -(-stop // BLOCK_BYTES) * BLOCK_BYTES)
        key = stored.object_key(chunk, segment)
        if stop - start == part.size * item and target.flags.c_contiguous:
            head, tail = bytearray(start - fetch_start), bytearray(fetch_stop - stop)
            direct = target.reshape(-1).view(np.uint8).data
            buffers = [memoryview(head), direct, memoryview(tail)]
            self._store.read_into(key, segment.offset + fetch_start, buffers)
        else:
            data = self._store.read(key, segment.offset + fetch_start, segment.offset + fetch_stop)
            buffers = [memoryview(data)]
        if self._verify:
            verify_blocks(buffers, segment.checksums, fetch_start // BLOCK_BYTES, key)
        if len(buffers) == 1:
            target[...] = np.ndarray(
                part.shape,
                stored.dtype.numpy,
                buffers[0],
                start - fetch_start,
                tuple(stride * item for stride in strides),
            )
