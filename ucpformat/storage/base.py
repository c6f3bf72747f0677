"""The base of an increment: what an earlier checkpoint has of the bytes that are to be saved (SPEC section 8.5).

Nothing is taken for equal that was not compared. A block with another checksum is surely not; where all checksums of
a segment are the same, its bytes are read, and compared while they lie in the processor's cache.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from awscrt.checksums import crc32c

from ucpformat.errors import UcpError, error, naming
from ucpformat.geometry import Box, runs
from ucpformat.model.envelope import READ_FEATURES
from ucpformat.model.root import Root, parse_root
from ucpformat.storage.checksum import BLOCK_BYTES, RunChecksums, checksum_run
from ucpformat.storage.host_memory import flat_bytes, selection
from ucpformat.storage.overwriting import are_few, chosen, has_rows, old_rows, row_count, row_set_of, rows_in
from ucpformat.storage.reading.documents import StoredDocuments, read_root
from ucpformat.storage.reading.layers import are_layered
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.urls import local_path
from ucpformat.storage.workers import ForkedExecutor
from ucpformat.storage.writing.chunk_writer import ChunkPiece, Layer, SharedRun

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from ucpformat.model.root import Storage
    from ucpformat.model.table import Segment
    from ucpformat.storage.reading.part import StoredSlot
    from ucpformat.storage.stores.linking import LinkSource
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = ["Base", "root_of_base"]

_NO_LINKS: Final = "an increment shares files by hard links, which object stores have not; save without base="
_MOST_PACKS: Final = 48
"""Packs that one checkpoint shares. As many stay open, so that the file that was compared is the one that is linked."""
_LEAST_USE: Final = 0.5
"""Nothing is shared of a pack less of which is in use: the rest would stay on the disk for as long as any of it."""
_MOST_PARTS: Final = 64
"""Segments of the base that a piece is compared with: more would cost more to read than they save."""


def root_of_base(path: str | os.PathLike[str], *, storage: Storage, chunk_bytes: int | None = None) -> Root:
    """Read the root document of a base, and refuse one that nothing can be shared with.

    Raises:
        UcpError: as procedure 17.1 says; ``UCP-E-STORE`` for one in an object store, which has no hard links;
            ``UCP-E-MISMATCH`` for one in the other storage, or with other chunks.
    """
    store, root = _opened(path, storage, chunk_bytes)
    store.close()
    return root


def _opened(
    path: str | os.PathLike[str], storage: Storage, chunk_bytes: int | None
) -> tuple[LocalStore, Root]:
    directory = local_path(path)
    if directory is None:
        raise error("UCP-E-STORE", _NO_LINKS, at=str(path))
    store = LocalStore(directory)
    try:
        with naming(path):
            root = parse_root(read_root(store), features=READ_FEATURES, extensions=frozenset())
        for name, wanted, found in (
            ("storage", storage, root.storage),
            ("chunk_bytes", chunk_bytes, root.chunk_bytes),
        ):
            if wanted not in (None, found):
                message = f"the base has {name}={found!r}, not {wanted!r}: save with that, or without base="
                raise error("UCP-E-MISMATCH", message, at="base")
    except BaseException:
        store.close()
        raise
    return store, root


class _PackUse(NamedTuple):
    """A pack of the base, and whether enough of it is in use for it to be shared."""

    key: str
    length: int
    is_used: bool


class Base:
    """Finds what ``target`` can share with the checkpoint at ``path``. For several threads; `close` it.

    ``target`` is the store of the checkpoint that is being written, and ``places`` are the slots that it will have.
    Where documents of the base turn out to be damaged, or to be gone, nothing of it is shared.

    Raises:
        UcpError: as `root_of_base`; ``UCP-E-STORE`` where ``target`` has no hard links.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        places: Mapping[tuple[str, str], SlotPlace],
        target: Store,
        *,
        storage: Storage,
        chunk_bytes: int,
    ) -> None:
        if not isinstance(target, LocalStore):
            raise error("UCP-E-STORE", _NO_LINKS, at=target.url)
        self._target = target
        self._store, root = _opened(path, storage, chunk_bytes)
        self._executor = ForkedExecutor(2, name="ucp-base")
        self._links: dict[str, bool] = {}
        self.linked_bytes = 0
        """Bytes of the objects of chunks that were linked (storage plain)."""
        self._lock = threading.Lock()
        self._packs: list[_PackUse] = []
        self._slots: dict[tuple[str, str], StoredSlot] = {}
        documents = StoredDocuments(self._store, root, self._executor, str(path))
        try:
            with suppress(UcpError):
                self._packs = _packs_in_use(documents)
                self._slots = _slots_alike(documents, places)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release threads and file handles of the base."""
        self._executor.shutdown()
        self._store.close()

    def resolved(self, piece: ChunkPiece) -> list[ChunkPiece]:
        """Cut an uncompressed piece into what the base has, which says where (`ChunkPiece.shared`), and the rest."""
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
        layers = self._layers(piece)
        if len(layers) > 1 or (layers and self._may_be_few(piece, layers[0])):
            return True
        for segment, first, part in self._parts(piece):
            if first or part.data.nbytes != segment.length:
                return True
            if crc32c(part.data[:BLOCK_BYTES]) == int.from_bytes(segment.checksums[:4], "little"):
                return True
        return False

    def _parts(self, piece: ChunkPiece) -> list[tuple[Segment, int, ChunkPiece]]:
        """Return the parts of a piece by segment of the base, with their first byte in it; none if too many."""
        stored = self._slots.get((piece.place.key, piece.place.slot))
        if stored is None or piece.place.compressor is not None or not piece.data.nbytes:
            return []
        chunk_box = Box.whole(stored.chunk_shape(piece.chunk))
        mine = chunk_box if piece.box is None else piece.box
        segments = _segments(stored, piece.chunk)
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
        whole = Box.whole(stored.chunk_shape(piece.chunk))
        mine = whole if piece.box is None else piece.box
        if not has_rows(mine, piece.place.dtype.item_bytes):
            return []
        return [one for one in _segments(stored, piece.chunk) if (one.box or whole) == mine]

    def _may_be_few(self, piece: ChunkPiece, segment: Segment) -> bool:
        """Return whether few rows may differ from those of a segment that has them all."""
        box = piece.box or piece.place.grid.box_at(piece.chunk)
        with suppress(UcpError), self._store.linkable(self._packs[segment.container].key) as source:
            return segment.row_set is None and are_few(source, segment, piece.data, box)
        return False

    def _overwritten(self, piece: ChunkPiece, layers: list[Segment]) -> list[ChunkPiece]:
        """Make layers of a piece: those of the base that are kept, and a new one; none to have it written whole."""
        whole = piece.place.grid.box_at(piece.chunk)
        box = piece.box or Box.whole(whole.shape)
        packs = [self._packs[layer.container] for layer in layers]
        new = rows_in(piece.data, box)
        with suppress(UcpError), ExitStack() as stack:
            sources = [stack.enter_context(self._store.linkable(pack.key)) for pack in packs]
            old, owner, are_right = old_rows(sources, layers, box, new.shape[1])
            changed = (owner < 0) | (old != new).any(axis=1)
            sizes = [row_count(layer, box) for layer in layers]
            may_keep = [is_right and pack.is_used for is_right, pack in zip(are_right, packs, strict=True)]
            choice = chosen(changed, owner, sizes, may_keep)
            while choice is not None:
                unlinked = [one for one in choice.kept if not self._is_linked(packs[one].key, sources[one])]
                if not unlinked:
                    break
                may_keep[unlinked[0]] = False
                choice = chosen(changed, owner, sizes, may_keep)
            if choice is None:
                return []
            start = piece.start_of_run()
            cuts = None if start is None else checksum_run(piece.data, start).cuts
            found: list[ChunkPiece] = []
            for number in choice.kept:
                one, pack = layers[number], packs[number]
                shared = SharedRun(pack.key, pack.length, one.offset, one.length, one.checksums, b"")
                layer = Layer(one.row_set, 0 if found else piece.data.nbytes, b"" if found else cuts)
                found.append(piece._replace(box=box, data=piece.data[:0], shared=shared, layer=layer))
            if choice.rows.any():
                data = flat_bytes(new[choice.rows])
                layer = Layer(row_set_of(choice.rows), 0, b"")
                found.append(piece._replace(box=box, data=data, layer=layer))
            return found
        return []

    def _compared(self, segment: Segment, first: int, part: ChunkPiece) -> ChunkPiece:
        """Return a part with what the base has of it, if that is the same."""
        pack = self._packs[segment.container]
        data = part.data
        known = segment.checksums if not first and data.nbytes == segment.length else b""
        start = part.start_of_run() or 0
        checks = None if known and start % BLOCK_BYTES == 0 else RunChecksums(start)
        with suppress(UcpError), self._store.linkable(pack.key) as source:
            for number, low in enumerate(range(0, data.nbytes, BLOCK_BYTES)):
                block = data[low : low + BLOCK_BYTES]
                if known and crc32c(block) != int.from_bytes(known[4 * number : 4 * number + 4], "little"):
                    return part
                if not source.has(block, segment.offset + first + low):
                    return part
                if checks is not None:
                    checks.add(block)
            if not pack.is_used:
                return part._replace(is_moved=True)
            if self._is_linked(pack.key, source):
                blocks, cuts = known, known
                if checks is not None:
                    blocks, _, cuts = checks.run()
                shared = SharedRun(pack.key, pack.length, segment.offset + first, data.nbytes, blocks, cuts)
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
        with suppress(UcpError), self._store.linkable(pack.key) as source:
            if source.has(data, offset) and self._is_linked(pack.key, source):
                return SharedRun(pack.key, pack.length, offset, data.nbytes, checksums, b"")
        return None

    def has_object(
        self, place: SlotPlace, chunk: int, key: str, buffers: Sequence[memoryview], checksums: bytes
    ) -> bool:
        """Link the object of a chunk (storage plain) to ``key`` where the base has it byte for byte; else False."""
        nbytes = sum(buffer.nbytes for buffer in buffers)
        found = self._segment_like(place, chunk, nbytes, checksums)
        if found is None:
            return False
        with suppress(UcpError), self._store.linkable(found[0].object_key(chunk, found[1])) as source:
            start = 0
            for buffer in buffers:
                if not source.has(buffer, start):
                    return False
                start += buffer.nbytes
            if source.nbytes == nbytes and self._target.link(key, source):
                with self._lock:
                    self.linked_bytes += nbytes
                return True
        return False

    def _segment_like(
        self, place: SlotPlace, chunk: int, nbytes: int, checksums: bytes
    ) -> tuple[StoredSlot, Segment] | None:
        """Return the one segment that the base has of a chunk, if it has that length and these checksums."""
        stored = self._slots.get((place.key, place.slot))
        segments = () if stored is None else _segments(stored, chunk)
        if stored is None or len(segments) != 1:
            return None
        (segment,) = segments
        same = segment.box is None and (segment.length, segment.checksums) == (nbytes, checksums)
        return (stored, segment) if same else None

    def _is_linked(self, key: str, source: LinkSource) -> bool:
        """Return whether the target has a pack of the base, linked now if need be."""
        with self._lock:
            if key not in self._links:
                self._links[key] = self._target.link(key, source)
            return self._links[key]


def _packs_in_use(documents: StoredDocuments) -> list[_PackUse]:
    packs = documents.packs or ()
    used = np.zeros(len(packs), np.int64)
    for part in documents.parts() if packs else ():
        rows = part.table.rows
        np.add.at(used, rows["container"], rows["length"].astype(np.int64))
    best = {int(number) for number in np.argsort(-used, kind="stable")[:_MOST_PACKS]}
    return [
        _PackUse(pack.key, pack.length, number in best and bool(used[number] >= _LEAST_USE * pack.length))
        for number, pack in enumerate(packs)
    ]


def _slots_alike(
    documents: StoredDocuments, places: Mapping[tuple[str, str], SlotPlace]
) -> dict[tuple[str, str], StoredSlot]:
    """Return slots of the base with the wanted data type, grid and compressor, by key and name."""
    slots: dict[tuple[str, str], StoredSlot] = {}
    for (atom, name), place in places.items():
        found = documents.find(atom)
        stored = None if found is None else found[0].find(atom, name)
        if stored is None or stored.compressor != place.compressor or stored.dtype != place.dtype:
            continue
        if (stored.grid.shape, stored.grid.chunk_shape) == (place.grid.shape, place.grid.chunk_shape):
            slots[place.key, place.slot] = stored
    return slots


def _segments(stored: StoredSlot, chunk: int) -> tuple[Segment, ...]:
    """Return the segments that the base has of a chunk; none where its table is damaged."""
    try:
        return stored.segments(chunk)
    except UcpError:
        return ()
