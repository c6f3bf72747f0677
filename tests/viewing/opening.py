"""``python -m tests.viewing.opening``: how long a Chromium takes to open and list a model of many atoms.

Each round loads the page anew, from the server of ``ucp serve``, until all atoms are listed. Processor time is that of
all processes of the browser, without the server's.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import click
import numpy as np
import psutil

import ucpformat as ucp
from tests.viewing.chromium import Chromium
from tests.viewing.looking import shown


def save_many(path: Path, count: int) -> None:
    """Save atoms of one element each, of modules a hundred long."""
    ucp.save(path, {f"layers.{i // 100}.experts.{i % 100}.w": np.full(1, i) for i in range(count)})


def _processor_seconds(pid: int) -> float:
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@click.command()
@click.option("--atoms", default=100_000, type=click.IntRange(1), help="How many atoms the model has.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Rounds after the one that warms up.")
def main(atoms: int, rounds: int) -> None:
    """Save a model, open it in a headless Chromium, and print medians."""
    # Processes of the browser may write a little longer than it runs.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        path = Path(room, "many.ucp")
        save_many(path, atoms)
        with Chromium(Path(room, "chromium")) as browser:
            found = []
            for _ in range(rounds + 1):
                before = _processor_seconds(browser.pid)
                with shown(browser, path) as page:
                    ready = page.value("performance.getEntriesByName('ready')[0].startTime") / 1000
                    found.append((ready, _processor_seconds(browser.pid) - before))
    wall, busy = (statistics.median(column) for column in zip(*found[1:], strict=True))
    click.echo(f"{atoms} atoms are listed after {wall:.1f} s, with {busy:.1f} s of processor time")
    click.echo(f"medians of {rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
