"""Whole chunks of several writers: what is stored is what a process alone stores, byte for byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.distributed.saving import save_together
from tests.distributed.test_save import TensorLayout, cases, local_state, logical
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import Compressor, validate
from ucpformat import open as open_checkpoint
from ucpformat.distributed.chunk_owners import WholeChunks, whole_chunks
from ucpformat.distributed.description import Source
from ucpformat.distributed.local_state import LocalState, SlotName
from ucpformat.distributed.save import SaveOptions, SaveReport, prepare_save
from ucpformat.distributed.share import Part, SlotToShare, held_by_all, live_batches
from ucpformat.errors import UcpError
from ucpformat.geometry import (
    Box,
    BufferPlace,
    ChunkGrid,
    Concat,
    Flatten,
    Layout,
    Mesh,
    MeshAxis,
    Shard,
    chunk_grid,
)
from ucpformat.model.root import Storage
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

ZSTD = Compressor("zstd", {"level": 3, "checksum": False})
WAYS: list[tuple[Storage, Compressor | None]] = [("plain", None), ("plain", ZSTD), ("packed", ZSTD)]


def compressed(local: LocalState, compressor: Compressor | None) -> LocalState:
    atoms = [
        AtomSpec(
            atom.name,
            {
                name: SlotSpec(slot.dtype, slot.shape, slot.layout, compressor, place=slot.place)
                for name, slot in atom.slots.items()
            },
        )
        for atom in local.atoms
    ]
    return LocalState(atoms, local.arrays, local.state)


def alone(
    path: Path, slots: dict[SlotName, TensorLayout], compressor: Compressor | None, options: SaveOptions
) -> None:
    """The same state, written by one process that has all of it."""
    atoms = [
        AtomSpec(atom, {slot: SlotSpec("int32", shape, None, compressor)})
        for (atom, slot), (shape, _, _) in slots.items()
    ]
    with CheckpointWriter(
        path, atoms, storage=options.storage, chunk_bytes=options.chunk_bytes, durability="none"
    ) as writer:
        for seed, (name, (shape, _, _)) in enumerate(slots.items()):
            writer.write(*name, logical(shape, seed))


def in_a_ring(parts: Iterator[Sequence[Part]]) -> Iterator[list[Part]]:
    """Parts one by one, cut along their first dim, in memory that the next one takes."""
    for batch in parts:
        for part in batch:
            if part.data.ndim == 0:
                yield [part]
                continue
            for first in range(0, part.data.shape[0], 2):
                data = part.data[first : first + 2].copy()
                yield [Part(part.name, (part.offset[0] + first, *part.offset[1:]), data)]
                data[...] = -9


def contents(path: Path) -> dict[str, bytes]:
    """What Zarr sees of a checkpoint."""
    atoms = path / "atoms"
    return {str(file.relative_to(atoms)): file.read_bytes() for file in atoms.rglob("*") if file.is_file()}


def lacking_bytes(count: int, slots: dict[SlotName, TensorLayout], chunk_bytes: int) -> int:
    """Bytes of all chunks, less what the rank holds of each that holds the most."""
    everyone = frozenset(range(count))
    total = 0
    for name, (shape, layout, place) in slots.items():
        slot = SlotToShare(name, (Source(layout, place, everyone),), chunk_grid(shape, 4, chunk_bytes), 4)
        held = held_by_all(slot)
        for chunk in range(slot.grid.count):
            box = slot.grid.box_at(chunk)
            sizes = [0] * count
            for one in held:
                part = one.box.intersect(box)
                for rank in one.holders:
                    sizes[rank] += 0 if part is None else part.size
            total += 4 * (box.size - max(sizes))
    return total


@given(cases(), st.sampled_from([1, 64, 1024]), st.sampled_from(WAYS), st.booleans())
def test_what_several_write_is_what_one_writes(
    case: tuple[int, dict[SlotName, TensorLayout]],
    chunk_kib: int,
    way: tuple[Storage, Compressor | None],
    ring: bool,
) -> None:
    count, slots = case
    storage, compressor = way
    options = SaveOptions(storage, 1024 * chunk_kib, durability="none", workers=2)
    groups: list[Any] = [None] * count

    def work(group: ThreadGroup) -> SaveReport:
        groups[group.rank] = group
        saving = prepare_save(
            path, lambda: compressed(local_state(group.rank, slots), compressor), group, options
        )
        return saving.run(
            (lambda: in_a_ring(live_batches(saving.share(), saving.local.arrays))) if ring else None
        )

    with TemporaryDirectory() as scratch:
        path, single = Path(scratch, "x.ucp"), Path(scratch, "y.ucp")
        reports = []
        for one in run_threads(count, work):
            if isinstance(one, BaseException):
                raise one
            reports.append(one)
        assert list(validate(path)) == []
        alone(single, slots, compressor, options)
        if storage == "plain":
            assert contents(path) == contents(single)
        with open_checkpoint(path) as checkpoint, open_checkpoint(single) as other:
            for seed, (name, (shape, _, _)) in enumerate(slots.items()):
                assert np.array_equal(checkpoint[name[0]][name[1]].read(), logical(shape, seed))
                content = [found[name[0]][name[1]].stored.slot.content for found in (checkpoint, other)]
                assert content[0] == content[1] is not None
        assert sum(report.nbytes for report in reports) == sum(
            4 * math.prod(shape) for shape, _, _ in slots.values()
        )
        sent = [report.sent for report in reports]
        assert sent == [group.exchanged for group in groups]
        assert sum(sent) == lacking_bytes(count, slots, options.chunk_bytes), (
            "what an owner lacks goes to it, once"
        )


COLUMNS = Layout(Mesh((MeshAxis("tp", 4),)), (Shard("tp", 1),))


def planned(slots: Sequence[SlotToShare], ranks: int, most: int = 1 << 28) -> list[WholeChunks]:
    return [whole_chunks(slots, rank, most=most) for rank in range(ranks)]


def test_chunks_that_all_hold_alike_have_owners_in_turn() -> None:
    slot = SlotToShare(
        ("w", "value"), (Source(COLUMNS, None, frozenset(range(4))),), chunk_grid((64, 16), 4, 512), 4
    )
    for rank, plan in enumerate(planned([slot], 4)):
        (wave,) = plan.waves
        assert [one.owner for one in wave.chunks] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert [len(one.parts) for one in wave.chunks] == [
            4 if one.owner == rank else 1 for one in wave.chunks
        ]
        assert all(one.nbytes == 512 for one in wave.chunks)
        assert len(plan.portions) == 8
    for plan in planned([slot], 4, most=512):
        assert [len(wave.chunks) for wave in plan.waves] == [4, 4]
    for plan in planned([slot], 4, most=1):
        assert [len(wave.chunks) for wave in plan.waves] == [4, 4], "at least one chunk for each owner"


def test_whoever_has_most_of_a_chunk_owns_it() -> None:
    uneven = Layout(Mesh((MeshAxis("dp", 3),)), (Shard("dp", 0, (1, 5, 2)),))
    slot = SlotToShare(
        ("w", "value"), (Source(uneven, None, frozenset(range(3))),), chunk_grid((8,), 4, 1024), 4
    )
    for plan in planned([slot], 3):
        ((chunk,),) = (wave.chunks for wave in plan.waves)
        assert (chunk.owner, chunk.box, chunk.chunk) == (1, Box((0,), (8,)), 0)


@given(cases(), st.sampled_from([64, 1024, 65536]), st.sampled_from([1, 1024, 1 << 28]))
def test_plans_of_all_ranks_fit_together(
    case: tuple[int, dict[SlotName, TensorLayout]], chunk_bytes: int, most: int
) -> None:
    """Each cell is given once; giver and owner know of one another; who meets in several waves meets in one order."""
    count, held = case
    everyone = frozenset(range(count))
    slots = [
        SlotToShare(name, (Source(layout, place, everyone),), chunk_grid(shape, 4, chunk_bytes), 4)
        for name, (shape, layout, place) in sorted(held.items())
    ]
    plans = planned(slots, count, most)
    written = {slot.name: np.zeros(slot.grid.shape, int) for slot in slots}
    meetings: dict[tuple[int, int], list[list[tuple[SlotName, int, Box]]]] = {}
    for rank, plan in enumerate(plans):
        assert [one.name for one in plan.portions] == sorted(one.name for one in plan.portions)
        for portion in plan.portions:
            box = portion.piece.box
            written[portion.name][tuple(map(slice, box.offset, box.stop))] += 1
        assert [wave.last for wave in plan.waves] == sorted(wave.last for wave in plan.waves)
        for wave in plan.waves:
            met: dict[int, list[tuple[SlotName, int, Box]]] = {}
            for chunk in wave.chunks:
                for part in chunk.parts:
                    other = part.rank if chunk.owner == rank else chunk.owner
                    if other != rank:
                        met.setdefault(other, []).append((chunk.slot.name, chunk.chunk, part.box))
            for other, parts in met.items():
                meetings.setdefault((rank, other), []).append(parts)
            for owner in {chunk.owner for chunk in wave.chunks} & {rank}:
                owned = [chunk.nbytes for chunk in wave.chunks if chunk.owner == owner]
                assert sum(owned) <= max(most, *owned)
    for name, cells in written.items():
        assert (cells == 1).all(), name
    for (rank, other), waves in meetings.items():
        assert waves == meetings[other, rank]


def test_replicas_own_chunks_in_turn_and_send_nothing() -> None:
    slot = SlotToShare(
        ("w", "value"), (Source(None, None, frozenset(range(3))),), chunk_grid((96,), 4, 16), 4
    )
    plans = planned([slot], 3)
    assert [len(plan.portions) for plan in plans] == [8, 8, 8]
    assert not any(plan.waves for plan in plans)


@pytest.mark.parametrize("ranks", [64, 4096])
def test_a_rank_does_not_plan_the_chunks_of_others(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Of a flat buffer, a rank looks at the chunks that its part meets, however many ranks there are."""
    layout = Layout(Mesh((MeshAxis("dp", ranks),)), (Flatten(), Concat("all"), Shard("dp", 0, "even")))
    each, count = 4096, 64
    slots = [
        SlotToShare(
            (f"w{number:02}", "value"),
            (Source(layout, BufferPlace((number * each,), (count * each,)), frozenset(range(ranks))),),
            chunk_grid((each,), 4, 4096),
            4,
        )
        for number in range(count)
    ]
    seen = []
    box_at = ChunkGrid.box_at

    def counted(self: ChunkGrid, chunk: int) -> Box:
        seen.append(chunk)
        return box_at(self, chunk)

    monkeypatch.setattr(ChunkGrid, "box_at", counted)
    found = whole_chunks(slots, ranks // 2)
    share = count * each // ranks
    assert sum(portion.piece.box.size for portion in found.portions) == share
    assert len(seen) <= share // 1024 + 2


SLOTS: dict[SlotName, TensorLayout] = {
    ("w", "value"): ((64, 16), COLUMNS, None),
    ("z", "value"): ((9,), Layout(Mesh((MeshAxis("tp", 4),)), (Shard("tp", 0),)), None),
}


def failures(path: Path, work: Any) -> list[BaseException]:
    found = run_threads(4, work)
    assert not path.exists()
    assert all(isinstance(one, BaseException) for one in found), found
    return [one for one in found if isinstance(one, BaseException)]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("slot", SLOTS)
def test_a_rank_that_fails_does_not_let_others_wait(tmp_path: Path, rank: int, slot: SlotName) -> None:
    def work(group: ThreadGroup) -> SaveReport:
        local = local_state(group.rank, SLOTS)

        def broken() -> Any:
            raise ValueError("out of memory")

        if group.rank == rank:
            local = LocalState(local.atoms, {**local.arrays, slot: broken})
        options = SaveOptions("plain", 1024, durability="none", workers=1)
        return save_together(tmp_path / "a", lambda: local, group, options)

    for other, one in enumerate(failures(tmp_path / "a", work)):
        assert isinstance(one, ValueError if other == rank else UcpError), one
        assert "out of memory" in str(one)


def test_parts_that_never_come_are_missed(tmp_path: Path) -> None:
    """A stream of parts that ends early is no checkpoint full of zeros."""

    def work(group: ThreadGroup) -> SaveReport:
        options = SaveOptions("plain", 1024, durability="none", workers=1)
        saving = prepare_save(tmp_path / "a", lambda: local_state(group.rank, SLOTS), group, options)
        return saving.run((lambda: iter(())) if group.rank == 1 else None)

    for one in failures(tmp_path / "a", work):
        assert isinstance(one, UcpError)
        assert one.code == "UCP-E-COVER"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_begin_stops_all(
    tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank, where an atom cannot be declared; another, where it does not see the place."""

    def work(group: ThreadGroup) -> SaveReport:
        options = SaveOptions("plain", 1024, durability="none", workers=1)
        saving = prepare_save(tmp_path / "a", lambda: local_state(group.rank, SLOTS), group, options)
        if group.rank == rank:

            def fails(*_: object) -> None:
                raise OSError("gone")

            monkeypatch.setattr(saving._store, "join" if rank else "create", fails)
        return saving.run()

    for other, one in enumerate(failures(tmp_path / "a", work)):
        assert isinstance(one, OSError if other == rank else UcpError), one
        assert "gone" in str(one)
