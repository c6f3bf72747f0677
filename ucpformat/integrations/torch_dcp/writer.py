"""`UcpStorageWriter`: what a planner of torch DCP hands out, as a checkpoint of this format (SPEC section 17.4).

DCP decides who writes what, and carries plans and results; every rank appends boxes to packs of its own, and the
coordinator commits. Source: torch/distributed/checkpoint/storage.py and state_dict_saver.py of PyTorch 2.13.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ucpformat.errors import error
from ucpformat.model.compressor import compressor_of
from ucpformat.model.names import assign_keys
from ucpformat.state_dict.keys.names import recognise
from ucpformat.state_dict.keys.origins import slot_annotations, state_document
from ucpformat.state_dict.tensors.local_tensors import local_tensor
from ucpformat.storage.stores.urls import open_target
from ucpformat.storage.workers import writer_count
from ucpformat.storage.writing.piece_writer import PieceWriter
from ucpformat.storage.writing.stored_columns import Receipt, StoredColumns
from ucpformat.tensor_files.byte_source import MemoryRange
from ucpformat.tensor_files.object_tree import Limits
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_zip import TorchArchive
from ucpformat.writer import DEFAULT_CHUNK_BYTES, AtomSpec, CheckpointWriter, SlotSpec, slot_place

if TYPE_CHECKING:
    from ucpformat.distributed.local_state import SlotName
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compression
    from ucpformat.model.root import Storage
    from ucpformat.state_dict.keys.paths import KeyPath
    from ucpformat.storage.stores.store import Durability, Store
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = ["UcpStorageWriter"]

_STAGED_BYTES = 1 << 28
_RECEIPT = "org.ucpformat.receipt"


@dataclass(frozen=True, slots=True)
class _Assignment:
    """What the coordinator tells a rank: the attempt, and which writer of it the rank is.

    In storage plain, also where the chunks of each DCP key go: the key of the atom, and the slot.
    """

    attempt: str
    number: int
    places: dict[str, tuple[str, str]] | None


@dataclass(frozen=True, slots=True)
class _Written:
    """What a rank tells the coordinator: its receipt, which counts by these names."""

    names: tuple[SlotName, ...]
    receipt: bytes


class UcpStorageWriter(StorageWriter):
    """Give one to ``dcp.save`` or ``dcp.async_save`` as ``storage_writer``; it may be used again for other paths.

    ``path`` is a local path or an fsspec URL that all ranks share; ``checkpoint_id``, where the call has one, takes
    its place. Works with and without a process group (``no_dist``), in a thread or a process, and with any planner
    that hands out boxes which tile each tensor; `UcpSavePlanner` is for DTensors of which a rank holds several boxes.
    What ``compressor`` and storage ``plain`` ask for has to be whole chunks of one rank. There is no
    ``use_collectives=False``: a checkpoint has one commit.

    Raises:
        UcpError: in the calls of DCP, which wraps it on all ranks: ``UCP-E-EXISTS``, ``UCP-E-DTYPE``,
            ``UCP-E-OBJECT`` or ``UCP-E-PICKLE`` for objects that are not plain, ``UCP-E-COVER``, ``UCP-E-STORE``.

    >>> import torch.distributed.checkpoint as dcp
    >>> state = {"w": torch.ones(2, 2)}
    >>> found = dcp.save(state, storage_writer=ucp.UcpStorageWriter("run.ucp"), no_dist=True)
    >>> ucp.load("run.ucp", tensors="torch")["w"].sum()
    tensor(4.)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        storage: Storage = "packed",
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        compressor: Compression | None = None,
        step: int | None = None,
        workers: int | None = None,
        durability: Durability = "fsync",
    ) -> None:
        super().__init__()
        self.checkpoint_id = path
        self._storage: Storage = storage
        self._chunk_bytes = chunk_bytes
        self._compressor = compressor
        self._step = step
        self._workers = workers
        self._durability: Durability = durability
        self._coordinates = False
        self._attempt = ""
        self._store: Store | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for ``async_save`` in a separate process: without the store of a save that is over."""
        return {**self.__dict__, "_store": None}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this is a path or a URL."""
        return isinstance(checkpoint_id, str | os.PathLike)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another checkpoint."""
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id
        self._close()

    def storage_meta(self) -> StorageMeta:
        """Return where the checkpoint goes."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Prepare the place, on the coordinator."""
        if not kwargs.get("use_collectives", True):
            message = "a checkpoint has one commit for all ranks; save with use_collectives=True"
            raise error("UCP-E-STORE", message)
        if self.checkpoint_id is None:
            raise error("UCP-E-STORE", "give UcpStorageWriter a path, or the save a checkpoint_id")
        self._close()
        self._coordinates = is_coordinator
        self._store = open_target(self.checkpoint_id, durability=self._durability)
        if is_coordinator:
            self._attempt = secrets.token_hex(4)
            self._store.prepare(self._storage)

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan itself."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Number the writers of this attempt."""
        places = self._plain_places(plans) if self._storage == "plain" else None
        return [
            replace(plan, storage_data=_Assignment(self._attempt, number, places))
            for number, plan in enumerate(plans)
        ]

    def _plain_places(self, plans: list[Any]) -> dict[str, tuple[str, str]]:
        """Return the names of chunks of storage plain, which must be known before they are written."""
        paths: dict[str, KeyPath] = {}
        for plan in plans:
            paths.update(plan.planner_data or {})
        items = [item for plan in plans for item in plan.items]
        tensors = {
            item.index.fqn: paths.get(item.index.fqn) for item in items if item.tensor_data is not None
        }
        objects = {item.index.fqn: paths.get(item.index.fqn) for item in items if item.tensor_data is None}
        names = recognise(tensors, objects)
        keys = assign_keys({place.name for place in names.assignments.values()})
        return {key: (keys[place.name], place.slot) for key, place in names.assignments.items()}

    def write_data(self, plan: Any, planner: Any) -> Future[list[WriteResult]]:
        """Write the items of a plan; done when this returns."""
        store = self._store
        if store is None:
            raise error("UCP-E-STORE", "the writer was not set up by a save")
        pieces: PieceWriter | None = None
        try:
            if not self._coordinates:
                store.join()
            assignment: _Assignment = plan.storage_data
            items = {(item.index.fqn, "value"): item for item in plan.items if item.tensor_data is not None}
            pieces = PieceWriter(
                store,
                {name: self._place(name[0], item, assignment) for name, item in items.items()},
                storage=self._storage,
                name=f"{assignment.attempt}-{assignment.number}",
                workers=writer_count(self._workers, waits=store.writers_wait),
            )
            results = self._write(plan.items, planner, pieces)
            packs = pieces.finish()
            store.flush()
            names = tuple(items)
            stored = StoredColumns.of(pieces.ledger, names)
            receipt = Receipt(packs, stored, self._values(plan.items, planner))
            results.append(WriteResult(MetadataIndex(_RECEIPT), 0, _Written(names, receipt.pack())))
        except BaseException:
            if pieces is not None:
                pieces.abort()
            with suppress(Exception):
                store.discard()
            self._close()
            raise
        pieces.close()
        if not self._coordinates:
            self._close()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _place(self, key: str, item: Any, assignment: _Assignment) -> SlotPlace:
        atom, slot = (key, "value") if assignment.places is None else assignment.places[key]
        spec = self._slot(key, item.tensor_data.properties.dtype, item.tensor_data.size)
        return slot_place(atom, key, slot, spec, self._chunk_bytes)

    def _slot(self, key: str, kind: Any, size: Sequence[int]) -> SlotSpec:
        name = str(kind).removeprefix("torch.")
        if name not in TORCH_DTYPES:
            raise error("UCP-E-DTYPE", f"{kind} has no data type in this format", at=key)
        shape = tuple(size)
        return SlotSpec(name, shape, compressor=compressor_of(self._compressor, name, shape))

    def _write(self, items: Sequence[Any], planner: Any, pieces: PieceWriter) -> list[WriteResult]:
        results = []
        pending = 0
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                continue
            key, chunk = item.index.fqn, item.tensor_data.chunk
            tensor = local_tensor(planner.resolve_data(item).detach(), rank=0, at=key)
            if tensor is not None and 0 not in chunk.sizes:
                array = tensor.array()
                pieces.submit(key, "value", array.reshape(tuple(chunk.sizes)), tuple(chunk.offsets))
                pending += array.nbytes
                results.append(WriteResult(item.index, array.nbytes, None))
            if pending >= _STAGED_BYTES:
                pieces.drain()
                pending = 0
        return results

    def _values(self, items: Sequence[Any], planner: Any) -> dict[str, JsonValue]:
        """Return objects as tagged values: pickles of planners are read by an interpreter of plain data."""
        values = {}
        for item in items:
            if item.type == WriteItemType.BYTE_IO:
                key = item.index.fqn
                data = planner.resolve_data(item).getvalue()
                values[key] = encode(TorchArchive(MemoryRange(data, key)).read_object(Limits()), at=key)
        return values

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        """Put together what all ranks wrote, and publish it."""
        store = self._store
        if store is None or self.checkpoint_id is None:
            raise error("UCP-E-STORE", "the writer was not set up by a save")
        paths: dict[str, KeyPath] = dict(metadata.planner_data or {})
        tensors: dict[str, TensorStorageMetadata] = {}
        objects: list[str] = []
        for key, found in metadata.state_dict_metadata.items():
            if isinstance(found, TensorStorageMetadata):
                tensors[key] = found
            else:
                objects.append(key)
        names = recognise({key: paths.get(key) for key in tensors}, {key: paths.get(key) for key in objects})
        slots: dict[str, dict[str, SlotSpec]] = {}
        for key, found in tensors.items():
            place = names.assignments[key]
            slots.setdefault(place.name, {})[place.slot] = replace(
                self._slot(key, found.properties.dtype, found.size),
                annotations=slot_annotations(paths.get(key, (key,))),
            )
        try:
            receipts = [
                Receipt.unpack(
                    one.storage_data.receipt,
                    [
                        (names.assignments[key].name, names.assignments[key].slot)
                        for key, _ in one.storage_data.names
                    ],
                )
                for of_rank in results
                for one in of_rank
                if isinstance(one.storage_data, _Written)
            ]
            values = {key: value for receipt in receipts for key, value in receipt.values.items()}
            writer = CheckpointWriter(
                self.checkpoint_id,
                [AtomSpec(name, found) for name, found in slots.items()],
                storage=self._storage,
                chunk_bytes=self._chunk_bytes,
                step=self._step,
                attempt=self._attempt,
                workers=1,
                prepared=store,
            )
            for receipt in receipts:
                writer.admit(receipt.packs, receipt.stored)
            every = {key: paths.get(key, (key,)) for key in objects}
            writer.set_state(state_document("dcp", values, every, dict(every), names, frozenset(slots)))
            writer.commit()
        finally:
            self._close()

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
