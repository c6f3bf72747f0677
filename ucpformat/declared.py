"""What a checkpoint is to hold: atoms and slots, declared and checked before a byte is written (SPEC 17.4).

Index parts are made of it as text, as ``dumps_canonical`` makes it of ``to_json``, without the objects of `Atom` and
`Slot`. The slots of a model repeat few names, types and shapes, so that what they share is made once, and a slot adds
its content digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError, error
from ucpformat.geometry import chunk_grid
from ucpformat.jsonio import dumps_canonical, quoted
from ucpformat.model.atom import Atom, Slot, place_to_json, slot_problems
from ucpformat.model.compressor import Compressor
from ucpformat.model.envelope import READ_FEATURES, Envelope, Extension, needed_features
from ucpformat.model.fields import raise_first, relocated
from ucpformat.model.index_part import IndexPart
from ucpformat.model.names import assign_keys
from ucpformat.model.references import DocumentRef
from ucpformat.model.root import Producer, Progress, Root, Storage, parse_root
from ucpformat.model.spread import SpreadSlot, spread_faults
from ucpformat.model.state import Optimizer, ParameterGroup
from ucpformat.model.values import encode
from ucpformat.storage.reading.stored_slot import slot_form
from ucpformat.storage.writing.chunk_writer import SlotPlace

if TYPE_CHECKING:
    from ucpformat.geometry import BufferPlace, Layout
    from ucpformat.jsonio import JsonValue

__all__ = ["AtomSpec", "Declared", "SlotSpec", "atom_text", "slot_place", "slot_text", "slots_of"]


_UNWRITTEN: Final = DocumentRef.to("index/packs.json", b"")
_NO_ANNOTATIONS: Final[Mapping[str, JsonValue]] = {}


def _no_annotations() -> Mapping[str, JsonValue]:
    """Return one mapping for all: an empty one for each of 10,000 slots makes the cycle collector run more often."""
    return _NO_ANNOTATIONS


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """What a slot will hold: data type name (SPEC 11.2), logical shape in elements, and how it is kept.

    ``layout`` is how the saving job held it, and ``place`` where in the buffer, if it has a `Concat`.

    >>> ucp.SlotSpec("bfloat16", (4096, 512)).shape
    (4096, 512)
    """

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None = None
    compressor: Compressor | None = None
    annotations: Mapping[str, JsonValue] = field(default_factory=_no_annotations)
    place: BufferPlace | None = None


@dataclass(frozen=True, slots=True)
class AtomSpec:
    """What an atom will hold: its slots by name, and other names of the same parameter.

    >>> ucp.AtomSpec("wte.weight", {"value": ucp.SlotSpec("float32", (8, 4))}, aliases=("lm_head.weight",)).name
    'wte.weight'
    """

    name: str
    slots: Mapping[str, SlotSpec]
    aliases: tuple[str, ...] = ()
    annotations: Mapping[str, JsonValue] = field(default_factory=_no_annotations)


class Declared:
    """Atoms in order of name, ``specs``, each with its store key: ``keys_of`` has these by name.

    Raises:
        UcpError: ``UCP-E-NAME``, ``UCP-E-KEY``, ``UCP-E-DTYPE``, ``UCP-E-SHAPE``, ``UCP-E-LAYOUT``: what no reader
            would take.
    """

    def __init__(self, atoms: Iterable[AtomSpec]) -> None:
        self.specs = specs = sorted(atoms, key=attrgetter("name"))
        self.keys_of = assign_keys(spec.name for spec in specs)
        self._slots = [(spec.name, *item) for spec in specs for item in slots_of(spec)]
        for atom, name, slot in self._slots:
            if slot.compressor is not None:
                Compressor.from_json(slot.compressor.to_json(), at=f"{atom}/{name}")
        if not self._is_sound():
            found = [
                self.atom(spec, [Slot(name, slot.dtype, slot.shape) for name, slot in spec.slots.items()])
                for spec in specs
            ]
            raise_first(IndexPart(tuple(found)).problems(at="atoms"))
        self._check_spread()
        self.layouts: dict[Layout, int] = {}
        """Each layout of any slot once, with its number, in the order of table rows."""
        for _, _, slot in self._slots:
            if slot.layout is not None:
                self.layouts.setdefault(slot.layout, len(self.layouts))

    def atom(self, spec: AtomSpec, slots: Iterable[Slot]) -> Atom:
        """Return the atom of the index that ``spec`` becomes, with these slots."""
        ordered = tuple(sorted(slots, key=lambda slot: slot.name))
        return Atom(spec.name, self.keys_of[spec.name], ordered, spec.aliases, spec.annotations)

    def root(
        self,
        storage: Storage,
        chunk_bytes: int,
        progress: Progress,
        annotations: Mapping[str, JsonValue],
        extensions: Mapping[str, Extension],
    ) -> Root:
        """Return the root document as known before anything is written: without references to other documents.

        Raises:
            UcpError: as `parse_root`, for what no reader would take.
        """
        root = Root(
            envelope=Envelope(
                read_features=tuple(sorted(needed_features(slot.compressor for _, _, slot in self._slots))),
                extensions=dict(extensions),
                annotations=dict(annotations),
            ),
            storage=storage,
            chunk_bytes=chunk_bytes,
            meshes=tuple(dict.fromkeys(layout.mesh for layout in self.layouts)),
            layouts=tuple(self.layouts),
            packs=_UNWRITTEN if storage == "packed" else None,
            producer=Producer("ucpformat", _version()),
            progress=progress if progress != Progress() else None,
        )
        # A reader would refuse nothing but what callers give; all else is checked where it is made.
        if annotations or extensions or self.layouts or progress != Progress():
            known = parse_root(root.seal()[0], features=READ_FEATURES, extensions=frozenset(extensions))
            root = replace(root, envelope=known.envelope)  # whatever callers do to what they gave
        return root

    def part_text(
        self, specs: Iterable[AtomSpec], contents: Mapping[tuple[str, str], str | None]
    ) -> tuple[str, bool]:
        """Return an index part of some of the atoms, with content digests by names of atom and slot.

        Also return whether callers gave some of it: annotations, or the settings of compressors.
        """
        atoms = []
        has_notes = False
        for spec in specs:
            slots = []
            for name, slot in slots_of(spec):
                has_notes = has_notes or bool(slot.annotations or slot.compressor)
                slots.append(
                    slot_text(
                        name,
                        slot.dtype,
                        slot.shape,
                        layout=None if slot.layout is None else self.layouts[slot.layout],
                        place=slot.place,
                        compressor=slot.compressor,
                        content=contents[spec.name, name],
                        annotations=slot.annotations,
                    )
                )
            has_notes = has_notes or bool(spec.annotations)
            key = self.keys_of[spec.name]
            atoms.append(atom_text(spec.name, key, slots, aliases=spec.aliases, annotations=spec.annotations))
        return f'{{"atoms":[{",".join(atoms)}]}}', has_notes

    def optimizer(self, name: str, groups: Iterable[tuple[Sequence[str], Mapping[str, object]]]) -> Optimizer:
        """Return an optimizer with these parameter groups: ordered names of atoms, and options.

        Raises:
            UcpError: ``UCP-E-REFERENCE``, ``UCP-E-NAME``, ``UCP-E-OBJECT``, as `CheckpointWriter.set_optimizer` says.
        """
        encoded = []
        seen: set[str] = set()
        for index, (atoms, options) in enumerate(groups):
            for atom in atoms:
                if atom not in self.keys_of:
                    raise error("UCP-E-REFERENCE", f"{atom!r} is not an atom", at=f"{name}/groups/{index}")
                if atom in seen:
                    raise error("UCP-E-NAME", f"{atom!r} is in two groups", at=f"{name}/groups/{index}")
                seen.add(atom)
            found = {key: encode(value, at=f"{name}/{key}") for key, value in options.items()}
            encoded.append(ParameterGroup(tuple(atoms), found))
        return Optimizer(tuple(encoded))

    def forms(self) -> Iterator[tuple[str, dict[str, tuple[str, tuple[int, ...]]]]]:
        """Yield atoms with data type and shape of each slot."""
        for spec in self.specs:
            yield spec.name, {name: (slot.dtype, tuple(slot.shape)) for name, slot in spec.slots.items()}

    def places(self, chunk_bytes: int) -> dict[tuple[str, str], SlotPlace]:
        """Return where every slot goes, in the order of table rows."""
        keys = self.keys_of
        return {
            (atom, name): slot_place(keys[atom], atom, name, slot, chunk_bytes)
            for atom, name, slot in self._slots
        }

    def _is_sound(self) -> bool:
        """Return whether nothing can be wrong with atoms whose names have been given keys, as with most."""
        for spec in self.specs:
            if spec.aliases or (len(spec.slots) > 1 and len({*map(str.lower, spec.slots)}) < len(spec.slots)):
                return False
        # The slots of a model repeat few names, types and shapes.
        forms = {(name, slot.dtype, slot.shape) for _, name, slot in self._slots}
        return not any(slot_problems(*form) for form in forms)

    def _check_spread(self) -> None:
        slots = self._slots
        if all(slot.layout is None and slot.place is None for _, _, slot in slots):
            return
        spread = [
            SpreadSlot(name, slot.dtype, slot.shape, slot.layout, slot.place) for _, name, slot in slots
        ]
        for fault in spread_faults(spread):
            atom, name, _ = slots[fault.number]
            raise relocated(fault.refusal, f"{atom}/{name}")


def slots_of(spec: AtomSpec) -> list[tuple[str, SlotSpec]]:
    """Return slots by name, in the order of table rows.

    Raises:
        UcpError: ``UCP-E-SCHEMA`` where there is none.
    """
    if not spec.slots:
        raise error("UCP-E-SCHEMA", "an atom has at least one slot", at=spec.name)
    return sorted(spec.slots.items()) if len(spec.slots) > 1 else list(spec.slots.items())


def slot_place(key: str, atom: str, name: str, slot: SlotSpec, chunk_bytes: int) -> SlotPlace:
    """Return where a declared slot goes, and how it is cut.

    Raises:
        UcpError: ``UCP-E-DTYPE``, ``UCP-E-SHAPE``.
    """
    try:
        if not {*map(type, slot.shape)} <= {int}:
            chunk_grid(slot.shape, 1, chunk_bytes)  # refuses what equals an integer and is none
        kind, grid = slot_form(slot.dtype, slot.shape, chunk_bytes)
    except UcpError as refusal:
        raise relocated(refusal, f"{atom}/{name}") from None
    return SlotPlace(key, name, kind, grid, slot.compressor)


def slot_text(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    *,
    layout: int | None = None,
    place: BufferPlace | None = None,
    compressor: Compressor | None = None,
    content: str | None = None,
    annotations: Mapping[str, JsonValue],
) -> str:
    """Return a slot as a member of ``slots``."""
    text = _head(name, dtype, shape, layout)
    if place is not None:
        text += f',"place":{_text(place_to_json(place))}'
    if compressor is not None:
        text += f',"compressor":{_text(compressor.to_json())}'
    if content is not None:
        text += f',"content":"{content}"'
    if annotations:
        text += f',"annotations":{_text(dict(annotations))}'
    return text + "}"


@lru_cache(maxsize=4096)
def _head(name: str, dtype: str, shape: tuple[int, ...], layout: int | None) -> str:
    return f"{quoted(name)}:{_text(Slot(name, dtype, shape, layout).to_json())[:-1]}"


def atom_text(
    name: str,
    key: str,
    slots: Sequence[str],
    *,
    aliases: Sequence[str] = (),
    annotations: Mapping[str, JsonValue],
) -> str:
    """Return an atom of slots of these texts, in the order of their names."""
    text = f'{{"name":{quoted(name)},"key":{quoted(key)},"slots":{{{",".join(slots)}}}'
    if aliases:
        text += f',"aliases":{_text(list(aliases))}'
    if annotations:
        text += f',"annotations":{_text(dict(annotations))}'
    return text + "}"


def _text(value: JsonValue) -> str:
    return dumps_canonical(value).decode()


@cache
def _version() -> str:
    try:
        return version("ucpformat")
    except PackageNotFoundError:  # the package is on the path without having been installed
        return "unknown"
