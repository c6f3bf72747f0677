"""What one write into the page cache takes, by where its pages come from: free ones, or those of a full cache.

``just freed`` writes at once after as much was freed, ``free for a while`` some seconds later, and ``full cache`` when
next to nothing is free, as `benchmarks.ballast.prepare` leaves it before each reading.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from benchmarks.ballast import Ballast, loaded
from benchmarks.facts import machine_facts
from benchmarks.measure import measured
from benchmarks.results import Series
from benchmarks.save_load import in_turn
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned

__all__ = ["command", "compare", "table"]

_CALL_BYTES: Final = 1 << 24


def _write(path: Path, nbytes: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for start in range(0, nbytes, _CALL_BYTES):
        os.pwrite(descriptor, data, start)
    os.close(descriptor)


def compare(
    ballast: Ballast, nbytes: int, repeats: int, seconds: float, directory: Path
) -> dict[str, Series]:
    """Everybody in turn; ``seconds`` is how long pages stay free before they are used."""

    def freed(wait: float) -> None:
        ballast.drop(nbytes)
        time.sleep(wait)

    before: dict[str, Callable[[], object]] = {
        "just freed": lambda: freed(0),
        "free for a while": lambda: freed(seconds),
        "full cache": lambda: ballast.claim(ballast.free()),
    }
    data = os.urandom(_CALL_BYTES)
    found = {name: Series() for name in before}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        path = Path(room, "written")
        for number in range(repeats):
            for name in in_turn([*before], number):
                ballast.fill()
                before[name]()
                found[name].readings.append(measured(functools.partial(_write, path, nbytes, data)))
                os.sync()
                path.unlink()
    return found


def table(found: dict[str, Series]) -> list[Sequence[str]]:
    """Seconds."""
    rows: list[Sequence[str]] = [["pages", "median s", "least", "most", "CPU s"]]
    for name, series in found.items():
        seconds = [reading.seconds for reading in series.readings]
        figures = (series.seconds, min(seconds), max(seconds), series.cpu_seconds)
        rows.append([name, *(f"{figure:.3f}" for figure in figures)])
    return rows


@click.command("free-pages")
@click.option("--size", "nbytes", default="1GiB", callback=in_bytes, help="Bytes written, such as 256MiB.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds.")
@click.option("--seconds", default=4.0, type=click.FloatRange(0), help="How long pages stay free.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option(
    "--ballast", "kept", type=click.Path(dir_okay=False, path_type=Path), help="A sparse file to keep."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
def command(
    nbytes: int, repeats: int, seconds: float, directory: Path, kept: Path | None, json_path: Path | None
) -> None:
    """Write into pages that were just freed, that were free for a while, and of a full cache."""
    with loaded(directory, steady=True, kept=kept) as ballast:
        if ballast is None:
            raise click.ClickException("the page cache cannot be filled here")
        found = compare(ballast, nbytes, repeats, seconds, directory)
    click.echo(aligned(table(found)))
    if json_path is not None:
        line = f"python -m benchmarks free-pages --size {nbytes >> 20}MiB --repeats {repeats} --seconds {seconds:g}"
        kept_readings = {
            name: [asdict(reading) for reading in series.readings] for name, series in found.items()
        }
        document = {
            "command": line,
            "facts": machine_facts(directory, steady=True),
            "readings": kept_readings,
        }
        json_path.write_text(json.dumps(document, indent=1) + "\n")
