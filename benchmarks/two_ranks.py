"""A state that two gloo ranks hold halves of, saved and loaded by both at once: this library, and torch DCP.

Every parameter of a GPT under Adam is a DTensor split by rows. A task begins when both ranks are ready, and ends when
both are done.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from benchmarks.ballast import Ballast, prepare
from benchmarks.contenders.base import sync_directories
from benchmarks.facts import machine_facts
from benchmarks.measure import Footprint, Reading, footprint, measured
from benchmarks.ranks import start_ranks
from benchmarks.results import Run, Series, Task
from benchmarks.save_load import SAVES, Room, in_turn
from benchmarks.workloads import gpt_shapes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucpformat.storage.stores.store import Durability

__all__ = ["CONTENDERS", "compare_two_ranks"]

RANKS: Final = 2
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Ucp:
    note: str = "ucpformat's save and load, storage packed, CRC-32C made and verified"

    def save(self, state: State, path: Path, durability: Durability) -> None:
        from ucpformat.distributed.save_options import SaveOptions
        from ucpformat.state_dict.save_load import save_state

        save_state(path / "state.ucp", state, SaveOptions(durability=durability))

    def load(self, path: Path, into: State) -> None:
        from ucpformat.state_dict.save_load import load

        load(path / "state.ucp", into)


@dataclass(frozen=True, slots=True)
class _Dcp:
    threads: int

    @property
    def note(self) -> str:
        return f"dcp.save and dcp.load, thread_count={self.threads} a rank; nothing is checked"

    def save(self, state: State, path: Path, durability: Durability) -> None:
        from torch.distributed.checkpoint import state_dict_saver
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        writer = FileSystemWriter(path, thread_count=self.threads, sync_files=durability == "fsync")
        state_dict_saver.save(state, storage_writer=writer)
        if durability == "fsync" and dist.get_rank() == 0:
            sync_directories(path)

    def load(self, path: Path, into: State) -> None:
        from torch.distributed.checkpoint import state_dict_loader
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        state_dict_loader.load(into, storage_reader=FileSystemReader(path))


CONTENDERS: Final[dict[str, _Ucp | _Dcp]] = {
    "ucp-packed": _Ucp(),
    "torch-dcp": _Dcp(1),
    "torch-dcp-2-threads": _Dcp(2),
}


def _state(nbytes: int, mesh: Any, *, blank: bool) -> State:
    """The calling rank's rows of every parameter and moment; blank memory has been touched."""
    from torch.distributed.tensor import DTensor, Shard

    random = torch.Generator().manual_seed(dist.get_rank())
    found: State = {}
    for name, (rows, *rest) in gpt_shapes(nbytes // 12).items():
        shape = (max(1, rows // RANKS), *rest)
        for slot in ("value", "exp_avg", "exp_avg_sq"):
            local = torch.full(shape, -1.0) if blank else torch.rand(shape, generator=random) + 0.5
            found[f"{name}.{slot}"] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    return found


def _timed(work: Callable[[], None]) -> Reading:
    dist.barrier()

    def together() -> None:
        work()
        dist.barrier()

    return measured(together)


def _rank(rank: int, directory: str, nbytes: int, repeats: int, ballast: Ballast | None) -> None:
    import warnings

    from torch.distributed.device_mesh import init_device_mesh

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    state, into = _state(nbytes, mesh, blank=False), _state(nbytes, mesh, blank=True)
    room = Room(Path(directory, "room")) if rank == 0 else None
    readings: dict[str, dict[str, list[Any]]] = {name: defaultdict(list) for name in CONTENDERS}
    footprints: dict[str, Footprint] = {}
    for number in range(-1, repeats):
        for name in in_turn([*CONTENDERS], max(0, number)):
            contender = CONTENDERS[name]
            for what, durability in SAVES.items():
                told = [str(room.next()) if room is not None else ""]
                if rank == 0:
                    prepare(ballast, room=nbytes * 5 // 4)
                dist.broadcast_object_list(told)
                path = Path(told[0])
                found = {what: _timed(partial(contender.save, state, path, durability))}
                if durability == "none":
                    if rank == 0:
                        prepare(ballast, path)
                    found["load"] = _timed(partial(contender.load, path, into))
                    footprints[name] = footprint(path)
                if number >= 0:
                    for task, reading in found.items():
                        readings[name][task].append(asdict(reading))
            if number < 0:
                for key, tensor in into.items():
                    if not torch.equal(tensor.to_local(), state[key].to_local()):
                        raise ValueError(f"{name} brought back other values of {key}")
                    tensor.to_local().fill_(-1.0)
    told_bytes = sum(tensor.to_local().nbytes for tensor in state.values())
    Path(directory, f"{rank}.json").write_text(
        json.dumps([told_bytes, len(state), readings, footprints]), encoding="utf-8"
    )
    dist.barrier()
    dist.destroy_process_group()


def compare_two_ranks(
    nbytes: int, repeats: int, directory: Path, command: str, ballast: Ballast | None = None
) -> Run:
    """Everybody in turn, after a round that warms up and compares; the slower rank's time, both ranks' processors."""
    facts = machine_facts(directory, steady=ballast is not None)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        Path(place, "room").mkdir()
        start_ranks(_rank, (place, nbytes, repeats, ballast), RANKS)
        found = [json.loads(Path(place, f"{rank}.json").read_text("utf-8")) for rank in range(RANKS)]
    series: dict[Task, Series] = {}
    for name in CONTENDERS:
        for what in found[0][2][name]:
            rounds = zip(*(one[2][name][what] for one in found), strict=True)
            series[Task(name, what)] = Series(
                [
                    Reading(
                        max(reading["seconds"] for reading in both),
                        sum(reading["cpu_seconds"] for reading in both),
                        max(reading["peak_bytes"] for reading in both),
                    )
                    for both in rounds
                ]
            )
    return Run(
        command,
        facts,
        sum(one[0] for one in found),
        found[0][1],
        {name: contender.note for name, contender in CONTENDERS.items()},
        series,
        {name: Footprint(*sizes) for name, sizes in found[0][3].items()},
    )
