"""Many whole slots at once (SPEC section 17.3): in the order of the objects they lie in, small ones together.

A whole slot whose chunks are one uncompressed segment each is a sequence of runs of bytes that need no
arithmetic of boxes. Runs that follow one another in a pack are fetched by one call, and several calls proceed
at once. Everything else goes the way of `ChunkReader`.
"""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ucpformat.geometry import Box
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.chunk_reader import verify_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from ucpformat.model.table import Segment
    from ucpformat.storage.chunk_reader import ChunkReader
    from ucpformat.storage.part import StoredSlot
    from ucpformat.storage.store import Store

__all__ = ["BulkReader"]

_CALL_BYTES: Final = 1 << 22  # a multiple of BLOCK_BYTES, small enough to be verified while in cache
_CALL_RUNS: Final = 256
_GAP_BYTES: Final = 4096  # what alignment can leave between two segments


class _Run(NamedTuple):
    """Bytes of one object from ``offset`` on: first those wanted, then ``tail`` that are only verified."""

    key: str
    offset: int
    target: memoryview
    tail: int
    checksums: NDArray[np.uint32]
    first_block: int

    @property
    def stop(self) -> int:
        return self.offset + self.target.nbytes + self.tail


class BulkReader:
    """Fills arrays with whole slots; ``verify`` and ``executor`` as `ChunkReader`, which does the odd ones."""

    def __init__(self, store: Store, reader: ChunkReader, executor: Executor, *, verify: bool = True) -> None:
        self._store = store
        self._reader = reader
        self._executor = executor
        self._verify = verify

    def read(self, targets: Iterable[tuple[StoredSlot, NDArray[np.generic]]]) -> None:
        """Fill each array (shape and numpy type of its slot, any strides).

        Raises:
            UcpError: as procedure 17.3 says. What the arrays then hold is not defined.
        """
        runs: list[_Run] = []
        rest = []
        for stored, out in targets:
            of_slot = self._runs(stored, out)
            if of_slot is None:
                rest.append((stored, out))
            else:
                runs.extend(of_slot)
        runs.sort(key=lambda run: (run.key, run.offset))
        futures = [self._executor.submit(self._fetch, call) for call in _calls(runs)]
        try:
            # In this thread: a large slot puts its chunks into the same executor, and waits for them.
            for stored, out in rest:
                self._reader.read_box(stored, Box.whole(out.shape), out)
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def _runs(self, stored: StoredSlot, out: NDArray[np.generic]) -> list[_Run] | None:
        """The runs that fill ``out``, or None where it takes more than runs; zero entries are filled here."""
        if stored.slot.compressor is not None or not out.flags.c_contiguous:
            return None
        memory = out.reshape(-1).view(np.uint8)
        runs: list[_Run] = []
        start = 0
        for chunk in range(stored.grid.count):
            segments = stored.segments(chunk)
            stop = start + stored.raw_bytes(chunk)
            if not segments:
                memory[start:stop] = 0
            elif segments[0].box is not None:
                return None
            else:
                segment = segments[0]
                runs.extend(_split(stored.object_key(chunk, segment), segment, memory[start:stop].data))
            start = stop
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
