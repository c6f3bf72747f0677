"""What a rank has to write, copied chunk by chunk into host memory: as a whole snapshot, or batch by batch."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from ucpformat.distributed.arena import Arena, extent
from ucpformat.distributed.share import Part, cut, flat_memory, seen_part
from ucpformat.storage.increments.changes import ComparedRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import LocalState, SlotName
    from ucpformat.distributed.save import Saving
    from ucpformat.distributed.share import SlotPiece
    from ucpformat.geometry import Box, Piece
    from ucpformat.model.dtype import DType

__all__ = [
    "Batch",
    "Copied",
    "Copier",
    "Copy",
    "HostCopier",
    "KeptSnapshot",
    "Snapshot",
    "double_buffered",
]

_BATCH_BYTES: Final = 1 << 26
_BATCHES_OF_A_RING: Final = 4
_COPIED_AT_ONCE: Final = 1 << 22
_SAMPLES: Final = 64
_SHORT: Final = 128
_COMPARED_AT_ONCE: Final = 1 << 21
"""Bytes of a tensor that are compared in one go, after which the changed ones are still in the processor's cache."""


class Copy(NamedTuple):
    """Elements of a local tensor, and the region of the arena that they go to, in C order from byte ``start`` on.

    With ``changed`` the region has what the base of an increment has of them. A copier may compare, and make those
    truth values false of which the rows are the same (`ComparedRows.expect`).
    """

    name: SlotName
    piece: Piece
    kind: DType
    start: int
    changed: NDArray[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the region."""
        return self.piece.box.size * self.kind.item_bytes

    def target(self, memory: NDArray[np.uint8]) -> NDArray[np.generic]:
        """Return the region as an array."""
        return np.ndarray(self.piece.box.shape, self.kind.numpy, memory.data, self.start)


def _nothing() -> None:
    """Do nothing: there is nothing to wait for."""


class Copied(NamedTuple):
    """What waits for copies that have begun: ``ready`` until they are made, in any thread.

    ``hold`` lets wait what the calling thread gives a device to do afterwards, and not the thread itself.
    """

    ready: Callable[[], None] = _nothing
    hold: Callable[[], None] = _nothing


class Copier(Protocol):
    """Copies elements into arenas, for one saver and in its order; only `copy` may raise, what copying raises.

    Each save calls `begin`, then `allocate` for arenas that it lacks, and `copy` for each batch, in the thread of the
    call or, one batch at a time, in another. The saver calls `close` when it ends, and `forget` in a process that was
    forked.
    """

    def begin(self, local: LocalState) -> bool:
        """Look at what is to be copied, as it is now; returns whether memory that was allocated before still serves."""
        ...

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory for an arena."""
        ...

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        """Begin to copy: when `Copied.hold` has returned, what its caller does to the tensors comes after the copy."""
        ...

    def forget(self) -> None:
        """Let go of threads that this process, being a fork, does not have."""
        ...

    def close(self) -> None:
        """Release threads."""
        ...


class HostCopier:
    """Copies tensors in host memory; the copy is done when `copy` returns."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(8, os.cpu_count() or 1)
        self._executor: ThreadPoolExecutor | None = None

    def begin(self, local: LocalState) -> bool:
        """Return True: pageable memory serves every state."""
        return True

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return pageable memory."""
        return np.empty(nbytes, np.uint8)

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        """Copy, large parts in several threads at once."""
        large: list[tuple[NDArray[np.generic], NDArray[np.generic], NDArray[np.bool_] | None]] = []
        name: SlotName | None = None
        flat: NDArray[np.generic] = memory
        for copy in copies:
            if copy.name != name:
                name, flat = copy.name, flat_memory(local.arrays[copy.name]())
            source = seen_part(flat, copy.piece, at="/".join(copy.name))
            if copy.nbytes < _COPIED_AT_ONCE or self._threads == 1:
                _copy(copy.target(memory), source, copy.changed)
            else:
                large.append((copy.target(memory), source, copy.changed))
        if large:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="ucp-snapshot")
            for _ in self._executor.map(lambda one: _copy(*one), large):
                pass
        return Copied()

    def forget(self) -> None:
        """Let go of threads that this process, being a fork, does not have."""
        self._executor = None

    def close(self) -> None:
        """Release threads."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


def _copy(
    target: NDArray[np.generic], source: NDArray[np.generic], changed: NDArray[np.bool_] | None
) -> None:
    """Copy elements; with ``changed``, compare them with what they replace, and say which rows are other bytes."""
    if changed is None or not target.size:
        np.copyto(target, source)
        return
    lead = next((axis for axis, extent in enumerate(target.shape) if extent != 1), target.ndim - 1)
    inner = (0,) * lead if target.ndim else (None,)
    target, source = target[inner], source[inner]
    every = max(1, len(target) // _SAMPLES)
    sampled = _words(np.ascontiguousarray(target[::every])) != _words(np.ascontiguousarray(source[::every]))
    if sampled.any(axis=1).all():  # all will have changed: looking further would cost as much as the copy
        np.copyto(target, source)
        return
    changed[:] = False
    step = max(1, _COMPARED_AT_ONCE * len(target) // target.nbytes)
    for low in range(0, len(target), step):
        new = np.ascontiguousarray(source[low : low + step])
        old = target[low : low + step]
        differs = _words(old) != _words(new)
        if not differs.any():
            continue
        if changed.size == 1:
            changed[0] = True
            np.copyto(old, new)
            continue
        rows = changed[low : low + step]
        rows[:] = _any_of_each(differs)
        if np.count_nonzero(rows) * 4 < len(rows):
            old[rows] = new[rows]
        else:
            np.copyto(old, new)


def _any_of_each(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether any of each row is true; short rows are put together column by column, which is faster."""
    if rows.shape[1] % 8 or rows.shape[1] > _SHORT:
        return np.asarray(rows.any(axis=1))
    eights = rows.view(np.uint64)
    found = eights[:, 0].copy()
    for column in range(1, eights.shape[1]):
        found |= eights[:, column]
    return found.astype(np.bool_)


def _words(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return contiguous rows as words, the widest that each row is a multiple of: NaN is no other than itself."""
    width = rows.nbytes // len(rows)
    word = next(size for size in (8, 4, 2, 1) if width % size == 0)
    return rows.view(np.uint8).reshape(len(rows), -1).view(f"u{word}")


class KeptSnapshot(NamedTuple):
    """What an arena still has of the checkpoint with the root digest ``digest``, whose `Snapshot` it was."""

    digest: str
    memory: NDArray[np.uint8]
    regions: frozenset[tuple[SlotName, Box, str, int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Parts that lie in the arena, as many regions of it as there are parts, once the copies are ready."""

    parts: list[Part]
    copied: Copied


class Snapshot:
    """What `Saving.share` says, cut at chunks into pieces, which have numbers; `batches` copies them.

    Where the arena has room for all, each piece has the same place as in another snapshot of the same state. Where it
    has the base, as ``kept`` says, what is copied is compared with that, and `Saving` told. ``pieces`` are those of
    `cut`, where they are known.
    """

    def __init__(
        self,
        saving: Saving,
        arena: Arena,
        copier: Copier,
        kept: KeptSnapshot | None = None,
        pieces: Sequence[SlotPiece] | None = None,
    ) -> None:
        self._local = saving.local
        self._arena = arena
        self._copier = copier
        self._pieces = list(cut(saving.share(), saving.form)) if pieces is None else pieces
        if not copier.begin(saving.local):
            arena.close()
        self.sizes = [piece.box.size * kind.item_bytes for _, piece, kind in self._pieces]
        self.nbytes = sum(self.sizes)
        self.fits = arena.prepare(extent(self.sizes))
        self._starts = [arena.take(nbytes) for nbytes in self.sizes] if self.fits else []
        self._regions: list[tuple[SlotName, Box, str, int]] = []
        self._before: frozenset[tuple[SlotName, Box, str, int]] = frozenset()
        self._compared = ComparedRows(saving.base_digest or "")
        if (
            self.fits
            and kept is not None
            and kept.digest == saving.base_digest
            and kept.memory is arena.memory
        ):
            self._before = kept.regions
            saving.believe(self._compared)

    def kept(self, digest: str) -> KeptSnapshot | None:
        """Return what the arena has when all is written, and committed with a root digest; None if not all of it."""
        return KeptSnapshot(digest, self._arena.memory, frozenset(self._regions)) if self.fits else None

    @property
    def slots(self) -> list[SlotName]:
        """The slot of each piece, in the order of their numbers."""
        return [name for name, _, _ in self._pieces]

    def batches(self, numbers: Iterable[int]) -> Iterator[Batch]:
        """Yield batches of the pieces with these numbers, each copied, or its copy begun, when yielded.

        Copies as fast as the arena has room; ends early if the arena is abandoned.
        """
        most = _BATCH_BYTES if self.fits else min(_BATCH_BYTES, self._arena.nbytes // _BATCHES_OF_A_RING)
        copies: list[Copy] = []
        pending = 0
        for number in numbers:
            nbytes = self.sizes[number]
            start = self._starts[number] if self.fits else self._arena.take(nbytes, block=False)
            if start is None and copies:
                yield self._copied(copies)
                copies, pending = [], 0
            if start is None:
                start = self._arena.take(nbytes)
                if start is None:
                    return
            copies.append(self._copy(number, start))
            pending += nbytes
            if pending >= most:
                yield self._copied(copies)
                copies, pending = [], 0
        if copies:
            yield self._copied(copies)

    def whole(self) -> Iterator[list[Part]]:
        """Yield all parts, where all fit and are copied, in the order of slots; as many at a time as a batch has."""
        copies: list[Copy] = []
        pending = 0
        for (name, piece, kind), start, nbytes in zip(self._pieces, self._starts, self.sizes, strict=True):
            if start is not None:
                copies.append(Copy(name, piece, kind, start))
            pending += nbytes
            if pending >= _BATCH_BYTES:
                yield _parts(copies, self._arena.memory)
                copies, pending = [], 0
        if copies:
            yield _parts(copies, self._arena.memory)

    def _copy(self, number: int, start: int) -> Copy:
        name, piece, kind = self._pieces[number]
        region = (name, piece.box, kind.name, start)
        self._regions.append(region)
        changed = None
        if region in self._before:
            changed = self._compared.expect(name, piece.box, kind.item_bytes)
        return Copy(name, piece, kind, start, changed)

    def _copied(self, copies: list[Copy]) -> Batch:
        memory = self._arena.memory
        copied = self._copier.copy(self._local, copies, memory)
        return Batch(_parts(copies, memory), copied)


def _parts(copies: Iterable[Copy], memory: NDArray[np.uint8]) -> list[Part]:
    return [Part(copy.name, copy.piece.box.offset, copy.target(memory)) for copy in copies]


def double_buffered(saving: Saving, copier: Copier) -> Iterator[list[Part]]:
    """Give what `Saving.share` says in batches, for `Saving.run`: one is copied while the one before is written.

    Tensors of a device go through two buffers of 64 MiB, or of one part where that is larger; those in host memory
    are given as they lie there. A batch is valid until the next one is asked for.
    """
    local = saving.local
    copier.begin(local)
    buffers = cycle([Arena(allocate=copier.allocate), Arena(allocate=copier.allocate)])
    pieces = deque(cut(saving.share(), saving.form))
    before: Batch | None = None
    while pieces:
        batch = _next_batch(pieces, local, copier, next(buffers))
        if before is not None:
            before.copied.ready()
            yield before.parts
        before = batch
    if before is not None:
        before.copied.ready()
        yield before.parts


def _next_batch(pieces: deque[SlotPiece], local: LocalState, copier: Copier, buffer: Arena) -> Batch:
    """Take the first pieces, as many as come to 64 MiB, and begin to copy those that lie on a device."""
    name, piece, kind = pieces[0]
    buffer.prepare(max(_BATCH_BYTES, extent([piece.box.size * kind.item_bytes])))
    parts: list[Part] = []
    copies: list[Copy] = []
    on_host: tuple[SlotName, NDArray[np.generic]] | None = None
    pending = 0
    while pieces and pending < _BATCH_BYTES:
        name, piece, kind = pieces[0]
        nbytes = piece.box.size * kind.item_bytes
        if name in local.devices:
            start = buffer.take(nbytes, block=False) if extent([nbytes]) <= buffer.nbytes else None
            if start is None:
                break
            copies.append(Copy(name, piece, kind, start))
            part = copies[-1].target(buffer.memory)
        else:
            if on_host is None or on_host[0] != name:
                on_host = name, flat_memory(local.arrays[name]())
            part = seen_part(on_host[1], piece, at="/".join(name))
        parts.append(Part(name, piece.box.offset, part))
        pending += nbytes
        pieces.popleft()
    return Batch(parts, copier.copy(local, copies, buffer.memory))
