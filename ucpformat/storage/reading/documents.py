"""The documents of an open checkpoint: index parts with their tables, the pack list and the state (SPEC section 17.1).

Each is read and checked when it is first asked for, and then kept.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error, naming
from ucpformat.gc_pause import paused
from ucpformat.jsonio import loads
from ucpformat.model.fields import raise_first
from ucpformat.model.index_part import IndexPart
from ucpformat.model.packs import Pack, PackList
from ucpformat.model.root import MAX_TABLE_BYTES, ROOT_KEY, Root
from ucpformat.model.state import StateDocument
from ucpformat.model.table import ChunkTable
from ucpformat.storage.reading.part import StoredPart, StoredSlot
from ucpformat.storage.stores.fetch import read_document
from ucpformat.storage.workers import ForkedLock

if TYPE_CHECKING:
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.workers import ForkedExecutor

__all__ = ["StoredDocuments"]

_PARTS_AHEAD: Final = 4
"""Documents: as many as half of them are held beside the part that is taken up."""


class StoredDocuments:
    """Reads the documents of the checkpoint in a store, whose root document is known. Safe to use from several threads.

    ``path`` is how errors name the checkpoint.
    """

    def __init__(self, store: Store, root: Root, executor: ForkedExecutor, path: str) -> None:
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

    def part(self, index: int) -> StoredPart:
        """One index part with its table, read and checked on first use.

        >>> list(ckpt.part(0).names)
        ['fc.bias', 'fc.weight']
        """
        found = self._parts.get(index)
        if found is not None:
            return found
        with self._lock:
            if index in self._parts:
                return self._parts[index]
            if self.store.calls.at_once is None:
                return self._keep(index, self._index_of(index), self._table_of(index))
            # Where a call waits for the network, two wait at once.
            table = self._executor.submit(self._table_of, index)
            return self._keep(index, self._index_of(index), table.result())

    def parts(self, indices: Iterable[int] | None = None) -> Iterator[StoredPart]:
        """Some index parts, or all, in turn: documents of the next ones are read and hashed meanwhile.

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
                of_index = self._executor.submit(self._index_of, index)
                ahead[index] = of_index, self._executor.submit(self._table_of, index)

        begin(max(1, (self.store.calls.at_once or _PARTS_AHEAD) // 2))
        for index in wanted:
            if index in ahead:
                index_document, table = (future.result() for future in ahead.pop(index))
                begin(1)
                self._keep(index, index_document, table)
            yield self.part(index)

    def _index_of(self, index: int) -> bytes:
        with naming(self.path):
            return read_document(self.store, self.root.parts[index].index)

    def _table_of(self, index: int) -> bytes:
        with naming(self.path):
            return read_document(self.store, self.root.parts[index].table, limit=MAX_TABLE_BYTES)

    def _keep(self, index: int, index_document: bytes, table_document: bytes) -> StoredPart:
        with self._lock, paused(), naming(self.path):
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
        """The part that has an atom, and where in it the atom stands.

        >>> part, position = ckpt.find("fc.weight")
        >>> part.names[position]
        'fc.weight'
        """
        index = bisect.bisect_right(self._firsts, name) - 1
        if index < 0:
            return None
        part = self.part(index)
        position = part.position(name)
        return None if position is None else (part, position)

    def slots(self) -> Iterator[StoredSlot]:
        """Every slot of every atom, in order.

        >>> [stored.label for stored in ckpt.slots()]
        ['fc.bias/value', 'fc.weight/value']
        """
        for part in self.parts():
            yield from part.slots()
