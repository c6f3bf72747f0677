"""Saving by several processes at once (SPEC sections 8 and 17.4): each writes its share, the first one commits.

Ranks compare digests of what they have (and send descriptions where those differ), write without a word to one
another (but for parts of chunks that are written whole), and send receipts for what is durable. The first rank
publishes the root document when it has them all; a rank that dies before leaves no checkpoint. What was written is
removed by its own writer, but only when it knows that nothing was published.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import astuple
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ucpformat.distributed.chunk_owners import WholeChunks, whole_chunks
from ucpformat.distributed.description import Described, Description, agree, describe
from ucpformat.distributed.group import Group, Reply, agreed, decided, reply_of, unpack
from ucpformat.distributed.replicas import settle_replicas
from ucpformat.distributed.save_options import SaveOptions, SaveReport
from ucpformat.distributed.share import Part, Portion, SlotToShare, live_batches, portions
from ucpformat.distributed.shared_chunks import ChunkAssembly
from ucpformat.distributed.values import (
    OPAQUE_MEDIA,
    Owners,
    announced,
    entry_of,
    owners_of,
    parted,
    whole_of,
)
from ucpformat.errors import UcpError, error
from ucpformat.gc_pause import paused
from ucpformat.model.names import assign_keys
from ucpformat.model.state import StateDocument
from ucpformat.storage.increments.base import Base
from ucpformat.storage.increments.changes import DeclaredRows
from ucpformat.storage.reading.stored_slot import slot_form
from ucpformat.storage.stores.urls import open_target
from ucpformat.storage.workers import writer_count
from ucpformat.storage.writing.piece_writer import PieceWriter
from ucpformat.storage.writing.stored_columns import Receipt, StoredBytes, StoredColumns
from ucpformat.writer import CheckpointWriter, slot_place

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ucpformat.distributed.local_state import LocalState, SlotName
    from ucpformat.geometry import ChunkGrid
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.dtype import DType
    from ucpformat.storage.increments.changes import KnownChanges
    from ucpformat.storage.stores.store import Store

__all__ = ["SaveOptions", "SaveReport", "Saving", "prepare_save"]

_TOKEN_BYTES: Final = 4
_PUBLISHED: Final = b"p"
_KEEP: Final = b"k"
_DISCARD: Final = b"d"


def prepare_save(
    path: str | os.PathLike[str],
    describe_state: Callable[[], LocalState],
    group: Group,
    options: SaveOptions | None = None,
) -> Saving:
    """Agree upon one checkpoint of what all ranks of ``group`` hold; every rank calls this, and `Saving.run` then.

    ``describe_state`` gives this rank's part; what it raises, all ranks raise.

    Raises:
        UcpError: on all ranks the same, here or when it is run, and then there is no checkpoint: ``UCP-E-EXISTS``,
            ``UCP-E-MISMATCH`` where ranks contradict one another, ``UCP-E-COVER`` where something is held by none,
            ``UCP-E-STORE``, and ``UCP-E-RANK`` for what no code of the format describes.
    """
    began = time.perf_counter()
    chosen = options or SaveOptions()
    store = open_target(path, durability=chosen.durability)
    is_first = group.rank == group.ranks[0]
    local: LocalState | None = None

    def begin() -> tuple[Description, bytes]:
        nonlocal local, chosen
        chosen.require_known()
        if chosen.base is not None:
            chosen = chosen.based(chosen.base, store)
        local = describe_state()
        description = describe(local, chosen.to_json())
        if is_first:
            store.prepare(chosen.storage)
        return description, secrets.token_bytes(_TOKEN_BYTES) + announced(local, group)

    try:
        whole, replies = agree(group, begin)
        if local is None:  # pragma: no cover - a step that did not raise has set it
            raise AssertionError("nothing was described")
        if len(group.ranks) > 1:
            settle_replicas(local, whole, group, chosen.replicas)
        owners = owners_of(group, [reply[_TOKEN_BYTES:] for reply in replies])
        attempt = replies[0][:_TOKEN_BYTES].hex()
        return Saving(path, store, local, group, chosen, attempt, whole, owners, began)
    except BaseException:
        if is_first:
            with suppress(Exception):
                store.discard()
        store.close()
        raise


class Saving:
    """One rank's part of one attempt that all ranks have agreed upon.

    ``local`` is what this rank holds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        store: Store,
        local: LocalState,
        group: Group,
        options: SaveOptions,
        attempt: str,
        whole: Described,
        owners: Owners,
        began: float,
    ) -> None:
        self._owners = owners
        self._path = path
        self._store = store
        self.local = local
        self._group = group
        self._options = options
        self._attempt = attempt
        self._whole = whole
        self._names = sorted(whole.sources)
        self._changes: list[KnownChanges] = []
        if options.base_digest is not None and local.changed:
            self._changes.append(DeclaredRows(options.base_digest, local.changed))
        self._batches: Callable[[], Iterator[Sequence[Part]]]
        self._batches = lambda: live_batches(self.share(), local.arrays)
        self._lasting = True
        self._whole_chunks = {
            name: self._slot_to_share(name)
            for name in self._names
            if options.storage == "plain" or whole.atoms[name[0]].slots[name[1]].compressor is not None
        }
        self.shares_chunks = bool(self._whole_chunks) and len(group.ranks) > 1
        """Whether ranks may have to send parts of chunks to others; all ranks say the same."""
        self._planned = WholeChunks([], [])
        if self.shares_chunks:
            self._planned = whole_chunks(self._whole_chunks.values(), group.rank)
        self._nbytes = 0
        self._sent = 0
        self._began = began

    def run(
        self, batches: Callable[[], Iterator[Sequence[Part]]] | None = None, group: Group | None = None
    ) -> SaveReport:
        """Write this rank's share, and wait until the first rank has committed, or says why not.

        ``batches`` gives the parts of `share` instead of the live tensors, cut as it likes; each batch is written when
        the next one is asked for. ``group`` has the same ranks as the one that agreed.
        """
        if batches is not None:
            self._batches, self._lasting = batches, False
        if group is not None:
            self._group = group
        first = self._group.rank == self._group.ranks[0]
        try:
            digest, stored = self._commit() if first else self._contribute()
            seconds = time.perf_counter() - self._began
            return SaveReport(digest, self._nbytes, self._sent, stored, seconds, stalled=seconds)
        finally:
            self._store.close()

    def give_up(self) -> None:
        """End the attempt instead of `run`; the other ranks wait until they see that this one is gone."""
        with suppress(Exception):
            self._store.discard()
        self._store.close()

    @property
    def base_digest(self) -> str | None:
        """Root digest of the base; None where there is none."""
        return self._options.base_digest

    def believe(self, changes: KnownChanges) -> None:
        """Take what is known of changes since the base, before `run`; it goes before what was declared."""
        self._changes.insert(0, changes)

    def share(self) -> list[Portion]:
        """Return what this rank has to write, or to send to the owner of a chunk, in the order of slots."""
        names = [name for name in self._names if name in self.local.arrays]
        if self.shares_chunks:
            names = [name for name in names if name not in self._whole_chunks]
        found = [*portions(map(self._slot_to_share, names), self._group.rank), *self._planned.portions]
        found.sort(key=attrgetter("name"))
        return found

    @property
    def cut_by(self) -> tuple[object, ...]:
        """What `share` and `form` follow from, but for the group; it has no tensors."""
        options = self._options
        return (
            self._whole.atoms,
            self._whole.sources,
            [*self.local.arrays],
            options.storage,
            options.chunk_bytes,
        )

    def form(self, name: SlotName) -> tuple[ChunkGrid, DType]:
        """Return how a slot is cut, and its data type."""
        slot = self._whole.atoms[name[0]].slots[name[1]]
        kind, grid = slot_form(slot.dtype, slot.shape, self._options.chunk_bytes)
        return grid, kind

    def _commit(self) -> tuple[str, StoredBytes]:
        writer: CheckpointWriter | None = None

        def begin() -> None:
            nonlocal writer
            writer = CheckpointWriter(
                self._path,
                self._whole.atoms.values(),
                storage=self._options.storage,
                chunk_bytes=self._options.chunk_bytes,
                step=self._options.step,
                log=self._options.log,
                annotations=self._options.annotations,
                attempt=self._attempt,
                workers=self._options.workers,
                prepared=self._store,
                base=self._options.base,
                changes=self._changes,
            )

        def write() -> bytes:
            self._together(begin)
            if writer is None:  # pragma: no cover - a step that did not raise has made it
                raise AssertionError("there is no writer")
            self._write(writer.pieces)
            if len(self._group.ranks) > 1:  # while the others do it; the commit makes all durable at once
                writer.flush()
            return b""

        try:
            reply = reply_of(write)
            packed = self._group.gather(reply.pack(self._group.rank)) or []
        except BaseException:
            self._give_up(writer)
            raise
        try:
            if reply.failure is not None:
                raise reply.failure
            digest, stored = self._publish(writer, unpack(self._group, packed))
        except BaseException as failure:
            is_uncommitted = self._give_up(writer)
            elsewhere = next((one for one in packed[1:] if one[:1] == b"-"), None)
            if reply.failure is not None or elsewhere is None:
                elsewhere = Reply(b"", failure).pack(self._group.rank)
            with suppress(UcpError):  # who is gone hears nothing
                self._group.broadcast((_DISCARD if is_uncommitted else _KEEP) + elsewhere)
            raise
        try:
            self._group.broadcast(_PUBLISHED + json.dumps([digest, *astuple(stored)]).encode())
        except UcpError as reason:
            raise error(reason.code, f"the checkpoint is committed, but {reason.message}") from reason
        return digest, stored

    def _publish(self, writer: CheckpointWriter | None, receipts: Sequence[bytes]) -> tuple[str, StoredBytes]:
        if writer is None:  # pragma: no cover - a step that did not raise has made it
            raise AssertionError("there is no writer")
        values = dict(self._values())
        entries: list[Mapping[str, list[JsonValue]]] = [entry_of(self.local, self._group, self._owners)]
        with paused:  # once for all receipts: each end of a pause may collect
            for receipt in (Receipt.unpack(data, self._names) for data in receipts[1:]):
                writer.admit(receipt.packs, receipt.stored, receipt.shared_bytes)
                values.update(receipt.values)
                entries.append(receipt.entries)
        optimizers, annotations = self._whole.optimizers, self._whole.annotations
        plain, blobs = parted(whole_of(values, entries))
        for name, data in sorted(blobs.items()):
            writer.add_blob(name, data, OPAQUE_MEDIA)
        writer.set_state(StateDocument(plain, optimizers, {}, annotations, self._options.pipeline))
        return writer.commit(), writer.stored

    def _give_up(self, writer: CheckpointWriter | None) -> bool:
        """Return whether certainly nothing is committed, nor will be: others may then remove what they wrote."""
        if writer is not None:
            return writer.abort()
        with suppress(Exception):
            return self._store.discard()
        return False

    def _contribute(self) -> tuple[str, StoredBytes]:
        reply = reply_of(self._write_part)
        # Whatever breaks off from here on, the first rank may have published: files stay.
        self._group.gather(reply.pack(self._group.rank))
        outcome = self._group.broadcast(b"")
        if outcome[:1] == _PUBLISHED:
            digest, *counts = json.loads(outcome[1:])
            return digest, StoredBytes(*counts)
        if outcome[:1] == _DISCARD:
            self._store.discard()
        if reply.failure is not None:
            raise reply.failure
        unpack(self._group, [outcome[1:]])
        raise AssertionError("a save that was given up came without a reason")

    def _write_part(self) -> bytes:
        made: list[PieceWriter] = []
        try:
            self._together(lambda: made.append(self._pieces()))
            (pieces,) = made
            self._write(pieces)
            packs = pieces.finish()
            self._store.flush()
            stored = StoredColumns.of(pieces.ledger, self._names)
            entries = entry_of(self.local, self._group, self._owners)
            return Receipt(packs, stored, self._values(), entries, pieces.shared_bytes).pack()
        finally:
            for pieces in made:
                pieces.abort()

    def _pieces(self) -> PieceWriter:
        self._store.join()
        keys = assign_keys(self._whole.atoms)
        options, changes = self._options, self._changes
        places = {
            (atom, name): slot_place(
                keys[atom], atom, name, self._whole.atoms[atom].slots[name], options.chunk_bytes
            )
            for atom, name in self.local.arrays
        }
        base = options.base and Base(
            options.base, places, self._store, self._attempt, options.storage, options.chunk_bytes, changes
        )
        return PieceWriter(
            self._store,
            places,
            storage=options.storage,
            name=f"{self._attempt}-{list(self._group.ranks).index(self._group.rank)}",
            workers=writer_count(options.workers, waits=self._store.writers_wait),
            base=base or None,
        )

    def _together(self, begin: Callable[[], None]) -> None:
        """Make ready to write; all ranks go on or none where they wait for one another's parts of chunks.

        The first rank goes first: what others then meet where it gave up is no reason of their own.
        """

        def step() -> bytes:
            begin()
            return b""

        if not self.shares_chunks:
            begin()
            return
        decided(self._group, step)
        agreed(self._group, step if self._group.rank != self._group.ranks[0] else lambda: b"")

    def _values(self) -> dict[str, JsonValue]:
        """Return the values that are this rank's to send."""
        rank, owners = self._group.rank, self._whole.owners
        return {name: value for name, value in self.local.state.values.items() if owners[name] == rank}

    def _write(self, target: PieceWriter) -> None:
        if self._whole_chunks:
            self._write_whole_chunks(target)
        for batch in () if self._whole_chunks else self._batches():
            for (atom, slot), offset, data in batch:
                target.submit(atom, slot, data, offset)
                self._nbytes += data.nbytes
            target.drain()
        if self._options.before_commit is not None:
            self._options.before_commit()

    def _write_whole_chunks(self, target: PieceWriter) -> None:
        """Put parts of slots together that are written chunk by chunk, those of other ranks too."""
        assembly = ChunkAssembly(
            target, self._group, self._planned.waves, self._whole_chunks, lasting=self._lasting
        )
        try:
            assembly.write(self._batches())
        finally:
            self._nbytes, self._sent = assembly.written, assembly.moved.sent

    def _slot_to_share(self, name: SlotName) -> SlotToShare:
        grid, kind = self.form(name)
        return SlotToShare(name, tuple(self._whole.sources[name]), grid, kind.item_bytes)
