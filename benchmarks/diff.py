"""What `ucp diff` reads of two versions that differ in one tensor, against comparing every byte (SPEC section 11.3)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest.mock import patch

import click
import numpy as np

import ucpformat as ucp
from benchmarks.reshard import read_bytes
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned
from ucpformat.storage.stores.local import LocalStore

__all__ = ["Figures", "command", "compared"]

_TENSORS: Final = 256
_COLUMNS: Final = 1024


@dataclass
class Figures:
    """Of one comparison: ``read`` are bytes of both checkpoints together, as a share of those of one."""

    how: str
    found: str
    read: float
    times: list[float]
    """By how much comparing every byte takes longer, round by round."""

    def row(self) -> list[str]:
        """Return the row of the table."""
        return [self.how, self.found, f"{self.read:.3%}", f"{median(self.times):.0f}"]


def _state(nbytes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shape = (max(1, nbytes // 4 // _TENSORS // _COLUMNS), _COLUMNS)
    return {f"layer{number}": rng.random(shape, np.float32) + 1 for number in range(_TENSORS)}


def _versions(room: Path, nbytes: int) -> Iterator[tuple[str, Path, Path, bool]]:
    """Save versions of a state of which one tensor has changed, or some of its rows have."""
    state = _state(nbytes)
    before = room / "before.ucp"
    ucp.save(before, state)
    changed = state[f"layer{_TENSORS // 2}"]
    unchanged = changed.copy()
    for what, rows in (("a whole tensor", slice(None)), ("its first rows", slice(-(-len(changed) // 100)))):
        changed[rows] += 1
        for how, base in (("increment", before), ("saved whole", None)):
            path = room / f"{how}, {what}.ucp"
            ucp.save(path, state, base=base)
            for words, measures in (("", True), (", --brief", False)):
                yield f"{how}, {what}{words}", before, path, measures
        changed[:] = unchanged


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Count bytes that are read, and those that are mapped, which no call gives."""
    mapped = LocalStore.mapped
    counts = [-read_bytes()]

    def counting(self: LocalStore, key: str, start: int, stop: int) -> memoryview:
        counts.append(stop - start)
        return mapped(self, key, start, stop)

    with patch.object(LocalStore, "mapped", counting):
        yield counts
    counts.append(read_bytes())


def compared(nbytes: int, rounds: int, directory: Path) -> list[Figures]:
    """Compare versions in every way that there is; all files are in the page cache.

    Bytes are those that system calls give, and those that are mapped.
    """
    found = []
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        for how, first, second, measures in _versions(Path(room), nbytes):
            shares, times = [], []
            words = ""
            ucp.diff(first, second, measure=measures)  # imports, and pages
            for _ in range(rounds):
                with _counted() as counts:
                    began = time.perf_counter()
                    result = ucp.diff(first, second, measure=measures)
                    seconds = time.perf_counter() - began
                shares.append(sum(counts) / nbytes)
                began = time.perf_counter()
                all_bytes = ucp.diff(first, second, by="bytes", measure=measures)
                times.append((time.perf_counter() - began) / seconds)
                if len(result.differences) != 1 or len(all_bytes.differences) != 1:
                    raise ValueError(f"{how}: one tensor differs, not {result.differences}")
                words = result.differences[0].what.split("/")[1]
            found.append(Figures(how, words, max(shares), times))
    return found


@click.command(name="diff")
@click.option("--size", default="1GiB", show_default=True, callback=in_bytes, help="Bytes of each version.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option("--directory", default=".", show_default=True, type=click.Path(path_type=Path))
def command(size: int, repeats: int, directory: Path) -> None:
    """Compare two versions that differ in one of 256 tensors: what is read, and how long it takes."""
    found = compared(size, repeats, directory)
    heading = ["second version", "differs", "read", "times as fast"]
    click.echo(aligned([heading, *(one.row() for one in found)]))
    click.echo(
        f"Versions of {size >> 20} MiB, one of {_TENSORS} tensors changed: bytes read of both together, as a share of "
        "one, the most of all rounds; speed against `--bytes`, the median."
    )
