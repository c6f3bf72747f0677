"""Reading a checkpoint (SPEC sections 17.1 to 17.3).

`open_checkpoint` reads the root document alone; an index part and its table are read when a name in them is
first asked for; data are read box by box, and verified.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakValueDictionary

import numpy as np

from ucpformat.drawing.html_tree import html_page
from ucpformat.errors import error, naming
from ucpformat.gc_pause import paused
from ucpformat.geometry import Box, Layout, lower
from ucpformat.model.envelope import PROCESS_IMAGES, READ_FEATURES
from ucpformat.model.names import fits_glob
from ucpformat.model.root import Root, parse_root
from ucpformat.model.values import decode
from ucpformat.storage.reading.box_reader import BoxReader, PartTargets
from ucpformat.storage.reading.destinations import destination_of, is_destination
from ucpformat.storage.reading.documents import StoredDocuments, read_document, read_root
from ucpformat.storage.reading.local_reader import read_local, require_readable
from ucpformat.storage.reading.part import StoredPart
from ucpformat.storage.reading.stored_slot import StoredSlot
from ucpformat.storage.stores.store import Objects
from ucpformat.storage.stores.urls import open_store
from ucpformat.storage.workers import ForkedExecutor, worker_count
from ucpformat.views import AtomView, SlotView, StateEntries

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from ucpformat.geometry import BufferPlace, Coordinate

__all__ = ["AtomView", "Checkpoint", "SlotView", "open_checkpoint"]


class Checkpoint(StoredDocuments, Mapping[str, AtomView]):
    """An open checkpoint: a mapping from names to atoms, in order of name; aliases are found as well.

    Safe to use from several threads. Close it, or use it as a context manager, to release file handles.

    It can be pickled, and its views can, for a worker process say: there it is opened again by its path, and refused
    with ``UCP-E-DIGEST`` where another checkpoint has taken its place. A process that is forked may go on reading a
    local one; what lies in an object store it has to open again, since fsspec's connections do not survive a fork.

    >>> report = ucp.save("run.ucp", {"w": np.arange(6).reshape(3, 2), "epoch": 3}, step=100)
    >>> with ucp.open("run.ucp") as ckpt:
    ...     list(ckpt), ckpt["w"]["value"][1:].tolist(), ckpt.objects["epoch"], ckpt.step
    (['w'], [[2, 3], [4, 5]], 3, 100)
    """

    def __init__(
        self,
        store: Objects,
        root: Root,
        *,
        verify: bool = True,
        workers: int | None = None,
        path: str = "",
        restored: Iterable[str] = (),
    ) -> None:
        executor = ForkedExecutor(worker_count(workers, store.calls.at_once), name="ucp-read")
        super().__init__(store, root, executor, path or store.url)
        self._restored = frozenset(restored)
        self._opening = (store.url, verify, workers, root.digest, self._restored)
        self.reader = BoxReader(store, executor, verify=verify, workers=workers, path=self.path)
        self._aliases: dict[str, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release threads and file handles.

        >>> ckpt = ucp.open("example.ucp")
        >>> ckpt.close()
        """
        self._executor.shutdown()
        self.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, self._opening

    def reduced(self, atom: str, slot: str | None) -> tuple[Any, ...]:
        """Return what pickle keeps of a view of an atom, or of one of its slots.

        >>> import pickle
        >>> pickle.loads(pickle.dumps(view)).shape
        (3, 2)
        """
        return _view_again, (self._opening, atom, slot)

    @property
    def fetched(self) -> int:
        """Bytes of data that were fetched from the store so far: documents are not counted, whole blocks are.

        >>> with ucp.open("example.ucp") as fresh:
        ...     before = fresh.fetched
        ...     row = fresh["fc.weight"]["value"][0]
        ...     before, fresh.fetched > 0
        (0, True)
        """
        return self.reader.fetched

    @property
    def objects(self) -> Mapping[str, object]:
        """What is neither a tensor nor opaque, by name: numbers, texts, lists and what else is plain data, decoded.

        >>> report = ucp.save("run.ucp", {"w": np.ones(2), "epoch": 3})
        >>> dict(ucp.open("run.ucp").objects)
        {'epoch': 3}
        """
        return StateEntries("object", self.state.values, self._object)

    def _object(self, name: str) -> object:
        with naming(self.path):
            return decode(self.state.values[name], at=f"values/{name}")

    def require_restored(self) -> None:
        """Raise ``UCP-E-MISMATCH`` where a process image is required that ``restored=`` of `open` did not name.

        >>> ckpt.require_restored()
        """
        if PROCESS_IMAGES not in self.root.envelope.read_features and not self._restored:
            return
        if strange := self._restored.difference(self.images):
            known = ", ".join(sorted(self.images)) or "none"
            message = f"the checkpoint has no image {min(strange)!r}; it has {known}"
            raise error("UCP-E-MISMATCH", message, at="restored")
        missing = sorted(
            name for name, one in self.images.items() if one.is_required and name not in self._restored
        )
        if missing:
            message = (
                f"the process image {missing[0]!r} is a part of the training state: restore it (`ucp extract`), and "
                f"say so with restored={missing!r}"
            )
            raise error("UCP-E-MISMATCH", message, at=self.path)

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """Opaque bytes by name, such as pickles that were carried as they were. Never execute or unpickle them.

        >>> with ucp.CheckpointWriter("run.ucp", []) as writer:
        ...     writer.add_blob("notes", b"text", "text/plain")
        >>> ucp.open("run.ucp").blobs["notes"]
        b'text'
        """
        return StateEntries("blob", self.state.blobs, self._blob)

    def _blob(self, name: str) -> bytes:
        reference = self.state.blobs[name].object
        with naming(self.path):
            return read_document(self.store, reference, limit=reference.length)

    def __getitem__(self, name: str) -> AtomView:
        found = self.find(name)
        if found is None and name in self._all_aliases():
            found = self.find(self._all_aliases()[name])
        if found is None:
            near = get_close_matches(name, list(self)[:10_000], n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise KeyError(f"the checkpoint has no atom {name!r}{hint}")
        return AtomView(self, *found)

    def _all_aliases(self) -> Mapping[str, str]:
        with self._lock:
            if self._aliases is None:
                self._aliases = {
                    alias: atom.name
                    for part in self.parts()
                    for atom in part.index.atoms
                    for alias in atom.aliases
                }
            return self._aliases

    def __iter__(self) -> Iterator[str]:
        for part in self.parts():
            yield from part.names

    def __repr__(self) -> str:
        step = "" if self.step is None else f"step {self.step}, "
        return f"<Checkpoint {self.path}: {step}{len(self)} atoms, {self.root.storage}>"

    def _repr_html_(self) -> str:
        facts = {"checkpoint": repr(self)[12:-1], "digest": self.digest}
        return html_page(facts, (atom.form() for atom in self.values()))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def table(self) -> list[dict[str, object]]:
        """Return a row for each slot, as data frames take them: ``pandas.DataFrame(ckpt.table())``.

        Rows are those of `AtomView.rows`.

        >>> ckpt.table()[0]["atom"], ckpt.table()[0]["shape"]
        ('fc.bias', (3,))
        """
        return [row for atom in self.values() for row in atom.rows()]

    def glob(self, *globs: str) -> dict[str, AtomView]:
        """Return the atoms whose names match one of some globs, by name; none where nothing matches.

        Globs are those of ``only=`` in `load`: ``*`` also matches dots, and a glob takes everything below what it
        matches: ``layers.0`` is the same as ``layers.0.*``.

        >>> report = ucp.save("run.ucp", {"fc.weight": np.ones((2, 2)), "fc.bias": np.ones(2), "e.weight": np.ones(2)})
        >>> with ucp.open("run.ucp") as ckpt:
        ...     list(ckpt.glob("*.weight")), list(ckpt.glob("fc"))
        (['e.weight', 'fc.weight'], ['fc.bias', 'fc.weight'])
        """
        return {name: self[name] for name in self if any(fits_glob(glob, name) for glob in globs)}

    def __len__(self) -> int:
        return sum(part.atoms for part in self.root.parts)

    def read_box(self, stored: StoredSlot, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box of a slot (see `read_boxes`).

        >>> out = np.empty((1, 2), np.float32)
        >>> ckpt.read_box(ckpt["fc.weight"]["value"].stored, ucp.layouts.Box((1, 0), (1, 2)), out)
        >>> out.tolist()
        [[2.0, 3.0]]
        """
        self.reader.read([(stored, box, out)])

    def read(
        self,
        name: str,
        slot: str = "value",
        *,
        layout: Layout | None = None,
        coord: Mapping[str, int] | None = None,
        place: BufferPlace | None = None,
        out: object = None,
    ) -> NDArray[np.generic] | None:
        """Return the local tensor that ``layout`` puts at ``coord``, or the whole slot without a layout.

        ``coord`` gives the position on the mesh by axis name; axes left out are at 0. ``place`` says where in
        the buffer the tensor lies if the layout has a `Concat`; left out, it is that of the slot where the
        layout is the slot's. ``out`` may be a numpy array, a CPU torch tensor, or anything whose ``__array__``
        shares memory: same shape and data type; where it is a buffer, the rest of it stays as it is.
        Returns None where the layout puts nothing at ``coord``.

        Raises:
            UcpError: ``UCP-E-LAYOUT`` where the layout does not fit, ``UCP-E-MISMATCH`` for a wrong ``out``, and for
                ``coord`` or ``place`` without a layout, and for
                another stage of a `pipeline` in flight, ``UCP-E-INEXACT`` for a factor that rounds, and what
                procedure 17.3 says.

        >>> layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 3),)), (ucp.Shard("tp", 0),))
        >>> ckpt.read("fc.weight", layout=layout, coord={"tp": 2}).tolist()
        [[4.0, 5.0]]
        """
        view = self[name][slot]
        stored = view.stored
        if layout is None:
            if coord or place is not None:
                message = "coord= and place= say where a layout puts the tensor: give layout= as well"
                raise error("UCP-E-MISMATCH", message, at=f"{name}/{slot}")
            return view.read(out)
        self.require_restored()
        exponent = require_readable(layout, view.layout, stored.dtype, at=f"{name}/{slot}")
        if self.pipeline is not None and (why := self.pipeline.misplaced(stored.atom.name, layout)):
            raise error("UCP-E-MISMATCH", why, at=f"{name}/{slot}")
        if place is None and layout == view.layout:
            place = view.place
        lowering = lower(layout, stored.grid.shape, place=place)
        local = lowering.at(_coordinate(layout, coord or {}))
        if local is None:
            return None
        if out is None:
            out = np.zeros(local.shape, stored.dtype.numpy)  # a buffer may have room for other tensors
        destination = destination_of(stored, local.shape, out)
        dense = destination.flags.c_contiguous
        target = destination if dense else destination.copy("C")
        read_local(self.reader, stored, lowering, local, target, exponent)
        if not dense:
            destination[...] = target
        return destination

    def load(self, into: Mapping[tuple[str, str], object]) -> None:
        """Fill ``{(name, slot): destination}`` with whole slots, much faster than one by one where they are small.

        Destinations are as ``out`` of `read`; all of them are checked before a byte is read.

        Raises:
            KeyError: if there is no such atom or slot.
            UcpError: ``UCP-E-MISMATCH`` for a wrong destination, and what procedure 17.3 says; destinations
                may then have been written to.

        >>> weight = np.empty((3, 2), np.float32)
        >>> ckpt.load({("fc.weight", "value"): weight})
        >>> weight.tolist()
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
        """
        with paused:
            indices = [bisect.bisect_right(self._firsts, name) - 1 for name, _ in into]
            needed = sorted({*indices} - {-1})
            parts = dict(zip(needed, self.parts(needed), strict=True))
            wanted: dict[StoredPart, PartTargets] = {}
            found: PartTargets | None = None
            for ((name, slot), out), index in zip(into.items(), indices, strict=True):
                part = parts.get(index)
                number = None if part is None else part.number(name, slot)
                if part is None or number is None:  # by an alias, or missing, which it says best
                    stored = self[name][slot].stored
                    part, number = stored.part, stored.number
                if found is None or found.part is not part:
                    found = wanted.setdefault(part, PartTargets(part, [], []))
                kind, grid = part.forms[number]
                if not is_destination(out, kind, grid.shape):
                    out = destination_of(part.slot(number), grid.shape, out)
                found.numbers.append(number)
                found.arrays.append(out)
            self.reader.read_parts(wanted.values())

    def read_boxes(self, targets: Iterable[tuple[StoredSlot, Box, NDArray[np.generic]]]) -> None:
        """Fill each array, of the shape of its box and the numpy type of its slot, with a box of a slot.

        What lies together in the store is fetched together, and several calls proceed at once.

        Raises:
            UcpError: what procedure 17.3 says; what the arrays then hold is not defined.

        >>> out = np.empty((1, 2), np.float32)
        >>> ckpt.read_boxes([(ckpt["fc.weight"]["value"].stored, ucp.layouts.Box((2, 0), (1, 2)), out)])
        >>> out.tolist()
        [[4.0, 5.0]]
        """
        self.reader.read(targets)


def _coordinate(layout: Layout, coord: Mapping[str, int]) -> Coordinate:
    axes = {axis.name: axis.size for axis in layout.mesh.axes}
    for name, position in coord.items():
        if name not in axes or not 0 <= position < axes[name]:
            raise error(
                "UCP-E-LAYOUT", f"the mesh has no position {position} on an axis {name!r}", at=f"coord/{name}"
            )
    return tuple(coord.get(name, 0) for name in axes)


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    workers: int | None = None,
    restored: Iterable[str] = (),
) -> Checkpoint:
    """Open a checkpoint at a local path or an fsspec URL; reads the root document alone.

    ``verify`` False leaves the checksums of data blocks alone (documents are always checked). ``restored`` names
    required process images that the caller has restored: without them nothing is read under a layout.

    Raises:
        UcpError: as procedure 17.1 of the specification says.

    >>> report = ucp.save("run.ucp", {"w": np.arange(6).reshape(3, 2)})
    >>> with ucp.open("run.ucp") as ckpt:
    ...     ckpt["w"]["value"][0:2].tolist()
    [[0, 1], [2, 3]]
    """
    with naming(path):
        store = open_store(path)
        root = parse_root(read_root(store), features=READ_FEATURES, extensions=frozenset())
    return Checkpoint(store, root, verify=verify, workers=workers, path=str(path), restored=restored)


_Opening = tuple[str, bool, "int | None", str, frozenset[str]]
"""How a checkpoint was opened: its URL, ``verify``, ``workers``, the root digest that it had, and ``restored``."""


def _reopened(
    path: str, verify: bool, workers: int | None, digest: str, restored: frozenset[str]
) -> Checkpoint:
    checkpoint = open_checkpoint(path, verify=verify, workers=workers, restored=restored)
    if checkpoint.digest != digest:
        checkpoint.close()
        message = "another checkpoint has taken the place of the one that was pickled; open this one anew"
        raise error("UCP-E-DIGEST", message, at=path)
    return checkpoint


_behind_views: WeakValueDictionary[_Opening, Checkpoint] = WeakValueDictionary()
"""Checkpoints that unpickled views have in common, for as long as there are any."""
_unpickling: Final = threading.Lock()


def _view_again(opening: _Opening, atom: str, slot: str | None) -> AtomView | SlotView:
    with _unpickling:
        checkpoint = _behind_views.get(opening)
        if checkpoint is None:
            checkpoint = _behind_views[opening] = _reopened(*opening)
    found = checkpoint[atom]
    return found if slot is None else found[slot]
