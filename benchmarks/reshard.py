"""Reading under another layout than the one that was saved: times, and bytes read for each byte needed.

Four processes save matrices that are split by rows or by columns; then the shares of eight ranks are read one after
another by one process, which a process group of torch's that sends nothing makes any rank of eight.
Both libraries save by ``dcp.save``. What they saved is read by ``ucp.load`` and by ``dcp.load``, with either storage;
nobody asks other ranks anything.
Ranges of a flat buffer over all tensors, as ZeRO holds them, cannot be said in DCP: they have no peer here.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from benchmarks.ballast import Ballast, prepare
from benchmarks.cache import cool
from benchmarks.facts import machine_facts
from benchmarks.measure import Reading, measured
from benchmarks.ranks import start_ranks
from benchmarks.results import Series
from benchmarks.save_load import in_turn
from ucpformat.distributed.group import OneProcess
from ucpformat.geometry import BufferPlace, Concat, Flatten, Layout, Mesh, MeshAxis, Shard, lower
from ucpformat.reader import open_checkpoint
from ucpformat.state_dict.save_load import load as load_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Cell",
    "Outcome",
    "Work",
    "blank",
    "check_share",
    "compare_reshard",
    "read_bytes",
    "save_shares",
    "table",
]

SPLITS: Final = {"rows": 0, "columns": 1}
CASES: Final = (*itertools.product(SPLITS, SPLITS), ("rows", "flat"), ("columns", "flat"))


@dataclass(frozen=True, slots=True)
class Cell(Series):
    """A case by a contender: one reading per round, and bytes read in all."""

    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was read: cells by case and contender."""

    command: str
    facts: dict[str, Any]
    nbytes: int
    cells: dict[tuple[str, str], dict[str, Cell]]

    def to_json(self) -> dict[str, Any]:
        """Every reading."""
        return {
            "schema": "ucpformat-benchmark-reshard-1",
            "command": self.command,
            "facts": self.facts,
            "bytes": self.nbytes,
            "cases": [
                {"saved": saved, "read": read, "contender": name, **asdict(cell)}
                for (saved, read), row in self.cells.items()
                for name, cell in row.items()
            ],
        }


def _names(count: int) -> list[str]:
    return [f"layer.{number}.weight" for number in range(count)]


def _matrix(number: int, side: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(number)
    return torch.randn(side, side, generator=made)


@dataclass(frozen=True, slots=True)
class Work:
    """So many square matrices with sides of so many elements, saved by some ranks and read by others."""

    count: int
    side: int = 2048
    writers: int = 4
    readers: int = 8

    @property
    def nbytes(self) -> int:
        """Of all matrices."""
        return self.count * 4 * self.side * self.side


def save_shares(rank: int, directory: str, work: Work) -> None:
    """Save as one of the ranks, under each split, by both libraries."""
    import warnings

    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard as Sharded
    from torch.distributed.tensor import distribute_tensor

    from ucpformat.integrations.torch_dcp import UcpStorageWriter

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=work.writers
    )
    mesh = init_device_mesh("cpu", (work.writers,), mesh_dim_names=("n",))
    for split, dim in SPLITS.items():
        state = {
            name: distribute_tensor(_matrix(number, work.side), mesh, [Sharded(dim)])
            for number, name in enumerate(_names(work.count))
        }
        save(state, checkpoint_id=f"{directory}/{split}.dcp")
        save(state, storage_writer=UcpStorageWriter(f"{directory}/{split}.ucp"))
    dist.barrier()
    dist.destroy_process_group()


class AsRank:
    """The process as one rank of many, in a group that sends nothing."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._ranks = ranks

    def __enter__(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=self._rank, world_size=self._ranks)

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()


def blank(split: str, work: Work, replicas: int = 1) -> dict[str, Any]:
    """Memory for this rank's share, which so many ranks hold."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor import Shard as Sharded

    mesh = init_device_mesh("cpu", (replicas, work.readers), mesh_dim_names=("copies", "n"))
    shape = [work.side, work.side]
    shape[SPLITS[split]] //= work.readers
    return {
        name: DTensor.from_local(
            torch.full(shape, torch.nan),  # touched, as tensors of a model are
            mesh,
            [Replicate(), Sharded(SPLITS[split])],
            run_check=False,
            shape=torch.Size((work.side, work.side)),
            stride=(work.side, 1),
        )
        for name in _names(work.count)
    }


def check_share(state: dict[str, Any], split: str, rank: int, work: Work) -> None:
    """Compare a rank's share with what was saved."""
    for number, tensor in enumerate(state.values()):
        wanted = _matrix(number, work.side).chunk(work.readers, SPLITS[split])[rank]
        if not torch.equal(tensor.to_local(), wanted):
            raise ValueError(f"rank {rank} got other values by {split}")


def _by_dcp(path: Path, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    load(state, storage_reader=FileSystemReader(path), no_dist=True)


class _Alone(OneProcess):
    """A rank that asks nobody, as ``no_dist`` has it for DCP."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ranks = (rank,)


def _by_ucp(path: Path, state: dict[str, Any], *, verify: bool) -> None:
    load_state(path, state, group=_Alone(dist.get_rank()), verify=verify)


def _by_ucp_within_dcp(path: Path, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    from ucpformat.integrations.torch_dcp import UcpStorageReader

    load(state, storage_reader=UcpStorageReader(path), no_dist=True)


CONTENDERS: Final[dict[str, tuple[str, Callable[[Path, dict[str, Any]], None]]]] = {
    "ucp": ("ucp", functools.partial(_by_ucp, verify=True)),
    "ucp-unverified": ("ucp", functools.partial(_by_ucp, verify=False)),
    "ucp-by-dcp": ("ucp", _by_ucp_within_dcp),
    "torch-dcp": ("dcp", _by_dcp),
}


def _flat(path: Path, rank: int, work: Work, buffer: torch.Tensor) -> None:
    """An equal part of a buffer over all tensors."""
    mesh = Mesh((MeshAxis("dp", work.readers),))
    layout = Layout(mesh, (Flatten(), Concat("all"), Shard("dp", 0, "even")))
    shape, each = (work.side, work.side), work.side * work.side
    with open_checkpoint(path) as checkpoint:
        for number, name in enumerate(_names(work.count)):
            place = BufferPlace((number * each,), (work.count * each,))
            if lower(layout, shape, place=place).at((rank,)) is not None:
                checkpoint.read(name, layout=layout, coord={"dp": rank}, place=place, out=buffer)


def read_bytes() -> int:
    """What this process has asked of the kernel so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise OSError("/proc/self/io has no rchar")


def _shares(
    directory: Path,
    saved: str,
    read: str,
    work: Work,
    name: str,
    *,
    check: bool,
    cold: bool,
    ballast: Ballast | None,
) -> tuple[Reading, int]:
    """Everybody's share in turn: the sum of times, and of bytes."""
    kind, load = CONTENDERS[name]
    readings, nbytes = [], 0
    for rank in range(work.readers):
        path = directory / f"{saved}.{kind}"
        with AsRank(rank, work.readers):
            state = {} if read == "flat" else blank(read, work)
            buffer = torch.full((work.nbytes // 4 // work.readers if read == "flat" else 0,), torch.nan)
            once = (
                functools.partial(_flat, path, rank, work, buffer)
                if read == "flat"
                else functools.partial(load, path, state)
            )
            if cold:
                cool(path)
            if cold or rank == 0:
                prepare(ballast, *([] if cold else [path]))
            before = read_bytes()
            readings.append(measured(once))
            nbytes += read_bytes() - before
            if check and read == "flat":
                whole = torch.cat([_matrix(number, work.side).flatten() for number in range(work.count)])
                if not torch.equal(buffer, whole.chunk(work.readers)[rank]):
                    raise ValueError(f"rank {rank} got other values of the buffer")
            elif check:
                check_share(state, read, rank, work)
    return Reading(
        sum(one.seconds for one in readings),
        sum(one.cpu_seconds for one in readings),
        max(one.peak_bytes for one in readings),
    ), nbytes


def compare_reshard(
    work: Work,
    *,
    repeats: int,
    directory: Path,
    command: str,
    report: Callable[[str], None],
    cold: bool = False,
    ballast: Ballast | None = None,
) -> Outcome:
    """Save under each split, read under each; every case by everybody in turn, after a round that checks."""
    facts = machine_facts(directory, steady=ballast is not None)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        start_ranks(save_shares, (place, work), work.writers)
        room = Path(place)
        readings: dict[tuple[str, str], dict[str, list[tuple[Reading, int]]]] = {}
        for number in range(-1, repeats):
            report("warming up" if number < 0 else f"round {number + 1} of {repeats}")
            for case in CASES:
                names = ["ucp"] if case[1] == "flat" else [*CONTENDERS]
                for name in in_turn(names, number):
                    found = _shares(room, *case, work, name, check=number < 0, cold=cold, ballast=ballast)
                    if number >= 0:
                        readings.setdefault(case, defaultdict(list))[name].append(found)
    cells = {
        case: {name: Cell([one for one, _ in found], found[0][1]) for name, found in sorted(row.items())}
        for case, row in readings.items()
    }
    return Outcome(command, dict(facts), work.nbytes, cells)


def table(outcome: Outcome) -> list[Sequence[str]]:
    """Medians over rounds of the sum over all shares; memory is that of the largest, above what was there."""
    rows: list[Sequence[str]] = [
        ["saved by, read by", "", "GB/s", "CPU s", "MiB", "read / needed", "times faster than torch-dcp"]
    ]
    for (saved, read), row in outcome.cells.items():
        peer = row.get("torch-dcp")
        for name, cell in row.items():
            ratio = ""
            if peer is not None and cell is not peer:
                pairs = zip(peer.readings, cell.readings, strict=True)
                ratio = f"{median(theirs.seconds / ours.seconds for theirs, ours in pairs):.1f}"
            rate, amplified = outcome.nbytes / cell.seconds / 1e9, cell.read_bytes / outcome.nbytes
            rows.append(
                [
                    f"{saved}, {read}",
                    name,
                    f"{rate:.2f}",
                    f"{cell.cpu_seconds:.2f}",
                    f"{cell.peak_bytes / (1 << 20):.0f}",
                    f"{amplified:.2f}",
                    ratio,
                ]
            )
    return rows
