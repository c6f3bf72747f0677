"""Level *semantics*: what the schemas cannot say of documents, tables and Zarr metadata (SPEC section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np

from ucpformat.errors import Problem, error
from ucpformat.geometry import covers, distinct_boxes
from ucpformat.jsonio import pointer
from ucpformat.model.envelope import (
    READ_FEATURES,
    STATE_FEATURES,
    feature_set_problems,
    needed_features,
    negotiate,
)
from ucpformat.model.fields import relocated
from ucpformat.model.index_part import IndexPart
from ucpformat.model.references import Pack
from ucpformat.model.root import MAX_TABLE_BYTES, ROOT_KEY, Root, root_digest
from ucpformat.model.spread import SpreadSlot, spread_faults
from ucpformat.model.state import StateDocument
from ucpformat.model.table import ChunkTable
from ucpformat.model.values import decode
from ucpformat.model.zarr_document import GROUP_DOCUMENT, slot_document
from ucpformat.storage.reading.documents import read_document
from ucpformat.storage.reading.part import StoredPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from ucpformat.geometry import Layout, Lowering
    from ucpformat.jsonio import JsonValue
    from ucpformat.storage.reading.stored_slot import StoredSlot
    from ucpformat.storage.stores.store import Objects
    from ucpformat.validation.documents import Documents
    from ucpformat.validation.findings import Findings

__all__ = ["CheckedCheckpoint", "check_semantics"]

# A few bytes can state a layout of a million ranges, and a small document name thousands of those: what layouts may
# cost follows the bytes that there are, whatever lengths the documents state.
_LAYOUT_WORK: Final = 1 << 18
_BYTES_OF_A_RANGE: Final = 16


class CheckedCheckpoint:
    """What of a checkpoint is sound enough to look further: parts with sound tables, the packs, the state."""

    def __init__(self, root: Root, layouts: int) -> None:
        self.root = root
        self.layouts = layouts  # as many as the document has, sound or not
        self.packs: tuple[Pack, ...] | None = None
        self.state: StateDocument | None = StateDocument()
        self.parts: list[StoredPart] = []
        self.indexes: Mapping[str, IndexPart] = {}  # those that can be read, by key
        self.complete = True

    def slots(self) -> Iterator[StoredSlot]:
        """Yield all slots of sound parts."""
        for part in self.parts:
            yield from part.slots()

    def slots_without(self, passed: Iterable[NDArray[np.int64] | list[int]]) -> Iterator[StoredSlot]:
        """Yield all slots of sound parts but those whose numbers are ``passed`` for each part."""
        for part, numbers in zip(self.parts, passed, strict=True):
            left = np.ones(len(part.forms), np.bool_)
            left[numbers] = False
            yield from map(part.slot, np.flatnonzero(left).tolist())


def check_semantics(
    store: Objects, documents: Documents, findings: Findings, layout_work: int | None
) -> CheckedCheckpoint | None:
    """Collect semantic problems; returns what can be checked for integrity, None if that is nothing.

    ``layout_work`` is that of `validate`.
    """
    root = documents.root
    if documents.envelope is not None:
        _negotiate(documents.envelope, findings)
    if root is None or documents.envelope is None:
        return None
    with findings.collecting():
        if root_digest(documents.root_data, root.digest) != root.digest:
            message = "the root document is damaged: its bytes do not match the root digest that it records"
            findings.add(Problem("UCP-E-DIGEST", pointer(ROOT_KEY, "digest"), message))
    findings.extend(documents.problems)
    checked = CheckedCheckpoint(root, len(cast("list[JsonValue]", documents.envelope["layouts"])))
    checked.indexes = documents.parts
    _read_state(documents, findings, checked)
    if _read_packs(documents, findings, checked):
        _read_parts(store, documents, findings, checked)
    names = _check_names(checked, findings)
    if checked.complete:
        _check_references(checked, names, findings)
        compressors = (of_slot for part in checked.parts for of_slot in part.compressors.values())
        has_row_sets = any(part.table.row_words.size for part in checked.parts)
        # Of a state document that cannot be read, nobody can tell.
        declared = STATE_FEATURES.intersection(root.envelope.read_features)
        of_state = declared if checked.state is None else checked.state.features()
        needed = needed_features(
            compressors, checked.packs or (), has_row_sets=has_row_sets, of_state=of_state
        )
        findings.extend(feature_set_problems(root.envelope, needed, at=ROOT_KEY))
    if len(root.layouts) == checked.layouts and any(part.spread for part in checked.parts):
        if layout_work is None:
            nbytes = documents.nbytes + sum(part.table.rows.nbytes for part in checked.parts)
            layout_work = _LAYOUT_WORK + nbytes // _BYTES_OF_A_RANGE
        _check_layouts(checked, findings, layout_work)
    for stored in checked.slots_without(part.single_chunks.slots for part in checked.parts):
        for chunk in range(stored.grid.count):
            with findings.collecting():
                stored.segments(chunk)
    if root.storage == "plain":
        _check_zarr_documents(store, checked, findings)
    else:
        _check_overlaps(checked, findings)
    return checked


def _negotiate(envelope: Mapping[str, JsonValue], findings: Findings) -> None:
    """Report features and extensions that this software lacks, whatever else is wrong with the root."""
    features = cast("list[str]", envelope["read_features"])
    extensions = cast("dict[str, JsonValue]", envelope["extensions"])
    for wanted, announced in ((features, {}), ([], extensions)):
        with findings.collecting():
            negotiate(wanted, announced, features=READ_FEATURES, known_extensions=frozenset(), at=ROOT_KEY)


def _read_packs(documents: Documents, findings: Findings, checked: CheckedCheckpoint) -> bool:
    """Read the pack list, and return whether segments can be looked at: storage plain, or a sound pack list."""
    reference = checked.root.packs
    if reference is None:
        return True
    if not documents.check("packs", reference):
        checked.complete = False
        return False
    packs = documents.packs[reference.key]
    problems = list(packs.problems(at=reference.key))
    findings.extend(problems)
    if problems:
        # A key that breaks the rules must not be used to address anything.
        checked.complete = False
        return False
    checked.packs = packs.packs
    return True


def _read_state(documents: Documents, findings: Findings, checked: CheckedCheckpoint) -> None:
    reference = checked.root.state
    if reference is None:
        return
    if not documents.check("state", reference):
        checked.state = None
        return
    if reference.key in documents.states:
        checked.state = documents.states[reference.key]
        return
    state = StateDocument.structure(documents.values["state", reference.key], at=reference.key)
    problems = list(state.problems(at=reference.key))
    findings.extend(problems)
    for at, value in state.tagged_values(at=reference.key):
        with findings.collecting():
            decode(value, at=at)
    # As with parts, a key that breaks the rules must not be used to address anything.
    checked.state = None if any(problem.code == "UCP-E-KEY" for problem in problems) else state


def _read_parts(store: Objects, documents: Documents, findings: Findings, checked: CheckedCheckpoint) -> None:
    root = checked.root
    for number, entry in enumerate(root.parts):
        if not documents.check("index", entry.index):
            checked.complete = False
            continue
        index = documents.parts.get(entry.index.key)
        problems: list[Problem] = []
        if index is None:
            index = IndexPart.structure(documents.values["index", entry.index.key], at=entry.index.key)
            problems += index.problems(at=entry.index.key)
        at = pointer(ROOT_KEY, "parts", number)
        if (index.atoms[0].name, index.atoms[-1].name, len(index.atoms)) != (
            entry.first,
            entry.last,
            entry.atoms,
        ):
            findings.add(Problem("UCP-E-NAME", at, "the part's atoms are not those that are announced here"))
        findings.extend(problems)
        findings.extend(index.reference_problems(checked.layouts, at=entry.index.key))
        table: ChunkTable | None = None
        with findings.collecting() as outcome:
            data = read_document(store, entry.table, limit=MAX_TABLE_BYTES)
        if outcome.has_refused:
            findings.damage.documents[entry.table.key] = None
        else:
            with findings.collecting():
                table = ChunkTable.parse(data, at=entry.table.key)
        # A shape or a key that breaks the rules must not be used to address anything.
        usable = table is not None and not any(problem.code != "UCP-E-NAME" for problem in problems)
        if not usable or table is None:
            checked.complete = False
            continue
        part: StoredPart | None = None
        with findings.collecting():
            part = StoredPart(
                index,
                table,
                packs=checked.packs,
                chunk_bytes=root.chunk_bytes,
                index_key=entry.index.key,
                table_key=entry.table.key,
            )
        if part is None:
            checked.complete = False
        else:
            checked.parts.append(part)


def _check_names(checked: CheckedCheckpoint, findings: Findings) -> set[str]:
    """Check that names, aliases and keys are unique (UCP-D-017, UCP-D-028); return atoms' names."""
    parts = checked.parts
    atoms = {name for part in parts for name in part.names}
    # Within one part the index's own check has spoken.
    names = [{*part.names, *part.aliases} for part in parts]
    keys = [{*map(str.lower, part.keys)} for part in parts]
    if any(len(set[str]().union(*found)) < sum(map(len, found)) for found in (names, keys)):
        _report_names(checked, findings)
    return atoms


def _report_names(checked: CheckedCheckpoint, findings: Findings) -> None:
    seen: dict[str, int] = {}
    keys: dict[str, int] = {}
    for number, part in enumerate(checked.parts):
        at = pointer(part.index_key, "atoms")
        for position, atom in enumerate(part.index.atoms):
            here = pointer(at, position)
            for name in (atom.name, *atom.aliases):
                if seen.setdefault(name, number) != number:
                    findings.add(
                        Problem("UCP-E-NAME", here, f"the name {name[:80]!r} is used in another part too")
                    )
            if keys.setdefault(atom.key.lower(), number) != number:
                message = f"the key {atom.key!r} is used in another part too, if in other case"
                findings.add(Problem("UCP-E-KEY", f"{here}/key", message))


def _check_references(checked: CheckedCheckpoint, atoms: set[str], findings: Findings) -> None:
    reference = checked.root.state
    if reference is None or checked.state is None:
        return
    for name, optimizer in checked.state.optimizers.items():
        for number, group in enumerate(optimizer.groups):
            for position, atom in enumerate(group.atoms):
                if atom not in atoms:
                    at = pointer(reference.key, "optimizers", name, "groups", number, "atoms", position)
                    findings.add(Problem("UCP-E-REFERENCE", at, f"there is no atom {atom[:80]!r}"))
    if (pipeline := checked.state.pipeline) is not None:
        every = (
            (atom.name, {slot.name: (slot.dtype, slot.shape) for slot in atom.slots})
            for part in checked.parts
            for atom in part.index.atoms
        )
        findings.extend(pipeline.atom_problems(every, at=pointer(reference.key, "pipeline")))


def _check_layouts(checked: CheckedCheckpoint, findings: Findings, layout_work: int) -> None:
    """Check that every layout fits the slots that refer to it, and covers them (SPEC 12 and 13)."""
    layouts: tuple[Layout, ...] = checked.root.layouts
    left = layout_work
    passed: dict[Layout, None] = {}

    def admit(layout: Layout) -> bool:
        nonlocal left
        if layout.work > left:
            passed[layout] = None
            return False
        left -= layout.work
        return True

    stored: list[StoredSlot] = []
    spread: list[SpreadSlot] = []
    for part in checked.parts:
        if not part.spread:
            continue
        slots = (slot for atom in part.index.atoms for slot in atom.slots)
        for found, slot in zip(part.slots(), slots, strict=True):
            if slot.layout is None or slot.layout < len(layouts):
                layout = None if slot.layout is None else layouts[slot.layout]
                stored.append(found)
                spread.append(SpreadSlot(slot.name, slot.dtype, slot.shape, layout, slot.place))
    for fault in spread_faults(spread, _check_cover, admit=admit):
        found = stored[fault.number]
        if fault.of_layout and found.slot.layout is not None:
            problem = relocated(fault.refusal, pointer(ROOT_KEY, "layouts", found.slot.layout)).problem()
            who = f"{found.atom.name[:80]}/{found.slot.name} of shape {found.slot.shape}"
            findings.add(Problem(problem.code, problem.at, f"{problem.message} ({who})"))
        else:
            findings.add(Problem(fault.refusal.code, found.at, fault.refusal.message))
    for layout in passed:
        message = f"not checked: a layout of {layout.work} ranges is more work than was allowed; allow more to check it"
        findings.add(Problem("UCP-W-UNCHECKED", pointer(ROOT_KEY, "layouts", layouts.index(layout)), message))


def _check_cover(lowering: Lowering) -> None:
    fault = covers(distinct_boxes(lowering), lowering.view)
    if fault is not None:
        raise error("UCP-E-COVER", f"the layout does not cover the tensor: {fault}")


def _check_zarr_documents(store: Objects, checked: CheckedCheckpoint, findings: Findings) -> None:
    """Check that the metadata documents of storage plain have exactly the derived bytes (UCP-D-094)."""
    expected = {"atoms/zarr.json": GROUP_DOCUMENT}
    for stored in checked.slots():
        expected[f"atoms/{stored.atom.key}/zarr.json"] = GROUP_DOCUMENT
        expected[f"{stored.prefix}/zarr.json"] = slot_document(stored.slot, stored.grid.chunk_shape)
    for key, content in expected.items():
        with findings.collecting() as outcome:
            size = store.size(key)
            if size is None:
                raise error("UCP-E-MISSING", "the metadata document is missing", at=key)
            if size != len(content) or store.read(key, 0, size) != content:
                raise error("UCP-E-ZARR", "the document is not the one derived from the index", at=key)
        if outcome.has_refused:
            findings.damage.metadata[key] = None


def _check_overlaps(checked: CheckedCheckpoint, findings: Findings) -> None:
    """Check that segments of a pack are disjoint or equal (UCP-D-106), and no pack is empty (UCP-D-118)."""
    for number, pack in enumerate(checked.packs or ()):
        ranges = pack_ranges(checked, number)
        if ranges.size == 0:
            if checked.complete:
                findings.add(Problem("UCP-E-SEGMENT", pack.key, "no segment lies in this pack"))
            continue
        if (ranges[1:, 0] < ranges[:-1, 1]).any():
            first = int(np.argmax(ranges[1:, 0] < ranges[:-1, 1]))
            message = f"segments overlap at byte {int(ranges[first + 1, 0])}"
            findings.add(Problem("UCP-E-SEGMENT", pack.key, message))


def pack_ranges(checked: CheckedCheckpoint, pack: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return distinct ``(start, stop)`` byte ranges of the segments of a pack, sorted."""
    found = []
    for part in checked.parts:
        rows = part.table.rows[part.table.rows["container"] == pack]
        starts = rows["offset"].astype(np.int64)
        found.append(np.stack((starts, starts + rows["length"].astype(np.int64)), axis=1))
    return np.unique(np.concatenate(found), axis=0) if found else np.zeros((0, 2), np.int64)
