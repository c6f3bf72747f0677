"""Writing a checkpoint: declare, write, commit (SPEC section 17.4)."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final, Self, get_args

from ucpformat.declared import AtomSpec, Declared, SlotSpec, slot_place, slots_of
from ucpformat.errors import error, require_one_of
from ucpformat.gc_pause import paused
from ucpformat.jsonio import dumps_canonical, loads
from ucpformat.model.dtype import DType
from ucpformat.model.envelope import Extension, needed_features
from ucpformat.model.pipeline import Pipeline
from ucpformat.model.references import DocumentRef, Pack, PackList
from ucpformat.model.root import (
    MAX_CHUNK_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_TABLE_BYTES,
    MIN_CHUNK_BYTES,
    LogPosition,
    Part,
    Progress,
    Root,
    Storage,
)
from ucpformat.model.state import Blob, Optimizer, StateDocument
from ucpformat.model.table import TableBuilder
from ucpformat.model.values import Extend, encode
from ucpformat.storage.increments.base import Base
from ucpformat.storage.stores.store import Durability
from ucpformat.storage.stores.urls import open_target
from ucpformat.storage.workers import writer_count
from ucpformat.storage.writing.piece_writer import PieceWriter, SettledEntries
from ucpformat.storage.writing.settled_columns import SettledColumns
from ucpformat.storage.writing.stored_columns import StoredBytes, StoredColumns
from ucpformat.storage.writing.streamed_object import write_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from ucpformat.geometry import ChunkGrid
    from ucpformat.image_files import ImageSource
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.process_image import ProcessImage
    from ucpformat.storage.increments.changes import KnownChanges
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.writing.piece_writer import Settlement

__all__ = ["DEFAULT_CHUNK_BYTES", "AtomSpec", "CheckpointWriter", "SlotSpec", "slot_place"]

DEFAULT_CHUNK_BYTES: Final = 1 << 24
_ATOMS_PER_PART: Final = 2048


class CheckpointWriter:
    """Writes one checkpoint. Nothing is visible before `commit`; as a context manager it commits on success.

    All atoms are declared first, so that names, shapes and data types are checked before a byte is written.
    `write` may be called from several threads. ``durability`` ``"none"`` syncs nothing: for benchmarks and tests.
    ``prepared`` is a store at ``path`` whose place is made ready already. What ``base`` has, a checkpoint in the same
    storage and with the same ``chunk_bytes``, is shared and not written again, by hard links, or by copies that an
    object store makes itself (SPEC section 8.5); what ``changes`` tell is believed, and the rest is compared.

    Raises:
        StoreError: ``UCP-E-EXISTS`` if the destination holds a checkpoint, or anything foreign.
        UcpError: ``UCP-E-NAME``, ``UCP-E-KEY``, ``UCP-E-DTYPE``, ``UCP-E-SHAPE``, ``UCP-E-LAYOUT`` for what is
            declared; ``UCP-E-LIMIT``, ``UCP-E-JSON``, ``UCP-E-SCHEMA`` for annotations, extensions or a step that no
            reader takes.

    >>> atoms = [ucp.AtomSpec("w", {"value": ucp.SlotSpec("float32", (3, 2))})]
    >>> with ucp.CheckpointWriter("run.ucp", atoms) as writer:
    ...     writer.write("w", "value", np.ones((3, 2), np.float32))
    >>> ucp.load("run.ucp")["model"]["w"].sum()
    np.float32(6.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        atoms: Iterable[AtomSpec],
        *,
        storage: Storage = "packed",
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        step: int | None = None,
        log: LogPosition | None = None,
        annotations: Mapping[str, JsonValue] | None = None,
        extensions: Mapping[str, Extension] | None = None,
        attempt: str | None = None,
        workers: int | None = None,
        progress: Callable[[int], None] | None = None,
        durability: Durability = "fsync",
        prepared: Store | None = None,
        base: str | os.PathLike[str] | None = None,
        changes: Sequence[KnownChanges] = (),
    ) -> None:
        self._attempt = attempt or secrets.token_hex(4)
        self.state_annotations: dict[str, JsonValue] = {}
        self._values: dict[str, JsonValue] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._blobs: dict[str, Blob] = {}
        self._pipeline: Pipeline | None = None
        self._images: dict[str, ProcessImage] = {}
        self._expected: dict[tuple[str, str], str] = {}
        require_one_of("storage=", storage, get_args(Storage))
        require_one_of("durability=", durability, get_args(Durability))
        if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
            message = f"chunk_bytes must lie in [{MIN_CHUNK_BYTES}, {MAX_CHUNK_BYTES}]"
            raise error("UCP-E-LIMIT", message, at="chunk_bytes")
        with paused:
            self._atoms = Declared(atoms)
            places = self._atoms.places(chunk_bytes)
        done = Progress(step, log)
        self._root = self._atoms.root(storage, chunk_bytes, done, annotations or {}, extensions or {})
        self._store = open_target(path, durability=durability) if prepared is None else prepared
        with ExitStack() as undone:
            shared = None
            if base is not None:
                shared = Base(base, places, self._store, self._attempt, storage, chunk_bytes, changes)
                undone.callback(shared.close)
            if prepared is None:
                self._store.prepare(storage)
            self.pieces = PieceWriter(
                self._store,
                places,
                storage=storage,
                name=f"{self._attempt}-0",
                workers=writer_count(workers, waits=self._store.writers_wait),
                progress=progress,
                base=shared,
            )
            undone.pop_all()
        self._packs: list[Pack] | None = None
        self._admitted: list[tuple[StoredColumns, list[int]]] = []  # with the numbers of their packs
        self._own_packs = self._data_bytes = self._shared_bytes = self._document_bytes = 0
        self._committed = self._has_row_sets = False
        self.stored = StoredBytes(0, 0, 0)
        try:
            self.pieces.begin()
        except BaseException:
            self.abort()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._committed:
            self.commit()

    def grid(self, atom: str, slot: str) -> ChunkGrid:
        """Return how a slot is cut: writers that stream do best to write chunk by chunk.

        >>> with ucp.CheckpointWriter("new.ucp", atoms) as writer:
        ...     writer.grid("w", "value").count
        ...     writer.write("w", "value", np.ones((3, 2), np.float32))
        1
        """
        return self.pieces.places[atom, slot].grid

    def dtype(self, atom: str, slot: str) -> DType:
        """Return data type of a declared slot.

        >>> with ucp.CheckpointWriter("new.ucp", atoms) as writer:
        ...     writer.dtype("w", "value").name
        ...     writer.write("w", "value", np.ones((3, 2), np.float32))
        'float32'
        """
        return self.pieces.places[atom, slot].dtype

    def write(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None = None
    ) -> None:
        """Write a whole slot, or the box of it at ``offset`` (elements) with the shape of ``data``.

        The call returns when the bytes are handed to the store; ``data`` may then be changed.

        Raises:
            UcpError: ``UCP-E-MISMATCH`` where dtype or shape are not those declared; ``UCP-E-STORE`` for a box
                that cuts chunks, where storage is plain or the slot compressed.

        >>> with ucp.CheckpointWriter("new.ucp", atoms) as writer:
        ...     for row in range(3):
        ...         writer.write("w", "value", np.full((1, 2), row, np.float32), offset=(row, 0))
        >>> ucp.open("new.ucp")["w"]["value"][:, 0].tolist()
        [0.0, 1.0, 2.0]
        """
        self.pieces.write(atom, slot, data, offset)

    def submit(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None = None
    ) -> None:
        """Write as `write` does, in the background: ``data`` must not change before `commit` returns.

        >>> with ucp.CheckpointWriter("new.ucp", atoms) as writer:
        ...     writer.submit("w", "value", np.ones((3, 2), np.float32))
        >>> ucp.validate("new.ucp")
        []
        """
        self.pieces.submit(atom, slot, data, offset)

    def admit(self, packs: Sequence[Pack], stored: StoredColumns, shared_bytes: int = 0) -> None:
        """Take over what another writer of this attempt has stored, durably: its packs, and chunks of slots.

        The containers of segments count ``packs``; of storage plain, so many bytes are objects of the base.
        Nothing is written here any more afterwards.

        >>> from ucpformat.storage.writing.stored_columns import StoredBytes, StoredColumns
        >>> with ucp.CheckpointWriter("new.ucp", []) as writer:
        ...     writer.admit([], StoredColumns.of({}, []))  # of a writer that had nothing to write
        >>> len(ucp.open("new.ucp"))
        0
        """
        packed = self._finished()
        self._shared_bytes += shared_bytes
        numbers = {pack.key: number for number, pack in enumerate(packed)}
        for pack in packs:
            if numbers.setdefault(pack.key, len(packed)) == len(packed):
                packed.append(pack)
        self._admitted.append((stored, [numbers[pack.key] for pack in packs]))

    def flush(self) -> None:
        """Make what was written durable: a commit has less to do then. Nothing is written here any more.

        >>> with ucp.CheckpointWriter("new.ucp", atoms) as writer:
        ...     writer.write("w", "value", np.ones((3, 2), np.float32))
        ...     writer.flush()
        """
        self._finished()
        self._store.flush()

    def _finished(self) -> list[Pack]:
        """Return the packs of this writer, which are then closed, and of those admitted."""
        if self._packs is None:
            self._packs = self.pieces.finish()
            self._own_packs = len(self._packs)
        return self._packs

    def expect_contents(self, contents: Mapping[tuple[str, str], str]) -> None:
        """Have `commit` refuse slots, by names of atom and slot, whose content digest is another (UCP-W-029).

        >>> known = {("fc.weight", "value"): ckpt["fc.weight"]["value"].stored.slot.content}
        >>> spec = ucp.AtomSpec("fc.weight", {"value": ucp.SlotSpec("float32", (3, 2))})
        >>> with ucp.CheckpointWriter("copy.ucp", [spec]) as writer:
        ...     writer.expect_contents(known)
        ...     writer.write("fc.weight", "value", ckpt["fc.weight"]["value"].read())
        """
        self._expected = dict(contents)

    def set_value(self, name: str, value: object, *, extend: Extend | None = None) -> None:
        """Keep a value that is not a tensor, as a tagged value (SPEC 15.1); ``extend`` as `values.encode` has it.

        Raises:
            ImportRefusedError: ``UCP-E-OBJECT`` if it cannot be expressed.

        >>> with ucp.CheckpointWriter("new.ucp", []) as writer:
        ...     writer.set_value("epoch", 3)
        >>> ucp.open("new.ucp").objects["epoch"]
        3
        """
        self._values[name] = encode(value, at=name, extend=extend)

    def set_state(self, state: StateDocument) -> None:
        """Take over values, optimizers, annotations and a pipeline, encoded already; blobs are added one by one.

        >>> with ucp.CheckpointWriter("new.ucp", []) as writer:
        ...     writer.set_state(ckpt.state)
        >>> dict(ucp.open("new.ucp").objects)
        {'epoch': 3}
        """
        self._values.update(state.values)
        self._optimizers.update(state.optimizers)
        self.state_annotations.update(state.annotations)
        self._pipeline = state.pipeline

    def set_optimizer(self, name: str, groups: Iterable[tuple[Sequence[str], Mapping[str, object]]]) -> None:
        """Keep an optimizer's parameter groups: ordered names of atoms, and options.

        Raises:
            UcpError: ``UCP-E-REFERENCE`` for a name that is not declared, ``UCP-E-NAME`` for one in two groups,
                ``UCP-E-OBJECT`` for an option that cannot be expressed.

        >>> with ucp.CheckpointWriter("new.ucp", atoms) as writer:
        ...     writer.set_optimizer("optim", [(["w"], {"lr": 0.1})])
        ...     writer.write("w", "value", np.ones((3, 2), np.float32))
        >>> ucp.inspect("new.ucp")["optimizers"]["optim"]["groups"][0]["options"]
        {'lr': 0.1}
        """
        self._optimizers[name] = self._atoms.optimizer(name, groups)

    def add_blob(self, name: str, data: bytes, media_type: str) -> None:
        """Keep opaque bytes, which are never executed.

        >>> with ucp.CheckpointWriter("new.ucp", []) as writer:
        ...     writer.add_blob("notes", b"text", "text/plain")
        >>> ucp.open("new.ucp").blobs["notes"]
        b'text'
        """
        key = f"blobs/{self._attempt}-{len(self._blobs)}"
        self._blobs[name] = Blob(media_type, self._document(key, data))

    def add_image(self, name: str, image: ImageSource) -> None:
        """Keep a process image, file by file and piece by piece; `image_source` finds one on the disk.

        Raises:
            UcpError: ``UCP-E-KEY`` for paths that no image can have; what the store raises.

        >>> from pathlib import Path
        >>> Path("core.img").write_bytes(b"memory")
        6
        >>> with ucp.CheckpointWriter("new.ucp", []) as writer:
        ...     writer.add_image("trainer", ucp.image_source("core.img", producer=("criu", "4.0")))
        >>> ucp.open("new.ucp").images["trainer"].nbytes
        6
        """
        keys = (f"blobs/{self._attempt}-image-{len(self._images)}-{number}" for number in count())
        found = image.written(name, lambda pieces: write_object(self._store, next(keys), pieces))
        self._document_bytes += found.nbytes
        self._images[name] = found

    def _document(self, key: str, data: bytes) -> DocumentRef:
        self._store.create(key, [memoryview(data)])
        self._document_bytes += len(data)
        return DocumentRef.to(key, data)

    def _json_document(self, key: str, data: bytes, *, is_ours: bool) -> DocumentRef:
        # What callers give may nest too deep, or hold numbers that no reader takes; no reader takes what is too
        # long, either.
        if not is_ours or len(data) > MAX_DOCUMENT_BYTES:
            loads(data, at=key, limit=MAX_DOCUMENT_BYTES)
        return self._document(key, data)

    def commit(self) -> str:
        """Write tables and documents, make everything durable, publish the root; returns the root digest.

        Raises:
            UcpError: ``UCP-E-COVER`` if something declared was not written; ``UCP-E-EXISTS`` if somebody else
                published; whatever a background write raised. The attempt is then given up.

        >>> writer = ucp.CheckpointWriter("new.ucp", [])
        >>> writer.commit()[:7]
        'sha256:'
        """
        try:
            packs = self._finished()
            with paused:
                root = self._finished_root(packs)
            data, digest = root.seal()
            self._store.flush([pack.key for pack in packs], data)
            self._store.publish(data)
        except BaseException:
            self.abort()
            raise
        self._committed = True
        self._shared_bytes += self.pieces.shared_bytes
        own = self._data_bytes - self._shared_bytes
        alignment = sum(pack.length for pack in packs if not pack.shared) - own if packs else 0
        self.stored = StoredBytes(own, alignment, self._document_bytes + len(data), self._shared_bytes)
        self.pieces.close()
        self._store.close()
        return digest

    def _finished_root(self, packs: list[Pack]) -> Root:
        parts: list[Part] = []
        specs = self._atoms.specs
        self._shared_packs = [number for number, pack in enumerate(packs) if pack.shared]
        written = self._settlement()
        for first in range(0, len(specs), _ATOMS_PER_PART):
            parts.append(self._part(len(parts), specs[first : first + _ATOMS_PER_PART], written))
        optional = self.state_annotations, self._pipeline, self._images
        state = StateDocument(self._values, self._optimizers, self._blobs, *optional)
        if self._pipeline is not None:
            self._pipeline.require(self._atoms.forms())
        prefix = f"index/{self._attempt}"
        envelope = self._root.envelope
        needed = needed_features((), packs, has_row_sets=self._has_row_sets, of_state=state.features())
        envelope = replace(envelope, read_features=tuple(sorted({*envelope.read_features, *needed})))
        return replace(
            self._root,
            envelope=envelope,
            packs=self._json_document(
                f"{prefix}-packs.json", dumps_canonical(PackList(tuple(packs)).to_json()), is_ours=True
            )
            if self._root.storage == "packed"
            else None,
            state=self._json_document(
                f"{prefix}-state.json", dumps_canonical(state.to_json()), is_ours=False
            ),
            parts=tuple(parts),
        )

    def _settlement(self) -> Settlement:
        places, ledger = self.pieces.places, self.pieces.ledger
        if not self._admitted:
            return SettledEntries(places, ledger)
        own = StoredColumns.of(ledger, list(places))
        return SettledColumns(places, [(own, [*range(self._own_packs)]), *self._admitted])

    def _part(self, number: int, specs: Sequence[AtomSpec], written: Settlement) -> Part:
        table = TableBuilder()
        names = [(spec.name, name) for spec in specs for name, _ in slots_of(spec)]
        contents = dict(zip(names, written.settle(names, table), strict=True))
        for name, content in contents.items():
            expected = self._expected.get(name)
            if None not in (expected, content) and content != expected:
                message = f"the bytes of this slot have the digest {content}, and {expected} was recorded"
                raise error("UCP-E-CONTENT", message, at="/".join(name))
        text, has_notes = self._atoms.part_text(specs, contents)
        prefix = f"index/{self._attempt}-{number}"
        rows = table.build()
        self._data_bytes += table.nbytes
        self._shared_bytes += table.nbytes_in(self._shared_packs)
        self._has_row_sets = self._has_row_sets or table.row_words > 0
        if len(rows) > MAX_TABLE_BYTES:
            raise error("UCP-E-LIMIT", f"a table would have {len(rows)} bytes: make larger chunks", at=prefix)
        return Part(
            specs[0].name,
            specs[-1].name,
            len(specs),
            self._json_document(f"{prefix}.json", text.encode(), is_ours=not has_notes),
            self._document(f"{prefix}.bin", rows),
        )

    def leave(self) -> None:
        """Stop, and leave what was written for a later attempt: nothing is visible.

        >>> writer = ucp.CheckpointWriter("new.ucp", [])
        >>> writer.leave()
        >>> [problem.code for problem in ucp.validate("new.ucp")]
        ['UCP-E-NOT-FOUND']
        """
        self.pieces.abort()
        self._store.close()

    def withdraw(self) -> bool:
        """Give up the right to commit; return whether certainly no root document is there, nor will be by this attempt.

        >>> ucp.CheckpointWriter("new.ucp", []).withdraw()
        True
        """
        with suppress(Exception):
            return self._store.withdraw()
        return False

    def abort(self) -> bool:
        """Give the attempt up: what was written is removed, unless a root document may reach it.

        Returns what `withdraw` does.

        >>> ucp.CheckpointWriter("new.ucp", []).abort()
        True
        """
        self.pieces.abort()
        is_uncommitted = False
        with suppress(Exception):
            is_uncommitted = self._store.discard()
        self._store.close()
        return is_uncommitted
