"""One writer of an attempt: boxes of declared slots into a store, in several threads (SPEC section 17.4).

A checkpoint has one such writer for each process that holds some of it. What each has written is in its `ledger`;
whoever commits puts them together.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box
from ucpformat.model.references import Pack
from ucpformat.storage.writing.chunk_writer import ChunkWriter, PlainChunkWriter
from ucpformat.storage.writing.ledger import Ledger
from ucpformat.storage.writing.packed_chunks import PackedChunkWriter
from ucpformat.storage.writing.slot_writer import SlotBox, SlotWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from ucpformat.model.root import Storage
    from ucpformat.storage.stores.store import Store
    from ucpformat.storage.writing.chunk_writer import SlotPlace

__all__ = ["PieceWriter"]


class PieceWriter:
    """Writes boxes of slots, given by names of atom and slot.

    ``name`` is that of its packs, which no other writer may use: an attempt identifier and the writer's number.
    """

    def __init__(
        self,
        store: Store,
        places: Mapping[tuple[str, str], SlotPlace],
        *,
        storage: Storage,
        name: str,
        workers: int,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.places = places
        self.ledger = Ledger()
        self._chunks: ChunkWriter
        if storage == "plain":
            self._chunks = PlainChunkWriter(store.create)
        else:
            self._chunks = PackedChunkWriter(store, name=name, packs=min(store.packs_at_once, workers))
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="ucp-write")
        self._slot_writer = SlotWriter(self._chunks, self.ledger, self._executor, workers, progress)

    def begin(self) -> None:
        """Write what has to stand before chunks; one writer of an attempt does."""
        self._chunks.begin(list(self.places.values()))

    def write(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None = None
    ) -> None:
        """Write a whole slot, or the box of it at ``offset`` with the shape of ``data``.

        The call returns when the bytes are handed to the store; ``data`` may then be changed.

        Raises:
            UcpError: ``UCP-E-MISMATCH`` where dtype or shape are not those declared; ``UCP-E-STORE`` for a box
                that cuts chunks, where storage is plain or the slot compressed.
        """
        self._slot_writer.write(self._checked(atom, slot, data, offset))

    def submit(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None = None
    ) -> None:
        """As `write`, in the background: ``data`` must not change before `finish` returns."""
        self._slot_writer.submit(self._checked(atom, slot, data, offset))

    def _checked(
        self, atom: str, slot: str, data: NDArray[np.generic], offset: tuple[int, ...] | None
    ) -> SlotBox:
        name = (atom, slot)
        place = self.places.get(name)
        if place is None:
            raise error("UCP-E-MISMATCH", "this slot was not declared", at=f"{atom}/{slot}")
        kind, grid = place.dtype, place.grid
        if data.dtype is not kind.numpy and data.dtype != kind.numpy:
            message = f"the data are {data.dtype}, declared is {kind.name}"
            raise error("UCP-E-MISMATCH", message, at=f"{atom}/{slot}")
        if data.shape == grid.shape and not (offset and any(offset)):
            return SlotBox(name, place, grid.whole, data)
        box = Box((0,) * data.ndim if offset is None else offset, data.shape)
        if box.ndim != len(grid.shape) or offset is None or not grid.whole.contains(box):
            raise _misfit(f"{atom}/{slot}", f"{box}", grid.shape)
        return SlotBox(name, place, box, data)

    def drain(self) -> None:
        """Wait for everything submitted; raises the first error of a background write."""
        self._slot_writer.drain()

    def finish(self) -> list[Pack]:
        """Wait for everything submitted, and close the packs; raises the first error of a background write."""
        self.drain()
        return [Pack(key, length) for key, length in self._chunks.finish()]

    def close(self) -> None:
        """Release threads."""
        self._executor.shutdown()

    def abort(self) -> None:
        """Stop: what is not yet written never is."""
        self._slot_writer.stop()
        self._executor.shutdown(cancel_futures=True)
        with suppress(Exception):
            self._chunks.abort()


def _misfit(at: str, what: str, shape: tuple[int, ...]) -> UcpError:
    return error("UCP-E-MISMATCH", f"{what} does not fit the declared shape {shape}", at=at)
