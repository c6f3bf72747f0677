"""How fast a checkpoint is checked or summed up, against reading its files and doing nothing with them."""

from __future__ import annotations

import functools
import os
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Final, get_args

import click
from awscrt.checksums import crc32c

from benchmarks.ballast import Ballast, ballast_options, loaded, prepare, words
from benchmarks.cache import cool, files_below
from benchmarks.contenders.ours import Ours
from benchmarks.measure import Reading, footprint, measured
from benchmarks.results import Series
from benchmarks.save_load import in_turn
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned, piped
from benchmarks.workloads import WORKLOADS, workload
from ucpformat.inspection.statistics import statistics
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.validation import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["command", "compare_validation", "table"]

_THREADS: Final = 2
_CALL_BYTES: Final = 1 << 22
_BLOCK_BYTES: Final = 1 << 20

Rounds = dict[tuple[str, str], list[Reading]]
"""Readings by storage and contender."""


def _read(directory: Path, *, look: bool) -> None:
    """Every file of a directory, by two threads, in calls of 4 MiB, each into memory that it keeps."""
    ranges = [
        (path, start, min(_CALL_BYTES, size - start))
        for path in files_below(directory)
        if (size := path.stat().st_size)
        for start in range(0, size, _CALL_BYTES)
    ]

    def work(number: int) -> None:
        memory = memoryview(bytearray(_CALL_BYTES))
        opened: dict[Path, int] = {}
        # Halves, and not every other call: each thread reads on where it was.
        first, last = number * len(ranges) // _THREADS, (number + 1) * len(ranges) // _THREADS
        for path, start, size in ranges[first:last]:
            if path not in opened:
                for descriptor in opened.values():
                    os.close(descriptor)
                opened = {path: os.open(path, os.O_RDONLY)}
            if os.preadv(opened[path], [memory[:size]], start) != size:
                raise OSError("a short read")
            if look:
                for block in range(0, size, _BLOCK_BYTES):
                    crc32c(memory[block : min(size, block + _BLOCK_BYTES)])
        for descriptor in opened.values():
            os.close(descriptor)

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(work, range(_THREADS)):
            pass


def _validate(directory: Path) -> None:
    problems = validate(directory, "integrity", workers=_THREADS)
    if problems:
        raise ValueError(f"problems in a checkpoint without any: {problems[:3]}")


def _statistics(directory: Path) -> None:
    with open_checkpoint(directory) as checkpoint:
        slots = [slot for atom in checkpoint.values() for slot in atom.values()]
        if any(found.nan for found in statistics(slots, workers=_THREADS)):
            raise ValueError("NaN in a checkpoint without any")


CONTENDERS: Final[dict[str, Callable[[Path], None]]] = {
    "raw": functools.partial(_read, look=False),
    "raw-crc32c": functools.partial(_read, look=True),
    "ucp-validate": _validate,
    "ucp-stats": _statistics,
}


def compare_validation(
    *,
    state_name: str,
    nbytes: int,
    repeats: int,
    cold: bool,
    directory: Path,
    report: Callable[[str], None],
    ballast: Ballast | None = None,
) -> tuple[Rounds, dict[str, int]]:
    """Save in both storages, then read and check in turn; the readings, and the bytes of the files."""
    state = workload(state_name, nbytes)
    rounds: Rounds = defaultdict(list)
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        for storage in get_args(Storage):
            place = Path(room) / storage
            place.mkdir()
            Ours(storage).save(state, place, "fsync")
            (target,) = place.iterdir()
            sizes[storage] = footprint(target).nbytes
            for number in range(-1, repeats):
                report(f"{storage}: " + ("warming up" if number < 0 else f"round {number + 1} of {repeats}"))
                for name in in_turn([*CONTENDERS], number):
                    if cold:
                        cool(target)
                    prepare(ballast, *([] if cold else [target]))
                    reading = measured(functools.partial(CONTENDERS[name], target))
                    if number >= 0:
                        rounds[storage, name].append(reading)
    return rounds, sizes


def table(rounds: Rounds, sizes: dict[str, int]) -> list[Sequence[str]]:
    """Medians, and how fast checking is against reading in the same round, with the middle half of the rounds."""
    rows: list[Sequence[str]] = [["storage", "", "GB/s", "CPU s", "MiB", "of raw", "of raw-crc32c"]]
    for (storage, name), readings in rounds.items():
        series = Series(readings)
        rows.append(
            [
                storage,
                name,
                f"{sizes[storage] / series.seconds / 1e9:.2f}",
                f"{series.cpu_seconds:.2f}",
                f"{series.peak_bytes / (1 << 20):.0f}",
                *(_ratio(rounds[storage, other], readings) for other in ("raw", "raw-crc32c")),
            ]
        )
    return rows


def _ratio(others: Sequence[Reading], ours: Sequence[Reading]) -> str:
    if others is ours:
        return ""
    found = [other.seconds / one.seconds for other, one in zip(others, ours, strict=True)]
    if len(found) == 1:
        return f"{found[0]:.2f}"
    low, middle, high = quantiles(found, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


@click.command("validate")
@click.option(
    "--state", "state_name", default="gpt", type=click.Choice([*WORKLOADS]), help="What is checked."
)
@click.option("--size", "nbytes", default="1GiB", callback=in_bytes, help="Bytes of state, such as 64MiB.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--cold", is_flag=True, help="Drop the files' pages before each reading.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def command(
    state_name: str,
    nbytes: int,
    repeats: int,
    cold: bool,
    directory: Path,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Check every byte of a checkpoint, and sum up its tensors, against reading its files, in turn."""
    with loaded(directory, steady, kept) as ballast:
        found = compare_validation(
            state_name=state_name,
            nbytes=nbytes,
            repeats=repeats,
            cold=cold,
            directory=directory.absolute(),
            report=lambda line: click.echo(line, err=True),
            ballast=ballast,
        )
    click.echo(aligned(table(*found)))
    if markdown_path is not None:
        line = (
            f"python -m benchmarks validate --state {state_name} --size {nbytes >> 20}MiB --repeats {repeats}"
        )
        line += (" --cold" if cold else "") + words(ballast)
        markdown_path.write_text(f"`{line}`\n\n{piped(table(*found))}\n")
