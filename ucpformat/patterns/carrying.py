"""Atoms made of others, in memory (SPEC-ATOM-MAPS): what an atom mapping says, done to arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.geometry import Strided
    from ucpformat.patterns.atom_mapping import AtomMapping, MappedSlot

__all__ = ["Array", "carried", "strided"]

Array = np.ndarray[Any, np.dtype[Any]]
Read = Callable[[str, str], Array]


def carried(mapping: AtomMapping, read: Read) -> Iterator[tuple[str, str, Array]]:
    """Yield every slot that ``mapping`` makes: its atom, its name and its elements, one after another.

    ``read(atom, slot)`` gives the elements of a source, of any data type; it is called once for each slot
    that a source is part of, so that one slot and its sources are in memory at a time.

    Raises UCP-E-MISMATCH: parts have different data types, a source has another shape than was said, or
    atoms that have to be equal are not (bit by bit).
    """
    for one, other, slot in mapping.equal:
        if not _are_equal(read(one, slot), read(other, slot)):
            message = f"{one!r} and {other!r} are to be one, and their slots {slot!r} hold different elements"
            raise error("UCP-E-MISMATCH", message)
    for made in mapping.slots:
        yield made.atom, made.slot, _made(made, read)


def _made(made: MappedSlot, read: Read) -> Array:
    sources = {part.source: np.ascontiguousarray(read(part.source, made.slot)) for part in made.parts}
    dtypes = {source.dtype for source in sources.values()}
    if len(dtypes) > 1:
        told = ", ".join(sorted(map(str, dtypes)))
        raise error(
            "UCP-E-MISMATCH", f"the slot {made.slot!r} of {made.atom!r} would be of {told}: convert first"
        )
    target = np.empty(made.shape, next(iter(dtypes), np.dtype("uint8")))
    for part in made.parts:
        move = part.move
        strided(target, move.shape, move.target)[...] = strided(sources[part.source], move.shape, move.source)
    return target


def strided(array: Array, shape: tuple[int, ...], place: Strided) -> Array:
    """Return a view of a contiguous array at ``place``; raises ``UCP-E-MISMATCH`` where it leaves the array."""
    last = place.offset + sum(
        (extent - 1) * stride for extent, stride in zip(shape, place.strides, strict=True)
    )
    if not 0 <= place.offset <= last < array.size:
        raise error("UCP-E-MISMATCH", f"a source has {array.size} elements, and one at {last} is asked for")
    flat = array.reshape(-1)[place.offset :]
    return as_strided(flat, shape, tuple(stride * array.itemsize for stride in place.strides))


def _are_equal(one: Array, other: Array) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype) and one.tobytes() == other.tobytes()
