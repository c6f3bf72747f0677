"""Saving to and loading from S3 on loopback, each answer late: this library, torch's DCP, and s3fs alone.

Everybody goes through one s3fs, which fsspec keeps for a process, to one server (`benchmarks.s3_server`), which counts.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fsspec

from benchmarks.contenders.ours import NAME, load_state, save_state
from benchmarks.facts import Facts, machine_facts
from benchmarks.measure import Reading, measured
from benchmarks.objects import Load, cells, fsspec_of_dcp, load_by_dcp
from benchmarks.reshard import AsRank
from benchmarks.s3_server import BUCKET, Counts, S3Server, served
from benchmarks.save_load import in_turn
from benchmarks.state import filled
from benchmarks.workloads import workload
from ucpformat.geometry import Box
from ucpformat.reader import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.state import Array, TrainingState

__all__ = ["TASKS", "S3Outcome", "compare_s3", "table", "through"]

_RANK, _RANKS = 3, 8
_CALL_BYTES: Final = 1 << 22
_OBJECTS: Final = 2


class Call(NamedTuple):
    """One save or load: what it took here, and what the server was asked."""

    reading: Reading
    counts: Counts

    @property
    def load(self) -> Load:
        """For the table: bytes both ways."""
        return Load(self.reading, self.counts.requests, self.counts.received + self.counts.sent)


class _Share(NamedTuple):
    """The rows of every matrix that one rank of eight holds, as torch's ``Shard(0)`` divides them."""

    first: dict[tuple[str, str], int]
    arrays: dict[tuple[str, str], Array]

    @classmethod
    def of(cls, state: TrainingState) -> _Share:
        first, arrays = {}, {}
        for atom, slots in state.atoms.items():
            for slot, array in slots.items():
                if array.ndim == 2:
                    rows = -(-array.shape[0] // _RANKS)
                    start = min(_RANK * rows, array.shape[0])
                    count = min(rows, array.shape[0] - start)
                    first[atom, slot] = start
                    arrays[atom, slot] = filled((count, array.shape[1]), array.dtype, -1.0)
        return cls(first, arrays)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def check(self, state: TrainingState, who: str) -> None:
        for (atom, slot), array in self.arrays.items():
            start = self.first[atom, slot]
            if not (array == state.atoms[atom][slot][start : start + len(array)]).all():
                raise ValueError(f"{who} brought back other rows of {atom}/{slot}")
            array.fill(-1.0)


class _Ucp:
    def __init__(self, *, verify: bool) -> None:
        self._verify = verify

    def save(self, url: str, state: TrainingState) -> None:
        save_state(url, state)

    def load(self, url: str, into: TrainingState) -> None:
        load_state(url, into, verify=self._verify)

    def load_share(self, url: str, share: _Share, _: TrainingState) -> None:
        with open_checkpoint(f"{url}/{NAME}", verify=self._verify) as checkpoint:
            checkpoint.read_boxes(
                [
                    (checkpoint[atom][slot].stored, Box((share.first[atom, slot], 0), array.shape), array)
                    for (atom, slot), array in share.arrays.items()
                ]
            )


class _Dcp:
    """Two threads, two files, as where DCP is measured on disks; without ``os.sync``, which means nothing here."""

    def save(self, url: str, state: TrainingState) -> None:
        from torch.distributed.checkpoint import state_dict_saver

        writer = fsspec_of_dcp().FsspecWriter(url, thread_count=_OBJECTS, sync_files=False)
        state_dict_saver.save(dict(state.tensors), storage_writer=writer, no_dist=True)

    def load(self, url: str, into: TrainingState) -> None:
        load_by_dcp(url, dict(into.tensors))

    def load_share(self, url: str, share: _Share, whole: TrainingState) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor import Shard as Sharded

        mesh = init_device_mesh("cpu", (_RANKS,))
        load_by_dcp(
            url,
            {
                f"{atom}.{slot}": DTensor.from_local(
                    torch.from_numpy(array),
                    mesh,
                    [Sharded(0)],
                    run_check=False,
                    shape=torch.Size(whole.atoms[atom][slot].shape),
                    stride=(array.shape[1], 1),
                )
                for (atom, slot), array in share.arrays.items()
            },
        )


class _S3fs:
    """As many bytes, which are no checkpoint: two objects by ``pipe``, and ``cat_ranges`` of 4 MiB each."""

    def __init__(self, nbytes: int) -> None:
        self._data = bytes(range(1, 251)) * (nbytes // _OBJECTS // 250)

    def save(self, url: str, _: TrainingState) -> None:
        fsspec.filesystem("s3").pipe({f"{url}/{number}": self._data for number in range(_OBJECTS)})

    def load(self, url: str, _: TrainingState) -> None:
        starts = range(0, len(self._data), _CALL_BYTES)
        calls = [(f"{url}/{number}", start) for number in range(_OBJECTS) for start in starts]
        ends = [min(start + _CALL_BYTES, len(self._data)) for _, start in calls]
        found = fsspec.filesystem("s3").cat_ranges(
            [path for path, _ in calls], [start for _, start in calls], ends
        )
        assert sum(map(len, found)) == _OBJECTS * len(self._data)


@dataclass(frozen=True, slots=True)
class S3Outcome:
    """Readings of every task, round by round."""

    command: str
    facts: Facts
    milliseconds: int
    per_connection: float
    nbytes: dict[str, int]
    calls: dict[tuple[str, str], list[Call]]

    def to_json(self) -> dict[str, Any]:
        """Every reading."""
        return {
            "schema": "ucpformat-benchmark-s3-1",
            "command": self.command,
            "facts": self.facts,
            "milliseconds": self.milliseconds,
            "per connection, MB/s": self.per_connection,
            "bytes": self.nbytes,
            "tasks": [
                {
                    "task": task,
                    "contender": name,
                    "readings": [{**asdict(call.reading), **call.counts._asdict()} for call in calls],
                }
                for (task, name), calls in self.calls.items()
            ],
        }


TASKS: Final = {
    "save": ("ucp", "torch-dcp", "s3fs"),
    "load": ("ucp", "ucp-unverified", "torch-dcp", "s3fs"),
    "load a share": ("ucp", "ucp-unverified", "torch-dcp"),
}


def compare_s3(
    *,
    state_name: str,
    nbytes: int,
    repeats: int,
    milliseconds: int,
    per_connection: float,
    tasks: Sequence[str],
    directory: Path,
    command: str,
    report: Callable[[str], None],
) -> S3Outcome:
    """Every task by everybody in turn, after a round that checks what was loaded.

    ``per_connection``: what a connection carries, in MB/s; 0 for no limit. ``tasks``: of `TASKS`, which begin with
    saving, since the others load that.
    """
    state = workload(state_name, nbytes)
    into, share = state.blank(), _Share.of(state)
    contenders: dict[str, Any] = {
        "ucp": _Ucp(verify=True),
        "ucp-unverified": _Ucp(verify=False),
        "torch-dcp": _Dcp(),
        "s3fs": _S3fs(state.nbytes),
    }
    works: dict[str, tuple[str, tuple[Any, ...]]] = {
        "save": ("save", (state,)),
        "load": ("load", (into,)),
        "load a share": ("load_share", (share, state)),
    }
    facts = machine_facts(directory)
    calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
    with served(milliseconds, per_connection) as server, through(server):
        for number in range(-1, repeats):
            report("warming up" if number < 0 else f"round {number + 1} of {repeats}")
            urls = {name: f"s3://{BUCKET}/{name}-{number}" for name in contenders}
            urls["ucp-unverified"] = urls["ucp"]
            for task, names in TASKS.items():
                if task not in tasks:
                    continue
                method, given = works[task]
                for name in in_turn(names, number):
                    work = functools.partial(getattr(contenders[name], method), urls[name], *given)
                    if number < 0:
                        into.erase()
                    server.counts()
                    with AsRank(_RANK, _RANKS) if task == "load a share" else nullcontext():
                        reading = measured(work)
                    counts = server.counts()
                    if number >= 0:
                        calls[task, name].append(Call(reading, counts))
                    elif task == "load" and name != "s3fs" and (wrong := state.differing(into)) is not None:
                        raise ValueError(f"{name} brought back other values of {wrong}")
                    elif task == "load a share":
                        share.check(state, name)
            fsspec.filesystem("s3").rm(list(dict.fromkeys(urls.values())), recursive=True)
    sizes = {"save": state.nbytes, "load": state.nbytes, "load a share": share.nbytes}
    return S3Outcome(command, facts, milliseconds, per_connection, sizes, dict(calls))


@contextmanager
def through(server: S3Server) -> Iterator[None]:
    """s3fs asks that server, whoever uses it."""
    fsspec.config.conf["s3"] = server.options()
    filesystem = fsspec.get_filesystem_class("s3")
    filesystem.clear_instance_cache()
    yield
    del fsspec.config.conf["s3"]
    filesystem.clear_instance_cache()


def table(outcome: S3Outcome) -> list[Sequence[str]]:
    """Medians; how many times faster than torch's, within rounds."""
    rows: list[Sequence[str]] = [
        ["", "", "GB/s", "CPU s", "MiB", "requests", "bytes / needed", "times faster than torch-dcp"]
    ]
    for task, names in TASKS.items():
        if (task, names[0]) not in outcome.calls:
            continue
        needed = outcome.nbytes[task]
        loads = {name: [call.load for call in outcome.calls[task, name]] for name in names}
        rows += [[task, name, *cells(loads[name], loads["torch-dcp"], needed, digits=3)] for name in names]
    return rows
