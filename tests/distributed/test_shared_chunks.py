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

from tests.distributed.test_save import Held, cases, local_state, logical
from ucpformat import Compressor, validate
from ucpformat import open as open_checkpoint
from ucpformat.distributed.description import Source
from ucpformat.distributed.local_state import LocalState, SlotName
from ucpformat.distributed.parts import Part
from ucpformat.distributed.save import SaveOptions, SaveReport, prepare_save, save_together
from ucpformat.distributed.share import SlotToShare, assignments
from ucpformat.distributed.shared_chunks import in_waves, shared_chunks
from ucpformat.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.errors import UcpError
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Shard, chunk_grid
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
    path: Path, slots: dict[SlotName, Held], compressor: Compressor | None, options: SaveOptions
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


def shared_bytes(count: int, slots: dict[SlotName, Held], chunk_bytes: int) -> int:
    """Bytes of the chunks that more than one rank writes a part of, less the largest part of each."""
    everyone = frozenset(range(count))
    to_share = [
        SlotToShare(name, (Source(layout, place, everyone),), chunk_grid(shape, 4, chunk_bytes), 4)
        for name, (shape, layout, place) in slots.items()
    ]
    assigned = assignments(sorted(to_share, key=lambda slot: slot.name))
    total = 0
    for slot in to_share:
        for chunk in range(slot.grid.count):
            box = slot.grid.chunk_box(slot.grid.index_of(chunk))
            sizes = [0] * count
            for one in assigned.get(slot.name, ()):
                part = one.box.intersect(box)
                sizes[one.rank] += 0 if part is None else 4 * part.size
            total += sum(sizes) - max(sizes)
    return total


@given(cases(), st.sampled_from([1, 64, 1024]), st.sampled_from(WAYS), st.booleans())
def test_what_several_write_is_what_one_writes(
    case: tuple[int, dict[SlotName, Held]],
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
        return saving.run((lambda: in_a_ring(saving._live_batches())) if ring else None)

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
        assert sum(sent) == shared_bytes(count, slots, options.chunk_bytes), (
            "each part goes to its owner, once"
        )


COLUMNS = Layout(Mesh((MeshAxis("tp", 4),)), (Shard("tp", 1),))


def test_chunks_that_all_hold_alike_have_owners_in_turn() -> None:
    slot = SlotToShare(
        ("w", "value"), (Source(COLUMNS, None, frozenset(range(4))),), chunk_grid((64, 16), 4, 512), 4
    )
    chunks = shared_chunks([slot], assignments([slot]))
    assert [one.owner for one in chunks] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(one.nbytes == 512 and len(one.parts) == 4 for one in chunks)
    assert [len(wave) for wave in in_waves(chunks, most=512)] == [4, 4]
    assert [len(wave) for wave in in_waves(chunks, most=1)] == [4, 4], "at least one chunk for each owner"
    assert in_waves([]) == []


def test_whoever_has_most_of_a_chunk_owns_it() -> None:
    uneven = Layout(Mesh((MeshAxis("dp", 3),)), (Shard("dp", 0, (1, 5, 2)),))
    slot = SlotToShare(
        ("w", "value"), (Source(uneven, None, frozenset(range(3))),), chunk_grid((8,), 4, 1024), 4
    )
    (chunk,) = shared_chunks([slot], assignments([slot]))
    assert (chunk.owner, chunk.box, chunk.chunk) == (1, Box((0,), (8,)), 0)


SLOTS: dict[SlotName, Held] = {
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
