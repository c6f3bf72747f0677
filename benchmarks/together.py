"""Ranks that load at once what others saved under another layout: times, processor time, bytes read.

Real gloo ranks of one machine, two of which hold each share, as replicas do; everybody begins together, and a load
ends when the last rank has its own.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import torch
import torch.distributed as dist

from benchmarks.ballast import Ballast, ballast_options, loaded, prepare, words
from benchmarks.cache import cool
from benchmarks.measure import cpu_seconds
from benchmarks.ranks import start_ranks
from benchmarks.reshard import Work, blank, check_share, read_bytes, save_shares
from benchmarks.save_load import in_turn
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned, piped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.state_dict.reading import LoadReport

__all__ = ["Loaded", "command", "compare_together", "table"]

CASES: Final = (("rows", "columns"), ("columns", "rows"), ("rows", "rows"))
REPLICAS: Final = 2
CONTENDERS: Final = ("ucp-once", "ucp", "ucp-by-dcp", "torch-dcp")


class Loaded(NamedTuple):
    """One load by all ranks: until the last one has its share; processor seconds and bytes are sums."""

    seconds: float
    cpu_seconds: float
    nbytes: int


def _load(name: str, path: str, state: dict[str, Any]) -> int | None:
    """Fill the state; what this rank read of the store, where the library says so."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_by_dcp

    import ucpformat
    from ucpformat.integrations.torch_dcp import UcpStorageReader

    if name in ("ucp-once", "ucp"):
        said: list[LoadReport] = []
        ucpformat.load(f"{path}.ucp", state, read_once=name == "ucp-once", report=said.append)
        return said[0].read
    reader = FileSystemReader(f"{path}.dcp") if name == "torch-dcp" else UcpStorageReader(f"{path}.ucp")
    load_by_dcp(state, storage_reader=reader)
    return None


def _rank(rank: int, directory: str, work: Work, repeats: int, cold: bool, ballast: Ballast | None) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place = f"file://{directory}/together"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=REPLICAS * work.readers)
    found: dict[str, list[Loaded]] = defaultdict(list)
    for saved, read in CASES:
        for number in range(-1, repeats):
            for name in in_turn(CONTENDERS, number):
                state = blank(read, work, replicas=REPLICAS)
                dist.barrier()  # everybody has memory for its share
                if cold and rank == 0:
                    cool(Path(directory))
                if rank == 0:
                    prepare(ballast, *([] if cold else [Path(directory)]))
                loaded = _once(name, f"{directory}/{saved}", state)
                if number < 0:
                    check_share(state, read, rank % work.readers, work)
                else:
                    found[f"{saved}, {read}, {name}"].append(loaded)
    if rank == 0:
        Path(directory, "together.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _once(name: str, path: str, state: dict[str, Any]) -> Loaded:
    dist.barrier()
    before, cpu, start = read_bytes(), cpu_seconds(), time.perf_counter()
    said = _load(name, path, state)
    cpu = cpu_seconds() - cpu
    nbytes = read_bytes() - before if said is None else said
    dist.barrier()
    seconds = time.perf_counter() - start
    sums = torch.tensor([cpu, nbytes], dtype=torch.float64)
    dist.all_reduce(sums)
    return Loaded(seconds, float(sums[0]), int(sums[1]))


def compare_together(
    work: Work, *, repeats: int, cold: bool, directory: Path, ballast: Ballast | None = None
) -> dict[tuple[str, str, str], list[Loaded]]:
    """Save under each split, load under the other by all ranks, everybody in turn, after a round that checks."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as place:
        start_ranks(save_shares, (place, work), work.writers)
        start_ranks(_rank, (place, work, repeats, cold, ballast), REPLICAS * work.readers)
        found = json.loads(Path(place, "together.json").read_text())
    return {
        (saved, read, name): [Loaded(*one) for one in loads]
        for key, loads in found.items()
        for saved, read, name in [key.split(", ")]
    }


def table(work: Work, found: dict[tuple[str, str, str], list[Loaded]]) -> list[Sequence[str]]:
    """Medians over rounds."""
    rows: list[Sequence[str]] = [
        ["saved by, read by", "", "GB/s", "CPU s", "read / stored", "times faster than torch-dcp"]
    ]
    for (saved, read, name), loads in found.items():
        seconds = median(one.seconds for one in loads)
        pairs = zip(found[saved, read, "torch-dcp"], loads, strict=True)
        rows.append(
            [
                f"{saved}, {read}",
                name,
                f"{work.nbytes / seconds / 1e9:.2f}",
                f"{median(one.cpu_seconds for one in loads):.2f}",
                f"{median(one.nbytes for one in loads) / work.nbytes:.2f}",
                "" if name == "torch-dcp" else f"{median(a.seconds / b.seconds for a, b in pairs):.1f}",
            ]
        )
    return rows


@click.command("together")
@click.option(
    "--size", "nbytes", default="512MiB", callback=in_bytes, help="Bytes of matrices, such as 256MiB."
)
@click.option("--ranks", default=8, type=click.IntRange(REPLICAS), help="How many load; four saved.")
@click.option("--repeats", default=5, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--cold", is_flag=True, help="Drop the files' pages before each load.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def command(
    nbytes: int,
    ranks: int,
    repeats: int,
    cold: bool,
    directory: Path,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Load by ranks that begin together what four saved under another split."""
    warnings.simplefilter("ignore")
    work = Work(max(1, nbytes // Work(1).nbytes), readers=ranks // REPLICAS)
    with loaded(directory.absolute(), steady, kept) as ballast:
        found = compare_together(
            work, repeats=repeats, cold=cold, directory=directory.absolute(), ballast=ballast
        )
    rows = table(work, found)
    click.echo(aligned(rows))
    if markdown_path is not None:
        line = f"python -m benchmarks together --size {nbytes >> 20}MiB --ranks {ranks} --repeats {repeats}"
        line += (" --cold" if cold else "") + words(ballast)
        markdown_path.write_text(f"`{line}`\n\n{piped(rows)}\n")
