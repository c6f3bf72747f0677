"""From stored bytes to boxes of slots: plan, fetch, verify, place (SPEC sections 17.2 and 17.3).

What is asked for at once, of however many slots, is planned together (`byte_runs`, `read_calls`): bytes that lie close
together are fetched by one call, several calls proceed at once, and only whole checksum blocks are fetched of what is
asked for. Chunks that are compressed, or zero, are done one by one. Slots that are one chunk, as small ones are, are
looked up all at once, and those that are one checksum block or less are columns until they are read.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from awscrt.checksums import crc32c

from ucpformat.errors import error, naming
from ucpformat.geometry import runs as contiguous_runs
from ucpformat.storage.checksum import BLOCK_BYTES, packed, verify_blocks
from ucpformat.storage.compression import decompress
from ucpformat.storage.host_memory import DecodingRoom, Scratch, flat_bytes, selection
from ucpformat.storage.reading.byte_runs import Blocks, ByteRun, as_reads, byte_runs
from ucpformat.storage.reading.held_boxes import held_together
from ucpformat.storage.reading.layers import ChunkWanted, are_layered, in_groups
from ucpformat.storage.reading.streaming import TOGETHER_BYTES, elements_of, run_groups
from ucpformat.storage.stores.store import StoredRange
from ucpformat.storage.workers import in_parallel, task_groups, worker_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.byte_runs import Call, Reads
    from ucpformat.storage.reading.held_boxes import HeldBox
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.reading.streaming import PassingRun
    from ucpformat.storage.stores.store import Objects

__all__ = ["BoxReader", "PartTargets"]

_CALL_RUNS: Final = 1024  # as many buffers as a call of the system takes
_REMOTE_RUNS: Final = 1 << 14  # a wait is worth many checksums


class PartTargets(NamedTuple):
    """What is wanted of a part: numbers of its slots, arrays to fill, and what of each slot, or all without boxes."""

    part: StoredPart
    numbers: list[int]
    arrays: list[NDArray[np.generic]]
    boxes: Sequence[Box] | None = None


_Target = tuple["StoredSlot", "Box", "NDArray[np.generic]"]
_WantedChunk = tuple["StoredSlot", int, "Box", "NDArray[np.generic]"]


class BoxReader:
    """Reads boxes of slots from a store; ``verify`` False leaves the checksums alone. Safe to use from several threads.

    Errors name ``path``, where the checkpoint is. ``fetched`` counts the bytes that were asked of the store so far, and
    those that were mapped.
    """

    def __init__(
        self,
        store: Objects,
        executor: Executor,
        *,
        verify: bool = True,
        workers: int | None = None,
        path: str = "",
    ) -> None:
        self._store = store
        self._path = path
        self._executor = executor
        self._workers = worker_count(workers, store.calls.at_once)
        self._verify = verify
        # Where a call waits for the network, it takes as many runs as it can, and calls do not wait for one another.
        self._waits = store.calls.at_once is not None
        self._call_runs = _REMOTE_RUNS if self._waits else _CALL_RUNS
        self._scratch = Scratch()
        self._room = DecodingRoom()
        self._lock = threading.Lock()
        self.fetched = 0

    def pass_elements(
        self,
        runs: Iterable[PassingRun],
        look: Callable[[int, Iterator[tuple[PassingRun, NDArray[np.uint8]]]], None],
        others: Iterable[Callable[[], None]],
        workers: int | None = None,
    ) -> None:
        """Have ``look`` take the elements of groups of runs, as `elements_of` yields them; do ``others`` beside it.

        It is called from several threads, with the number of the task.

        Raises:
            UcpError: what reading raises.
        """

        def take(number: int, groups: list[list[PassingRun]]) -> None:
            self._count(sum(map(span, groups)))
            passing = (elements_of(self._store, one, self._scratch, verify=self._verify) for one in groups)
            look(number, chain.from_iterable(passing))

        def span(group: list[PassingRun]) -> int:
            return sum(run.covered - run.start for run in group)

        # Small files are looked at together as well, but one after another: requests do not wait for each other.
        most = 1 if self._waits else _CALL_RUNS
        tasks_groups = task_groups(
            run_groups(runs, gap=self._store.calls.gap), span, nbytes=TOGETHER_BYTES, most=most
        )
        with naming(self._path):
            tasks = (partial(take, *task) for task in enumerate(tasks_groups))
            in_parallel(chain(tasks, others), self._executor, workers or self._workers)

    def look_at_decoded(
        self, stored: StoredSlot, chunk: int, look: Callable[[NDArray[np.generic]], None], *, nbytes: int
    ) -> None:
        """Have ``look``, which takes ``nbytes`` of memory itself, take what a compressed chunk has of its slot.

        Raises:
            UcpError: what reading raises.
        """
        part = stored.grid.box_at(chunk)
        segments = stored.segments(chunk)
        if not segments or stored.compressor is None:
            look(np.broadcast_to(np.zeros((), stored.dtype.numpy), part.shape))
            return
        with naming(self._path), self._room.take(2 * stored.whole_bytes() + nbytes):
            look(self._decoded(stored, stored.compressor, chunk, segments[0])[selection(part, part)])

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.fetched += nbytes

    def read(self, targets: Iterable[_Target]) -> None:
        """Fill each array (shape of its box, numpy type of its slot, any strides) with a box of a slot.

        No stored byte of an uncompressed slot is fetched twice.

        Raises:
            UcpError: as procedure 17.3 says. What the arrays then hold is not defined.
        """
        by_part: dict[StoredPart, list[_Target]] = {}
        for target in targets:
            by_part.setdefault(target[0].part, []).append(target)
        self.read_parts(
            PartTargets(
                part,
                [stored.number for stored, _, _ in found],
                [out for _, _, out in found],
                [box for _, box, _ in found],
            )
            for part, found in by_part.items()
        )

    def read_parts(self, targets: Iterable[PartTargets]) -> None:
        """Read as `read` does, into targets given part by part."""
        runs: list[ByteRun] = []
        blocks: list[Blocks] = []
        odd: list[ChunkWanted] = []
        layered: list[ChunkWanted] = []
        for some in targets:
            for stored, chunk, box, out in self._chunks(some, runs, blocks):
                segments = stored.segments(chunk)
                if not segments or stored.compressor is not None:
                    odd.append(ChunkWanted(stored, chunk, segments, box, out))
                    continue
                if stored.part.table.row_words.size and are_layered(segments):
                    layered.append(ChunkWanted(stored, chunk, segments, box, out))
                    segments = tuple([one for one in segments if one.row_set is None])
                for segment, held, part in stored.meeting(chunk, segments, box):
                    key = stored.object_key(chunk, segment)
                    target = out if part == box else out[selection(part, box)]
                    runs += byte_runs(key, segment, held, part, target, verify=self._verify)
        self._read_runs(runs, blocks, (partial(self._read_odd, chunk) for chunk in odd))
        if layered:
            for some_layers in in_groups(layered, verify=self._verify):
                self._read_runs(some_layers, [], ())

    def _read_runs(
        self, runs: Sequence[ByteRun], blocks: Sequence[Blocks], others: Iterable[Callable[[], None]]
    ) -> None:
        """Read runs and blocks in as few calls as can be, several at once, and do ``others`` beside them."""
        _, window, gap = self._store.calls
        reads = as_reads(runs, blocks, window=window)
        calls = reads.calls(gap=gap, window=window, most=self._call_runs)
        fetches = (partial(self._fetch, reads, edges) for edges in calls)
        with naming(self._path):
            in_parallel(chain(fetches, others), self._executor, self._workers)

    def _chunks(
        self, targets: PartTargets, runs: list[ByteRun], blocks: list[Blocks]
    ) -> Iterator[_WantedChunk]:
        """Yield chunks one by one, but add what fills slots of one chunk in one segment to ``runs`` or ``blocks``."""
        part, numbers, arrays, boxes = targets
        if len(numbers) == 1:  # one alone is not looked up among all slots of the part
            stored = part.slot(numbers[0])
            wanted = stored.grid.whole if boxes is None else boxes[0]
            yield from ((stored, chunk, wanted, arrays[0]) for chunk in stored.grid.chunks_for(wanted))
            return
        single = part.single_chunks
        positions = single.positions(np.array(numbers, np.int64))
        is_block = positions >= 0
        is_block[is_block] = single.covered(positions[is_block]) <= BLOCK_BYTES
        in_blocks: list[int] = []
        filled: list[NDArray[np.generic]] = []
        for number, position, small, box, out in zip(  # noqa: B905
            numbers, positions.tolist(), is_block.tolist(), boxes or repeat(None), arrays
        ):
            if small and out.flags.c_contiguous and (box is None or box == part.forms[number][1].whole):
                in_blocks.append(position)
                filled.append(out)
                continue
            stored = part.slot(number)
            whole = stored.grid.whole
            wanted = whole if box is None else box
            if position >= 0 and out.nbytes and whole.contains(wanted):
                segment = single.segment(position, part.table)
                key = stored.object_key(0, segment)
                runs += byte_runs(key, segment, whole, wanted, out, verify=self._verify)
                continue
            for chunk in stored.grid.chunks_for(wanted):
                yield stored, chunk, wanted, out
        if in_blocks:
            blocks.append(_blocks(part, np.array(in_blocks, np.int64), filled))

    def _fetch(self, reads: Reads, edges: tuple[int, int]) -> None:
        call = reads.call(edges)
        parts = self._received(call) if self._waits else self._read_into(call)
        for item, start, checksum, part in zip(call.items, call.starts, call.checksums, parts, strict=True):
            if isinstance(item, ByteRun):
                if self._verify:
                    verify_blocks(part, item.checksums, (start - item.origin) // BLOCK_BYTES, call.key)
                for destination in item.copied:
                    destination.fill(part[0], start)
            elif self._verify and crc32c(part[0]) != checksum:
                verify_blocks(part, packed([checksum]), 0, call.key)

    def _read_into(self, call: Call) -> list[list[memoryview]]:
        """Read runs by one call; return what each was read into: spare memory where it does not go straight."""
        position = call.starts[0]
        room = self._scratch.take(call.spare).data if call.spare else memoryview(b"")
        buffers: list[memoryview] = []
        parts: list[list[memoryview]] = []
        for first, stop, item in zip(call.starts, call.stops, call.items, strict=True):
            if first > position:
                buffers.append(room[: first - position])
                room = room[first - position :]
            position = first
            part: list[memoryview] = []
            for start, memory in item.straight if isinstance(item, ByteRun) else ((first, flat_bytes(item)),):
                if start > position:
                    part.append(room[: start - position])
                    room = room[start - position :]
                part.append(memory)
                position = start + memory.nbytes
            if stop > position:
                part.append(room[: stop - position])
                room = room[stop - position :]
                position = stop
            buffers += part
            parts.append(part)
        self._count(call.stops[-1] - call.starts[0])
        self._store.read_into(call.key, call.starts[0], buffers)
        return parts

    def _received(self, call: Call) -> Iterator[list[memoryview]]:
        """Read runs by one call whose answer is memory of its own; each run as it is taken from there."""
        origin, stop = call.starts[0], call.stops[-1]
        self._count(stop - origin)
        data = memoryview(self._store.read(call.key, origin, stop))
        for first, stop, item in zip(call.starts, call.stops, call.items, strict=True):
            for start, memory in item.straight if isinstance(item, ByteRun) else ((first, flat_bytes(item)),):
                memory[:] = data[start - origin : start - origin + memory.nbytes]
            yield [data[first - origin : stop - origin]]

    def _read_odd(self, wanted: ChunkWanted) -> None:
        stored, chunk, segments, box, out = wanted
        chunk_box = stored.grid.box_at(chunk)
        part = chunk_box.intersect(box)
        if part is None:  # pragma: no cover - chunks_for yields intersecting chunks
            return
        target = out[selection(part, box)]
        if not segments or stored.compressor is None:
            target[...] = np.zeros((), out.dtype)
            return
        with self._room.take(2 * stored.whole_bytes()):
            whole = self._decoded(stored, stored.compressor, chunk, segments[0])
            target[...] = whole[selection(part, chunk_box)]

    def _decoded(
        self, stored: StoredSlot, compressor: Compressor, chunk: int, segment: Segment
    ) -> NDArray[np.generic]:
        key = stored.object_key(chunk, segment)
        self._count(segment.covered)
        data = self._store.read(key, segment.offset, segment.offset + segment.covered)
        if self._verify:
            verify_blocks([memoryview(data)], segment.checksums, 0, key)
        plain = not stored.part.packed
        size = stored.whole_bytes() if plain else stored.raw_bytes(chunk)
        shape = stored.grid.chunk_shape if plain else stored.grid.box_at(chunk).shape
        decoded = decompress(compressor, data, size, at=stored.chunk_at(chunk))
        return np.frombuffer(decoded, stored.dtype.numpy).reshape(shape)

    def mapped(self, stored: StoredSlot) -> Iterator[tuple[Box, NDArray[np.generic]]]:
        """Yield the slot as it is stored: boxes, and read-only arrays of their elements without a copy.

        Segments that lie one behind the other, as what they hold does in the slot, are one array.

        Raises:
            UcpError: ``UCP-E-STORE`` for what is compressed, or lies where nothing can be mapped; else as procedure
                17.3 says.
        """
        kind = stored.dtype.numpy
        for held in self._held(stored):
            if held.key is None:
                yield held.box, np.broadcast_to(np.zeros((), kind), held.box.shape)
                continue
            with naming(self._path):
                self._count(held.stop - held.start)
                data = self._store.mapped(held.key, held.start, held.stop)
                self._check_held(held, data)
            # The padding of an edge chunk lies behind what it has.
            yield held.box, np.frombuffer(data, kind, held.box.size).reshape(held.box.shape)

    def mapped_whole(self, stored: StoredSlot) -> NDArray[np.generic] | int:
        """Return the slot as one array, its parts mapped one behind the other; if that cannot be, how many there are.

        Raises:
            UcpError: as `mapped`.
        """
        parts = self._held(stored)
        if len(parts) == 1:
            return next(self.mapped(stored))[1]
        item, position = stored.dtype.item_bytes, 0
        ranges: list[StoredRange] = []
        for held in parts:
            run = contiguous_runs(held.box, stored.grid.shape)
            if run.count != 1 or run.first != position:
                return len(parts)
            position += held.box.size
            ranges.append(StoredRange(held.key, held.start, held.start + held.box.size * item))
        with naming(self._path):
            data = self._store.mapped_together(ranges)
            if data is None:
                return len(parts)
            position = 0
            for held, (key, start, stop) in zip(parts, ranges, strict=True):
                if key is not None:
                    is_padded = held.stop > stop
                    self._count(stop - start)
                    part = data[position : position + stop - start]
                    self._check_held(held, self._store.mapped(key, start, held.stop) if is_padded else part)
                position += stop - start
        return np.frombuffer(data, stored.dtype.numpy).reshape(stored.grid.shape)

    @staticmethod
    def _held(stored: StoredSlot) -> list[HeldBox]:
        if stored.compressor is not None:
            raise error("UCP-E-STORE", "a compressed slot cannot be mapped; read it", at=stored.label)
        return held_together(stored)

    def _check_held(self, held: HeldBox, data: memoryview) -> None:
        for segment in held.segments if self._verify else ():
            first = segment.offset - held.start
            part = data[first : first + segment.covered]
            verify_blocks([part], segment.checksums, 0, held.key or "")


def _blocks(part: StoredPart, positions: NDArray[np.int64], arrays: list[NDArray[np.generic]]) -> Blocks:
    """Return what fills arrays with whole slots of a part, by their positions among its single chunks."""
    single = part.single_chunks
    starts = single.offsets[positions]
    if part.packed:
        keys, of = [pack.key for pack in part.packs], single.containers[positions]
    else:
        keys = [
            f"{slot.prefix}/{slot.chunk_key(0)}" for slot in map(part.slot, single.slots[positions].tolist())
        ]
        of = np.arange(positions.size)
    checksums = part.table.checksums[single.checksums[positions]]
    return Blocks(keys, of, starts, starts + single.covered(positions), checksums, arrays)
