"""Loading from objects that answer late: requests, bytes and time, against torch's DCP through fsspec.

The store is an fsspec file system of our own over a local directory: every request sleeps first, as one to an object
store waits, and is counted. Requests that are made at once wait at once.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from benchmarks.ballast import Ballast, ballast_options, loaded, prepare, words
from benchmarks.contenders.ours import Ours, load_state
from benchmarks.contenders.torch_files import TorchDcp
from benchmarks.measure import Reading, measured
from benchmarks.save_load import in_turn
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned, piped
from benchmarks.workloads import WORKLOADS, workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.state import TrainingState

__all__ = ["Late", "Load", "cells", "command", "compare_objects", "fsspec_of_dcp", "load_by_dcp", "table"]

_BLOCK_BYTES: Final = 50 << 20  # what s3fs reads ahead


class Late(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files below a directory, for reading; ``seconds`` pass before each answer."""

    protocol = "late"
    cachable = False
    seconds = 0.02
    requests = 0
    nbytes = 0
    _lock = threading.Lock()

    @classmethod
    def answer(cls, data: bytes) -> bytes:
        """Wait, and count."""
        time.sleep(cls.seconds)
        with cls._lock:
            cls.requests += 1
            cls.nbytes += len(data)
        return data

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("late://")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size and kind: one request."""
        place = Path(self._strip_protocol(path))
        self.answer(b"")
        kind = "directory" if place.is_dir() else "file"
        return {"name": str(place), "size": place.stat().st_size, "type": kind}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """One request."""
        places = sorted(Path(self._strip_protocol(path)).iterdir())
        self.answer(b"")
        if not detail:
            return [str(place) for place in places]
        return [
            {
                "name": str(place),
                "size": place.stat().st_size,
                "type": "directory" if place.is_dir() else "file",
            }
            for place in places
        ]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """A range: one request."""
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(start or 0)
            return self.answer(file.read() if end is None else file.read(end - (start or 0)))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> _LateFile:
        return _LateFile(self, path, mode, block_size=_BLOCK_BYTES)


class _LateFile(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


def _ours(directory: Path, into: TrainingState, *, verify: bool) -> None:
    load_state(f"late://{directory}", into, verify=verify)


def _dcp(directory: Path, into: TrainingState) -> None:
    load_by_dcp(f"late://{directory}", dict(into.tensors))


def load_by_dcp(url: str, tensors: dict[str, Any]) -> None:
    """Fill the tensors by ``dcp.load``, through torch's own reader of what fsspec reaches."""
    from torch.distributed.checkpoint import state_dict_loader

    state_dict_loader.load(tensors, storage_reader=fsspec_of_dcp().FsspecReader(url), no_dist=True)


def fsspec_of_dcp() -> Any:
    """Import torch's storage of what fsspec reaches; older versions have it under a private name alone."""
    package = "torch.distributed.checkpoint"
    is_public = importlib.util.find_spec(f"{package}.fsspec_filesystem") is not None
    return importlib.import_module(f"{package}.{'' if is_public else '_'}fsspec_filesystem")


LOADS: Final[dict[str, tuple[str, Callable[[Path, TrainingState], None]]]] = {
    "ucp": ("ucp", functools.partial(_ours, verify=True)),
    "ucp-unverified": ("ucp", functools.partial(_ours, verify=False)),
    "torch-dcp": ("dcp", _dcp),
}


class Load(NamedTuple):
    """One load: what it took, and what it asked for."""

    reading: Reading
    requests: int
    nbytes: int


def compare_objects(
    *,
    state_name: str,
    nbytes: int,
    repeats: int,
    seconds: float,
    directory: Path,
    report: Callable[[str], None],
    ballast: Ballast | None = None,
) -> tuple[int, dict[str, list[Load]]]:
    """Save to a directory, load through a store that waits ``seconds`` before each answer; the state's bytes, loads."""
    fsspec.register_implementation("late", Late, clobber=True)
    Late.seconds = seconds
    state = workload(state_name, nbytes)
    into = state.blank()
    loads: dict[str, list[Load]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room:
        places = {"ucp": Path(room) / "u", "dcp": Path(room) / "d"}
        for place in places.values():
            place.mkdir()
        Ours("packed").save(state, places["ucp"], "none")
        TorchDcp().save(state, places["dcp"], "none")
        for number in range(-1, repeats):
            report("warming up" if number < 0 else f"round {number + 1} of {repeats}")
            for name in in_turn([*LOADS], number):
                kind, load = LOADS[name]
                if number < 0:
                    into.erase()
                prepare(ballast, places[kind])
                Late.requests = Late.nbytes = 0
                reading = measured(functools.partial(load, places[kind], into))
                if number < 0:
                    wrong = state.differing(into)
                    if wrong is not None:
                        raise ValueError(f"{name} brought back other values of {wrong}")
                else:
                    loads[name].append(Load(reading, Late.requests, Late.nbytes))
    return state.nbytes, dict(loads)


def table(nbytes: int, loads: dict[str, list[Load]]) -> list[Sequence[str]]:
    """Medians; how many times faster than torch's, within rounds."""
    rows: list[Sequence[str]] = [
        ["", "GB/s", "CPU s", "MiB", "requests", "read / needed", "times faster than torch-dcp"]
    ]
    for name, found in loads.items():
        rows.append([name, *cells(found, loads["torch-dcp"], nbytes, digits=2)])
    return rows


def cells(found: Sequence[Load], peer: Sequence[Load], nbytes: int, *, digits: int) -> list[str]:
    """Medians over rounds of who moves ``nbytes``, and the ratio to ``peer``, which has none to itself."""
    pairs = zip(peer, found, strict=True)
    ratio = median(theirs.reading.seconds / ours.reading.seconds for theirs, ours in pairs)
    return [
        f"{nbytes / median(load.reading.seconds for load in found) / 1e9:.{digits}f}",
        f"{median(load.reading.cpu_seconds for load in found):.2f}",
        f"{median(load.reading.peak_bytes for load in found) / (1 << 20):.0f}",
        f"{median(load.requests for load in found):.0f}",
        f"{median(load.nbytes for load in found) / nbytes:.2f}",
        "" if found is peer else f"{ratio:.1f}",
    ]


@click.command("objects")
@click.option("--state", "state_name", default="gpt", type=click.Choice([*WORKLOADS]), help="What is loaded.")
@click.option("--size", "nbytes", default="512MiB", callback=in_bytes, help="Bytes of state, such as 64MiB.")
@click.option("--repeats", default=5, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--milliseconds", default=20, type=click.IntRange(0), help="How late each answer comes.")
@click.option(
    "--s3", "by_s3", is_flag=True, help="S3 by HTTP, by s3fs, from moto's server on loopback; saving too."
)
@click.option(
    "--per-connection",
    default=0.0,
    type=click.FloatRange(0),
    help="With --s3: MB/s that a connection carries; 0 is no limit.",
)
@click.option("--save-only", is_flag=True, help="With --s3: load nothing.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="With --s3: write every reading here."
)
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def command(
    state_name: str,
    nbytes: int,
    repeats: int,
    milliseconds: int,
    by_s3: bool,
    per_connection: float,
    save_only: bool,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Load from an object store that answers late, this library and torch DCP in turn."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    line = f"python -m benchmarks objects --state {state_name} --size {nbytes >> 20}MiB"
    line += f" --repeats {repeats} --milliseconds {milliseconds}"
    if (json_path is not None or per_connection or save_only) and not by_s3:
        raise click.UsageError("--json, --per-connection and --save-only go with --s3")
    if by_s3:
        line += " --s3" + (f" --per-connection {per_connection:g}" if per_connection else "")
        line += " --save-only" if save_only else ""
        rows = _by_s3(
            state_name, nbytes, repeats, milliseconds, per_connection, save_only, directory, line, json_path
        )
    else:
        with loaded(directory.absolute(), steady, kept) as ballast:
            line += words(ballast)
            rows = table(
                *compare_objects(
                    state_name=state_name,
                    nbytes=nbytes,
                    repeats=repeats,
                    seconds=milliseconds / 1000,
                    directory=directory.absolute(),
                    report=_say,
                    ballast=ballast,
                )
            )
    click.echo(aligned(rows))
    if markdown_path is not None:
        markdown_path.write_text(f"`{line}`\n\n{piped(rows)}\n")


def _by_s3(
    state_name: str,
    nbytes: int,
    repeats: int,
    milliseconds: int,
    per_connection: float,
    save_only: bool,
    directory: Path,
    line: str,
    json_path: Path | None,
) -> list[Sequence[str]]:
    from benchmarks.s3_server import missing_packages

    if missing := missing_packages():
        raise click.ClickException(
            f"--s3 needs {', '.join(missing)}, not installed here: pip install -r requirements/s3.txt"
            " (benchmarks/README.md, Objects that answer late)"
        )
    from benchmarks.s3_objects import TASKS, compare_s3
    from benchmarks.s3_objects import table as s3_table

    outcome = compare_s3(
        state_name=state_name,
        nbytes=nbytes,
        repeats=repeats,
        milliseconds=milliseconds,
        per_connection=per_connection,
        tasks=["save"] if save_only else [*TASKS],
        directory=directory,
        command=line,
        report=_say,
    )
    if json_path is not None:
        json_path.write_text(json.dumps(outcome.to_json(), indent=1) + "\n")
    return s3_table(outcome)


def _say(line: str) -> None:
    click.echo(line, err=True)
