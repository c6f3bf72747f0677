"""Tensors in flat buffers: layouts with a concat, and the slots of a buffer beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from generate.cases import Case, checks_of_good, refusal, validation
from generate.layout_cases import (
    FLAT,
    Step,
    bad_layout,
    blocks,
    good_layout,
    mesh,
    only,
    pad,
    permute,
    ragged,
    shard,
)
from generate.mutations import INDEX, put
from generate.parents import floats
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft

__all__ = ["buffer_cases"]

GROUP: Step = {"kind": "concat", "group": "g"}


def place(offsets: int | Sequence[int], totals: int | Sequence[int], *axes: str) -> dict[str, Any]:
    """Return a place; with axes, one entry per combination."""
    if isinstance(offsets, int) and isinstance(totals, int):
        return {"offsets": [offsets], "totals": [totals]}
    return {"offsets": offsets, "totals": totals, "axes": list(axes)}


Placed = tuple[dict[str, Any], list[Step], tuple[int, ...], dict[str, Any]]

GOOD: dict[str, Placed] = {
    "concat": (mesh(d=2), [FLAT, GROUP, shard("d", 0, "even")], (3, 2), place(3, 12)),
    "concat-alone": (mesh(d=2), [FLAT, GROUP, shard("d", 0, "even")], (3, 2), place(0, 6)),
    "concat-unsplit": (mesh(d=2), [FLAT, GROUP], (2, 2), place(1, 7)),
    "concat-scalar": (mesh(d=3), [FLAT, GROUP, shard("d", 0)], (), place(4, 5)),
    "concat-scalar-within": (mesh(d=2), [FLAT, GROUP, shard("d", 0, "even")], (), place(1, 4)),
    "concat-empty": (mesh(d=2), [FLAT, GROUP, shard("d", 0, "even")], (3, 0), place(4, 4)),
    "concat-more-ranks": (mesh(d=5), [FLAT, GROUP, shard("d", 0)], (2,), place(1, 3)),
    "concat-of-shard": (
        mesh(t=2, d=2),
        [shard("t", 0), FLAT, GROUP, shard("d", 0, "balanced")],
        (3, 2),
        place([1, 4], [7, 9], "t"),
    ),
    "concat-axes-order": (
        mesh(a=2, b=3, d=2),
        [shard("b", 1), shard("a", 0), FLAT, GROUP, shard("d", 0)],
        (3, 4),
        place([0, 1, 2, 3, 4, 5], [9, 9, 9, 10, 11, 12], "b", "a"),
    ),
    "concat-ragged": (
        {"axes": [*ragged("p", "t", 3, 1)["axes"], {"name": "d", "size": 2}]},
        [shard("t", 0), FLAT, GROUP, shard("d", 0)],
        (4,),
        place([0, 1, 2, 3, 0, 0], [4, 4, 4, 8, 0, 0], "p", "t"),
    ),
    "concat-padded": (
        mesh(d=4),
        [FLAT, pad(0, multiple=4), GROUP, pad(0, multiple=8), shard("d", 0, "even")],
        (5,),
        place(8, 20),
    ),
    "concat-blocks": (
        mesh(d=2),
        [FLAT, GROUP, blocks(0, [4, 8]), shard("d", 0)],
        (2, 4),
        place(2, 12),
    ),
    "concat-only": (
        mesh(p=2, d=2),
        [FLAT, GROUP, shard("d", 0), only("p", 1)],
        (3,),
        place([9, 1], [9, 6], "p"),
    ),
    "concat-permuted": (mesh(d=3), [permute(1, 0), FLAT, GROUP, shard("d", 0)], (3, 4), place(2, 16)),
}

AXES = mesh(t=2, d=2)
CUT = [shard("t", 0), FLAT, GROUP, shard("d", 0)]
BAD: dict[str, tuple[dict[str, Any], list[Step], tuple[int, ...], str, dict[str, Any] | None]] = {
    "concat-without-place": (AXES, CUT, (4,), "UCP-D-067", None),
    "place-without-concat": (AXES, [shard("t", 0)], (4,), "UCP-D-067", place(0, 4)),
    "concat-not-flat": (AXES, [GROUP], (4,), "UCP-D-068", place(0, 4)),
    "concat-twice": (AXES, [FLAT, GROUP, GROUP], (4,), "UCP-D-068", place(0, 4)),
    "concat-of-blocks": (AXES, [FLAT, blocks(0, [2, 2]), GROUP], (4,), "UCP-D-068", place(0, 4)),
    "place-axis-unknown": (AXES, CUT, (4,), "UCP-D-069", place([0, 0], [2, 2], "x")),
    "place-axis-twice": (AXES, CUT, (4,), "UCP-D-069", place([0] * 4, [2] * 4, "t", "t")),
    "place-axis-split": (AXES, CUT, (4,), "UCP-D-069", place([0, 0], [4, 4], "d")),
    "place-axis-split-in-blocks": (
        AXES,
        [FLAT, GROUP, blocks(0, [2, 2], [None, [shard("d", 0)]])],
        (4,),
        "UCP-D-069",
        place([0, 0], [4, 4], "d"),
    ),
    "place-axis-partial": (
        AXES,
        [{"kind": "partial", "axis": "d", "reduce": "sum"}, FLAT, GROUP],
        (4,),
        "UCP-D-069",
        place([0, 0], [4, 4], "d"),
    ),
    "place-ragged": (
        ragged("p", "t", 2, 1),
        [shard("t", 0), FLAT, GROUP],
        (4,),
        "UCP-D-070",
        place([0, 0], [4, 4], "t"),
    ),
    "place-offsets": (AXES, CUT, (4,), "UCP-D-071", place([0], [2, 2], "t")),
    "place-totals": (AXES, CUT, (4,), "UCP-D-071", place([0, 0], [2, 2, 2], "t")),
    "place-outside": (AXES, CUT, (4,), "UCP-D-072", place(3, 4)),
    "place-outside-at-one-coordinate": (AXES, CUT, (3,), "UCP-D-072", place(1, 2)),
}


def group(storage: str) -> Draft:
    """Return three tensors on two tensor-parallel ranks, one of them replicated there; two buffers that lie alike.

    Of 7 rows 4 are on the first rank and 3 on the second: what follows lies elsewhere on either.
    """
    shards = shard("d", 0, "even")
    layouts = [
        {"mesh": 0, "steps": [shard("t", 0), FLAT, GROUP, shards]},
        {"mesh": 0, "steps": [FLAT, GROUP, dict(shards)]},
    ]

    def atom(name: str, shape: tuple[int, ...], layout: int, where: dict[str, Any]) -> AtomDraft:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        slots = {
            slot: SlotDraft("float32", shape, floats(count, start), layout=layout, place=where)
            for slot, start in (("exp_avg", 1), ("value", 100))
        }
        return AtomDraft(name, slots)

    atoms = [
        atom("a", (7, 2), 0, place([0, 0], [16, 16], "t")),
        atom("b", (3,), 1, place([8, 6], [16, 16], "t")),
        atom("c", (6,), 0, place([11, 9], [16, 16], "t")),
    ]
    return Draft(atoms, storage=storage, chunk_bytes=32, root={"meshes": [AXES], "layouts": layouts})


def slot_place(atom: int, *member: str | int, to: Any) -> Callable[[Draft], object]:
    """Set a member of the value's place."""
    return put("index0", "atoms", atom, "slots", "value", "place", *member, to=to)


def _without(atom: int, member: str) -> Callable[[Draft], object]:
    def mutate(draft: Draft) -> None:
        del draft.parts[0].index["atoms"][atom]["slots"]["value"][member]

    return mutate


def buffer_cases() -> Iterator[Case]:
    """Yield good and bad cases."""
    named = ("UCP-D-067", "UCP-D-068", "UCP-D-069", "UCP-D-070", "UCP-D-071", "UCP-D-072")
    for name, (mesh_, steps, shape, where) in GOOD.items():
        yield good_layout(name, mesh_, steps, shape, where, named)
    for name, (mesh_, steps, shape, requirement, maybe) in BAD.items():
        yield bad_layout(name, mesh_, steps, shape, requirement, maybe)
    for storage in ("plain", "packed"):
        draft = group(storage)
        checks, expected, _ = checks_of_good(draft)
        yield Case(
            f"good/buffers/group-{storage}", "Two buffers of three tensors",
            ("UCP-D-073", "UCP-D-074", "UCP-D-075"), checks, draft.files(), expected,
        )  # fmt: skip
    at = f"{INDEX}#/atoms"
    of_slot: dict[str, tuple[Callable[[Draft], object], str, str]] = {
        "place-missing": (_without(1, "place"), "UCP-D-067", f"{at}/1/slots/value"),
        "layout-missing": (_without(1, "layout"), "UCP-D-067", f"{at}/1/slots/value"),
        "axis-unknown": (slot_place(0, "axes", 0, to="x"), "UCP-D-069", f"{at}/0/slots/value"),
        "axis-split": (slot_place(0, "axes", 0, to="d"), "UCP-D-069", f"{at}/0/slots/value"),
        "entries": (slot_place(0, "offsets", to=[0]), "UCP-D-071", f"{at}/0/slots/value"),
        "outside": (slot_place(2, "offsets", 0, to=14), "UCP-D-072", f"{at}/2/slots/value"),
        "overlap": (slot_place(2, "offsets", 1, to=8), "UCP-D-073", ""),
        "overlap-all": (slot_place(2, "offsets", to=[0, 0]), "UCP-D-073", ""),
        "totals": (slot_place(2, "totals", 1, to=18), "UCP-D-074", ""),
    }
    for name, (mutate, requirement, where_at) in of_slot.items():
        draft = group("packed")
        mutate(draft)
        check = validation(["UCP-E-LAYOUT"], [where_at] if where_at else [])
        yield Case(
            f"bad/buffers/{name}", f"A buffer: {name}", (requirement, "UCP-V-003"), [check], draft.files(),
            mutates="good/buffers/group-packed", mutation=name,
        )  # fmt: skip
    draft = group("packed")
    put("root", "layouts", 1, "steps", 2, "rule", to="ceil")(draft)
    yield Case(
        "bad/buffers/steps-behind", "Two layouts that split one buffer in two ways", ("UCP-D-075", "UCP-R-017"),
        [validation(["UCP-E-LAYOUT"], ["ucp.json#/layouts/1"]), refusal("inspect", ["UCP-E-LAYOUT"])], draft.files(),
        mutates="good/buffers/group-packed", mutation="steps-behind",
    )  # fmt: skip
