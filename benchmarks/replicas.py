"""Ranks that all hold one state of plain tensors, as under DistributedDataParallel, save it: what comparing costs.

Real gloo ranks of one machine. Everybody begins together, and a save ends when the last rank returns. ``one-rank`` is
the usual way without this library: the first rank saves alone what it has.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click
import torch
import torch.distributed as dist

from benchmarks.ballast import Ballast, ballast_options, loaded, prepare, words
from benchmarks.ranks import start_ranks
from benchmarks.save_load import in_turn
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned, piped
from benchmarks.workloads import workload

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["command", "compare_replicas", "table"]

CONTENDERS: Final = ("trust", "compare", "check", "one-rank")


def _save(name: str, path: Path, state: dict[str, Any], *, background: bool) -> float:
    """Seconds that the caller waits; the checkpoint is then committed, or, in the background, soon after."""
    import ucpformat
    from ucpformat.distributed.group import OneProcess

    dist.barrier()
    start = time.perf_counter()
    if name == "one-rank":
        alone: dict[str, Any] = {"group": OneProcess()}
        options = alone if dist.get_rank() == 0 else None
    else:
        options = {"replicas": name}
    if options is not None and background:
        save = ucpformat.async_save(path, state, **options)
        stalled = time.perf_counter() - start
        save.wait()
    elif options is not None:
        ucpformat.save(path, state, **options)
    dist.barrier()
    seconds = time.perf_counter() - start
    longest = torch.tensor([(stalled if options is not None else 0.0) if background else seconds])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest)


def _rank(rank: int, directory: str, ranks: int, nbytes: int, repeats: int, ballast: Ballast | None) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/ranks", rank=rank, world_size=ranks)
    state = {"model": workload("gpt", nbytes).tensors}
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(-1, repeats):
        for background in (False, True):
            for name in in_turn(CONTENDERS, number):
                path = Path(directory, f"{name}.ucp")
                if rank == 0:
                    prepare(ballast, Path(directory))
                seconds = _save(name, path, state, background=background)
                if number >= 0:
                    found[f"{name}, {'stall' if background else 'save'}"].append(seconds)
                dist.barrier()
                if rank == 0:
                    shutil.rmtree(path)
                dist.barrier()
    if rank == 0:
        Path(directory, "replicas.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def compare_replicas(
    nbytes: int, *, ranks: int, repeats: int, directory: Path, ballast: Ballast | None = None
) -> dict[tuple[str, str], list[float]]:
    """Seconds of every save, and of every stall of one in the background, everybody in turn after a first round."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as place:
        start_ranks(_rank, (place, ranks, nbytes, repeats, ballast), ranks)
        found = json.loads(Path(place, "replicas.json").read_text())
    return {tuple(key.split(", ")): seconds for key, seconds in found.items()}


def table(found: dict[tuple[str, str], list[float]]) -> list[Sequence[str]]:
    """Medians over rounds, and what they are more than those of ``trust``, within rounds."""
    rows: list[Sequence[str]] = [["replicas=", "save, s", "of trust", "stall of async_save, s", "of trust"]]
    for name in CONTENDERS:
        row = [name]
        for what in ("save", "stall"):
            seconds, trusted = found[name, what], found["trust", what]
            ratio = median(one / other for one, other in zip(seconds, trusted, strict=True))
            row += [f"{median(seconds):.3f}", f"{ratio:.2f}"]
        rows.append(row)
    return rows


@click.command("replicas")
@click.option("--size", "nbytes", default="1GiB", callback=in_bytes, help="Bytes of state, such as 64MiB.")
@click.option("--ranks", default=2, type=click.IntRange(2), help="How many hold the state.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def command(
    nbytes: int,
    ranks: int,
    repeats: int,
    directory: Path,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Save a state that all ranks hold, comparing their copies or not."""
    warnings.simplefilter("ignore")
    with loaded(directory.absolute(), steady, kept) as ballast:
        found = compare_replicas(
            nbytes, ranks=ranks, repeats=repeats, directory=directory.absolute(), ballast=ballast
        )
    rows = table(found)
    click.echo(aligned(rows))
    if markdown_path is not None:
        line = f"python -m benchmarks replicas --size {nbytes >> 20}MiB --ranks {ranks} --repeats {repeats}"
        markdown_path.write_text(f"`{line}{words(ballast)}`\n\n{piped(rows)}\n")
