"""One atom and one slot of an open checkpoint, as a user holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import numpy as np

from ucpformat.drawing.html_tree import html_page
from ucpformat.drawing.module_tree import AtomForm, SlotForm
from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.html_facts import html_facts
from ucpformat.storage.reading.destinations import destination_of
from ucpformat.storage.reading.indexing import select
from ucpformat.text import human_bytes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from ucpformat.drawing.shards import Drawing
    from ucpformat.geometry import BufferPlace, Layout
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.atom import Atom
    from ucpformat.storage.reading.box_reader import BoxReader
    from ucpformat.storage.reading.part import StoredPart
    from ucpformat.storage.reading.stored_slot import StoredSlot

__all__ = ["AtomView", "SlotView", "StateEntries", "ViewSource", "reader_of"]


_REASONS: Final = {
    True: "saved in boxes, by several processes, or with chunks of zeros, which cannot be mapped one behind the other",
    False: "since in storage plain each chunk is a file, and these cannot be mapped one behind the other",
}


class ViewSource(Protocol):
    """The open checkpoint behind a view, through which the view reads until it is closed."""

    @property
    def reader(self) -> BoxReader:
        """What reads its boxes."""
        ...

    @property
    def layouts(self) -> Sequence[Layout]:
        """What slots refer to by number."""
        ...

    def reduced(self, atom: str, slot: str | None) -> tuple[Any, ...]:
        """Return what pickle keeps of a view (`object.__reduce__`): how to make it anew where it is unpickled."""
        ...


class SlotView:
    """One slot, lazily: ``view[3:7, :]`` reads the bytes of those elements and returns a numpy array.

    Extension types come as ml_dtypes numpy types. A view is an array to whoever asks for ``shape``, ``dtype`` and
    slices, such as ``dask.array.from_array``, and numpy functions read all of it. It can be pickled, for a worker
    process say: there it opens the checkpoint again, which must still be the same one.

    >>> report = ucp.save("run.ucp", {"w": np.arange(6).reshape(3, 2)})
    >>> with ucp.open("run.ucp") as ckpt:
    ...     view = ckpt["w"]["value"]
    ...     view.shape, view[1].tolist()
    ((3, 2), [2, 3])
    """

    def __init__(self, source: ViewSource, stored: StoredSlot) -> None:
        self._source = source
        self._stored = stored

    def __reduce__(self) -> tuple[Any, ...]:
        return self._source.reduced(self._stored.part.names[self._stored.position], self._stored.name)

    def __repr__(self) -> str:
        return f"<SlotView {self._stored.label}: {self._stored.dtype.name}{list(self.shape)}>"

    def _repr_html_(self) -> str:
        return html_facts(
            {
                "tensor": self._stored.label,
                "data type": self._stored.dtype.name,
                "shape": list(self.shape),
                "size": human_bytes(self.nbytes),
                "chunks": list(self.chunk_shape),
            }
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements.

        >>> view.shape
        (3, 2)
        """
        return self._stored.grid.shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The data type of the arrays; its ``name`` is that of the format (SPEC section 11.2).

        >>> view.dtype
        dtype('<f4')
        """
        return self._stored.dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of dimensions.

        >>> view.ndim
        2
        """
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements.

        >>> view.size
        6
        """
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a slot without dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray[np.generic]]:
        return (self[index] for index in range(len(self)))

    def __bool__(self) -> bool:
        raise TypeError("a slot is neither true nor false: read it, or look at its size")

    @property
    def nbytes(self) -> int:
        """Logical bytes.

        >>> view.nbytes
        24
        """
        return self._stored.nbytes

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Extents of a chunk, in elements.

        >>> view.chunk_shape
        (3, 2)
        """
        return self._stored.grid.chunk_shape

    @property
    def stored(self) -> StoredSlot:
        """Where the bytes lie.

        >>> view.stored.label
        'fc.weight/value'
        """
        return self._stored

    @property
    def layout(self) -> Layout | None:
        """How the job that saved the slot held it, if it said so.

        >>> view.layout is None
        True
        """
        index = self._stored.slot.layout
        return None if index is None else self._source.layouts[index]

    @property
    def place(self) -> BufferPlace | None:
        """Where that job had the tensor in its buffer, if the layout has a `Concat`.

        >>> view.place is None
        True
        """
        return self._stored.slot.place

    def shards(self) -> Drawing:
        """Draw which ranks of the job that saved the slot held what of it; no data is read.

        Raises UCP-E-LAYOUT where the job did not say; `draw` shows it under any layout.

        >>> view.shards()
        Traceback (most recent call last):
        ...
        ucpformat.errors.LayoutError: UCP-E-LAYOUT at fc.weight/value: ...
        """
        from ucpformat.drawing.shards import draw

        if self.layout is None:
            message = "nothing says which ranks held it: draw it under a layout, with ucp.draw(layout, shape)"
            raise error("UCP-E-LAYOUT", message, at=self._stored.label)
        return draw(self.layout, self.shape, self.place)

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """Notes about this slot, such as an importer's on where it came from.

        >>> sorted(view.annotations)
        ['org.ucpformat.source']
        """
        return self._stored.annotations

    def __getitem__(self, selection: object) -> NDArray[np.generic]:
        """Read a part of the slot, selected as from a numpy array.

        Integers, slices of any step, an ellipsis, ``None``, and arrays of integers or booleans select, with the same
        result as numpy has. Of what arrays select, rows that lie close together are read at once.

        Returns:
            A new array of the slot's data type.

        Raises:
            IndexError: as numpy would.
            UcpError: as `Checkpoint.read`.

        >>> report = ucp.save("run.ucp", {"w": np.arange(6).reshape(3, 2)})
        >>> view = ucp.open("run.ucp")["w"]["value"]
        >>> view[0:2, 1].tolist(), view[::-2].tolist(), view[[2, 0], [1, 1]].tolist()
        ([1, 3], [[4, 5], [0, 1]], [5, 1])
        """
        selected = select(selection, self.shape, self.dtype.itemsize)
        out = np.empty(selected.shape, self.dtype)
        if out.size:
            whole: Any = out
            boxes = ((self._stored, box, whole[(*place, ...)]) for box, place in selected.boxes())
            self._source.reader.read(boxes)
        return cast("NDArray[np.generic]", out[(*selected.index, ...)])

    def read(self, out: object = None) -> NDArray[np.generic]:
        """Return the whole slot, into ``out`` if given (see `Checkpoint.read`).

        >>> view.read().tolist()
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
        """
        target = destination_of(self._stored, self.shape, out)
        self._source.reader.read([(self._stored, self._stored.grid.whole, target)])
        return target

    def mapped(self) -> NDArray[np.generic]:
        """Return the whole slot where it lies in storage, without a copy: an array that cannot be written.

        A slot of up to ``chunk_bytes`` (16 MiB, unless the writer chose otherwise) lies in one part, and so do larger
        ones, as a rule, where one process saved them whole, uncompressed, in storage packed. Parts that follow one
        another in the slot and begin and end at pages of memory (4096 bytes, on most systems) are mapped one behind
        the other.

        It is checked as any read is, unless the checkpoint was opened with ``verify=False``: then nothing is read
        before somebody looks. It may outlive the checkpoint, and keeps its file open. Whoever looks at it when the
        file has been cut is ended by the system (``SIGBUS``); a file that was removed stays.

        Raises:
            UcpError: ``UCP-E-STORE`` where the slot is compressed, remote, or stored in several parts (see
                `mapped_parts`); else as `Checkpoint.read`.

        >>> view.mapped()[2].tolist()
        [4.0, 5.0]
        """
        found = self._source.reader.mapped_whole(self._stored) if self.size else self.read()
        if isinstance(found, int):
            why = _REASONS[self._stored.part.packed]
            message = f"the slot lies in {found} parts, {why}: read() it, or take mapped_parts()"
            raise error("UCP-E-STORE", message, at=self._stored.label)
        return found

    def mapped_parts(self) -> Iterator[tuple[Box, NDArray[np.generic]]]:
        """Yield the slot as `mapped` does, part by part: disjoint boxes, which cover it, and their elements.

        >>> [(box.offset, part.shape) for box, part in view.mapped_parts()]
        [((0, 0), (3, 2))]
        """
        return self._source.reader.mapped(self._stored)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        """Return all elements, read now.

        Raises:
            ValueError: with ``copy=False``.
        """
        if copy is False:
            raise ValueError("a slot is read from storage, which makes a copy: mapped() gives it without one")
        data = self.read()
        return data if dtype is None else data.astype(dtype, copy=False)


def reader_of(view: SlotView) -> BoxReader:
    """Return what reads the boxes of a slot, and of all others of its checkpoint."""
    return view._source.reader


_T = TypeVar("_T")


class StateEntries(Mapping[str, _T]):
    """What a checkpoint holds beside tensors, by name; an entry is read, checked and decoded when it is asked for."""

    def __init__(self, what: str, entries: Mapping[str, object], read: Callable[[str], _T]) -> None:
        self._what = what
        self._entries = entries
        self._read = read

    def __getitem__(self, name: str) -> _T:
        if name not in self._entries:
            near = get_close_matches(name, list(self._entries), n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise KeyError(f"the checkpoint has no {self._what} {name!r}{hint}")
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<{self._what}s: {', '.join(self._entries)}>"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._entries)


class AtomView(Mapping[str, SlotView]):
    """One atom: its slots by name. It can be pickled, as `SlotView` can.

    >>> report = ucp.save("run.ucp", {"w": np.ones((8, 4), np.float32)})
    >>> with ucp.open("run.ucp") as ckpt:
    ...     list(ckpt["w"]), ckpt["w"]["value"].shape
    (['value'], (8, 4))
    """

    def __init__(self, source: ViewSource, part: StoredPart, position: int) -> None:
        self._source = source
        self._part = part
        self._position = position

    @cached_property
    def atom(self) -> Atom:
        """The atom as the index has it.

        >>> ckpt["fc.weight"].atom.key
        'fc.weight'
        """
        return self._part.index.atoms[self._position]

    def __reduce__(self) -> tuple[Any, ...]:
        return self._source.reduced(self.name, None)

    def __repr__(self) -> str:
        slots = ", ".join(
            f"{name}: {slot.stored.dtype.name}{list(slot.shape)}" for name, slot in self.items()
        )
        return f"<AtomView {self.name}: {slots}>"

    def _repr_html_(self) -> str:
        return html_page({"atom": self.name}, [self.form()])

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def form(self) -> AtomForm:
        """Return its name, and data types, shapes and sizes of its slots, as trees of modules are made of them.

        >>> ckpt["fc.weight"].form().slots["value"].shape
        (3, 2)
        """
        slots = {
            name: SlotForm(slot.stored.dtype.name, slot.shape, slot.nbytes) for name, slot in self.items()
        }
        return AtomForm(self.name, slots)

    @property
    def name(self) -> str:
        """The name of the parameter or buffer.

        >>> ckpt["fc.weight"].name
        'fc.weight'
        """
        return self._part.names[self._position]

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names, as of tied weights.

        >>> ckpt["fc.weight"].aliases
        ()
        """
        return self.atom.aliases

    @property
    def annotations(self) -> Mapping[str, JsonValue]:
        """Notes about this atom, such as an importer's on where it came from.

        >>> dict(ckpt["fc.weight"].annotations)
        {}
        """
        return self.atom.annotations

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each slot, with what its documents say.

        A row has ``atom``, ``slot``, ``dtype``, ``shape`` in elements, ``nbytes``, ``chunks`` and ``layout``, the
        number of the slot's layout in `Checkpoint.layouts`, or None.

        >>> [(row["slot"], row["nbytes"]) for row in ckpt["fc.weight"].rows()]
        [('value', 24)]
        """
        return [
            {
                "atom": self.name,
                "slot": slot,
                "dtype": view.stored.dtype.name,
                "shape": view.shape,
                "nbytes": view.nbytes,
                "chunks": view.stored.grid.count,
                "layout": view.stored.slot.layout,
            }
            for slot, view in self.items()
        ]

    def __getitem__(self, slot: str) -> SlotView:
        stored = self._part.find(self.name, slot)
        if stored is None:
            raise KeyError(f"{self.name!r} has no slot {slot!r}, but {', '.join(self)}")
        return SlotView(self._source, stored)

    def __iter__(self) -> Iterator[str]:
        return (slot.name for slot in self.atom.slots)

    def __len__(self) -> int:
        return len(self.atom.slots)
