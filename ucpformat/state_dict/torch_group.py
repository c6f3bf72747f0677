"""A process group of torch.distributed as a `Group`: bytes travel as tensors of bytes, nothing is pickled."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ucpformat.distributed.group import Group, OneProcess, another
from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ucpformat.distributed.group import Bytes, Group

__all__ = [
    "TorchGroup",
    "group_of",
    "job_group",
    "own_group",
    "started_by_torchrun",
]


def group_of(group: object) -> Group:
    """Return ``group`` itself, that of a torch process group, or of the job's default one; without any, this process.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where this process is not in the group, and for what is none.
    """
    if group is not None and hasattr(group, "ranks") and hasattr(group, "all_gather"):
        return group  # type: ignore[return-value]
    torch = sys.modules.get("torch")
    if group is None and (
        torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized()
    ):
        return OneProcess()
    if group is not None and not hasattr(group, "rank"):
        raise error("UCP-E-MISMATCH", f"group= is a process group of torch, not {group!r}", at="group")
    return TorchGroup(group)


def own_group(group: object) -> Group:
    """Return what `group_of` returns, apart from the job's own collectives: a `Group` as it is, else a new one.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` where this process is not in the group.
    """
    found = group_of(group)
    return found if found is group else another(found)


@contextmanager
def _talking() -> Iterator[None]:
    """Raise what torch raises where a process is gone or does not answer in time, as a registered error.

    gloo and NCCL raise plain `RuntimeError`, or classes of torch made from it.
    """
    try:
        yield
    except RuntimeError as reason:
        said = str(reason).partition("\n")[0]
        message = (
            f"another process of the job is gone, or did not answer in time; start the job again: {said}"
        )
        raise error("UCP-E-RANK", message) from reason


class TorchGroup:
    """Wraps a process group; None is the default one.

    Bytes lie in host memory where the group has a backend for it (gloo), else on the current device. Where a process
    is gone, or the group's time limit has passed, methods raise `StoreError` (``UCP-E-RANK``).
    """

    def __init__(self, group: Any = None) -> None:
        import torch
        import torch.distributed as dist

        self._group: Any = group
        if group is None:
            self._group = dist.group.WORLD
        self.rank: int = dist.get_rank()
        self.ranks: Sequence[int] = tuple(dist.get_process_group_ranks(self._group))
        if self.rank not in self.ranks:
            raise error("UCP-E-MISMATCH", f"rank {self.rank} is not in the process group that was given")
        devices = [device.type for device in self._group._device_types]
        self._device = torch.device("cpu" if "cpu" in devices else devices[0])

    @property
    def members(self) -> object:
        """The process group itself."""
        return self._group

    def another(self) -> TorchGroup:
        """Return a gloo group of the same ranks; no other rank of the job needs to take part."""
        import torch.distributed as dist

        with _talking():
            group = dist.new_group(list(self.ranks), backend="gloo", use_local_synchronization=True)
        return TorchGroup(group)

    @_talking()
    def all_gather(self, data: bytes) -> list[bytes]:
        """Return what every process gave."""
        import torch
        import torch.distributed as dist

        sizes = self._sizes(len(data))
        mine = self._padded(data, max(sizes))
        found = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(found, mine, group=self._group)
        return [self._bytes(one, size) for one, size in zip(found, sizes, strict=True)]

    @_talking()
    def gather(self, data: bytes) -> list[bytes] | None:
        """Gather as `all_gather`, for the first process."""
        import torch
        import torch.distributed as dist

        sizes = self._sizes(len(data))
        mine = self._padded(data, max(sizes))
        first = self.ranks[0]
        found = [torch.empty_like(mine) for _ in sizes] if self.rank == first else None
        dist.gather(mine, found, dst=first, group=self._group)
        if found is None:
            return None
        return [self._bytes(one, size) for one, size in zip(found, sizes, strict=True)]

    @_talking()
    def broadcast(self, data: bytes) -> bytes:
        """Return what the first process gave."""
        import torch
        import torch.distributed as dist

        first = self.ranks[0]
        size = torch.tensor([len(data)], dtype=torch.int64, device=self._device)
        dist.broadcast(size, src=first, group=self._group)
        buffer = self._padded(data if self.rank == first else b"", int(size.item()))
        dist.broadcast(buffer, src=first, group=self._group)
        return self._bytes(buffer, int(size.item()))

    @_talking()
    def exchange(self, sends: Mapping[int, Bytes], receives: Mapping[int, Bytes]) -> None:
        """Exchange messages with other processes, all at once."""
        import torch
        import torch.distributed as dist

        operations = []
        arriving = []
        for rank, message in sends.items():
            if message.size:
                # Torch warns of memory that may not be written to, though nobody does.
                readable = message if message.flags.writeable else message.copy()
                data = torch.from_numpy(readable).to(self._device)
                operations.append(dist.P2POp(dist.isend, data, rank, self._group))
        for rank, memory in receives.items():
            if memory.size:
                into = torch.from_numpy(memory)
                data = into if self._device.type == "cpu" else torch.empty_like(into, device=self._device)
                operations.append(dist.P2POp(dist.irecv, data, rank, self._group))
                arriving.append((into, data))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for into, data in arriving:
            if into is not data:
                into.copy_(data)

    @_talking()
    def greatest(self, number: int) -> Callable[[], int]:
        """Begin to find the greatest number of all processes; what is returned waits for it.

        Numbers lie between -2^31 and 2^31.
        """
        import torch
        import torch.distributed as dist

        found = torch.tensor([number], dtype=torch.int32, device=self._device)
        work = dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group, async_op=True)

        @_talking()
        def wait() -> int:
            work.wait()
            return int(found.item())

        return wait

    def _sizes(self, size: int) -> list[int]:
        import torch
        import torch.distributed as dist

        mine = torch.tensor([size], dtype=torch.int64, device=self._device)
        found = [torch.empty_like(mine) for _ in self.ranks]
        dist.all_gather(found, mine, group=self._group)
        return [int(one.item()) for one in found]

    def _padded(self, data: bytes, size: int) -> Any:
        import torch

        # Collectives of nothing are not supported everywhere.
        buffer = torch.zeros(max(1, size), dtype=torch.uint8)
        if data:
            buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return buffer.to(self._device)

    @staticmethod
    def _bytes(buffer: Any, size: int) -> bytes:
        return bytes(buffer[:size].cpu().numpy().tobytes())


def started_by_torchrun() -> bool:
    """Return whether this process is one of several ranks of torchrun's."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


@contextmanager
def job_group() -> Iterator[Group]:
    """Provide all ranks of the job: its default process group, or one over gloo that is joined here and left again.

    Raises:
        StoreError: ``UCP-E-STORE`` where torch is missing, ``UCP-E-RANK`` where there is no job to join.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise error("UCP-E-STORE", "torch is missing, which joins the ranks of a job") from None
    if dist.is_initialized():
        yield TorchGroup()
        return
    try:
        dist.init_process_group("gloo")
    except (ValueError, RuntimeError) as problem:
        raise error("UCP-E-RANK", f"there is no job to join, start it with torchrun: {problem}") from problem
    try:
        yield TorchGroup()
    finally:
        with suppress(Exception):
            dist.destroy_process_group()
