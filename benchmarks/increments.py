"""What increments write, and how long saving and reading them takes, against full checkpoints (SPEC section 8.5)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, get_args

import click
import numpy as np

import ucpformat as ucp
from benchmarks.facts import machine_facts
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned, piped

__all__ = ["JOBS", "Figures", "command", "run_of_increments"]

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]
Train = Callable[[], int]
"""Take a step: change arrays in place, and return how many bytes of them changed."""
Job = tuple[Arrays, Train, "Declared"]
Declared = Callable[[], dict[str, Any]]
"""Return rows that the last step has changed, as `ucp.save` takes them."""
Known = Literal["compared", "snapshot", "declared"]
"""How a save knows what has changed: by the files of the base, by the saver's snapshot, or from its caller."""

_ROW: Final = 64
"""Elements: rows of 256 bytes."""
_MEASURED: Final = 8
"""Of a run, so many full checkpoints are saved beside increments, at even distances."""


def _noise(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.random(count, np.float32) + 1


def _slots(rng: np.random.Generator, name: str, elements: int) -> Arrays:
    """A tensor and its two moments, as Adam has them, each with a third of the elements in rows of 256 bytes."""
    rows = max(1, elements // 3 // _ROW)
    return {f"{name}.{slot}": _noise(rng, rows * _ROW).reshape(rows, _ROW) for slot in ("value", "m", "v")}


def dense(rng: np.random.Generator, elements: int) -> Job:
    """Make a job of which everything changes: AdamW on all parameters."""
    arrays = {
        f"layer{n}.{slot}": one for n in range(8) for slot, one in _slots(rng, "w", elements // 8).items()
    }

    def step() -> int:
        for one in arrays.values():
            one += np.float32(1e-3)
        return sum(one.nbytes for one in arrays.values())

    return arrays, step, dict


def frozen(rng: np.random.Generator, elements: int) -> Job:
    """Make a job with a backbone that is frozen, and adapters of 2 % of it with moments: LoRA."""
    arrays: Arrays = {f"backbone{n}": _noise(rng, elements // 8).reshape(-1, _ROW) for n in range(8)}
    adapters = _slots(rng, "adapter", elements // 50)
    arrays |= adapters

    def step() -> int:
        for one in adapters.values():
            one += np.float32(1e-3)
        return sum(one.nbytes for one in adapters.values())

    return arrays, step, lambda: {"backbone*": []}


def partly(rng: np.random.Generator, elements: int) -> Job:
    """Make a job that trains the last quarter of its layers."""
    arrays: Arrays = {}
    for n in range(8):
        arrays |= {f"layer{n}.{slot}": one for slot, one in _slots(rng, "w", elements // 8).items()}
    trained = [one for name, one in arrays.items() if name.startswith(("layer6", "layer7"))]

    def step() -> int:
        for one in trained:
            one += np.float32(1e-3)
        return sum(one.nbytes for one in trained)

    return arrays, step, lambda: {f"layer{n}.*": [] for n in range(6)}


def sparse(share: float) -> Callable[[np.random.Generator, int], Job]:
    """Make embeddings under SparseAdam, of whose rows a step changes about ``share``: Zipf's law says which."""

    def make(rng: np.random.Generator, elements: int) -> Job:
        arrays = _slots(rng, "embedding", elements)
        rows = len(arrays["embedding.value"])
        weights = 1 / np.arange(1, rows + 1)
        weights /= weights.sum()
        low, high = 1, 1 << 30
        while low < high:  # draws that are expected to meet so many rows
            middle = (low + high) // 2
            if (1 - np.exp(-middle * weights)).sum() < share * rows:
                low = middle + 1
            else:
                high = middle
        order, chances = rng.permutation(rows), np.cumsum(weights)

        met = order[:0]

        def step() -> int:
            nonlocal met
            met = order[np.unique(np.searchsorted(chances, rng.random(low)).clip(max=rows - 1))]
            for one in arrays.values():
                one[met] += np.float32(1e-3)
            return len(arrays) * int(met.size) * _ROW * 4

        return arrays, step, lambda: {"embedding.*": met}

    return make


JOBS: Final[dict[str, Callable[[np.random.Generator, int], Job]]] = {
    "dense AdamW": dense,
    "frozen, LoRA": frozen,
    "last quarter trained": partly,
    "sparse, 2.5 % of rows": sparse(0.025),
    "sparse, 6.5 % of rows": sparse(0.065),
}


@dataclass
class Figures:
    """Of one run: bytes as shares of a full checkpoint, times as ratios to full saves and reads beside them.

    ``disks`` are those of `_committed_bytes` with as many bytes, and ``fulls`` the seconds of full saves.
    """

    job: str
    storage: str
    compressor: str
    known: Known
    increments: int
    changed: float
    written: float
    saves: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    disks: list[float] = field(default_factory=list)
    fulls: list[float] = field(default_factory=list)

    def row(self) -> list[str]:
        """Return the row of the table."""
        saved, disk, read = median(self.saves), median(self.disks), median(self.reads)
        form = self.storage if self.compressor == "none" else f"{self.storage}, {self.compressor}"
        return [
            self.job, form, self.known, f"{self.changed:.1%}", f"{self.written:.1%}", f"{saved:.2f}", f"{disk:.2f}",
            f"{read:.2f}",
        ]  # fmt: skip


def _written(path: Path, base: Path | None) -> int:
    """Bytes on the disk of files that a base does not have."""
    known = {one.stat().st_ino for one in base.rglob("*") if one.is_file()} if base else set()
    found = [one.stat() for one in path.rglob("*") if one.is_file()]
    return sum(one.st_size for one in found if one.st_ino not in known)


def _save(path: Path, arrays: Arrays, options: dict[str, Any], saver: ucp.AsyncSaver | None = None) -> float:
    os.sync()
    began = time.perf_counter()
    if saver is None:
        ucp.save(path, arrays, **options)
    else:
        saver.save(path, arrays, **options).wait()
    return time.perf_counter() - began


def _committed_bytes(room: Path, nbytes: int) -> float:
    """Do the least that a durable commit is: one file of so many bytes is synced, gets its name, and that is synced."""
    data = np.random.default_rng(0).bytes(nbytes)
    path = room / "least"
    os.sync()
    began = time.perf_counter()
    path.mkdir()
    with (path / "draft").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.link(path / "draft", path / "name")
    directory = os.open(path, os.O_RDONLY)
    os.fsync(directory)
    seconds = time.perf_counter() - began
    os.close(directory)
    shutil.rmtree(path)
    return seconds


def _read(path: Path) -> float:
    began = time.perf_counter()
    with ucp.open(path) as ckpt:
        for atom in ckpt.values():
            for slot in atom.values():
                slot.read()
    return time.perf_counter() - began


def run_of_increments(
    job: str,
    *,
    nbytes: int,
    increments: int,
    directory: Path,
    storage: str = "packed",
    gzip: bool = False,
    known: Known = "compared",
) -> Figures:
    """Save a run of increments, with full checkpoints beside some of them, saved in the same way."""
    rng = np.random.default_rng(0)
    arrays, step, declared = JOBS[job](rng, nbytes // 4)
    options: dict[str, Any] = {
        "storage": storage,
        "compressor": ucp.Compressor("gzip", {"level": 1}) if gzip else None,
    }
    with ExitStack() as stack:
        room = stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-"))
        savers: list[ucp.AsyncSaver | None] = [None, None]
        if known == "snapshot":
            savers = [stack.enter_context(ucp.AsyncSaver()) for _ in savers]
        before = Path(room) / "0.ucp"
        _save(before, arrays, options, savers[0])
        whole = _written(before, None)
        figures = Figures(job, storage, "gzip" if gzip else "none", known, increments, 0.0, 0.0)
        every = max(1, increments // _MEASURED)
        for number in range(1, increments + 1):
            figures.changed += step() / whole / increments
            path, beside = Path(room) / f"{number}.ucp", Path(room) / "full.ucp"
            is_measured = number % every == 0
            shared = {"base": before, "changed": declared() if known == "declared" else None}
            # Whatever is written second finds the disk busier: each comes first every other time.
            is_second = number // every % 2 == 1
            full = _save(beside, arrays, options, savers[1]) if is_measured and is_second else 0.0
            saved = _save(path, arrays, options | shared, savers[0])
            if is_measured and not is_second:
                full = _save(beside, arrays, options, savers[1])
            written = _written(path, before)
            figures.written += written / whole / increments
            if is_measured:
                figures.saves.append(saved / full)
                figures.disks.append(_committed_bytes(Path(room), written) / full)
                figures.fulls.append(full)
                _read(beside)
                _read(path)
                figures.reads.append(_read(beside) / _read(path))
                shutil.rmtree(beside)
            shutil.rmtree(before)
            before = path
        problems = ucp.validate(before)
        if problems:
            raise ValueError(f"problems in an increment: {problems[:3]}")
    return figures


def _runs(names: tuple[str, ...]) -> Iterator[tuple[str, str, bool, Known]]:
    for name in names or tuple(JOBS):
        for known in get_args(Known):
            yield name, "packed", False, known
    if not names:
        yield "frozen, LoRA", "plain", False, "compared"
        yield "sparse, 6.5 % of rows", "plain", False, "compared"
        yield "frozen, LoRA", "packed", True, "compared"


@click.command(name="increments")
@click.option("--size", default="64MiB", show_default=True, callback=in_bytes, help="Bytes of the state.")
@click.option("--increments", default=40, show_default=True, type=click.IntRange(1), help="Of each run.")
@click.option(
    "--job", "jobs", multiple=True, type=click.Choice(sorted(JOBS)), help="One job, packed; may be repeated."
)
@click.option("--directory", default=".", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "output", type=click.Path(path_type=Path), help="File for every figure.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
def command(
    size: int,
    increments: int,
    jobs: tuple[str, ...],
    directory: Path,
    output: Path | None,
    markdown_path: Path | None,
) -> None:
    """Save runs of increments: what they write, and how long it takes to save and to read them."""
    facts = machine_facts(directory)
    found: list[Figures] = []
    for job, storage, gzip, known in _runs(jobs):
        click.echo(f"{job}, {storage}{', gzip' if gzip else ''}, {known}", err=True)
        found.append(
            run_of_increments(
                job,
                nbytes=size,
                increments=increments,
                directory=directory,
                storage=storage,
                gzip=gzip,
                known=known,
            )
        )
    heading = ["job", "form", "known by", "changed", "written", "save", "least", "read"]
    rows = [heading, *(one.row() for one in found)]
    fulls = sorted(seconds for one in found for seconds in one.fulls)
    words = (
        f"{increments} increments of {size >> 20} MiB each: bytes changed and written, documents included, as shares "
        "of a full checkpoint; time of a durable save, against a full one beside it; the same of as many bytes in one "
        "file, synced and given a name; speed of reading, against a full one. "
        f"A full save takes {median(fulls) * 1e3:.0f} ms in the median."
    )
    click.echo(f"{aligned(rows)}\n{words}")
    line = " ".join(
        [
            f"python -m benchmarks increments --size {size >> 20}MiB --increments {increments}",
            *(f'--job "{job}"' for job in jobs),
        ]
    )
    if output is not None:
        content = {"command": line, "machine": facts, "runs": [asdict(one) for one in found]}
        output.write_text(json.dumps(content, indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(f"`{line}`\n\n{piped(rows)}\n\n{words}\n")
