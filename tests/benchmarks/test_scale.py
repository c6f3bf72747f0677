"""The plan of a large model in small: counts, not times."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.giant import MOMENTS, Grid, Size, arranged
from benchmarks.scale import Scenario, cells, document_sizes, measure, table
from ucpformat.planning import Pairing, arrangement_side, pair, rank_detail

SMALL = Size(layers=8, experts=8, hidden=64, inner=96)
BEFORE = Grid(4, 4, 2, 2)
AFTER = Grid(2, 2, 4, 4, optimizer="buffers")


def pairing(size: Size, before: Grid, after: Grid) -> Pairing:
    source, target = (
        arrangement_side(name, arranged(size, grid)) for name, grid in (("a", before), ("b", after))
    )
    return pair(source, target, "ranks")


def copies(size: Size, before: Grid, after: Grid, rank: int) -> int:
    parts = rank_detail(pairing(size, before, after), rank)
    return sum(len(part.keeps) + len(part.receives) + len(part.sends) for part in parts)


@pytest.mark.parametrize("optimizer", ["tensors", "buffers"])
def test_all_ranks_move_what_must_be_moved_and_no_more(optimizer: str) -> None:
    grids = replace(BEFORE, optimizer=optimizer), AFTER  # type: ignore[arg-type]
    run = measure(Scenario("small", *grids), SMALL, [0, 13, 63])
    totals = run.survey.ranks
    assert len(totals) == 64
    assert sum(entry.sent.nbytes for entry in totals.values()) == run.survey.lower_bound > 0
    assert sum(entry.received.nbytes for entry in totals.values()) == run.survey.lower_bound
    # Every value is held by all data parallel ranks of its stage and slice, every moment by one.
    sides = run.pairing.target.slots.items()
    experts = sum(
        math.prod(slot.shape) for (name, kind), slot in sides if "experts" in name and kind == "value"
    )
    dense = sum(
        math.prod(slot.shape) for (name, kind), slot in sides if ".attention." in name and kind == "value"
    )
    both = sum(
        math.prod(slot.shape)
        for (name, kind), slot in sides
        if kind == "value" and (".norm" in name or ".router" in name)
    )
    values = 2 * (experts * 4 + dense * 16 + both * 32)
    # Moments of what tensor parallelism replicates are held once for each of its ranks.
    moments = 2 * 4 * (experts + dense + both * 2)
    assert sum(entry.written for entry in totals.values()) == values + moments
    assert run.copies == tuple(copies(SMALL, *grids, rank) for rank in (0, 13, 63))
    assert "sent / lower bound | 1.0000" in table(["small"], [cells(run)])


@pytest.mark.parametrize("after", [AFTER, replace(AFTER, optimizer="tensors")])
def test_copies_follow_kinds_and_not_sizes(after: Grid) -> None:
    small = copies(SMALL, BEFORE, after, 9)
    assert copies(replace(SMALL, hidden=64 * 32, inner=96 * 32), BEFORE, after, 9) == small
    kinds = len(pairing(SMALL, BEFORE, replace(after, optimizer="tensors")).kinds)
    more = replace(SMALL, layers=32, experts=16)
    assert len(pairing(more, BEFORE, replace(after, optimizer="tensors")).kinds) == kinds


def test_document_sizes_are_those_of_documents() -> None:
    arrangement = arranged(SMALL, AFTER)
    found = document_sizes(arrangement)
    assert found.layouts == len(arrangement.layouts) == 2 * (3 * 2 + 2 * 4 * 2)
    assert found.layout_table < found.root < 1 << 20
    assert found.parts == 1
    assert len(arrangement.atoms) == 8 * (4 + 2 * 8)
    assert {slot.name for atom in arrangement.atoms for slot in atom.slots} == {*MOMENTS, "value"}


def test_the_command_puts_tables_into_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    monkeypatch.setattr(scale, "TRILLION", SMALL)
    monkeypatch.setattr(scale, "ProcessPoolExecutor", lambda count, mp_context: ThreadPoolExecutor(count))
    monkeypatch.setattr(scale, "SCENARIOS", (Scenario("small", BEFORE, AFTER),))
    path = tmp_path / "scale.md"
    path.write_text(f"before\n{scale._BEGIN}\nold\n{scale._END}\nafter\n")
    result = CliRunner().invoke(
        scale.main, ["--ranks", "2", "--every", "3", "--into", str(path)], catch_exceptions=False
    )
    assert result.exit_code == 0
    text = path.read_text()
    assert "old" not in text
    assert "| sent / lower bound | 1.0000 |" in text
    assert "one kind of slots in 3." in text
    assert text.startswith("before\n<!--")
    assert text.endswith(f"{scale._END}\nafter\n")


def test_the_document_has_a_place_for_the_tables() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    assert text.index(scale._BEGIN) < text.index(scale._END)
