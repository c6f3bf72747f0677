"""Saving together, with threads for ranks: what is stored is the whole, and no rank writes more than its share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.distributed.saving import save_together
from tests.distributed.thread_group import ThreadGroup, run_threads
from tests.geometry.model import local_array
from tests.geometry.strategies import placed_layouts, shapes
from ucpformat import open as open_checkpoint
from ucpformat import validate
from ucpformat.distributed.description import Source
from ucpformat.distributed.group import Bytes, Group
from ucpformat.distributed.local_state import LocalState, SlotName
from ucpformat.distributed.save import SaveOptions, SaveReport
from ucpformat.distributed.share import SlotToShare, portions
from ucpformat.errors import UcpError, error
from ucpformat.geometry import (
    BufferPlace,
    Concat,
    ExplicitHoldings,
    Holdings,
    Layout,
    LocalBox,
    Mesh,
    MeshAxis,
    Shard,
    chunk_grid,
    covers,
    distinct_boxes,
    held_boxes,
    local_map_of,
    lower,
)
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.writer import AtomSpec, SlotSpec

TensorLayout = tuple[tuple[int, ...], Layout | None, BufferPlace | None]


def logical(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Elements that differ from one another, and from those of another seed."""
    return (np.arange(math.prod(shape), dtype=np.int32) + 1000 * seed + 1).reshape(shape)


def local_state(
    rank: int, slots: dict[SlotName, TensorLayout], state: StateDocument | None = None
) -> LocalState:
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
    path: Path, size: int, slots: dict[SlotName, TensorLayout], **options: Any
) -> list[SaveReport | BaseException]:
    """Save from ``size`` ranks."""
    chosen = SaveOptions(durability="none", workers=2, **options)
    return run_threads(
        size, lambda group: save_together(path, lambda: local_state(group.rank, slots), group, chosen)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, dict[SlotName, TensorLayout]]:
    """Ranks, and slots that they hold by layouts over meshes of all of them."""
    sizes = draw(st.sampled_from([(2,), (4,), (2, 2), (3,), (2, 3), (2, 1, 2)]))
    count = math.prod(sizes)
    axes = tuple(MeshAxis(f"a{place}", size) for place, size in enumerate(sizes))
    slots: dict[SlotName, TensorLayout] = {}
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
    case: tuple[int, dict[SlotName, TensorLayout]], chunk_kib: int
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


@given(cases(), st.sampled_from([64, 1024, 65536]))
def test_each_rank_writes_its_share_and_no_cell_is_written_twice(
    case: tuple[int, dict[SlotName, TensorLayout]], chunk_bytes: int
) -> None:
    """At most what it alone holds and, for every set of ranks, their bytes over their number plus one chunk."""
    count, slots = case
    everyone = frozenset(range(count))
    shared = [
        SlotToShare(name, (Source(layout, place, everyone),), chunk_grid(shape, 4, chunk_bytes), 4)
        for name, (shape, layout, place) in slots.items()
    ]
    written = {slot.name: np.zeros(slot.grid.shape, int) for slot in shared}
    nbytes = []
    for rank in range(count):
        mine = portions(shared, rank)
        nbytes.append(4 * sum(portion.piece.box.size for portion in mine))
        for portion in mine:
            box = portion.piece.box
            written[portion.name][tuple(map(slice, box.offset, box.stop))] += 1
    for name, cells in written.items():
        assert (cells == 1).all(), name
    groups: dict[tuple[int, ...], int] = {}
    for slot in shared:
        source = slot.sources[0]
        holdings = holdings_of(source, slot.grid.shape)
        for held in held_boxes([(holdings, everyone)]):
            groups[held.holders] = groups.get(held.holders, 0) + 4 * held.box.size
    for rank in range(count):
        bound = 0.0
        for holders, total in groups.items():
            if rank in holders:
                bound += total / len(holders) + (max(chunk_bytes, 4) if len(holders) > 1 else 0)
        assert nbytes[rank] <= bound


def holdings_of(source: Source, shape: tuple[int, ...]) -> Holdings:
    if source.layout is not None:
        return lower(source.layout, shape, place=source.place)
    whole = local_map_of(shape, shape, [LocalBox((0,) * len(shape), (0,) * len(shape), shape)])
    return ExplicitHoldings(shape, tuple((rank, whole) for rank in sorted(source.ranks)))


DP = Mesh((MeshAxis("dp", 3),))
ROWS: dict[SlotName, TensorLayout] = {
    ("a", "value"): ((50, 2), Layout(DP, (Shard("dp", 0),)), None),
    ("b", "value"): ((7,), None, None),
}


def outcomes(path: Path, work: Callable[[ThreadGroup], LocalState], **options: Any) -> list[Any]:
    chosen = SaveOptions(durability="none", workers=1, **options)
    return run_threads(3, lambda group: save_together(path, lambda: work(group), group, chosen))


def refused(path: Path, work: Callable[[ThreadGroup], LocalState], **options: Any) -> list[UcpError]:
    """The errors of all ranks, after which there is nothing."""
    found = outcomes(path, work, **options)
    assert all(isinstance(one, UcpError) for one in found), found
    assert not path.exists()
    return found


def test_all_ranks_raise_what_one_raises(tmp_path: Path) -> None:
    def fails_at_once(group: ThreadGroup) -> LocalState:
        if group.rank == 1:
            raise error("UCP-E-OBJECT", "no", at="x")
        return local_state(group.rank, ROWS)

    found = refused(tmp_path / "a", fails_at_once)
    assert [(one.code, one.at, one.message) for one in found] == [
        ("UCP-E-OBJECT", "x", "no (on rank 1)"),
        ("UCP-E-OBJECT", "x", "no"),
        ("UCP-E-OBJECT", "x", "no (on rank 1)"),
    ]


@pytest.mark.parametrize("rank", [0, 2])
def test_all_ranks_raise_where_one_cannot_write(tmp_path: Path, rank: int) -> None:
    def fails_in_writing(group: ThreadGroup) -> LocalState:
        local = local_state(group.rank, ROWS)

        def broken() -> Any:
            raise ValueError("out of memory")

        if group.rank == rank:
            return replace(local, arrays=dict.fromkeys(local.arrays, broken))
        return local

    found = outcomes(tmp_path / "a", fails_in_writing)
    assert not (tmp_path / "a").exists()
    for other, one in enumerate(found):
        if other == rank:
            assert isinstance(one, ValueError)
        else:
            assert isinstance(one, UcpError)
            assert one.code == "UCP-E-RANK"
            assert one.message == f"ValueError: out of memory (on rank {rank})"


def test_ranks_that_contradict_one_another_are_named(tmp_path: Path) -> None:
    def other_value(group: ThreadGroup) -> LocalState:
        return local_state(group.rank, ROWS, StateDocument({"seed": group.rank // 2}))

    def other_type(group: ThreadGroup) -> LocalState:
        local = local_state(group.rank, ROWS)
        atoms = [
            replace(atom, slots={"value": replace(atom.slots["value"], dtype="float32")})
            for atom in local.atoms
        ]
        return replace(local, atoms=atoms) if group.rank == 1 else local

    def other_groups(group: ThreadGroup) -> LocalState:
        options = ParameterGroup(("a",), {"lr": group.rank})
        return local_state(group.rank, ROWS, StateDocument({}, {"optim": Optimizer((options,))}))

    for work, at in ((other_value, "seed"), (other_type, "a/value"), (other_groups, "optim")):
        found = refused(tmp_path / "a", work)
        assert {(one.code, one.at) for one in found} == {("UCP-E-MISMATCH", at)}
        assert len({one.message for one in found}) == 1
    chosen = [SaveOptions(step=step) for step in (1, 1, 2)]
    mixed = run_threads(
        3,
        lambda group: save_together(
            tmp_path / "a", lambda: local_state(group.rank, ROWS), group, chosen[group.rank]
        ),
    )
    assert all(isinstance(one, UcpError) and "different options" in one.message for one in mixed)


def test_stages_of_a_pipeline_add_up(tmp_path: Path) -> None:
    """Each rank has atoms, values and members of parameter groups of its own."""

    def stage(group: ThreadGroup) -> LocalState:
        name = f"layer{group.rank}"
        groups = Optimizer((ParameterGroup((name,), {"lr": 0.5}), ParameterGroup((), {"lr": 1})))
        state = StateDocument(
            {f"v{group.rank}": group.rank, "same": 1}, {"optim": groups}, {}, {"n": {name: 1}}
        )
        return local_state(group.rank, {(name, "value"): ((4,), None, None)}, state)

    assert not [one for one in outcomes(tmp_path / "a", stage) if isinstance(one, BaseException)]
    with open_checkpoint(tmp_path / "a") as checkpoint:
        assert list(checkpoint) == ["layer0", "layer1", "layer2"]
        assert checkpoint.state.values == {"v0": 0, "v1": 1, "v2": 2, "same": 1}
        groups = checkpoint.state.optimizers["optim"].groups
        assert [group.atoms for group in groups] == [("layer0", "layer1", "layer2"), ()]
        assert checkpoint.state.annotations == {"n": {"layer0": 1, "layer1": 1, "layer2": 1}}


def test_what_no_rank_holds_is_missed(tmp_path: Path) -> None:
    mesh = Mesh((MeshAxis("dp", 4),))
    slots: dict[SlotName, TensorLayout] = {("a", "value"): ((8,), Layout(mesh, (Shard("dp", 0),)), None)}
    found = refused(tmp_path / "a", lambda group: local_state(group.rank, slots))
    assert {one.code for one in found} == {"UCP-E-COVER"}


def test_ranks_alike_send_digests_and_receipts_alone(tmp_path: Path) -> None:
    """What goes over the wire does not grow with tensors, nor with what all describe alike."""
    slots = {(f"t{number:04}", "value"): ROWS["b", "value"] for number in range(500)}
    sent: list[tuple[int, int]] = [(0, 0)] * 3

    def work(group: ThreadGroup) -> SaveReport:
        report = save_together(
            tmp_path / "a", lambda: local_state(group.rank, slots), group, SaveOptions(durability="none")
        )
        sent[group.rank] = (group.rounds, group.sent)
        return report

    reports = run_threads(3, work)
    assert sum(one.nbytes for one in reports if isinstance(one, SaveReport)) == 500 * 7 * 4
    assert [rounds for rounds, _ in sent] == [4, 4, 4]
    assert sent[0][1] < 300, "the first rank has no receipt to send"
    assert all(size < 500 * 16 * 8 for _, size in sent)


@pytest.mark.parametrize("round_", [1, 2, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_leaves_fails_the_save(tmp_path: Path, rank: int, round_: int) -> None:
    """The first one may leave behind the commit: then the checkpoint is there, and good."""

    class Leaving:
        def __init__(self, group: ThreadGroup) -> None:
            self.rank, self.ranks = group.rank, group.ranks
            self._group = group

        def _next(self) -> None:
            if self._group.rounds + 1 == round_:
                self._group.leave()
                raise KeyboardInterrupt

        def all_gather(self, data: bytes) -> list[bytes]:
            self._next()
            return self._group.all_gather(data)

        def gather(self, data: bytes) -> list[bytes] | None:
            self._next()
            return self._group.gather(data)

        def broadcast(self, data: bytes) -> bytes:
            self._next()
            return self._group.broadcast(data)

        def exchange(self, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes]) -> None:
            self._group.exchange(sends, receives)

    def work(group: ThreadGroup) -> SaveReport:
        one: Group = Leaving(group) if group.rank == rank else group
        return save_together(
            tmp_path / "a",
            lambda: local_state(group.rank, ROWS),
            one,
            SaveOptions(durability="none", workers=1),
        )

    found = run_threads(3, work)
    assert isinstance(found[rank], KeyboardInterrupt)
    if (tmp_path / "a" / "ucp.json").exists():
        assert round_ == 3
        assert list(validate(tmp_path / "a")) == []
    else:
        assert all(isinstance(one, BaseException) for one in found)
