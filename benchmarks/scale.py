"""Planning at scale: what a plan costs, what it moves, and how large the documents are; no bytes are moved.

python -m benchmarks.scale --into docs/scale.md
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeVar

import click

from benchmarks.facts import machine_facts
from benchmarks.giant import Grid, Size, arranged
from benchmarks.measure import Reading, measured
from ucpformat.geometry import chunk_grid
from ucpformat.jsonio import dumps_canonical
from ucpformat.model.arrangement import Arrangement
from ucpformat.model.atom import Atom
from ucpformat.model.dtype import dtype
from ucpformat.model.layout_json import layout_to_json, mesh_to_json
from ucpformat.model.references import DocumentRef
from ucpformat.model.root import Part, Root
from ucpformat.planning import Pairing, RankTotals, Survey, arrangement_side, pair, rank_detail, survey

_T = TypeVar("_T")

__all__ = [
    "SCENARIOS",
    "TRILLION",
    "DocumentSizes",
    "Scenario",
    "cells",
    "document_sizes",
    "main",
    "measure",
    "table",
]

TRILLION: Final = Size(layers=92, experts=256, hidden=4096, inner=3584)
"""1.04 * 10^12 parameters in 47,472 tensors, three states each."""

_CHUNK_BYTES: Final = 16 << 20
_ATOMS_PER_PART: Final = 2048
_BEGIN: Final = "<!-- measured: make scale -->"
_END: Final = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A move of one model from one grid of ranks to another."""

    name: str
    source: Grid
    target: Grid


SCENARIOS: Final = (
    Scenario("moments tensor by tensor on both sides", Grid(16, 8, 8, 8), Grid(8, 4, 16, 16)),
    Scenario(
        "moments tensor by tensor, to flat buffers",
        Grid(16, 8, 8, 8),
        Grid(8, 4, 16, 16, optimizer="buffers"),
    ),
    Scenario(
        "moments from flat buffers to flat buffers",
        Grid(16, 8, 8, 8, optimizer="buffers"),
        Grid(8, 4, 16, 16, optimizer="buffers"),
    ),
)


@dataclass(frozen=True, slots=True)
class DocumentSizes:
    """Bytes of the documents of a checkpoint of an arrangement, one segment per chunk of 16 MiB."""

    layouts: int
    layout_table: int
    root: int
    parts: int
    index: int
    tables: int


def document_sizes(arrangement: Arrangement) -> DocumentSizes:
    """Count the documents of a checkpoint that records this arrangement, in storage packed."""
    layout_table = sum(
        len(dumps_canonical(value))
        for value in (
            *map(mesh_to_json, arrangement.meshes),
            *(layout_to_json(layout, arrangement.meshes) for layout in arrangement.layouts),
        )
    )
    index = tables = 0
    for atom in arrangement.atoms:
        index += len(dumps_canonical(Atom(atom.name, atom.name, atom.slots).to_json())) + 1
        for slot in atom.slots:
            item = dtype(slot.dtype).item_bytes
            chunks = chunk_grid(slot.shape, item, _CHUNK_BYTES).count
            blocks = -(-math.prod(slot.shape) * item // (1 << 20))
            tables += chunks * (32 + 4) + 4 * max(chunks, blocks)
    reference = DocumentRef("index/00000000-00.json", 1 << 20, "sha256:" + "1" * 64)
    names = [atom.name for atom in arrangement.atoms]
    groups = [names[start : start + _ATOMS_PER_PART] for start in range(0, len(names), _ATOMS_PER_PART)]
    root = Root(
        storage="packed",
        chunk_bytes=_CHUNK_BYTES,
        meshes=arrangement.meshes,
        layouts=arrangement.layouts,
        packs=reference,
        state=reference,
        parts=tuple(Part(group[0], group[-1], len(group), reference, reference) for group in groups),
    )
    return DocumentSizes(
        len(arrangement.layouts),
        layout_table,
        len(root.seal()[0]),
        len(groups),
        index,
        tables + 64 * len(groups),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """One scenario: its pairing, what ranks take to plan alone, and what all of them move."""

    scenario: Scenario
    pairing: Pairing
    paired: Reading
    ranks: tuple[Reading, ...]
    copies: tuple[int, ...]
    surveyed: Reading
    survey: Survey
    documents: DocumentSizes


def measure(scenario: Scenario, size: Size, ranks: Sequence[int], every: int = 1) -> Measured:
    """Plan alone for each of ``ranks``, then count what all ranks move, over every so many kinds of slots."""
    source, target = arranged(size, scenario.source), arranged(size, scenario.target)
    documents = document_sizes(source)
    sides = arrangement_side("source", source), arrangement_side("target", target)
    pairing, paired = _kept(lambda: pair(*sides, "ranks"))
    readings: list[Reading] = []
    copies: list[int] = []
    for rank in ranks:
        count, reading = _kept(partial(_count, pairing, rank))
        readings.append(reading)
        copies.append(count)
    sample = replace(pairing, kinds=pairing.kinds[::every])
    found, surveyed = _kept(lambda: survey(sample))
    return Measured(scenario, pairing, paired, tuple(readings), tuple(copies), surveyed, found, documents)


def _count(pairing: Pairing, rank: int) -> int:
    parts = rank_detail(pairing, rank)
    return sum(len(part.keeps) + len(part.receives) + len(part.sends) for part in parts)


def _kept(work: Callable[[], _T]) -> tuple[_T, Reading]:
    found: list[_T] = []
    reading = measured(lambda: found.append(work()))
    return found[0], reading


def _totals(run: Measured) -> list[RankTotals]:
    return list(run.survey.ranks.values())


def _sent(run: Measured) -> int:
    return sum(totals.sent.nbytes for totals in _totals(run))


def _median(run: Measured) -> float:
    return statistics.median(reading.cpu_seconds for reading in run.ranks)


def _peak(run: Measured) -> int:
    return max(reading.peak_bytes for reading in run.ranks)


def _spread(run: Measured, flow: str) -> str:
    counts = [count for totals in _totals(run) if (count := getattr(totals, flow).nbytes)]
    return f"{max(counts) / statistics.mean(counts):.2f}" if counts else "-"


def _tb(nbytes: int) -> str:
    return f"{nbytes / 1e12:.3f} TB"


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f}"


_ROWS: Final[tuple[tuple[str, Callable[[Measured], str]], ...]] = (
    ("slots", lambda run: f"{run.pairing.slots:,}"),
    ("kinds of them", lambda run: f"{len(run.pairing.kinds):,}"),
    ("logical bytes", lambda run: _tb(run.pairing.nbytes)),
    ("pairing both sides, s", lambda run: f"{run.paired.cpu_seconds:.2f}"),
    ("one rank plans alone, s: median", lambda run: f"{_median(run):.2f}"),
    ("longest", lambda run: f"{max(reading.cpu_seconds for reading in run.ranks):.2f}"),
    ("its copies: most", lambda run: f"{max(run.copies):,}"),
    ("its memory above the two arrangements, MiB: most", lambda run: _mib(_peak(run))),
    ("totals of all ranks, s", lambda run: f"{run.surveyed.cpu_seconds:.0f}"),
    ("memory above the two arrangements, MiB", lambda run: _mib(run.surveyed.peak_bytes)),
    ("lower bound of what must be sent", lambda run: _tb(run.survey.lower_bound)),
    ("sent", lambda run: _tb(_sent(run))),
    ("sent / lower bound", lambda run: f"{_sent(run) / run.survey.lower_bound:.4f}"),
    ("kept in place", lambda run: _tb(sum(totals.kept.nbytes for totals in _totals(run)))),
    ("most sent by a rank / mean of those that send", lambda run: _spread(run, "sent")),
    ("most received by a rank / mean of those that receive", lambda run: _spread(run, "received")),
    ("layouts of the source", lambda run: f"{run.documents.layouts:,}"),
    ("their table in the root document, KiB", lambda run: f"{run.documents.layout_table / 1024:.0f}"),
    ("root document, KiB", lambda run: f"{run.documents.root / 1024:.0f}"),
    ("index parts", lambda run: f"{run.documents.parts}"),
    ("all of them, MiB", lambda run: _mib(run.documents.index)),
    ("chunk tables, MiB", lambda run: _mib(run.documents.tables)),
)


def cells(run: Measured) -> tuple[str, ...]:
    """One column of the table."""
    return tuple(value(run) for _, value in _ROWS)


def table(names: Sequence[str], columns: Sequence[tuple[str, ...]]) -> str:
    """Markdown: one column per scenario."""
    rows = zip((name for name, _ in _ROWS), *columns, strict=True)
    return "\n".join(
        [
            f"| | {' | '.join(names)} |",
            f"|---|{'---:|' * len(names)}",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def _column(size: Size, ranks: Sequence[int], every: int, scenario: Scenario) -> tuple[str, ...]:
    return cells(measure(scenario, size, ranks, every))


@click.command()
@click.option("--ranks", "count", default=24, type=click.IntRange(1), help="How many plan alone.")
@click.option(
    "--every",
    default=1,
    type=click.IntRange(1),
    help="Count totals over every so many kinds of slots alone: a look in a fraction of the time.",
)
@click.option("--into", "path", type=click.Path(path_type=Path), help="Replace the tables of this document.")
def main(count: int, every: int, path: Path | None) -> None:
    """Plan a model of 10^12 parameters from 8,192 ranks to 8,192 others."""
    step = SCENARIOS[0].source.ranks // count
    ranks = [number * step + number % 97 for number in range(count)]
    with ProcessPoolExecutor(len(SCENARIOS), mp_context=get_context("spawn")) as pool:
        columns = list(pool.map(partial(_column, TRILLION, ranks, every), SCENARIOS))
    facts = machine_facts(Path())
    told = f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, load {facts['load_at_start']}"
    names = [scenario.name for scenario in SCENARIOS]
    share = "" if every == 1 else f"Totals, and what is sent and kept, are of one kind of slots in {every}.\n"
    command = f"`python -m benchmarks.scale --ranks {count} --every {every}`"
    text = (
        f"{table(names, columns)}\n\n{command}, processor time, one process each; {told} at the end.\n{share}"
    )
    click.echo(text)
    if path is not None:
        document = path.read_text(encoding="utf-8")
        head, _, rest = document.partition(_BEGIN)
        tail = rest.partition(_END)[2]
        path.write_text(f"{head}{_BEGIN}\n\n{text}\n{_END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
