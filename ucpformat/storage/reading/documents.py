"""Documents of a checkpoint: fetched, checked before they are parsed, and kept as they are needed (SPEC 17.1)."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error, naming
from ucpformat.gc_pause import paused
from ucpformat.jsonio import loads
from ucpformat.model.envelope import WEIGHT_VERSIONS
from ucpformat.model.fields import raise_first
from ucpformat.model.index_part import IndexPart
from ucpformat.model.references import DocumentRef, Pack, PackList, sha256_digest
from ucpformat.model.root import MAX_DOCUMENT_BYTES, MAX_ROOT_BYTES, MAX_TABLE_BYTES, ROOT_KEY, Root
from ucpformat.model.state import StateDocument
from ucpformat.model.table import ChunkTable
from ucpformat.storage.reading.part import StoredPart
from ucpformat.storage.reading.stored_slot import StoredSlot
from ucpformat.storage.stores.local_io import MISSING
from ucpformat.storage.workers import ForkedLock

if TYPE_CHECKING:
    from ucpformat.geometry import Layout
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.model.process_image import ProcessImage
    from ucpformat.storage.stores.store import Objects
    from ucpformat.storage.workers import ForkedExecutor

__all__ = ["StoredDocuments", "check_object", "read_document", "read_root", "verified_pieces"]

_PIECE_BYTES: Final = 1 << 22


def read_root(store: Objects) -> bytes:
    """Return the bytes of the root document.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` without one, which says what lies there instead; ``UCP-E-LIMIT`` for one over
            4 MiB.
    """
    data = store.head(ROOT_KEY, MAX_ROOT_BYTES + 1)
    if data is None:
        from ucpformat.storage.stores.not_a_checkpoint import not_a_checkpoint

        raise error("UCP-E-NOT-FOUND", not_a_checkpoint(store.url), at=store.url)
    if len(data) > MAX_ROOT_BYTES:
        raise error("UCP-E-LIMIT", f"the root document has more than {MAX_ROOT_BYTES} bytes", at=ROOT_KEY)
    return data


def read_document(store: Objects, reference: DocumentRef, *, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the bytes of a referenced object, checked against length and digest before it is parsed.

    Raises:
        UcpError: ``UCP-E-LIMIT``, ``UCP-E-MISSING``, ``UCP-E-LENGTH``, ``UCP-E-DIGEST``.
    """
    if reference.length > limit:
        raise error("UCP-E-LIMIT", f"{reference.length} bytes exceed the limit of {limit}", at=reference.key)
    data = store.head(reference.key, reference.length + 1)
    if data is None or len(data) != reference.length:
        _check_length(store, reference)
        raise error("UCP-E-LENGTH", "the object changes while it is read", at=reference.key)
    reference.require(replace(reference, digest=sha256_digest(data)))
    return data


def check_object(store: Objects, reference: DocumentRef) -> None:
    """Check length and digest of an object of any length; raises as `verified_pieces`."""
    for _ in verified_pieces(store, reference):
        pass


def verified_pieces(store: Objects, reference: DocumentRef) -> Iterator[bytes]:
    """Yield the bytes of an object of any length, piece by piece; only the end says that all of them are right.

    Raises:
        UcpError: ``UCP-E-MISSING``, ``UCP-E-LENGTH``, ``UCP-E-DIGEST``.
    """
    _check_length(store, reference)
    digest = hashlib.sha256()
    for start in range(0, reference.length, _PIECE_BYTES):
        piece = store.read(reference.key, start, min(start + _PIECE_BYTES, reference.length))
        digest.update(piece)
        yield piece
    reference.require(replace(reference, digest=f"sha256:{digest.hexdigest()}"))


def _check_length(store: Objects, reference: DocumentRef) -> None:
    size = store.size(reference.key)
    if size is None:
        raise error("UCP-E-MISSING", MISSING, at=reference.key)
    reference.require(replace(reference, length=size))


_PARTS_AHEAD: Final = 4
"""Documents: as many as half of them are held beside the part that is taken up."""


class StoredDocuments:
    """Reads the documents of a checkpoint, of which the root is known already, and tells what they say.

    Each is read when it is first asked for, and kept. Errors name ``path``. Safe to use from several threads.
    """

    def __init__(self, store: Objects, root: Root, executor: ForkedExecutor, path: str) -> None:
        self.store = store
        self.root = root
        self.path = path
        self._executor = executor
        self._lock = ForkedLock()
        self._parts: dict[int, StoredPart] = {}
        self._packs: tuple[Pack, ...] | None = None
        self._state: StateDocument | None = None
        self._firsts = [part.first for part in root.parts]

    @property
    def layouts(self) -> Sequence[Layout]:
        """The layouts that slots refer to by number.

        >>> len(ckpt.layouts)
        0
        """
        return self.root.layouts

    @property
    def digest(self) -> str:
        """The root digest, which names this checkpoint and everything in it: ``sha256:`` and 64 digits.

        >>> ckpt.digest[:7], len(ckpt.digest)
        ('sha256:', 71)
        """
        return self.root.digest

    @property
    def step(self) -> int | None:
        """How many optimizer steps were done when it was saved, if it says so.

        >>> ckpt.step
        100
        """
        return self.root.step

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """The notes that it was saved with (``annotations=`` of `save`), by reversed domain name.

        >>> dict(ckpt.annotations)
        {'org.example.run': 'a'}
        """
        return self.root.envelope.annotations

    @property
    def producer(self) -> str | None:
        """Name and version of the software that wrote it, if it says so.

        >>> ckpt.producer.partition(" ")[0]
        'ucpformat'
        """
        return (
            None if self.root.producer is None else f"{self.root.producer.name} {self.root.producer.version}"
        )

    @property
    def metadata(self) -> dict[str, JsonValue]:
        """What the root document says of the whole, as `ucpformat.inspect` shows it: version, storage, step, notes.

        >>> report = ucp.save("run.ucp", {"w": np.ones(2)}, step=100, annotations={"org.example.run": "a"})
        >>> found = ucp.open("run.ucp").metadata
        >>> found["format_version"], found["storage"], found["step"], found["annotations"]
        (0, 'packed', 100, {'org.example.run': 'a'})
        """
        root = self.root
        return {
            "format_version": root.envelope.format_version,
            "digest": root.digest,
            "storage": root.storage,
            "chunk_bytes": root.chunk_bytes,
            "read_features": list(root.envelope.read_features),
            "write_features": list(root.envelope.write_features),
            "producer": None if root.producer is None else root.producer.to_json(),
            "step": self.step,
            "annotations": dict(self.annotations),
        }

    @property
    def packs(self) -> tuple[Pack, ...] | None:
        """The pack list; None in storage plain.

        >>> [(pack.key.partition("/")[0], pack.length > 0) for pack in ckpt.packs]
        [('packs', True)]
        """
        with self._lock, naming(self.path):
            if self._packs is None and self.root.packs is not None:
                reference = self.root.packs
                value = loads(read_document(self.store, reference), at=reference.key)
                self._packs = PackList.from_json(value, at=reference.key).packs
            return self._packs

    @property
    def state(self) -> StateDocument:
        """What is not a tensor, still encoded; empty if the checkpoint has none.

        >>> dict(ckpt.state.values)
        {'epoch': 3}
        """
        with self._lock, naming(self.path):
            if self._state is None:
                reference = self.root.state
                if reference is None:
                    self._state = StateDocument({}, {}, {})
                else:
                    value = loads(read_document(self.store, reference), at=reference.key)
                    self._state = StateDocument.from_json(value, at=reference.key)
            return self._state

    @property
    def pipeline(self) -> Pipeline | None:
        """The stages of the pipeline that saved it, and what was in flight there; None where nothing was.

        >>> ckpt.pipeline is None
        True
        """
        return self.state.pipeline if WEIGHT_VERSIONS in self.root.envelope.read_features else None

    def require_drained(self) -> None:
        """Raise ``UCP-E-MISMATCH`` where a pipeline was in flight, whose stages alone can go on.

        >>> ckpt.require_drained()
        """
        if self.pipeline is not None:
            message = "a pipeline was in flight when this was saved: load it into the same stages, or save it drained"
            raise error("UCP-E-MISMATCH", message, at=self.path)

    @property
    def images(self) -> Mapping[str, ProcessImage]:
        """The process images that it carries, by name; `extract` writes one to the disk. None is ever executed.

        >>> dict(ckpt.images)
        {}
        """
        return {} if self.root.state is None else self.state.images

    def part(self, index: int) -> StoredPart:
        """Return one index part with its table, read and checked on first use.

        >>> list(ckpt.part(0).names)
        ['fc.bias', 'fc.weight']
        """
        found = self._parts.get(index)
        if found is not None:
            return found
        with self._lock:
            if index in self._parts:
                return self._parts[index]
            entry = self.root.parts[index]
            if self.store.calls.at_once is None:
                index_document = self._document(entry.index)
                return self._keep(index, index_document, self._document(entry.table, MAX_TABLE_BYTES))
            # Where a call waits for the network, two wait at once.
            of_table = self._executor.submit(self._document, entry.table, MAX_TABLE_BYTES)
            return self._keep(index, self._document(entry.index), of_table.result())

    def parts(self, indices: Iterable[int] | None = None) -> Iterator[StoredPart]:
        """Yield some index parts, or all, in turn: documents of the next ones are read and hashed meanwhile.

        >>> [part.names[0] for part in ckpt.parts()]
        ['fc.bias']
        """
        wanted = [*range(len(self.root.parts))] if indices is None else [*indices]
        missing = [index for index in wanted if index not in self._parts]
        if len(missing) < 2:
            yield from map(self.part, wanted)
            return
        later = iter(missing)
        ahead: dict[int, tuple[Future[bytes], Future[bytes]]] = {}

        def begin(count: int) -> None:
            for index in islice(later, count):
                entry = self.root.parts[index]
                of_index = self._executor.submit(self._document, entry.index)
                ahead[index] = of_index, self._executor.submit(self._document, entry.table, MAX_TABLE_BYTES)

        begin(max(1, (self.store.calls.at_once or _PARTS_AHEAD) // 2))
        for index in wanted:
            if index in ahead:
                index_document, table = (future.result() for future in ahead.pop(index))
                begin(1)
                self._keep(index, index_document, table)
            yield self.part(index)

    def _document(self, reference: DocumentRef, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
        with naming(self.path):
            return read_document(self.store, reference, limit=limit)

    def _keep(self, index: int, index_document: bytes, table_document: bytes) -> StoredPart:
        with self._lock, paused, naming(self.path):
            if index not in self._parts:
                entry = self.root.parts[index]
                value = loads(index_document, at=entry.index.key)
                document = IndexPart.from_json(value, at=entry.index.key)
                names = document.columns().atoms
                if (names[0], names[-1], len(names)) != (entry.first, entry.last, entry.atoms):
                    raise error(
                        "UCP-E-NAME",
                        "the part's atoms are not those that the root document announces",
                        at=f"{ROOT_KEY}#/parts/{index}",
                    )
                table = ChunkTable.parse(table_document, at=entry.table.key)
                raise_first(document.reference_problems(len(self.root.layouts), at=entry.index.key))
                self._parts[index] = StoredPart(
                    document,
                    table,
                    packs=self.packs,
                    chunk_bytes=self.root.chunk_bytes,
                    index_key=entry.index.key,
                    table_key=entry.table.key,
                )
            return self._parts[index]

    def find(self, name: str) -> tuple[StoredPart, int] | None:
        """Return the part that has an atom, and where in it the atom stands.

        >>> part, position = ckpt.find("fc.weight")
        >>> part.names[position]
        'fc.weight'
        """
        index = bisect.bisect_right(self._firsts, name) - 1
        if index < 0:
            return None
        part = self.part(index)
        position = part.positions.get(name)
        return None if position is None else (part, position)

    def slots(self) -> Iterator[StoredSlot]:
        """Yield every slot of every atom, in order.

        >>> [stored.label for stored in ckpt.slots()]
        ['fc.bias/value', 'fc.weight/value']
        """
        for part in self.parts():
            yield from part.slots()
