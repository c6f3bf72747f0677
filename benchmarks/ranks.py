"""Ranks of one machine: forks of one process that has imported torch, which takes seconds."""

from __future__ import annotations

from multiprocessing import set_forkserver_preload
from typing import TYPE_CHECKING, Any

from torch.multiprocessing.spawn import start_processes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["start_ranks"]


def start_ranks(work: Callable[..., None], arguments: tuple[Any, ...], ranks: int) -> None:
    """Call ``work`` with its rank and the arguments in so many processes; return when all have ended."""
    set_forkserver_preload(
        ["torch", "torch.distributed.checkpoint", "torch.distributed.tensor", work.__module__]
    )
    start_processes(work, arguments, ranks, start_method="forkserver")  # type: ignore[no-untyped-call]
