"""Opening a checkpoint of many atoms and reading one of them, beside ``json.loads`` of the table of all atoms."""

from __future__ import annotations

import gc
import json
import operator
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np

from benchmarks.ballast import Ballast, ballast_options, loaded, prepare, words
from benchmarks.facts import machine_facts
from benchmarks.measure import Reading, measured
from benchmarks.tables import aligned, piped
from ucpformat.reader import open_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

__all__ = ["Opening", "command", "compare", "table"]

_OURS: Final = "open and read one"
_LOADS: Final = "json.loads"
_LOADS_UNCOLLECTED: Final = "json.loads, collector off"
_MIB: Final = 1 << 20
_SECONDS: Final[Callable[[Reading], float]] = operator.attrgetter("seconds")
_CPU_SECONDS: Final[Callable[[Reading], float]] = operator.attrgetter("cpu_seconds")


@dataclass(frozen=True, slots=True)
class Opening:
    """Readings of one number of atoms, by contender, round by round; ``document_bytes`` are those of the table."""

    atoms: int
    document_bytes: int
    readings: dict[str, list[Reading]]

    def ratio(self, peer: str, of: Callable[[Reading], float]) -> float:
        """The median over rounds of what ours took over what the peer took."""
        pairs = zip(self.readings[_OURS], self.readings[peer], strict=True)
        return statistics.median(of(mine) / max(of(theirs), 1e-9) for mine, theirs in pairs)


def compare(
    counts: Sequence[int], repeats: int, directory: Path, ballast: Ballast | None = None
) -> list[Opening]:
    """Everybody in turn, in rounds, each begun by another; a round that warms up does not count."""
    return [_at(count, repeats, directory, ballast) for count in counts]


def _at(count: int, repeats: int, directory: Path, ballast: Ballast | None) -> Opening:
    names = [f"layers.{number // 100}.{number % 100}.weight" for number in range(count)]
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        path = Path(room, "state.ucp")
        _save(path, names)
        data = _document(path)
        contenders: dict[str, Callable[[], None]] = {
            _OURS: lambda: _read_one(path, names[count // 2]),
            _LOADS: lambda: _loads(data),
            _LOADS_UNCOLLECTED: lambda: _loads_uncollected(data),
        }
        found: dict[str, list[Reading]] = {name: [] for name in contenders}
        order = list(contenders)
        for number in range(repeats + 1):
            order = [*order[1:], order[0]]
            for name in order:
                prepare(ballast, path)
                reading = measured(contenders[name])
                if number:
                    found[name].append(reading)
    return Opening(count, len(data), found)


def _save(path: Path, names: Sequence[str]) -> None:
    values = np.ones(4, np.float32)
    specs = [AtomSpec(name, {"value": SlotSpec("float32", values.shape)}) for name in names]
    with CheckpointWriter(path, specs, durability="none") as writer:
        for name in names:
            writer.submit(name, "value", values)


def _document(path: Path) -> bytes:
    """All atoms as one JSON document."""
    with open_checkpoint(path) as checkpoint:
        keys = [part.index.key for part in checkpoint.root.parts]
    parts = [(path / key).read_bytes() for key in keys]
    return b'{"atoms":[' + b",".join(part[len('{"atoms":[') : -len("]}")] for part in parts) + b"]}"


def _read_one(path: Path, name: str) -> None:
    with open_checkpoint(path) as checkpoint:
        checkpoint[name]["value"].read()


def _loads(data: bytes) -> None:
    json.loads(data)


def _loads_uncollected(data: bytes) -> None:
    gc.disable()
    try:
        json.loads(data)
    finally:
        gc.enable()


def table(openings: Sequence[Opening]) -> list[list[str]]:
    """Medians, and ratios within rounds."""
    rows = [["atoms", "", "ms", "CPU ms", "peak MiB", "time of ours to it", "CPU of ours to it"]]
    for one in openings:
        for name, readings in one.readings.items():
            ours = name == _OURS
            rows.append(
                [
                    f"{one.atoms:,}",
                    name,
                    f"{1e3 * statistics.median(map(_SECONDS, readings)):.1f}",
                    f"{1e3 * statistics.median(map(_CPU_SECONDS, readings)):.1f}",
                    f"{max(reading.peak_bytes for reading in readings) / _MIB:.1f}",
                    "" if ours else f"{one.ratio(name, _SECONDS):.2f}",
                    "" if ours else f"{one.ratio(name, _CPU_SECONDS):.2f}",
                ]
            )
    return rows


@click.command("open")
@click.option("--atoms", "counts", default="1000,10000,100000", help="Numbers of atoms, with commas between.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def command(
    counts: str,
    repeats: int,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Open a checkpoint and read one tensor of 16 bytes, beside json.loads of the table of all its atoms."""
    with loaded(directory, steady, kept) as ballast:
        facts = machine_facts(directory, steady=ballast is not None)
        openings = compare([int(count) for count in counts.split(",")], repeats, directory, ballast)
    line = f"python -m benchmarks open --atoms {counts} --repeats {repeats}{words(ballast)}"
    click.echo(aligned(table(openings)))
    if json_path is not None:
        found = {"command": line, "facts": facts, "openings": [asdict(one) for one in openings]}
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(f"`{line}`\n\n{piped(table(openings))}\n")
