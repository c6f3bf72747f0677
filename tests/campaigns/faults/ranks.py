"""Ranks that are processes of a gloo job, of which one meets the fault."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import ucpformat as ucp
from tests.campaigns.faults.state import state
from ucpformat.distributed.save import SaveOptions
from ucpformat.state_dict.save_load import save_state

__all__ = ["act", "ranks_of_a_job", "saves_as_rank"]

_ALONE = 40.0
"""Seconds that ranks have to end; gloo hears of a death at once."""


def act(is_acting: bool) -> None:
    """Whether the calls of this process are counted, and may meet the fault."""
    with suppress(AttributeError):  # where the shim is not loaded
        ctypes.CDLL(None).ucp_fault_act(ctypes.c_int(is_acting))


def saves_as_rank(
    world: int, storage: str, compressor: Any = None, *, number: int = 1, base: str | None = None
) -> Callable[[Path], None]:
    """A save of rows by ``world`` ranks, in a process of such a job; an increment of ``base`` beside it, if given."""

    def save(path: Path) -> None:
        import torch.distributed as dist

        rank = dist.get_rank()
        mesh = ucp.Mesh((ucp.MeshAxis("dp", world),))
        layouts = {"model.w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (300,))}
        held = state(number)
        rows = 300 // world
        held["model"]["w"] = held["model"]["w"][rows * rank :][:rows]
        whose = None if base is None else str(path / base)
        options: Any = SaveOptions(storage, 256, None, base=whose)  # type: ignore[arg-type]
        save_state(path / "c.ucp", held, options, layouts=layouts, compressor=compressor)

    return save


def ranks_of_a_job(
    world: int,
    victim: int,
    path: Path,
    rank_of: Callable[[Callable[[], None]], None],
    work: Callable[[Path], None],
) -> dict[int, int]:
    """Fork the ranks, and return how each has ended, by waitpid's exit code.

    ``rank_of`` does what it is given and ends the process with what came of it.
    """
    rendezvous = path.with_name("rendezvous")
    children: dict[int, int] = {}
    for rank in range(world):
        child = os.fork()
        if child == 0:
            rank_of(lambda rank=rank: _as_rank(rank, world, victim, rendezvous, path, work))  # type: ignore[misc]
            os._exit(1)
        children[child] = rank
    ended: dict[int, int] = {}
    until = time.monotonic() + _ALONE
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ended[children.pop(child)] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > until:
            for child in children:
                os.kill(child, signal.SIGABRT)
            until += _ALONE
        else:
            time.sleep(0.002)
    with suppress(FileNotFoundError):
        rendezvous.unlink()
    return ended


def _as_rank(
    rank: int, world: int, victim: int, rendezvous: Path, path: Path, work: Callable[[Path], None]
) -> None:
    import torch.distributed as dist

    act(False)
    dist.init_process_group(
        "gloo",
        init_method=rendezvous.as_uri(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    dist.barrier()  # or the others are still connecting when the victim dies
    act(rank == victim)
    work(path)
    act(False)


def told(ended: Mapping[int, int]) -> str:
    """How ranks have ended, in words."""
    return json.dumps(dict(sorted(ended.items())))
