"""From stored bytes to boxes of slots: plan, fetch, verify, place (SPEC sections 17.2 and 17.3).

What is asked for at once, of however many slots, is planned together (`byte_runs`): bytes that lie together are fetched
by one call, several calls proceed at once, and only whole checksum blocks of what is asked for are fetched. Chunks that
are compressed, or zero, are done one by one. Slots that are one chunk, as small ones are, are looked up all at once.
"""

from __future__ import annotations

from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.storage.byte_runs import CALL_BYTES, ByteRun, as_calls, byte_runs
from ucpformat.storage.checksum import BLOCK_BYTES, verify_blocks
from ucpformat.storage.compression import decompress
from ucpformat.storage.host_memory import flat_bytes
from ucpformat.storage.scratch import Scratch
from ucpformat.storage.selection import selection
from ucpformat.storage.workers import task_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.table import Segment
    from ucpformat.storage.counted import Readable
    from ucpformat.storage.part import StoredPart, StoredSlot
    from ucpformat.storage.store import Calls

__all__ = ["BoxReader"]

_CALL_RUNS: Final = 1024  # as many buffers as a call of the system takes
_REMOTE_RUNS: Final = 1 << 14  # a wait is worth many checksums
_TASK_ITEMS: Final = 16

_Target = tuple["StoredSlot", "Box", "NDArray[np.generic]"]
_OddChunk = tuple["StoredSlot", int, "tuple[Segment, ...]", "Box", "NDArray[np.generic]"]


class BoxReader:
    """Reads boxes of slots from a store, which has ``calls``; ``verify`` False leaves the checksums alone."""

    def __init__(self, store: Readable, executor: Executor, *, calls: Calls, verify: bool = True) -> None:
        self._store = store
        self._executor = executor
        self._verify = verify
        self._calls = calls
        # Where a call waits for the network, it takes as many runs as it can, and calls do not wait for one another.
        self._waits = calls.at_once is not None
        self._call_runs = _REMOTE_RUNS if self._waits else _CALL_RUNS
        self._task_items = 1 if self._waits else _TASK_ITEMS
        self._scratch = Scratch()

    def read_box(self, stored: StoredSlot, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` (shape of ``box``, numpy type of the slot, any strides) with a box of the slot; see `read`."""
        self.read([(stored, box, out)])

    def read(self, targets: Iterable[_Target]) -> None:
        """Fill each array (shape of its box, numpy type of its slot, any strides) with a box of a slot.

        No stored byte of an uncompressed slot is fetched twice.

        Raises:
            UcpError: as procedure 17.3 says. What the arrays then hold is not defined.
        """
        runs: list[ByteRun] = []
        odd: list[_OddChunk] = []
        for stored, chunk, box, out in self._without_single(targets, runs):
            segments = stored.segments(chunk)
            if not segments or stored.compressor is not None:
                odd.append((stored, chunk, segments, box, out))
                continue
            for segment, held, part in stored.meeting(chunk, segments, box):
                key = stored.object_key(chunk, segment)
                target = out if part == box else out[selection(part, box)]
                runs += byte_runs(key, segment, held, part, target, verify=self._verify)
        calls = as_calls(runs, gap=self._calls.gap, window=self._calls.window, most=self._call_runs)
        most = self._task_items
        self._do(
            [
                *(
                    partial(self._fetch, group)
                    for group in task_groups(calls, _span, nbytes=CALL_BYTES, most=most)
                ),
                *(
                    partial(self._read_odd, group)
                    for group in task_groups(odd, _nbytes, nbytes=CALL_BYTES, most=most)
                ),
            ]
        )

    def _do(self, tasks: Sequence[Callable[[], None]]) -> None:
        if len(tasks) == 1:
            tasks[0]()
            return
        futures = [self._executor.submit(task) for task in tasks]
        wait(futures)
        for future in futures:
            future.result()

    def _without_single(
        self, targets: Iterable[_Target], runs: list[ByteRun]
    ) -> Iterator[tuple[StoredSlot, int, Box, NDArray[np.generic]]]:
        """Chunks one by one, but for slots that are one chunk and segment: their runs are added to ``runs``."""
        single: dict[StoredPart, list[_Target]] = {}
        for target in targets:
            stored, box, out = target
            grid = stored.grid
            if grid.count == 1 and stored.compressor is None and grid.whole.contains(box) and out.nbytes:
                single.setdefault(stored.part, []).append(target)
                continue
            for chunk in grid.chunks_for(box):
                yield stored, chunk, box, out
        for part, found in single.items():
            if len(found) == 1:
                ((stored, box, out),) = found
                yield stored, 0, box, out
                continue
            segments = part.table.single_segments([stored.first_row for stored, _, _ in found])
            for (stored, box, out), segment in zip(found, segments, strict=True):
                if segment is None or segment.covered != stored.nbytes:
                    yield stored, 0, box, out
                    continue
                key, whole = stored.object_key(0, segment), stored.grid.whole
                if box == whole and out.flags.c_contiguous:
                    first, checksums = segment.offset, segment.checksums
                    straight = ((first, flat_bytes(out)),)
                    runs.append(ByteRun(key, first, first + out.nbytes, first, checksums, straight, ()))
                else:
                    runs += byte_runs(key, segment, whole, box, out, verify=self._verify)

    def _fetch(self, calls: Iterable[Sequence[ByteRun]]) -> None:
        for call in calls:
            parts = self._received(call) if self._waits else self._read_into(call)
            for run, part in zip(call, parts, strict=True):
                if self._verify:
                    verify_blocks(part, run.checksums, (run.offset - run.origin) // BLOCK_BYTES, run.key)
                for destination in run.copied:
                    destination.fill(part[0], run.offset)

    def _read_into(self, call: Sequence[ByteRun]) -> list[list[memoryview]]:
        """Read runs by one call; what each was read into, which is spare memory where it does not go straight."""
        position = call[0].offset
        spare = call[-1].stop - position - sum(memory.nbytes for run in call for _, memory in run.straight)
        room = self._scratch.take(spare).data if spare else memoryview(b"")
        buffers: list[memoryview] = []
        parts: list[list[memoryview]] = []
        for run in call:
            if run.offset > position:
                buffers.append(room[: run.offset - position])
                room = room[run.offset - position :]
            position = run.offset
            part: list[memoryview] = []
            for start, memory in run.straight:
                if start > position:
                    part.append(room[: start - position])
                    room = room[start - position :]
                part.append(memory)
                position = start + memory.nbytes
            if run.stop > position:
                part.append(room[: run.stop - position])
                room = room[run.stop - position :]
                position = run.stop
            buffers += part
            parts.append(part)
        self._store.read_into(call[0].key, call[0].offset, buffers)
        return parts

    def _received(self, call: Sequence[ByteRun]) -> Iterator[list[memoryview]]:
        """Read runs by one call whose answer is memory of its own; each run as it is taken from there."""
        first = call[0].offset
        data = memoryview(self._store.read(call[0].key, first, call[-1].stop))
        for run in call:
            for start, memory in run.straight:
                memory[:] = data[start - first : start - first + memory.nbytes]
            yield [data[run.offset - first : run.stop - first]]

    def _read_odd(self, group: Iterable[_OddChunk]) -> None:
        for stored, chunk, segments, box, out in group:
            chunk_box = stored.chunk_box(chunk)
            part = chunk_box.intersect(box)
            if part is None:  # pragma: no cover - chunks_for yields intersecting chunks
                continue
            target = out[selection(part, box)]
            if stored.compressor is None or not segments:
                target[...] = np.zeros((), out.dtype)
            else:
                whole = self._decoded(stored, stored.compressor, chunk, segments[0])
                target[...] = whole[selection(part, chunk_box)]

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
            for segment, held, _ in stored.meeting(chunk, segments, chunk_box):
                key = stored.object_key(chunk, segment)
                data = self._store.mapped(key, segment.offset, segment.offset + segment.covered)
                if self._verify:
                    verify_blocks([data], segment.checksums, 0, key)
                # The padding of an edge chunk lies behind what it has.
                yield held, np.frombuffer(data, kind, held.size).reshape(held.shape)


def _span(call: Sequence[ByteRun]) -> int:
    return call[-1].stop - call[0].offset


def _nbytes(odd: _OddChunk) -> int:
    return odd[-1].nbytes
