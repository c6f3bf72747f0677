"""Many boxes of slots at once (SPEC section 17.3): in the order of the objects they lie in, small ones together.

An uncompressed segment that is wanted whole, and lies whole in the destination, is a run of bytes. Runs that follow
one another in a pack are fetched by one call, and several calls proceed at once. Everything else goes the way of
`ChunkReader`, chunk by chunk.
"""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.chunk_reader import verify_blocks
from ucpformat.storage.selection import selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.table import Segment
    from ucpformat.storage.chunk_reader import ChunkReader
    from ucpformat.storage.counted import Readable
    from ucpformat.storage.part import StoredSlot

__all__ = ["BulkReader"]

_CALL_BYTES: Final = 1 << 22  # a multiple of BLOCK_BYTES, small enough to be verified while in cache
_CALL_RUNS: Final = 256
_GROUP_CHUNKS: Final = 16
_GAP_BYTES: Final = 4096  # what alignment can leave between two segments


_OfChunk = tuple["StoredSlot", int, "Box", "NDArray[np.generic]"]


class _Run(NamedTuple):
    """Bytes of one object from ``offset`` on: first those wanted, then ``tail`` that are only verified."""

    key: str
    offset: int
    target: memoryview
    tail: int
    checksums: bytes
    first_block: int

    @property
    def stop(self) -> int:
        return self.offset + self.target.nbytes + self.tail


class BulkReader:
    """Fills arrays with boxes of slots; ``verify`` and ``executor`` as `ChunkReader`, which does the odd ones."""

    def __init__(
        self, store: Readable, reader: ChunkReader, executor: Executor, *, verify: bool = True
    ) -> None:
        self._store = store
        self._reader = reader
        self._executor = executor
        self._verify = verify

    def read(self, targets: Iterable[tuple[StoredSlot, Box, NDArray[np.generic]]]) -> None:
        """Fill each array (shape of its box, numpy type of its slot, any strides) with a box of a slot.

        Raises:
            UcpError: as procedure 17.3 says. What the arrays then hold is not defined.
        """
        runs: list[_Run] = []
        rest = []
        for stored, box, out in targets:
            if box.is_empty:
                continue
            for chunk in stored.grid.chunks_for(box):
                of_chunk = self._runs(stored, chunk, box, out)
                if of_chunk is None:
                    rest.append((stored, chunk, box, out))
                else:
                    runs.extend(of_chunk)
        runs.sort(key=lambda run: (run.key, run.offset))
        futures = [self._executor.submit(self._fetch, call) for call in _calls(runs)]
        futures += [self._executor.submit(self._read_chunks, group) for group in _groups(rest)]
        wait(futures)
        for future in futures:
            future.result()

    def _read_chunks(self, group: Iterable[_OfChunk]) -> None:
        for stored, chunk, box, out in group:
            self._reader.read_chunk(stored, chunk, box, out)

    def _runs(self, stored: StoredSlot, chunk: int, box: Box, out: NDArray[np.generic]) -> list[_Run] | None:
        """The runs that fill what ``out`` has of a chunk, or None where it takes more than runs.

        It does not where every segment is wanted whole, and lies in ``out`` without a gap.
        """
        if stored.slot.compressor is not None:
            return None
        segments = stored.segments(chunk)
        if not segments:
            return None
        if stored.grid.count == 1 and box.shape == stored.slot.shape:
            chunk_box = box
            if segments[0].box is None and out.flags.c_contiguous:
                return [*_split(stored.object_key(chunk, segments[0]), segments[0], _bytes(out))]
        else:
            chunk_box = stored.chunk_box(chunk)
        runs: list[_Run] = []
        for segment in segments:
            held = chunk_box if segment.box is None else segment.box.translate(chunk_box.offset)
            if not box.contains(held):
                if held.intersect(box) is None:
                    continue
                return None
            target = out if held == box else out[selection(held, box)]
            if not target.flags.c_contiguous:
                return None
            runs.extend(_split(stored.object_key(chunk, segment), segment, _bytes(target)))
        return runs

    def _fetch(self, call: Sequence[_Run]) -> None:
        """Read runs of one object that follow one another, and verify each."""
        buffers: list[memoryview] = []
        tails: list[memoryview] = []
        position = call[0].offset
        for run in call:
            tail = memoryview(bytearray(run.tail if self._verify else 0))
            gap = memoryview(bytearray(run.offset - position))
            buffers += (gap, run.target, tail)
            tails.append(tail)
            position = run.stop
        self._store.read_into(call[0].key, call[0].offset, buffers)
        if self._verify:
            for run, tail in zip(call, tails, strict=True):
                verify_blocks([run.target, tail], run.checksums, run.first_block, run.key)


def _bytes(target: NDArray[np.generic]) -> memoryview:
    return target.reshape(-1).view(np.uint8).data


def _groups(chunks: Sequence[_OfChunk]) -> Iterator[list[_OfChunk]]:
    """Chunks that go one by one: some to a task, where they are small, because tasks cost as well."""
    group: list[_OfChunk] = []
    nbytes = 0
    for one in chunks:
        group.append(one)
        nbytes += one[3].nbytes
        if nbytes >= _CALL_BYTES or len(group) == _GROUP_CHUNKS:
            yield group
            group, nbytes = [], 0
    if group:
        yield group


def _split(key: str, segment: Segment, target: memoryview) -> Iterator[_Run]:
    """The run of a whole chunk, in pieces of a call each; the last one has the padding of an edge chunk."""
    last = max(0, target.nbytes - 1) // _CALL_BYTES * _CALL_BYTES
    for start in range(0, last, _CALL_BYTES):
        piece = target[start : start + _CALL_BYTES]
        yield _Run(key, segment.offset + start, piece, 0, segment.checksums, start // BLOCK_BYTES)
    rest = target[last:]
    tail = segment.covered - target.nbytes
    yield _Run(key, segment.offset + last, rest, tail, segment.checksums, last // BLOCK_BYTES)


def _calls(runs: Iterable[_Run]) -> Iterator[list[_Run]]:
    """Group runs, which are sorted, such that each group is one stretch of one object."""
    call: list[_Run] = []
    for run in runs:
        if call and not (
            run.key == call[0].key
            and 0 <= run.offset - call[-1].stop < _GAP_BYTES
            and run.stop - call[0].offset <= _CALL_BYTES
            and len(call) < _CALL_RUNS
        ):
            yield call
            call = []
        call.append(run)
    if call:
        yield call
