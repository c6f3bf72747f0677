"""``python -m benchmarks.conversion.race SOURCE``: converters and ``cp -r`` in turn, on one checkpoint of DeepSpeed.

Run it with the interpreter of an environment that has DeepSpeed. Everybody starts as a command of its own, and ends
when every file is on the disk: who does not sync is synced after. What is run from a source tree is compiled first,
as pip compiles what it installs. Linux only.
"""

from __future__ import annotations

import compileall
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

import ucpformat
from benchmarks.ballast import Ballast, ballast_options, loaded, prepare
from benchmarks.facts import machine_facts

_INTERVAL: Final = 0.05
_BASELINE: Final = (
    "import ucpformat.cli.convert, ucpformat.conversion.formats.training_formats, time\n"
    "import ucpformat.conversion.formats.deepspeed.importer\n"
    "print([l for l in open('/proc/self/status') if l.startswith('RssAnon')][0].split()[1])"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of one contender.

    ``anonymous_bytes``: anonymous memory of all its processes together, at its highest. ``written_bytes``: what they
    wrote to files. ``temporary_bytes``: what lay at the destination at the highest, beyond what stayed there.
    """

    seconds: float
    cpu_seconds: float
    anonymous_bytes: int
    written_bytes: int
    output_bytes: int
    temporary_bytes: int


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _anonymous(pid: int) -> int:
    total = 0
    for process in _tree(pid):
        with suppress(OSError, IndexError):
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    total += int(line.split()[1]) << 10
    return total


def _size(path: Path) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += (Path(directory) / name).stat().st_size
    return total


def _sync(path: Path) -> None:
    for directory, _, files in os.walk(path):
        for name in (*files, "."):
            descriptor = os.open(Path(directory) / name, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def measured(command: list[str], out: Path, environment: dict[str, str]) -> Reading:
    """Run ``command``, which makes ``out``, until all of it is on the disk."""
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True
    )
    peaks = [0, 0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            peaks[0] = max(peaks[0], _anonymous(process.pid))
            peaks[1] = max(peaks[1], _size(out))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        _, said = process.communicate()
    finally:
        ended.set()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"{command} failed:\n{said[-2000:]}")
    _sync(out)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    left = _size(out)
    return Reading(
        seconds=round(seconds, 3),
        cpu_seconds=round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3),
        anonymous_bytes=peaks[0],
        written_bytes=(after.ru_oublock - before.ru_oublock) * 512,
        output_bytes=left,
        temporary_bytes=max(0, peaks[1] - left),
    )


def contenders(source: Path, tag: str, workers: tuple[int, int]) -> dict[str, Callable[[Path], list[str]]]:
    """Commands by name; ``workers`` are those of DeepSpeed's extraction and merging."""
    extract, merge = map(str, workers)
    return {
        "cp -r": lambda out: ["cp", "-r", str(source), str(out)],
        "ucp convert": lambda out: [
            *(sys.executable, "-m", "ucpformat", "convert", str(source), str(out), "--to", "ucp")
        ],
        "ds_to_universal": lambda out: [
            *(sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"),
            *("--input_folder", str(source / tag), "--output_folder", str(out)),
            *("--num_extract_workers", extract, "--num_merge_workers", merge, "--inject_missing_state"),
        ],
    }


def carried_bytes(source: Path) -> int:
    """Logical bytes that are carried: those of all tensors and states, as the dry run of a conversion counts them."""
    command = [
        sys.executable,
        "-m",
        "ucpformat",
        "convert",
        str(source),
        str(source) + ".none",
        "--to",
        "ucp",
    ]
    done = subprocess.run(
        [*command, "--dry-run", "--format", "json"], capture_output=True, text=True, check=True
    )
    return int(json.loads(done.stdout)["bytes"])


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--rounds", default=5, type=click.IntRange(1))
@click.option(
    "--workers", "choices", multiple=True, default=("1,1", "2,1", "2,2", "4,2"), help="Of DeepSpeed."
)
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
@ballast_options
def main(
    source: Path,
    rounds: int,
    choices: tuple[str, ...],
    directory: Path,
    json_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Find DeepSpeed's best number of workers in a round of its own, then run everybody in turn."""
    with loaded(directory, steady, kept) as ballast:
        _race(source, rounds, choices, directory, json_path, ballast)


def _race(
    source: Path,
    rounds: int,
    choices: tuple[str, ...],
    directory: Path,
    json_path: Path | None,
    ballast: Ballast | None,
) -> None:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    tag = (source / "latest").read_text().strip()
    out = directory / ".race-out"
    facts = machine_facts(directory, steady=ballast is not None)
    compileall.compile_dir(Path(ucpformat.__file__).parent, quiet=1)

    def run(command: Callable[[Path], list[str]]) -> Reading:
        shutil.rmtree(out, ignore_errors=True)
        prepare(ballast, source)
        try:
            return measured(command(out), out, environment)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    tried = {}
    for choice in choices:
        extract, merge = map(int, choice.split(","))
        tried[choice] = run(contenders(source, tag, (extract, merge))["ds_to_universal"])
        click.echo(f"ds_to_universal with {choice} workers: {tried[choice].seconds} s", err=True)
    best = min(tried, key=lambda choice: tried[choice].seconds)
    extract, merge = map(int, best.split(","))
    everybody = contenders(source, tag, (extract, merge))
    readings: dict[str, list[Reading]] = defaultdict(list)
    baseline = subprocess.run(
        [sys.executable, "-c", _BASELINE], capture_output=True, text=True, check=True, env=environment
    )
    found = {
        "facts": facts,
        "carried_bytes": carried_bytes(source),
        "source_bytes": _size(source),
        "imports_anonymous_bytes": int(baseline.stdout) << 10,
        "workers_of_ds_to_universal": best,
        "tried": {choice: asdict(reading) for choice, reading in tried.items()},
    }
    for number in range(rounds):
        names = list(everybody)[number % 3 :] + list(everybody)[: number % 3]
        for name in names if number % 2 == 0 else reversed(names):
            readings[name].append(run(everybody[name]))
            click.echo(f"round {number + 1}: {name}: {readings[name][-1].seconds} s", err=True)
        found["readings"] = {name: [asdict(reading) for reading in of] for name, of in readings.items()}
        found["ratios"] = {
            name: _ratios(readings["ucp convert"], of)
            for name, of in readings.items()
            if name != "ucp convert"
        }
        if json_path is not None:  # a race takes long, and may be broken off
            json_path.write_text(json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps({key: found[key] for key in ("ratios", "carried_bytes")}, indent=1))
    for name, several in readings.items():
        middle = statistics.median(reading.seconds for reading in several)
        most = max(reading.anonymous_bytes for reading in several)
        click.echo(
            f"{name}: {middle:.2f} s, {most >> 20} MiB, wrote {several[0].written_bytes >> 20} MiB, "
            f"temporary {several[0].temporary_bytes >> 20} MiB"
        )


def _ratios(ours: list[Reading], theirs: list[Reading]) -> dict[str, float]:
    """Their time over ours, within each round: the median, the lowest and the highest."""
    found = [their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True)]
    return {
        "median": round(statistics.median(found), 3),
        "lowest": round(min(found), 3),
        "highest": round(max(found), 3),
    }


if __name__ == "__main__":
    main()
