"""The base of an increment: what an earlier checkpoint has of the bytes that are to be saved (SPEC section 8.5).

Nothing is taken for equal that was not compared, but what somebody knows (`ucpformat.storage.increments.changes`).
A block with another checksum is surely not; where all checksums of a segment are the same, its bytes are read, and
compared while they lie in the processor's cache.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import ExitStack, suppress
from operator import and_
from typing import TYPE_CHECKING, Final

import numpy as np
from awscrt.checksums import crc32c

from ucpformat.errors import UcpError
from ucpformat.geometry import Box, runs
from ucpformat.storage.checksum import BLOCK_BYTES, RunChecksums, checksum_run
from ucpformat.storage.host_memory import flat_bytes, selection
from ucpformat.storage.increments.base_contents import (
    PackUse,
    opened_base,
    packs_in_use,
    segments_of,
    slots_alike,
)
from ucpformat.storage.increments.overwriting import (
    are_few,
    chosen,
    differing_rows,
    has_rows,
    owners,
    row_count,
    row_set_of,
    rows_in,
)
from ucpformat.storage.reading.documents import StoredDocuments
from ucpformat.storage.reading.layers import are_layered
from ucpformat.storage.workers import ForkedExecutor
from ucpformat.storage.writing.chunk_writer import ChunkPiece, Layer, SharedRun

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ucpformat.model.root import Storage
    from ucpformat.model.table import Segment
    from ucpformat.storage.increments.changes import KnownChanges
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.sharing import Sharable
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = ["Base"]

_MOST_PARTS: Final = 64
"""Segments of the base that a piece is compared with: more would cost more to read than they save."""


class Base:
    """Finds what ``target`` can share with the checkpoint at ``path``. For several threads; `close` it.

    ``target`` is the store of the checkpoint that is being written by the ``attempt`` of this identifier, and
    ``places`` are the slots that it will have.
    What ``changes`` tell of this checkpoint is believed, the first that know; the rest is compared.
    Where documents of the base turn out to be damaged, or to be gone, nothing of it is shared.

    Raises:
        UcpError: as `root_of_base`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        places: Mapping[tuple[str, str], SlotPlace],
        target: Store,
        attempt: str,
        storage: Storage,
        chunk_bytes: int,
        changes: Sequence[KnownChanges] = (),
    ) -> None:
        self._target = target
        self._attempt = attempt
        self._store, root = opened_base(path, storage, chunk_bytes, target)
        self._changes = [known for known in changes if known.base == root.digest]
        self._names = {(place.key, place.slot): name for name, place in places.items()}
        self._executor = ForkedExecutor(2, name="ucp-base")
        self._keys_here: dict[str, str | None] = {}
        """Of packs of the base: under which keys the target has them, None where it has not."""
        self.shared_bytes = 0
        """Bytes of the objects of chunks that are shared (storage plain)."""
        self._lock = threading.Lock()
        self._packs: list[PackUse] = []
        self._slots: dict[tuple[str, str], StoredSlot] = {}
        documents = StoredDocuments(self._store, root, self._executor, str(path))
        try:
            with suppress(UcpError):
                self._packs = packs_in_use(documents)
                self._slots = slots_alike(documents, places)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release threads and file handles of the base."""
        self._executor.shutdown()
        self._store.close()

    def resolved(self, piece: ChunkPiece) -> list[ChunkPiece]:
        """Cut a piece into what the base has, which says where (`ChunkPiece.shared`), and the rest.

        A compressed one is shared here only where it is known to be the same; see `compressed`.
        """
        changed = self._changed_rows(piece)
        if changed is not None:
            return self._known(piece, changed) or [piece]
        layers = self._layers(piece)
        if len(layers) > 1:
            return self._overwritten(piece, layers) or [piece]
        found = [self._compared(*part) for part in self._parts(piece)]
        if any(one.shared is not None or one.is_moved for one in found):
            return found
        if layers and self._may_be_few(piece, layers[0]):
            return self._overwritten(piece, layers) or [piece]
        return [piece]

    def begins_alike(self, piece: ChunkPiece) -> bool:
        """Say whether the base may have some of a piece, by a few of its bytes."""
        changed = self._changed_rows(piece)
        if changed is not None:
            return not changed.all()
        layers = self._layers(piece)
        if len(layers) > 1 or (layers and self._may_be_few(piece, layers[0])):
            return True
        for segment, first, part in self._parts(piece):
            if first or part.data.nbytes != segment.length:
                return True
            if crc32c(part.data[:BLOCK_BYTES]) == int.from_bytes(segment.checksums[:4], "little"):
                return True
        return False

    def _changed_rows(self, piece: ChunkPiece) -> NDArray[np.bool_] | None:
        """Return which rows of a piece may differ from the base (`KnownChanges.rows`); None where nobody knows."""
        if not self._changes:
            return None
        place = piece.place
        whole = place.grid.box_at(piece.chunk)
        box = whole if piece.box is None else piece.box.translate(whole.offset)
        found = (known.rows(self._names[place.key, place.slot], box) for known in self._changes)
        return next((rows for rows in found if rows is not None), None)

    def _known(self, piece: ChunkPiece, changed: NDArray[np.bool_]) -> list[ChunkPiece]:
        """Cut a piece of which the rows are known that may have changed; none to have it written whole."""
        if changed.all():
            return []
        layers = self._layers(piece)
        if len(layers) > 1 or (layers and changed.any()):
            return self._overwritten(piece, layers, changed)
        if changed.any():
            return []
        if piece.place.compressor is not None:
            return [self._same_compressed(piece)]
        return [self._compared(*part, is_same=True) for part in self._parts(piece)]

    def _same_compressed(self, piece: ChunkPiece) -> ChunkPiece:
        """Return a compressed piece that has not changed with where it lies, if it can be shared."""
        segment = self._only_segment(piece.place, piece.chunk)
        if (
            segment is None or piece.box is not None or segment.offset % piece.place.dtype.item_bytes
        ):  # UCP-D-136
            return piece
        pack = self._packs[segment.container]
        with suppress(UcpError), self._store.sharable(pack.key) as source:
            if pack.is_used and (key := self._key_here(pack, source)):
                cuts = checksum_run(piece.data, piece.place.logical_start(piece.chunk)).cuts
                where = (segment.offset, segment.length, segment.checksums)
                return piece._replace(shared=SharedRun(key, pack.length, *where, cuts))
        return piece

    def same_object(self, place: SlotPlace, chunk: int, key: str) -> Segment | None:
        """Share the object of a chunk (storage plain) as ``key`` if it is known not to have changed, or return None."""
        changed = self._changed_rows(ChunkPiece(place, chunk, None, memoryview(b"")))
        segment = None if changed is None or changed.any() else self._only_segment(place, chunk)
        if segment is None:
            return None
        stored = self._slots[place.key, place.slot]
        with suppress(UcpError), self._store.sharable(stored.object_key(chunk, segment)) as source:
            if source.nbytes == segment.length and self._is_object_shared(key, source):
                return segment
        return None

    def _parts(self, piece: ChunkPiece) -> list[tuple[Segment, int, ChunkPiece]]:
        """Return the parts of a piece by segment of the base, with their first byte in it; none if too many."""
        stored = self._slots.get((piece.place.key, piece.place.slot))
        if stored is None or piece.place.compressor is not None or not piece.data.nbytes:
            return []
        chunk_box = Box.whole(stored.grid.box_at(piece.chunk).shape)
        mine = chunk_box if piece.box is None else piece.box
        segments = segments_of(stored, piece.chunk)
        if len(segments) > _MOST_PARTS or are_layered(segments):
            return []
        item = piece.place.dtype.item_bytes
        parts: list[tuple[Segment, int, ChunkPiece]] = []
        for segment in segments:
            held = chunk_box if segment.box is None else segment.box
            both = held.intersect(mine)
            if both is None:
                continue
            lines = runs(both.relative_to(held), held.shape)
            if lines.count != 1:
                return []
            part = piece
            if both != mine:
                elements = np.frombuffer(piece.data, f"V{item}").reshape(mine.shape)
                data = flat_bytes(np.ascontiguousarray(elements[selection(both, mine)]))
                part = piece._replace(box=both, data=data)
            parts.append((segment, lines.first * item, part))
        return parts

    def _layers(self, piece: ChunkPiece) -> list[Segment]:
        """Return the segments that the base has of just the box of a piece, in order, if its rows are told apart."""
        stored = self._slots.get((piece.place.key, piece.place.slot))
        if stored is None or piece.place.compressor is not None or not piece.data.nbytes:
            return []
        whole = Box.whole(stored.grid.box_at(piece.chunk).shape)
        mine = whole if piece.box is None else piece.box
        if not has_rows(mine, piece.place.dtype.item_bytes):
            return []
        return [one for one in segments_of(stored, piece.chunk) if (one.box or whole) == mine]

    def _may_be_few(self, piece: ChunkPiece, segment: Segment) -> bool:
        """Return whether few rows may differ from those of a segment that has them all."""
        box = piece.box or piece.place.grid.box_at(piece.chunk)
        with suppress(UcpError), self._store.sharable(self._packs[segment.container].key) as source:
            return segment.row_set is None and are_few(source, segment, piece.data, box)
        return False

    def _overwritten(
        self, piece: ChunkPiece, layers: list[Segment], changed: NDArray[np.bool_] | None = None
    ) -> list[ChunkPiece]:
        """Make layers of a piece: those of the base that are kept, and a new one; none to have it written whole.

        ``changed`` are rows that may differ from the base, where that is known.
        """
        whole = piece.place.grid.box_at(piece.chunk)
        box = piece.box or Box.whole(whole.shape)
        packs = [self._packs[layer.container] for layer in layers]
        new = rows_in(piece.data, box)
        with suppress(UcpError), ExitStack() as stack:
            sources: Sequence[Sharable | None] = [None] * len(packs)
            may_keep = [pack.is_used for pack in packs]
            if changed is not None:
                owner = owners(layers, box)
            else:
                sources = read = [stack.enter_context(self._store.sharable(pack.key)) for pack in packs]
                changed, owner, are_right = differing_rows(read, layers, box, new)
                may_keep = [*map(and_, may_keep, are_right)]
            sizes = [row_count(layer, box) for layer in layers]
            choice = chosen(changed, owner, sizes, may_keep)
            while choice is not None:
                unshared = [one for one in choice.kept if not self._key_here(packs[one], sources[one])]
                if not unshared:
                    break
                may_keep[unshared[0]] = False
                choice = chosen(changed, owner, sizes, may_keep)
            if choice is None:
                return []
            start = piece.start_of_run()
            cuts = None if start is None else checksum_run(piece.data, start).cuts
            start = piece.place.logical_start(piece.chunk) if start is None else start
            found: list[ChunkPiece] = []
            for number in choice.kept:
                one, pack = layers[number], packs[number]
                key = self._key_here(pack) or ""
                shared = SharedRun(key, pack.length, one.offset, one.length, one.checksums, b"")
                layer = Layer(one.row_set, start, *((0, b"") if found else (piece.data.nbytes, cuts)))
                found.append(piece._replace(box=box, data=piece.data[:0], shared=shared, layer=layer))
            if choice.rows.any():
                data = flat_bytes(new[choice.rows])
                layer = Layer(row_set_of(choice.rows), start, 0, b"")
                found.append(piece._replace(box=box, data=data, layer=layer))
            return found
        return []

    def _compared(
        self, segment: Segment, first: int, part: ChunkPiece, *, is_same: bool = False
    ) -> ChunkPiece:
        """Return a part with what the base has of it, if that is the same, or is known to be."""
        pack = self._packs[segment.container]
        data = part.data
        known = segment.checksums if not first and data.nbytes == segment.length else b""
        start = part.start_of_run() or 0
        checks = None if known and start % BLOCK_BYTES == 0 else RunChecksums(start)
        with suppress(UcpError), self._store.sharable(pack.key) as source:
            for number, low in enumerate(range(0, data.nbytes, BLOCK_BYTES)):
                block = data[low : low + BLOCK_BYTES]
                if is_same:
                    if checks is None:
                        break
                    checks.add(block)
                    continue
                if known and crc32c(block) != int.from_bytes(known[4 * number : 4 * number + 4], "little"):
                    return part
                if source.mark is None and not source.has(block, segment.offset + first + low):
                    return part
                if checks is not None:
                    checks.add(block)
            # What is far is fetched by few requests, once all checksums are known to be equal.
            if source.mark is not None and not is_same and not source.has(data, segment.offset + first):
                return part
            if not pack.is_used:
                return part._replace(is_moved=True)
            if key := self._key_here(pack, source):
                blocks, cuts = known, known
                if checks is not None:
                    blocks, _, cuts = checks.run()
                shared = SharedRun(key, pack.length, segment.offset + first, data.nbytes, blocks, cuts)
                return part._replace(shared=shared)
        return part

    def compressed(
        self, place: SlotPlace, chunk: int, data: memoryview, checksums: bytes
    ) -> SharedRun | None:
        """Return where the base has a whole compressed chunk, byte for byte; None where it does not."""
        found = self._segment_like(place, chunk, data.nbytes, checksums)
        if found is None:
            return None
        offset, pack = found[1].offset, self._packs[found[1].container]
        if not pack.is_used or offset % place.dtype.item_bytes:  # UCP-D-136
            return None
        with suppress(UcpError), self._store.sharable(pack.key) as source:
            if source.has(data, offset) and (key := self._key_here(pack, source)):
                return SharedRun(key, pack.length, offset, data.nbytes, checksums, b"")
        return None

    def has_object(
        self, place: SlotPlace, chunk: int, key: str, buffers: Sequence[memoryview], checksums: bytes
    ) -> bool:
        """Share the object of a chunk (storage plain) as ``key`` where the base has it byte for byte; else False."""
        nbytes = sum(buffer.nbytes for buffer in buffers)
        found = self._segment_like(place, chunk, nbytes, checksums)
        if found is None:
            return False
        with suppress(UcpError), self._store.sharable(found[0].object_key(chunk, found[1])) as source:
            if source.nbytes != nbytes:
                return False
            if source.mark is not None:  # one request
                buffers = [memoryview(b"".join(buffers))]
            start = 0
            for buffer in buffers:
                if not source.has(buffer, start):
                    return False
                start += buffer.nbytes
            return self._is_object_shared(key, source)
        return False

    def _segment_like(
        self, place: SlotPlace, chunk: int, nbytes: int, checksums: bytes
    ) -> tuple[StoredSlot, Segment] | None:
        """Return the one segment that the base has of a chunk, if it has that length and these checksums."""
        segment = self._only_segment(place, chunk)
        if segment is None or (segment.length, segment.checksums) != (nbytes, checksums):
            return None
        return self._slots[place.key, place.slot], segment

    def _only_segment(self, place: SlotPlace, chunk: int) -> Segment | None:
        """Return the segment that the base has of a whole chunk; None where there are several, or none."""
        stored = self._slots.get((place.key, place.slot))
        segments = () if stored is None else segments_of(stored, chunk)
        return segments[0] if len(segments) == 1 and segments[0].box is None else None

    def _key_here(self, pack: PackUse, source: Sharable | None = None) -> str | None:
        """Return the key that a pack of the base has in the target, shared now if need be; None where it cannot be.

        Copies have keys of the attempt's own: under that of the base, two attempts would remove one another's.
        """
        if pack.key in self._keys_here:
            return self._keys_here[pack.key]
        with self._lock, ExitStack() as stack:
            if pack.key not in self._keys_here:
                key, source = pack.key, source or stack.enter_context(self._store.sharable(pack.key))
                if source.mark is not None:
                    text = f"{pack.key} {source.mark}".encode()
                    key = f"packs/{self._attempt}-{hashlib.sha256(text).hexdigest()[:24]}.pack"
                is_shared = source.nbytes == pack.length and self._target.share(key, source)
                self._keys_here[pack.key] = key if is_shared else None
            return self._keys_here[pack.key]

    def _is_object_shared(self, key: str, source: Sharable) -> bool:
        """Share the object of a chunk (storage plain)."""
        is_shared = self._target.share(key, source)
        if is_shared:
            with self._lock:
                self.shared_bytes += source.nbytes
        return is_shared
