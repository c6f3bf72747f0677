"""Saving together, with threads for ranks: what is stored is the whole, and no rank writes more than its share."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.geometry.model import local_array
from tests.geometry.strategies import placed_layouts, shapes
from ucpformat import open as open_checkpoint
from ucpformat import validate
from ucpformat.distributed.local_state import LocalState, SlotName
from ucpformat.distributed.save import SaveOptions, SaveReport, save_together
from ucpformat.distributed.thread_group import run_threads
from ucpformat.geometry import (
    BufferPlace,
    Concat,
    Layout,
    Mesh,
    MeshAxis,
    covers,
    distinct_boxes,
    lower,
)
from ucpformat.model.state import StateDocument
from ucpformat.writer import AtomSpec, SlotSpec

Held = tuple[tuple[int, ...], Layout | None, BufferPlace | None]


def logical(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Elements that differ from one another, and from those of another seed."""
    return (np.arange(math.prod(shape), dtype=np.int32) + 1000 * seed + 1).reshape(shape)


def local_state(rank: int, slots: dict[SlotName, Held], state: StateDocument | None = None) -> LocalState:
    """What ``rank`` holds of slots that are given by shape, layout and place."""
    atoms: dict[str, dict[str, SlotSpec]] = {}
    arrays: dict[SlotName, Any] = {}
    for seed, (name, (shape, layout, place)) in enumerate(slots.items()):
        whole = logical(shape, seed)
        if layout is not None:
            coordinate = layout.mesh.find(rank)
            lowering = lower(layout, shape, place=place)
            held = None if coordinate is None else lowering.at(coordinate)
            if held is None:
                continue
            local = local_array(held, whole.reshape(lowering.view)).astype(np.int32)
        else:
            local = whole
        atoms.setdefault(name[0], {})[name[1]] = SlotSpec("int32", shape, layout, place=place)
        arrays[name] = lambda local=local: local
    specs = [AtomSpec(name, found) for name, found in atoms.items()]
    return LocalState(specs, arrays, state or StateDocument())


def save_all(
    path: Path, size: int, slots: dict[SlotName, Held], **options: Any
) -> list[SaveReport | BaseException]:
    """Save from ``size`` ranks."""
    chosen = SaveOptions(durability="none", workers=2, **options)
    return run_threads(
        size, lambda group: save_together(path, lambda: local_state(group.rank, slots), group, chosen)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, dict[SlotName, Held]]:
    """Ranks, and slots that they hold by layouts over meshes of all of them."""
    sizes = draw(st.sampled_from([(2,), (4,), (2, 2), (3,), (2, 3), (2, 1, 2)]))
    count = math.prod(sizes)
    axes = tuple(MeshAxis(f"a{place}", size) for place, size in enumerate(sizes))
    slots: dict[SlotName, Held] = {}
    for number in range(draw(st.integers(1, 4))):
        shape = draw(shapes(max_ndim=4))
        ranks = draw(st.none() | st.permutations(range(count)).map(tuple))
        layout, place = draw(placed_layouts(shape, Mesh(axes, ranks), "view pad concat"))
        if covers(distinct_boxes(lowering := lower(layout, shape, place=place)), lowering.view) is None:
            # Tensors of one buffer do not overlap; these have one each.
            steps = (Concat(f"g{number}") if isinstance(step, Concat) else step for step in layout.steps)
            layout = Layout(layout.mesh, tuple(steps))
            slots[f"t{number}", "value"] = (shape, layout, place)
    if draw(st.booleans()):
        slots["plain", "value"] = (draw(shapes(max_ndim=2)), None, None)
    assume(slots)
    return count, slots


@given(cases(), st.sampled_from([1, 64, 1024]))
def test_what_ranks_hold_by_any_layout_is_stored_whole(
    case: tuple[int, dict[SlotName, Held]], chunk_kib: int
) -> None:
    count, slots = case
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "x.ucp")
        reports = save_all(path, count, slots, chunk_bytes=1024 * chunk_kib)
        for report in reports:
            if isinstance(report, BaseException):
                raise report
        assert len({report.digest for report in reports if isinstance(report, SaveReport)}) == 1
        assert list(validate(path)) == []
        with open_checkpoint(path) as checkpoint:
            assert {(atom, slot) for atom, view in checkpoint.items() for slot in view} == set(slots)
            for seed, (name, (shape, _, _)) in enumerate(slots.items()):
                assert np.array_equal(checkpoint[name[0]][name[1]].read(), logical(shape, seed))
