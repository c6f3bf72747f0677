"""Examining a whole checkpoint: every problem, and the logical content of a good one (SPEC 17, 18)."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucp_conformance.oracle import arithmetic, documents, images, layouts, pipelines
from ucp_conformance.oracle import buffers as buffers_of
from ucp_conformance.oracle.bytes_of import ITEM_BYTES, Grid, content_digest
from ucp_conformance.oracle.chunk_table import (
    Table,
    check_row,
    check_row_set,
    parse_table,
)
from ucp_conformance.oracle.documents import ROOT, Collected, document, fetch, open_root
from ucp_conformance.oracle.problem import Problem, RefusalError, pointer
from ucp_conformance.oracle.store import Store, is_key
from ucp_conformance.oracle.stored_chunks import GROUP_DOCUMENT, SlotChunks, UndecodableError, array_document
from ucp_conformance.oracle.strict_json import parse
from ucp_conformance.oracle.update_logs import log_problems
from ucp_conformance.oracle.values import check_value, values_of

__all__ = ["Examination", "Logical", "examine"]


@dataclass
class Logical:
    """What a checkpoint holds, wherever it lies. ``data`` lacks what the oracle cannot decode; ``images`` has files."""

    root: dict[str, Any]
    atoms: list[dict[str, Any]] = field(default_factory=list)
    data: dict[tuple[str, str], bytes] = field(default_factory=dict)
    chunk_shapes: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=lambda: {"values": {}, "optimizers": {}, "blobs": {}})
    blobs: dict[str, bytes] = field(default_factory=dict)
    images: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def inspect(self) -> dict[str, Any]:
        """Return the result of the protocol's ``inspect``."""

        def slot(atom: str, name: str, value: dict[str, Any]) -> dict[str, Any]:
            return {
                "dtype": value["dtype"],
                "shape": value["shape"],
                "chunk_shape": list(self.chunk_shapes[atom, name]),
                "layout": self.layout(value.get("layout")),
                **({"place": value["place"]} if "place" in value else {}),
            }

        return {
            "storage": self.root["storage"],
            "chunk_bytes": self.root["chunk_bytes"],
            "step": self.root.get("progress", {}).get("step"),
            "atoms": [
                {
                    "name": atom["name"],
                    "key": atom["key"],
                    "aliases": atom.get("aliases", []),
                    "slots": {name: slot(atom["name"], name, value) for name, value in atom["slots"].items()},
                }
                for atom in self.atoms
            ],
            "values": self.state["values"],
            "optimizers": self.state["optimizers"],
            "blobs": {
                name: {"media_type": blob["media_type"], "length": blob["object"]["length"]}
                for name, blob in self.state["blobs"].items()
            },
        }

    def layout(self, index: int | None) -> dict[str, Any] | None:
        """Return a layout with its mesh in place."""
        if index is None:
            return None
        found = self.root["layouts"][index]
        return {"mesh": self.root["meshes"][found["mesh"]], "steps": found["steps"]}

    def kept(self) -> dict[str, Any]:
        """Return what a rewriter keeps (UCP-W-027, UCP-W-028), comparable by `same`."""
        seen = self.inspect()
        notes = {
            atom["name"]: [
                atom.get("annotations", {}),
                {name: slot.get("annotations", {}) for name, slot in atom["slots"].items()},
            ]
            for atom in self.atoms
        }
        return {
            "atoms": [
                {
                    "name": atom["name"],
                    "aliases": sorted(atom["aliases"]),
                    "slots": {
                        name: {"dtype": slot["dtype"], "shape": slot["shape"]}
                        for name, slot in atom["slots"].items()
                    },
                }
                for atom in seen["atoms"]
            ],
            "values": seen["values"],
            "optimizers": seen["optimizers"],
            "pipeline": self.state.get("pipeline"),
            "blobs": seen["blobs"],
            "images": images.described(self.state),
            "annotations": [self.root["annotations"], self.state.get("annotations", {}), notes],
            "step": seen["step"],
        }


@dataclass
class Examination:
    """The oracle's verdict."""

    problems: list[Problem]
    logical: Logical | None

    @property
    def errors(self) -> list[Problem]:
        """Problems that are not warnings."""
        return [problem for problem in self.problems if not problem.code.startswith("UCP-W-")]


def examine(path: Path) -> Examination:
    """Look at everything, in the order of the procedures, of a checkpoint or of an update log."""
    if path.suffix == ".ucplog":
        return Examination(log_problems(path), None)
    found = Collected()
    logical: Logical | None = None
    with found.refusals():
        logical = _Examiner(Store(path), found).run()
    return Examination(found.problems, logical)


def slot_place(logical: Logical, slot: SlotChunks) -> str:
    """Return the place of a slot in its index part."""
    part = next(part for part in logical.root["parts"] if part["table"]["key"] == slot.table_key)
    names = [atom["name"] for atom in logical.atoms]
    first = names.index(part["first"])
    number = names.index(slot.atom["name"]) - first
    return pointer(part["index"]["key"], "atoms", number, "slots", slot.name)


def in_buffer(layout: dict[str, Any], slot: dict[str, Any]) -> buffers_of.Held:
    """Return what a slot takes of its buffer at every coordinate."""
    steps = layout["steps"]
    kinds = [step["kind"] for step in steps]
    if "concat" not in kinds:
        return {}
    only = [step for step in steps if step["kind"] == "only"]
    before = [step for step in steps[: kinds.index("concat")] if step["kind"] != "only"]
    try:
        found = layouts.lower(layout["mesh"], [*only, *before], slot["shape"])
    except RefusalError:
        return {}  # of the layout, not of the place
    held: dict[tuple[int, ...], tuple[int, int, int] | None] = {}
    names = [axis["name"] for axis in layout["mesh"]["axes"]]
    for coordinate, local in found.items():
        if local is None:
            held[coordinate] = None
            continue
        where = dict(zip(names, coordinate, strict=True))
        offset, total = buffers_of.entry_of(layout["mesh"], slot["place"], where)
        if offset + len(local.cells) > total:
            raise RefusalError("UCP-E-LAYOUT", "", "the tensor leaves its buffer")
        held[coordinate] = offset, len(local.cells), total
    return held


class _Examiner:
    def __init__(self, store: Store, found: Collected) -> None:
        self.store = store
        self.found = found
        self.packs: list[dict[str, Any]] = []
        self.slots: list[SlotChunks] = []
        self.tables: dict[str, Table] = {}
        self.complete = True

    def run(self) -> Logical | None:
        root = open_root(self.store, self.found)
        if root is None:
            return None
        if self.found.problems and any(problem.code != "UCP-E-DIGEST" for problem in self.found.problems):
            return None
        logical = Logical(root)
        with self.found.refusals():
            self.read_state(logical)
        before = len(self.found.problems)
        with self.found.refusals():
            self.read_packs(root)
        if len(self.found.problems) > before:
            return None
        parts: list[tuple[str, list[dict[str, Any]]]] = []
        for number, part in enumerate(root["parts"]):
            before = len(self.found.problems)
            with self.found.refusals():
                atoms = self.read_part(root, number, part)
                parts.append((part["index"]["key"], atoms))
                logical.atoms += atoms
            self.complete = self.complete and len(self.found.problems) == before
        documents.unique_names(parts, self.found)
        # A damaged blob hides nothing.
        opaque = images.keys(logical.state)
        if not self.complete or any(problem.at not in opaque for problem in self.found.problems):
            return None
        self.check_whole(logical)
        for slot in self.slots:
            logical.chunk_shapes[slot.atom["name"], slot.name] = slot.grid.chunk
            with self.found.refusals():
                self.read_slot(slot, logical)
        self.check_containers(logical)
        return logical

    def read_state(self, logical: Logical) -> None:
        reference = logical.root.get("state")
        if reference is None:
            return
        key = reference["key"]
        value = parse(fetch(self.store, reference), at=key, limit=documents.MOST_DOCUMENT)
        if isinstance(value, dict) and {"values", "optimizers"} <= value.keys():
            try:
                documents.schema("state", value, key)
            except RefusalError:
                # A malformed value is named as such, where nothing but the value is wrong.
                self.values(value, key)
                raise
        documents.schema("state", value, key)
        logical.state = value
        self.values(value, key)
        images.check_keys(value, key)
        images.check_paths(value, key)
        for name, blob in value["blobs"].items():
            with self.found.refusals():
                logical.blobs[name] = fetch(self.store, blob["object"])
        for name, number, file in images.files(value):
            with self.found.refusals():
                logical.images[name, number] = fetch(self.store, file["object"])
        for name, optimizer in value["optimizers"].items():
            atoms = [atom for group in optimizer["groups"] for atom in group["atoms"]]
            if len(set(atoms)) < len(atoms):
                self.found.add("UCP-E-NAME", pointer(key, "optimizers", name, "groups"))

    def values(self, state: dict[str, Any], key: str) -> None:
        if not all(isinstance(state[name], dict) for name in ("values", "optimizers")):
            return
        if not all(isinstance(optimizer, dict) for optimizer in state["optimizers"].values()):
            return
        for at, value in values_of(state, key):
            check_value(value, at)

    def read_packs(self, root: dict[str, Any]) -> None:
        if "packs" not in root:
            return
        key = root["packs"]["key"]
        self.packs = document(self.store, "packs", root["packs"])["packs"]
        seen: set[str] = set()
        for number, pack in enumerate(self.packs):
            mine = pack["key"]
            if not is_key(mine) or not mine.startswith("packs/") or mine.lower() in seen:
                self.found.add("UCP-E-KEY", pointer(key, "packs", number, "key"))
                self.complete = False
            seen.add(mine.lower())

    def read_part(self, root: dict[str, Any], number: int, part: dict[str, Any]) -> list[dict[str, Any]]:
        key = part["index"]["key"]
        atoms: list[dict[str, Any]] = document(self.store, "index", part["index"])["atoms"]
        for atom in atoms:
            atom["slots"] = dict(sorted(atom["slots"].items(), key=lambda item: item[0].encode()))
        before = len(self.found.problems)
        documents.atom_problems(atoms, len(root["layouts"]), key, self.found)
        if (atoms[0]["name"], atoms[-1]["name"], len(atoms)) != (part["first"], part["last"], part["atoms"]):
            self.found.add("UCP-E-NAME", pointer(ROOT, "parts", number))
        table_key = part["table"]["key"]
        table = parse_table(fetch(self.store, part["table"]), table_key)
        if len(self.found.problems) > before:
            return atoms
        self.tables[table_key] = table
        row = 0
        mine: list[SlotChunks] = []
        for atom in atoms:
            for name, slot in atom["slots"].items():
                item = ITEM_BYTES[slot["dtype"]]
                grid = Grid.of(slot["shape"], item, root["chunk_bytes"])
                count = math.prod(grid.counts)
                mine.append(
                    SlotChunks(atom, name, slot, item, grid, table.chunks[row : row + count], table_key)
                )
                row += count
        if row != len(table.chunks):
            raise RefusalError("UCP-E-TABLE", table_key, "number of chunks")
        self.check_rows(root["storage"], table, table_key, mine)
        for found in mine:
            for place, position in enumerate(found.grid.positions()):
                found.check(place, position, table)
        self.slots += mine
        return atoms

    def check_rows(self, storage: str, table: Table, key: str, slots: list[SlotChunks]) -> None:
        """Check UCP-D-105, UCP-D-107, UCP-D-115 to UCP-D-117, UCP-D-136, UCP-D-141."""
        expected = first_row_word = 1
        for slot in slots:
            ends = {(one.container, one.offset + one.length) for segments in slot.rows for one in segments}
            for segments in slot.rows:
                if storage == "plain" and len(segments) > 1:
                    raise RefusalError("UCP-E-TABLE", key, "several segments in storage plain")
                for segment in segments:
                    check_row(segment, None if storage == "plain" else self.packs, ends, slot.item, key)
                    if segment.box:
                        if segment.box != expected or not slot.grid.shape:
                            raise RefusalError("UCP-E-TABLE", key, "box words out of order")
                        expected += 2 * len(slot.grid.shape)
                    if segment.rows:
                        first_row_word = check_row_set(
                            table, segment, len(slot.grid.shape), first_row_word, key
                        )
        if (expected, first_row_word) != (1 + len(table.words), 1 + len(table.row_words)):
            raise RefusalError("UCP-E-TABLE", key, "box or row words that nobody uses")

    def check_whole(self, logical: Logical) -> None:
        """Check what takes all parts: features, groups, covers."""
        root = logical.root
        needed = {slot.slot["compressor"]["name"] for slot in self.slots if "compressor" in slot.slot}
        needed |= {"incremental" for pack in self.packs if "shared" in pack} | pipelines.needed(logical.state)
        needed |= images.needed(logical.state)
        needed |= {"row-overwrite" for table in self.tables.values() if table.row_words}
        if sorted(needed - {"gzip"}) != root["read_features"]:
            self.found.add("UCP-E-FEATURE-SET", pointer(ROOT, "read_features"))
        if root["write_features"]:
            self.found.add("UCP-E-FEATURE-SET", pointer(ROOT, "write_features"))
        names = {atom["name"] for atom in logical.atoms}
        for name, optimizer in logical.state["optimizers"].items():
            for number, group in enumerate(optimizer["groups"]):
                at = pointer(root["state"]["key"], "optimizers", name, "groups", number, "atoms")
                for place, atom in enumerate(group["atoms"]):
                    if atom not in names:
                        self.found.add("UCP-E-REFERENCE", pointer(at, place))
        pipelines.check(logical.state, logical.atoms, root.get("state"), self.found)
        buffers: dict[tuple[int, str, str], list[tuple[str, buffers_of.Held]]] = {}
        for slot in self.slots:
            here = slot_place(logical, slot)
            layout = logical.layout(slot.slot.get("layout"))
            if layout is None:
                if "place" in slot.slot:
                    self.found.add("UCP-E-LAYOUT", here, "a place without a layout")
                continue
            self.check_cover(slot, layout, int(slot.slot["layout"]), here)
            group = [step["group"] for step in layout["steps"] if step["kind"] == "concat"]
            if group and here not in {problem.at for problem in self.found.problems}:
                with suppress(RefusalError):  # said above
                    mesh = root["layouts"][slot.slot["layout"]]["mesh"]
                    held = in_buffer(layout, slot.slot)
                    buffers.setdefault((mesh, group[0], slot.name), []).append((here, held))
        for members in buffers.values():
            for number in buffers_of.clashes([held for _, held in members]):
                self.found.add(
                    "UCP-E-LAYOUT", members[number][0], "it clashes with another slot of its buffer"
                )

    def check_cover(self, slot: SlotChunks, layout: dict[str, Any], index: int, here: str) -> None:
        at = pointer(ROOT, "layouts", index)
        mesh, steps, place = layout["mesh"], layout["steps"], slot.slot.get("place")
        try:
            for step in steps:
                if step["kind"] in ("partial", "scale"):
                    arithmetic.spread_dtype(slot.slot["dtype"], step["kind"], step.get("reduce", ""))
            buffers_of.check_place(mesh, steps, place)
            in_buffer(layout, slot.slot)
        except RefusalError as refusal:
            self.found.add(refusal.problem.code, here, refusal.problem.why)
            return
        try:
            lowered = layouts.lower(mesh, steps, slot.slot["shape"], place)
        except RefusalError as refusal:
            self.found.add(refusal.problem.code, at, refusal.problem.why)
            return
        if len(layouts.holdings(lowered)) != math.prod(slot.slot["shape"]):
            self.found.add("UCP-E-COVER", at)

    def read_slot(self, slot: SlotChunks, logical: Logical) -> None:
        table = self.tables[slot.table_key]
        data = bytearray(slot.item * math.prod(slot.grid.shape))
        try:
            for number, position in enumerate(slot.grid.positions()):
                raw = slot.logical(self.store, number, position, table, self.packs)
                start = slot.place(position)
                data[start : start + len(raw)] = raw
        except UndecodableError:
            return
        logical.data[slot.atom["name"], slot.name] = bytes(data)
        content = slot.slot.get("content")
        if content is not None and content != content_digest(bytes(data)):
            index = next(
                part["index"]["key"]
                for part in logical.root["parts"]
                if part["table"]["key"] == slot.table_key
            )
            raise RefusalError("UCP-E-CONTENT", pointer(index, "atoms"))

    def check_containers(self, logical: Logical) -> None:
        root = logical.root
        reached = {ROOT, *(reference["key"] for _, _, reference in documents.references(root))}
        reached |= images.keys(logical.state)
        if root["storage"] == "plain":
            expected = {"atoms/zarr.json": GROUP_DOCUMENT}
            for slot in self.slots:
                expected[f"atoms/{slot.atom['key']}/zarr.json"] = GROUP_DOCUMENT
                expected[f"{slot.folder}/zarr.json"] = array_document(slot.slot, slot.item, slot.grid)
                reached |= {f"{slot.folder}/{slot.grid.key(position)}" for position in slot.grid.positions()}
            for key, content in expected.items():
                with self.found.refusals():
                    if self.store.read(key) != content:
                        raise RefusalError("UCP-E-ZARR", key)
            reached |= expected.keys()
        for number, pack in enumerate(self.packs):
            with self.found.refusals():
                self.check_pack(number, pack)
            reached.add(pack["key"])
        for key in sorted(self.store.keys() - reached):
            self.found.add("UCP-W-UNREFERENCED", key)

    def check_pack(self, number: int, pack: dict[str, Any]) -> None:
        """Check UCP-D-099, UCP-D-106, UCP-D-108, UCP-D-118."""
        key = pack["key"]
        data = self.store.read(key)
        if len(data) != pack["length"]:
            raise RefusalError("UCP-E-LENGTH", key)
        ranges = sorted(
            {
                (segment.offset, segment.offset + segment.length)
                for slot in self.slots
                for segments in slot.rows
                for segment in segments
                if segment.container == number
            }
        )
        if not ranges:
            raise RefusalError("UCP-E-SEGMENT", key, "an empty pack")
        position = 0
        for start, stop in ranges:
            if start < position:
                raise RefusalError("UCP-E-SEGMENT", key, "segments overlap")
            if any(data[position:start]) and "shared" not in pack:
                raise RefusalError("UCP-E-PADDING", key)
            position = stop
        if any(data[position:]) and "shared" not in pack:
            raise RefusalError("UCP-E-PADDING", key)
