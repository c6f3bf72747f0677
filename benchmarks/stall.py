"""For how long an asynchronous save keeps training: beside a plain copy of the same bytes, and beside torch's.

All of it runs in one process, a group of one rank, in turn, in rounds of another order each; the state lies in host
memory, or on the accelerator where there is one. The bound copies every tensor into one array that exists and is
touched: pageable memory, or pinned for a device, where it waits for the device at the end.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import ucpformat as ucp
from benchmarks.ballast import Ballast, prepare
from benchmarks.workloads import workload

__all__ = ["CONTENDERS", "Stalls", "measure", "plain_copy"]

State = dict[str, Any]

_BOUND: Final = "copy"


@dataclass(slots=True)
class Stalls:
    """Seconds by contender and round: until training may go on, and until everything is written.

    ``device`` says where the state lay; ``arena_bytes`` what our saver kept.
    """

    device: str
    nbytes: int
    stalled: dict[str, list[float]] = field(default_factory=dict)
    whole: dict[str, list[float]] = field(default_factory=dict)
    arena_bytes: int = 0

    def ratios(self, name: str) -> list[float]:
        """Stalls over those of the bound in the same round."""
        return [mine / bound for mine, bound in zip(self.stalled[name], self.stalled[_BOUND], strict=True)]

    def text(self) -> str:
        """A table: medians, and the median ratio with the least and the greatest."""
        lines = [
            f"{self.nbytes / (1 << 20):.0f} MiB on {self.device}, {len(self.stalled[_BOUND])} rounds",
            f"arena {self.arena_bytes / (1 << 20):.0f} MiB",
            f"{'':24}{'stall ms':>10}{'over copy':>11}{'(range)':>16}{'whole ms':>10}",
        ]
        for name, stalled in self.stalled.items():
            ratios = self.ratios(name)
            lines.append(
                f"{name:24}{1e3 * statistics.median(stalled):>10.1f}{statistics.median(ratios):>11.2f}"
                f"{f'{min(ratios):.2f}-{max(ratios):.2f}':>16}{1e3 * statistics.median(self.whole[name]):>10.1f}"
            )
        return "\n".join(lines) + "\n"


Save = Callable[[State, Path], Callable[[], object]]
"""Returns when training may go on, with what waits for the rest."""


def plain_copy(device: str, nbytes: int) -> Save:
    """Return what copies a state into one array of so many bytes, tensor by tensor; its path has no meaning."""
    target = torch.ones(nbytes, dtype=torch.uint8, pin_memory=device != "cpu")

    def save(state: State, path: Path) -> Callable[[], object]:
        start = 0
        for tensor in state.values():
            place = target[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor, non_blocking=True)
            start += -(-tensor.nbytes // 64) * 64
        if device != "cpu":
            torch.accelerator.synchronize()
        return lambda: None

    return save


def _torch(**options: Any) -> Save:
    def save(state: State, path: Path) -> Callable[[], object]:
        response: Any = dcp.async_save(state, checkpoint_id=path, **options)  # type: ignore[attr-defined]
        wait: Callable[[], object] = response.result
        return wait

    return save


def _kept(device: str) -> DefaultStager:
    """Torch's stager with memory that is kept, and a copy that is over when the call returns."""
    pinned = device != "cpu"
    return DefaultStager(StagingOptions(pinned, False, False, pinned))


CONTENDERS: Final = (_BOUND, "ucp", "torch-dcp", "torch-dcp-cached")


def measure(
    nbytes: int,
    repeats: int,
    directory: Path,
    report: Callable[[str], None],
    *,
    ballast: Ballast | None = None,
) -> Stalls:
    """``repeats`` rounds, after one that warms up: arenas and caches exist then."""
    device = "cpu" if not torch.accelerator.is_available() else torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    arrays = workload("gpt", nbytes)
    state = {name: tensor.to(device) for name, tensor in arrays.tensors.items()}
    room = sum(-(-tensor.nbytes // 64) * 64 for tensor in state.values())
    found = Stalls(device, arrays.nbytes)
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as name,
        _group_of_one(),
        ucp.AsyncSaver() as saver,
        closing(_kept(device)) as stager,
    ):

        def ours(state: State, path: Path) -> Callable[[], object]:
            return saver.save(path, {"model": state}).wait

        saves: dict[str, Save] = {
            _BOUND: plain_copy(device, room),
            "ucp": ours,
            "torch-dcp": _torch(),
            "torch-dcp-cached": _torch(async_stager=stager),
        }
        for number in range(repeats + 1):
            report(f"round {number} of {repeats}" if number else "warming up")
            order = list(saves) if number % 2 else list(saves)[::-1]
            for contender in order:
                path = Path(name) / f"{contender}-{number}"
                prepare(ballast)
                began = time.perf_counter()
                try:
                    wait = saves[contender](state, path)
                    stalled = time.perf_counter() - began
                    wait()
                except Exception as problem:
                    if contender in {_BOUND, "ucp"}:
                        raise
                    report(f"{contender} cannot save this here, and is left out: {problem!r}")
                    for table in (saves, found.stalled, found.whole):
                        table.pop(contender, None)
                    continue
                whole = time.perf_counter() - began
                shutil.rmtree(path, ignore_errors=True)
                if number:
                    found.stalled.setdefault(contender, []).append(stalled)
                    found.whole.setdefault(contender, []).append(whole)
        found.arena_bytes = saver.arena_bytes
    found.stalled = {one: found.stalled[one] for one in CONTENDERS if one in found.stalled}
    return found


@contextmanager
def _group_of_one() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as scratch:
        rendezvous = Path(scratch, "rendezvous").as_uri()
        dist.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()
