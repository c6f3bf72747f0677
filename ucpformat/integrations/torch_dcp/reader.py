"""`UcpStorageReader`: a checkpoint of this format for ``dcp.load`` (SPEC section 17.3).

DCP's metadata are derived from the index: every slot is one box of its whole shape, so that a rank's read is exactly
the boxes that it holds. Source: torch/distributed/checkpoint/storage.py and planner_helpers.py of PyTorch 2.13.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.model.values import decode
from ucpformat.reader import open_checkpoint
from ucpformat.state_dict.keys.origins import key_path
from ucpformat.state_dict.keys.paths import dotted
from ucpformat.state_dict.matching import stored_slots, stored_values
from ucpformat.state_dict.objects import WITH_TORCH
from ucpformat.state_dict.tensors.local_tensors import destination_of, tensor_dtype, to_torch
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.reader import Checkpoint
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.views import SlotView

__all__ = ["UcpStorageReader"]

_STAGED_BYTES = 1 << 28


class UcpStorageReader(StorageReader):
    """Give one to ``dcp.load`` as ``storage_reader``; whatever job and whatever writer made the checkpoint.

    Keys are the dotted paths that entries had when they were saved. Each rank reads what the planner asks for,
    straight into tensors that lie in host memory. ``cast`` converts data types, which is refused otherwise;
    ``verify`` False leaves checksums of data alone.

    Raises:
        UcpError: in the calls of DCP, which wraps it on all ranks: what opening and reading raise, and
            ``UCP-E-MISMATCH`` for another data type.

    >>> import torch.distributed.checkpoint as dcp
    >>> report = ucp.save("run.ucp", {"w": torch.ones(2, 2)})
    >>> state = {"w": torch.zeros(2, 2)}
    >>> dcp.load(state, storage_reader=ucp.UcpStorageReader("run.ucp"), no_dist=True)
    >>> state["w"].sum()
    tensor(4.)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        cast: bool = False,
        verify: bool = True,
        workers: int | None = None,
    ) -> None:
        super().__init__()
        self.checkpoint_id = path
        self._cast = cast
        self._verify = verify
        self._workers = workers
        self._checkpoint: Checkpoint | None = None
        self._slots: dict[str, SlotView] = {}
        self._values: dict[str, JsonValue] = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this is a path or a URL."""
        return isinstance(checkpoint_id, str | os.PathLike)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load."""
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id
        self._close()

    def read_metadata(self) -> Metadata:
        """Return what the checkpoint holds; tensors of data types that torch lacks are left out."""
        if self.checkpoint_id is None:
            raise error("UCP-E-STORE", "give UcpStorageReader a path, or the load a checkpoint_id")
        self._close()
        self._checkpoint = open_checkpoint(self.checkpoint_id, verify=self._verify, workers=self._workers)
        self._checkpoint.require_restored()
        self._checkpoint.require_drained()
        listed: dict[str, Any] = {}
        paths = {}
        for path, slot in stored_slots(self._checkpoint).items():
            if slot.dtype.name in TORCH_DTYPES:
                key, size = dotted(path), torch.Size(slot.shape)
                whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
                properties = TensorProperties(dtype=getattr(torch, slot.dtype.name))
                listed[key] = TensorStorageMetadata(properties, size, [whole])
                self._slots[key] = slot
                paths[key] = key_path(path)
        for path, value in stored_values(self._checkpoint).items():
            key = dotted(path)
            listed[key] = BytesStorageMetadata()
            self._values[key] = value
            paths[key] = key_path(path)
        meta = StorageMeta(checkpoint_id=self.checkpoint_id)
        return Metadata(listed, planner_data=paths, storage_meta=meta)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Do nothing: all ranks have read the index."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan itself."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Return the plans themselves."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        """Fill what the plan asks for; done when this returns."""
        if self._checkpoint is None:
            raise error("UCP-E-STORE", "the reader was not set up by a load")
        try:
            self._read_tensors(self._checkpoint, plan.items, planner)
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    key = item.storage_index.fqn
                    buffer = io.BytesIO()
                    # Planners take archives of `torch.save`: this one is made here, of plain data.
                    torch.save(decode(self._values[key], at=key, restore=WITH_TORCH), buffer)
                    buffer.seek(0)
                    planner.load_bytes(item, buffer)
        finally:
            self._close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_tensors(self, checkpoint: Checkpoint, items: list[Any], planner: Any) -> None:
        reads: list[tuple[StoredSlot, Box, NDArray[np.generic]]] = []
        staged: list[tuple[Any, NDArray[np.generic], str]] = []
        filled: list[tuple[Any, Any]] = []
        pending = 0

        def flush() -> None:
            checkpoint.read_boxes(reads)
            for tensor, array, kind in staged:
                tensor.copy_(to_torch(array, kind))
            for item, tensor in filled:
                planner.commit_tensor(item, tensor)
            reads.clear()
            staged.clear()
            filled.clear()

        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                continue
            key = item.storage_index.fqn
            slot, box = self._slots[key], Box(tuple(item.storage_offsets), tuple(item.lengths))
            tensor = planner.resolve_tensor(item).detach()
            if tuple(tensor.shape) != box.shape:
                raise error(
                    "UCP-E-MISMATCH", f"{list(box.shape)} is to be read into {list(tensor.shape)}", at=key
                )
            same = tensor_dtype(tensor, at=key) == slot.dtype.name
            if not same and not self._cast:
                raise error(
                    "UCP-E-MISMATCH",
                    f"the tensor is {tensor.dtype}, the checkpoint has {slot.dtype.name}; "
                    "convert by UcpStorageReader(cast=True)",
                    at=key,
                )
            if same and tensor.device.type == "cpu":
                array = destination_of(tensor, at=key)
            else:
                array = np.empty(box.shape, slot.dtype)
                staged.append((tensor, array, slot.dtype.name))
                pending += array.nbytes
            reads.append((slot.stored, box, array))
            filled.append((item, tensor))
            if pending >= _STAGED_BYTES:
                flush()
                pending = 0
        flush()

    def _close(self) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.close()
