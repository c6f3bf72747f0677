"""Logged steps as gradients of this rank's parameters, whatever ranks logged them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ucpformat.errors import error
from ucpformat.geometry import Piece, row_major_strides
from ucpformat.model.dtype import dtype
from ucpformat.replay.tracked import local_of, piece_view
from ucpformat.state_dict.tensors.local_tensors import destination_of, to_torch
from ucpformat.storage.host_memory import selection
from ucpformat.update_log.forms import places_of, rows_of, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.replay.tracked import Tracked
    from ucpformat.update_log.batch import Entry
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.steps import LoggedEntry

__all__ = ["Receiver", "like"]


@dataclass(slots=True)
class _Part:
    """A logged piece as far as this rank holds it: ``common`` in coordinates of the tensor."""

    number: int
    box: Box
    common: Box
    place: Piece
    is_all: bool


@dataclass(slots=True)
class Receiver:
    """Fills the gradient of a parameter, or a buffer, of this rank with what an epoch has of its tensor.

    The gradient's memory is used again at each step, as long as `take` has it. With ``borrows`` the bytes of entries
    are memory that an optimizer may have as a gradient, until its step is done: whole ones are not copied.
    """

    one: Tracked
    parts: list[_Part]
    native: np.dtype[np.generic]
    pieces: frozenset[int]
    borrows: bool = False
    memory: NDArray[np.generic] | None = None
    gradient: Any = None
    _dirty: NDArray[np.int64] | None = field(default=None)

    @classmethod
    def of(
        cls, one: Tracked, tensor: int, epoch: Epoch, pieces: Sequence[int], *, borrows: bool = False
    ) -> Receiver:
        """Return what receives a tensor of an epoch, which has these pieces."""
        parts = []
        whole = tuple(local_of(one.tensor).shape)
        for number in pieces:
            box = epoch.pieces[number].box
            for piece in one.pieces:
                clipped = piece.clip(box)
                if clipped is not None and clipped.box.size:
                    dense = clipped.local.strides == row_major_strides(whole) and clipped.local.offset == 0
                    is_all = clipped.box == box and dense and box.shape == whole
                    parts.append(_Part(number, box, clipped.box, clipped, is_all))
        return cls(one, parts, dtype(epoch.tensors[tensor].dtype).numpy, frozenset(pieces), borrows)

    def take(self, entries: Mapping[int, LoggedEntry]) -> Any:
        """Return the gradient of a step, None where there is none.

        Raises:
            UcpError: ``UCP-E-LOG`` for places out of range, ``UCP-E-MISMATCH`` for rows of a tensor that this rank does
                not hold as a whole.
        """
        found = [(part, entries[part.number]) for part in self.parts if part.number in entries]
        if not found:
            return self._without_entries(entries)
        if found[0][1].entry.form == "rows":
            return self._rows(found[0][1])
        if self.borrows and len(found) == 1 and found[0][0].is_all and found[0][1].entry.form == "dense":
            values = values_of(found[0][1].entry, found[0][1].data, found[0][0].box.shape, self.native)
            return like(to_torch(values, self.one.dtype), self.one.tensor)
        memory = self._cleared(len(found) == 1 and found[0][0].is_all, found[0][1].entry)
        for part, logged in found:
            self._fill(memory, part, logged)
        return self.gradient

    def _without_entries(self, entries: Mapping[int, LoggedEntry]) -> Any:
        """Return a gradient without elements where other ranks have one of a tensor of which this rank holds nothing.

        The optimizer then counts its steps here as well, as it did in training.
        """
        if self.parts or local_of(self.one.tensor).numel() or self.pieces.isdisjoint(entries):
            return None
        self._allocate()
        return self.gradient

    def _allocate(self) -> NDArray[np.generic]:
        local = local_of(self.one.tensor)
        self.memory = np.zeros(local.numel(), self.native)
        made = to_torch(self.memory.reshape(tuple(local.shape)), self.one.dtype).to(local.device)
        self.gradient = like(made, self.one.tensor)
        return self.memory

    def _cleared(self, is_all: bool, entry: Entry) -> NDArray[np.generic]:
        """Return the memory of the gradient, with zeros wherever it is not about to be filled."""
        if self.memory is None:
            self.memory = self._allocate()
        elif self._dirty is not None and is_all and entry.form == "sparse":
            self.memory[self._dirty] = 0
        elif not (is_all and entry.form == "dense"):
            self.memory[...] = 0
        self._dirty = None
        return self.memory

    def _fill(self, memory: NDArray[np.generic], part: _Part, logged: LoggedEntry) -> None:
        values = values_of(logged.entry, logged.data, part.box.shape, self.native)
        if logged.entry.form == "sparse":
            places = places_of(logged.entry, logged.data, part.box.size, at=logged.at)
            if part.is_all:
                memory[places] = values
                self._dirty = places
                return
            dense = np.zeros(part.box.size, self.native)
            dense[places] = values
            values = dense.reshape(part.box.shape)
        target = piece_view(memory, part.place.local, part.common)
        target[...] = values[selection(part.common, part.box)]

    def _rows(self, logged: LoggedEntry) -> Any:
        if len(self.parts) != 1 or not self.parts[0].is_all:
            message = "rows of a sparse gradient are replayed on a rank that holds the whole tensor alone"
            raise error("UCP-E-MISMATCH", message, at=self.one.atom)
        shape = self.one.shape
        rows = rows_of(logged.entry, logged.data, shape[0], at=logged.at)
        values = to_torch(values_of(logged.entry, logged.data, shape, self.native).copy(), self.one.dtype)
        local = local_of(self.one.tensor)
        indices = torch.from_numpy(rows)[None, :]
        made = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
        return made.to(local.device)

    def replace(self, entries: Mapping[int, LoggedEntry]) -> None:
        """Replace the values of a buffer that the step has changed."""
        for part in self.parts:
            logged = entries.get(part.number)
            if logged is None:
                continue
            values = values_of(logged.entry, logged.data, part.box.shape, self.native)
            local = local_of(self.one.tensor)
            host = destination_of(local, at=self.one.atom) if local.device.type == "cpu" else None
            if host is not None and host.flags.c_contiguous:
                target = piece_view(host.reshape(-1), part.place.local, part.common)
                target[...] = values[selection(part.common, part.box)]
            else:
                self.one.tensor.copy_(to_torch(values.copy(), self.one.dtype))


def like(local: torch.Tensor, tensor: Any) -> Any:
    """Return a local tensor as the gradient of a tensor: a DTensor where that is one."""
    if not hasattr(tensor, "device_mesh"):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
