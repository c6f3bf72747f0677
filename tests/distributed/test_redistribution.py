"""Redistribution with threads for ranks: what arrives is the logical tensor cut anew, and nothing is sent in vain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.distributed.thread_group import ThreadGroup, run_threads
from tests.geometry.model import local_array
from tests.geometry.strategies import placed_layouts, shapes
from ucpformat import TensorLayout, UcpError
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.redistribution import Destination, RedistributionReport, redistribute_together
from ucpformat.geometry import (
    BufferPlace,
    Concat,
    Exchange,
    Flatten,
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Partial,
    Scale,
    Shard,
    Step,
    lower,
)
from ucpformat.writer import AtomSpec, SlotSpec

Array = np.ndarray[Any, np.dtype[Any]]
MARK = -77.0


@dataclass(frozen=True)
class Side:
    """How one tensor is held, on a mesh of some ranks of the job."""

    held: TensorLayout

    def local(self, rank: int, whole: Array, outside: float) -> Array | None:
        """What ``rank`` holds; ``outside`` where no element lies."""
        coordinate = self.held.layout.mesh.find(rank)
        lowering = lower(self.held.layout, self.held.shape, place=self.held.place)
        found = None if coordinate is None else lowering.at(coordinate)
        if found is None or coordinate is None:
            return None
        cells = local_array(found, np.arange(whole.size).reshape(lowering.view))
        values = whole.reshape(-1) * float(lowering.scale)
        if lowering.reduce is not None:
            # The first contribution has, beside the values, what the others take away again.
            number, count = self._contribution(coordinate)
            values = values + 8 * math.comb(count, 2) if number == 0 else np.full_like(values, -8.0 * number)
        return np.where(cells < 0, outside, values[cells] if whole.size else outside).astype(whole.dtype)

    def _contribution(self, coordinate: tuple[int, ...]) -> tuple[int, int]:
        axes = [axis.name for axis in self.held.layout.mesh.axes]
        number, count = 0, 1
        for axis in sorted(
            axes.index(step.axis) for step in self.held.layout.steps if isinstance(step, Partial)
        ):
            size = self.held.layout.mesh.axes[axis].size
            number, count = number * size + coordinate[axis], count * size
        return number, count

    @property
    def in_buffer(self) -> bool:
        return any(isinstance(step, Concat) for step in self.held.layout.steps)


def contributions(held: TensorLayout) -> int:
    sizes = {axis.name: axis.size for axis in held.layout.mesh.axes}
    return math.prod(sizes[step.axis] for step in held.layout.steps if isinstance(step, Partial))


@st.composite
def sides(draw: st.DrawFn, shape: tuple[int, ...], world: int, kinds: str, buffer: str) -> Side:
    sizes = draw(st.sampled_from([(), (1,), (2,), (3,), (4,), (2, 2), (5,), (2, 3)]))
    count = math.prod(sizes)
    axes = tuple(MeshAxis(f"a{place}", size) for place, size in enumerate(sizes))
    ranks = tuple(draw(st.permutations(range(world)))[:count])
    layout, place = draw(placed_layouts(shape, Mesh(axes, ranks), kinds))
    # Factors are exact: powers of two.
    steps: list[Step] = []
    for step in layout.steps:
        if isinstance(step, Scale):
            step = Scale(Fraction(draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 8]))))
        # Tensors of one buffer do not overlap; these have one each.
        steps.append(Concat(buffer) if isinstance(step, Concat) else step)
    return Side(TensorLayout(Layout(layout.mesh, tuple(steps)), shape, place))


Case = tuple[int, dict[str, tuple[Side, Side]]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = 6
    tensors = {}
    for number in range(draw(st.integers(1, 4))):
        shape = draw(shapes(max_ndim=4, max_elements=300))
        source = draw(sides(shape, world, "view pad concat scale partial", f"g{number}"))
        target = draw(sides(shape, world, "view pad concat scale", f"g{number}"))
        tensors[f"t{number}"] = (source, target)
    return world, tensors


def whole_of(number: int, shape: tuple[int, ...]) -> Array:
    """Small integers, which no sum or factor here rounds."""
    return (np.arange(math.prod(shape), dtype=np.float64) % 500 + 16 * number + 1).reshape(shape)


def is_held(side: Side) -> bool:
    """Whether every cell is held by some rank, in every contribution."""
    lowering = lower(side.held.layout, side.held.shape, place=side.held.place)
    count = contributions(side.held)
    seen = np.zeros((count, math.prod(side.held.shape)), bool)
    for region in lowering.regions():
        cells = local_array(region.local_map, np.arange(seen.shape[1]).reshape(lowering.view)).reshape(-1)
        for number, ranks in enumerate(region.contributions or (region.holders,)):
            if ranks:
                seen[number, cells[cells >= 0]] = True
    return bool(seen.all())


def run(
    case: Case, message_bytes: int, into: bool
) -> tuple[list[dict[str, Any] | BaseException], list[RedistributionReport], list[ThreadGroup]]:
    world, tensors = case
    reports: list[Any] = [None] * world
    groups: list[Any] = [None] * world

    def work(group: ThreadGroup) -> dict[str, Any]:
        rank = group.rank
        groups[rank] = group
        state: dict[str, Any] = {"note": rank}
        given: dict[str, Any] = {}
        for number, (name, (source, target)) in enumerate(tensors.items()):
            whole = whole_of(number, source.held.shape)
            local = source.local(rank, whole, MARK)
            if local is not None:
                state[name] = local
            place = target.local(rank, whole, MARK)
            if place is not None:
                given[name] = np.full_like(place, MARK)
        found = ucpformat.redistribute(
            state,
            layouts={name: source.held for name, (source, _) in tensors.items() if name in state},
            target_layouts={
                name: target.held for name, (_, target) in tensors.items() if not into or name in given
            },
            group=group,
            into=given if into else None,
            message_bytes=message_bytes,
            report=lambda report: reports.__setitem__(rank, report),
        )
        if into:
            assert found is given
        else:
            assert found["note"] == rank
        return found

    return run_threads(world, work), reports, groups


@given(cases(), st.sampled_from([1, 64, 1 << 20]), st.booleans())
def test_any_layout_becomes_any_other(case: Case, message_bytes: int, into: bool) -> None:
    """Beside the oracle, which cuts the logical tensor; over ranks that may or may not be on both sides."""
    world, tensors = case
    found, reports, groups = run(case, message_bytes, into)
    missing = [name for name, (source, _) in tensors.items() if not is_held(source)]
    if any(isinstance(one, BaseException) for one in found):
        assert missing, found
        assert {getattr(one, "code", one) for one in found} == {"UCP-E-COVER"}
        return
    elements = least = pending = 0
    for number, (name, (source, target)) in enumerate(tensors.items()):
        whole = whole_of(number, source.held.shape)
        outside = MARK if into and target.in_buffer else 0.0
        for rank in range(world):
            expected = target.local(rank, whole, outside)
            got = found[rank]
            assert isinstance(got, Mapping)
            if expected is None:
                assert name not in got
            else:
                assert got[name].dtype == np.float64
                assert np.array_equal(got[name], expected), (name, rank)
        before = lower(source.held.layout, source.held.shape, place=source.held.place)
        exchange = Exchange(before, lower(target.held.layout, target.held.shape, place=target.held.place))
        elements += exchange.plan().elements_sent
        least += exchange.lower_bound()
        pending += before.reduce is not None
    sent = sum(report.sent for report in reports)
    assert sent == sum(report.received for report in reports) == sum(group.exchanged for group in groups)
    assert sent == 8 * elements
    if not pending:
        assert sent == 8 * least, "no element goes to a rank that has it, none goes twice"
    for report in reports:
        assert report.staged <= 8 * max(8, message_bytes)
    assert sum(report.messages for report in reports) == sum(group.messages for group in groups)


DP = Mesh((MeshAxis("dp", 3),))


def held(mesh: Mesh, shape: tuple[int, ...], *steps: Step, place: BufferPlace | None = None) -> TensorLayout:
    return TensorLayout(Layout(mesh, steps), shape, place)


def test_replicas_share_the_work() -> None:
    """Four holders of a tensor serve four ranks beside them, each with as much."""
    reports: list[Any] = [None] * 8
    here, there = Mesh((MeshAxis("r", 4),)), Mesh((MeshAxis("r", 4),), (4, 5, 6, 7))

    def work(group: ThreadGroup) -> dict[str, Any]:
        state = {"w": np.arange(64.0)} if group.rank < 4 else None
        return ucpformat.redistribute(
            state,
            layouts={"w": held(here, (64,))} if state else {},
            target_layouts={"w": held(there, (64,), Shard("r", 0))},
            group=group,
            report=lambda report: reports.__setitem__(group.rank, report),
        )

    found = run_threads(8, work)
    assert [report.sent for report in reports] == [16 * 8] * 4 + [0] * 4
    for rank in range(4, 8):
        got = found[rank]
        assert isinstance(got, dict)
        assert np.array_equal(got["w"], np.arange(64.0)[16 * (rank - 4) :][:16])


def test_tensors_of_a_buffer_share_one() -> None:
    flat = (Flatten(), Concat("g"), Shard("dp", 0, "even"))
    sizes = {"opt.0.a": (4, 1), "opt.0.b": (5, 1)}
    places = {"opt.0.a": BufferPlace((0,), (9,)), "opt.0.b": BufferPlace((4,), (9,))}

    def work(group: ThreadGroup) -> dict[str, Any]:
        state = {
            "opt": {
                0: {name[-1]: np.arange(size[0], dtype=np.float32)[:, None] for name, size in sizes.items()}
            }
        }
        target = {name: held(DP, size, *flat, place=places[name]) for name, size in sizes.items()}
        return ucpformat.redistribute(state if group.rank == 1 else {}, target_layouts=target, group=group)

    for rank, got in enumerate(run_threads(3, work)):
        assert isinstance(got, dict), got
        part = got["opt"][0]
        assert part["a"] is part["b"]
        assert np.array_equal(part["a"], np.array([0, 1, 2, 3, 0, 1, 2, 3, 4], np.float32)[3 * rank :][:3])


def refusals(work: Any, size: int = 3) -> set[tuple[str, str]]:
    found = run_threads(size, work)
    assert all(isinstance(one, UcpError) for one in found), found
    return {(one.code, one.at) for one in found if isinstance(one, UcpError)}


def test_what_does_not_fit_is_refused_by_all_with_its_name() -> None:
    rows = held(DP, (6,), Shard("dp", 0))
    full = np.arange(6.0)

    def asks(
        target: Mapping[str, TensorLayout],
        source: Mapping[str, TensorLayout] | None = None,
        state: Any = None,
    ) -> Any:
        return lambda group: ucpformat.redistribute(
            {"w": full} if state is None else state(group.rank),
            layouts=source,
            target_layouts=target,
            group=group,
        )

    assert refusals(asks({"v": rows})) == {("UCP-E-MISMATCH", "v")}
    assert refusals(asks({"w": held(DP, (3,))})) == {("UCP-E-MISMATCH", "w")}
    assert refusals(asks({"w": held(DP, (6,), Partial("dp", "sum"))})) == {("UCP-E-LAYOUT", "w")}
    assert refusals(asks({"w": held(DP, (6,), Scale(Fraction(1, 3)))})) == {("UCP-E-LAYOUT", "w")}
    one_only = held(Mesh((MeshAxis("dp", 3), MeshAxis("pp", 1))), (6,), Shard("dp", 0, (0, 2, 4)))
    assert refusals(
        asks({"w": rows}, {"w": one_only}, lambda rank: {"w": full[2:4]} if rank == 1 else {})
    ) == {("UCP-E-MISMATCH", "w")}
    # Two elements that one rank holds and lists are its own; a rank that does not list what it is to hold is told so.
    assert refusals(asks({"w": rows}, {"w": rows}, lambda rank: {"w": full[:2]} if rank else {})) == {
        ("UCP-E-MISMATCH", "w")
    }


def test_entries_of_each_coordinate_stay_or_are_refused() -> None:
    own = held(DP, (3, 2), LocalOnly("keep"))

    def work(target: TensorLayout) -> Any:
        return lambda group: ucpformat.redistribute(
            {"w": np.full(2, float(group.rank))},
            layouts={"w": own},
            target_layouts={"w": target},
            group=group,
        )

    backwards = Mesh((MeshAxis("dp", 3),), (2, 1, 0))
    found = run_threads(3, work(held(backwards, (3, 2), LocalOnly())))
    assert [one["w"].tolist() for one in found if isinstance(one, dict)] == [[2.0] * 2, [1.0] * 2, [0.0] * 2]
    assert refusals(work(held(DP, (3, 2), Shard("dp", 0)))) == {("UCP-E-MISMATCH", "w")}


def test_a_factor_that_rounds_is_raised_by_all() -> None:
    def work(group: ThreadGroup) -> Any:
        tiny = np.full(6, 2.0**-1074) if group.rank == 2 else np.zeros(6)
        return ucpformat.redistribute(
            {"w": tiny} if group.rank == 2 else {},
            target_layouts={"w": held(DP, (6,), Scale(Fraction(1, 2)), Shard("dp", 0))},
            group=group,
        )

    assert refusals(work) == {("UCP-E-INEXACT", "w")}


def test_memory_of_the_source_is_no_target() -> None:
    def work(group: ThreadGroup) -> Any:
        memory = np.arange(12.0)
        other = {"v": memory[3:9]}
        return ucpformat.redistribute(
            {"w": memory[:6], "x": memory[1:2]}, target_layouts={}, group=group, into=other
        )

    assert refusals(work) == {("UCP-E-MISMATCH", "v")}


def test_a_thread_that_leaves_fails_the_others() -> None:
    def work(group: ThreadGroup) -> Any:
        if group.rank == 1:
            group.all_gather(b"+" + b"\0" * 32)
            raise KeyboardInterrupt
        return ucpformat.redistribute(
            {"w": np.arange(6.0)}, target_layouts={"w": held(DP, (6,), Shard("dp", 0))}, group=group
        )

    found = run_threads(3, work)
    assert all(isinstance(one, BaseException) for one in found)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_that_are_not_dense_are_filled_by_way_of_staging(order: str) -> None:
    def work(group: ThreadGroup) -> Any:
        into = {"w": np.zeros((6, 8), np.float64, order)[::2, ::-1]}  # type: ignore[call-overload]
        return ucpformat.redistribute(
            {"w": np.arange(24.0).reshape(3, 8)} if group.rank == 1 else {}, group=group, into=into
        )

    for one in run_threads(3, work):
        assert isinstance(one, dict), one
        assert np.array_equal(one["w"], np.arange(24.0).reshape(3, 8))


@pytest.mark.parametrize("side", ["source", "target"])
def test_memory_that_cannot_be_had_is_raised_by_all(side: str) -> None:
    """Rank 1 has what rank 2 wants; neither lets the other wait."""
    spec = SlotSpec("float64", (6,))

    def broken() -> Any:
        raise ValueError("out of memory")

    def work(group: ThreadGroup) -> RedistributionReport:
        held = LocalState([], {})
        if group.rank == 1:
            give = broken if side == "source" else lambda: np.arange(6.0)
            held = LocalState([AtomSpec("w", {"value": spec})], {("w", "value"): give})
        take = broken if side == "target" else lambda: np.zeros(6)
        wanted = {("w", "value"): Destination(spec, take, lambda: None)} if group.rank == 2 else {}
        return redistribute_together(lambda: held, lambda _: wanted, group)

    found = run_threads(3, work)
    assert [type(one) for one in found].count(ValueError) == 1
    assert all("out of memory" in str(one) for one in found), found


def test_what_goes_together_is_listed_by_all() -> None:
    """Factors and entries of their own take one layout, which all of its ranks list."""
    own = held(DP, (3, 2), LocalOnly())
    doubled = held(DP, (6,), Scale(Fraction(2)))

    def work(source: TensorLayout, target: TensorLayout, local: Any) -> Any:
        return lambda group: ucpformat.redistribute(
            {"w": local} if group.rank else {},
            layouts={"w": source} if group.rank else {},
            target_layouts={"w": target},
            group=group,
        )

    assert refusals(work(own, own, np.zeros(2))) == {("UCP-E-LAYOUT", "w")}
    assert refusals(work(doubled, held(DP, (6,)), np.zeros(6))) == {("UCP-E-LAYOUT", "w")}


def test_parts_of_a_buffer_that_is_not_dense_are_staged_together() -> None:
    flat = (Flatten(), Concat("g"), Shard("dp", 0, "even"))
    places = {"a": BufferPlace((0,), (9,)), "b": BufferPlace((4,), (9,))}
    sizes = {"a": (4,), "b": (4,)}

    def work(group: ThreadGroup) -> Any:
        buffer = np.full(6, MARK)[::2]
        state = {name: np.arange(4.0) for name in sizes} if group.rank == 0 else {}
        target = {name: held(DP, size, *flat, place=places[name]) for name, size in sizes.items()}
        return ucpformat.redistribute(
            state, target_layouts=target, group=group, into=dict.fromkeys(sizes, buffer)
        )["a"]

    found = [cell for part in run_threads(3, work) for cell in np.asarray(part).tolist()]
    assert found == [0, 1, 2, 3, 0, 1, 2, 3, MARK]
