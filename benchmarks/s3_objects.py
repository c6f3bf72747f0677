"""Saving to and loading from S3 on loopback, each answer late: this library, torch's DCP, and s3fs alone.

Everybody goes through one s3fs, which fsspec keeps for a process, to one server (`benchmarks.s3_server`), which counts.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fsspec

from benchmarks.facts import Facts, machine_facts
from benchmarks.measure import Reading, measured
from benchmarks.reshard import AsRank
from benchmarks.s3_server import BUCKET, Counts, S3Server, served
from benchmarks.state import filled
from benchmarks.workloads import workload
from ucpformat.geometry import Box
from ucpformat.model.dtype import dtype_of
from ucpformat.reader import open_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.state import Array, TrainingState

__all__ = ["S3Outcome", "compare_s3", "table"]

_RANK, _RANKS = 3, 8
_CALL_BYTES: Final = 1 << 22
_OBJECTS: Final = 2


class Call(NamedTuple):
    """One save or load: what it took here, and what the server was asked."""

    reading: Reading
    counts: Counts


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
        specs = [
            AtomSpec(atom, {slot: SlotSpec(dtype_of(a.dtype).name, a.shape) for slot, a in slots.items()})
            for atom, slots in state.atoms.items()
        ]
        with CheckpointWriter(f"{url}/state.ucp", specs) as writer:
            for atom, slots in state.atoms.items():
                for slot, array in slots.items():
                    writer.submit(atom, slot, array)

    def load(self, url: str, into: TrainingState) -> None:
        with open_checkpoint(f"{url}/state.ucp", verify=self._verify) as checkpoint:
            checkpoint.load(
                {(atom, slot): a for atom, slots in into.atoms.items() for slot, a in slots.items()}
            )

    def load_share(self, url: str, share: _Share, _: TrainingState) -> None:
        with open_checkpoint(f"{url}/state.ucp", verify=self._verify) as checkpoint:
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
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        writer = FsspecWriter(url, thread_count=_OBJECTS, sync_files=False)
        state_dict_saver.save(dict(state.tensors), storage_writer=writer, no_dist=True)

    def load(self, url: str, into: TrainingState) -> None:
        self._load(url, dict(into.tensors))

    def load_share(self, url: str, share: _Share, whole: TrainingState) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor import Shard as Sharded

        mesh = init_device_mesh("cpu", (_RANKS,))
        self._load(
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

    def _load(self, url: str, tensors: dict[str, Any]) -> None:
        from torch.distributed.checkpoint import state_dict_loader
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        state_dict_loader.load(tensors, storage_reader=FsspecReader(url), no_dist=True)


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

    def load_share(self, url: str, share: _Share, _: TrainingState) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class S3Outcome:
    """Readings of every task, round by round."""

    command: str
    facts: Facts
    milliseconds: int
    nbytes: dict[str, int]
    calls: dict[tuple[str, str], list[Call]]

    def to_json(self) -> dict[str, Any]:
        """Every reading."""
        return {
            "schema": "ucpformat-benchmark-s3-1",
            "command": self.command,
            "facts": self.facts,
            "milliseconds": self.milliseconds,
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


_TASKS: Final = {
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
    directory: Path,
    command: str,
    report: Callable[[str], None],
) -> S3Outcome:
    """Every task by everybody in turn, after a round that checks what was loaded."""
    state = workload(state_name, nbytes)
    into, share = state.blank(), _Share.of(state)
    contenders: dict[str, Any] = {
        "ucp": _Ucp(verify=True),
        "ucp-unverified": _Ucp(verify=False),
        "torch-dcp": _Dcp(),
        "s3fs": _S3fs(state.nbytes),
    }
    facts = machine_facts(directory)
    calls: dict[tuple[str, str], list[Call]] = defaultdict(list)
    with served(milliseconds) as server, _through(server):
        for number in range(-1, repeats):
            report("warming up" if number < 0 else f"round {number + 1} of {repeats}")
            urls = {name: f"s3://{BUCKET}/{name}-{number}" for name in contenders}
            urls["ucp-unverified"] = urls["ucp"]
            for task, names in _TASKS.items():
                start = number % len(names)
                for name in [*names[start:], *names[:start]]:
                    one, url = contenders[name], urls[name]
                    works: dict[str, Callable[[], None]] = {
                        "save": functools.partial(one.save, url, state),
                        "load": functools.partial(one.load, url, into),
                        "load a share": functools.partial(one.load_share, url, share, state),
                    }
                    if number < 0:
                        into.erase()
                    server.counts()
                    with AsRank(_RANK, _RANKS) if task == "load a share" else nullcontext():
                        reading = measured(works[task])
                    counts = server.counts()
                    if number >= 0:
                        calls[task, name].append(Call(reading, counts))
                    elif task == "load" and name != "s3fs" and (wrong := state.differing(into)) is not None:
                        raise ValueError(f"{name} brought back other values of {wrong}")
                    elif task == "load a share":
                        share.check(state, name)
            fsspec.filesystem("s3").rm(list(dict.fromkeys(urls.values())), recursive=True)
    sizes = {"save": state.nbytes, "load": state.nbytes, "load a share": share.nbytes}
    return S3Outcome(command, facts, milliseconds, sizes, dict(calls))


@contextmanager
def _through(server: S3Server) -> Iterator[None]:
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
    for task, names in _TASKS.items():
        needed = outcome.nbytes[task]
        for name in names:
            calls = outcome.calls[task, name]
            pairs = zip(outcome.calls[task, "torch-dcp"], calls, strict=True)
            ratio = median(theirs.reading.seconds / ours.reading.seconds for theirs, ours in pairs)
            moved = median(call.counts.received + call.counts.sent for call in calls)
            rows.append(
                [
                    task,
                    name,
                    f"{needed / median(call.reading.seconds for call in calls) / 1e9:.3f}",
                    f"{median(call.reading.cpu_seconds for call in calls):.2f}",
                    f"{median(call.reading.peak_bytes for call in calls) / (1 << 20):.0f}",
                    f"{median(call.counts.requests for call in calls):.0f}",
                    f"{moved / needed:.2f}",
                    "" if name == "torch-dcp" else f"{ratio:.1f}",
                ]
            )
    return rows
