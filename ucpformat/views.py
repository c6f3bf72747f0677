"""One atom and one slot of an open checkpoint, as a user holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, SupportsIndex, TypeGuard, cast

import numpy as np

from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.storage.host_memory import array_view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import BufferPlace, Layout
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.dtype import DType
    from ucpformat.storage.box_reader import BoxReader
    from ucpformat.storage.part import StoredPart, StoredSlot

__all__ = ["AtomView", "SlotView", "destination_of", "is_destination"]


def is_destination(out: object, kind: DType, shape: tuple[int, ...]) -> TypeGuard[NDArray[np.generic]]:
    """Whether ``out`` is an array that takes elements of the data type ``kind`` in this shape as it is."""
    return type(out) is np.ndarray and out.dtype == kind.numpy and out.shape == shape and out.flags.writeable


def destination_of(stored: StoredSlot, shape: tuple[int, ...], out: object) -> NDArray[np.generic]:
    """Where a read of ``stored`` goes: new memory, or ``out`` seen as numpy, which has to fit.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for another shape or data type, or memory that cannot be written.
    """
    if out is None:
        return np.empty(shape, stored.dtype.numpy)
    target = array_view(out, stored.dtype, at=stored.label)
    if target.shape != shape or target.dtype != stored.dtype.numpy:
        raise error(
            "UCP-E-MISMATCH",
            f"the destination is {target.dtype}{list(target.shape)}, needed is {stored.dtype.name}{list(shape)}",
            at=stored.label,
        )
    return target


class SlotView:
    """One slot, lazily: ``view[3:7, :]`` reads the bytes of those elements and returns a numpy array.

    Extension types come as ml_dtypes numpy types.
    """

    def __init__(self, reader: BoxReader, stored: StoredSlot, layouts: Sequence[Layout]) -> None:
        self._reader = reader
        self._stored = stored
        self._layouts = layouts

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements."""
        return self._stored.grid.shape

    @property
    def dtype(self) -> DType:
        """The data type; ``dtype.numpy`` is that of the arrays."""
        return self._stored.dtype

    @property
    def nbytes(self) -> int:
        """Logical bytes."""
        return self._stored.nbytes

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Extents of a chunk, in elements."""
        return self._stored.grid.chunk_shape

    @property
    def stored(self) -> StoredSlot:
        """Where the bytes lie."""
        return self._stored

    @property
    def layout(self) -> Layout | None:
        """How the job that saved the slot held it, if it said so."""
        index = self._stored.slot.layout
        return None if index is None else self._layouts[index]

    @property
    def place(self) -> BufferPlace | None:
        """Where that job had the tensor in its buffer, if the layout has a `Concat`."""
        return self._stored.slot.place

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """Notes about this slot, such as an importer's on where it came from."""
        return self._stored.slot.annotations

    def __getitem__(self, selection: object) -> NDArray[np.generic]:
        """A basic selection: integers, slices with step 1 or more, an ellipsis. Integers drop their dimension.

        Raises:
            IndexError: as numpy would.
            UcpError: as `Checkpoint.read`.
        """
        items = selection if isinstance(selection, tuple) else (selection,)
        box, steps = _selected(items, self.shape)
        out = np.empty(box.shape, self.dtype.numpy)
        self._reader.read_box(self._stored, box, out)
        return cast("NDArray[np.generic]", out[(*steps, ...)])

    def read(self, out: object = None) -> NDArray[np.generic]:
        """The whole slot, into ``out`` if given (see `Checkpoint.read`)."""
        target = destination_of(self._stored, self.shape, out)
        self._reader.read_box(self._stored, Box.whole(self.shape), target)
        return target

    def mapped(self) -> NDArray[np.generic]:
        """The whole slot where it lies in storage, without a copy: an array that cannot be written.

        A slot of up to ``chunk_bytes`` (16 MiB, unless the writer chose otherwise) is one part. A larger one is one
        part where one process saved it whole, uncompressed, in storage packed, and its chunks take multiples of 4096
        bytes; else it may lie in several.

        It is checked as any read is, unless the checkpoint was opened with ``verify=False``: then nothing is read
        before somebody looks. It may outlive the checkpoint, and keeps its file open; the process that looks at it
        dies if the file is cut meanwhile.

        Raises:
            UcpError: ``UCP-E-STORE`` where the slot is compressed, remote, or stored in several parts (see
                `mapped_parts`); else as `Checkpoint.read`.
        """
        parts = list(self.mapped_parts())
        if len(parts) > 1:
            if self._stored.part.packed:
                reason = (
                    "saved by several processes, in boxes, or in chunks that are no multiples of 4096 bytes"
                )
            else:
                reason = "since in storage plain each chunk is a file of its own"
            message = f"the slot lies in {len(parts)} parts, {reason}: read() it, or take mapped_parts()"
            raise error("UCP-E-STORE", message, at=self._stored.label)
        return parts[0][1] if parts else self.read()

    def mapped_parts(self) -> Iterator[tuple[Box, NDArray[np.generic]]]:
        """As `mapped`, part by part: boxes of the slot, which together are all of it, and their elements."""
        return self._reader.mapped(self._stored)

    def __array__(
        self, dtype: np.dtype[np.generic] | None = None, copy: bool | None = None
    ) -> NDArray[np.generic]:
        data = self.read()
        return data if dtype is None else data.astype(dtype)


def _selected(items: tuple[object, ...], shape: tuple[int, ...]) -> tuple[Box, tuple[int | slice, ...]]:
    """The box to read, and what to select from it."""
    ellipses = [place for place, item in enumerate(items) if item is Ellipsis]
    if ellipses:
        place = ellipses[0]
        fill = len(shape) - len(items) + 1
        items = items[:place] + (slice(None),) * fill + items[place + 1 :]
    items = items + (slice(None),) * (len(shape) - len(items))
    if len(items) > len(shape):
        raise IndexError(f"too many indices for a tensor of {len(shape)} dimensions")
    offset, extents, steps = [], [], []
    for item, extent in zip(items, shape, strict=True):
        if isinstance(item, slice):
            start, stop, step = item.indices(extent)
            if step < 1:
                raise IndexError("slices must go forward")
            offset.append(start)
            extents.append(max(0, stop - start))
            steps.append(slice(None, None, step))
        else:
            index = _integer(item)
            if not -extent <= index < extent:
                raise IndexError(f"index {index} is out of bounds for extent {extent}")
            offset.append(index % extent)
            extents.append(1)
            steps.append(0)  # type: ignore[arg-type]
    return Box(tuple(offset), tuple(extents)), tuple(steps)


def _integer(item: object) -> int:
    if isinstance(item, SupportsIndex) and not isinstance(item, bool | np.bool_ | np.ndarray):
        return item.__index__()
    raise IndexError(f"only integers, slices and one ellipsis select here, not {item!r}")


class AtomView(Mapping[str, SlotView]):
    """One atom: its slots by name."""

    def __init__(self, reader: BoxReader, part: StoredPart, position: int, layouts: Sequence[Layout]) -> None:
        self._reader = reader
        self._layouts = layouts
        self._part = part
        self.atom = part.index.atoms[position]

    @property
    def name(self) -> str:
        """The name of the parameter or buffer."""
        return self.atom.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names, as of tied weights."""
        return self.atom.aliases

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """Notes about this atom, such as an importer's on where it came from."""
        return self.atom.annotations

    def __getitem__(self, slot: str) -> SlotView:
        stored = self._part.find(self.atom.name, slot)
        if stored is None:
            raise KeyError(f"{self.atom.name!r} has no slot {slot!r}, but {', '.join(self)}")
        return SlotView(self._reader, stored, self._layouts)

    def __iter__(self) -> Iterator[str]:
        return (slot.name for slot in self.atom.slots)

    def __len__(self) -> int:
        return len(self.atom.slots)
