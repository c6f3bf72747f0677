"""One rank of a job that trains under FSDP2, tensor parallelism or DDP, and saves each step with ``fence=``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ucpformat as ucp
from tests.processes import join, leave
from ucpformat.distributed import later_copies
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.snapshot import Copied, HostCopier
from ucpformat.state_dict.stateful import state_to_save

STEPS = 3


def split(model: nn.Module, how: str, world: int) -> nn.Module:
    """Let ranks hold a model in one of three ways."""
    mesh = init_device_mesh("cpu", (world,))
    if how == "fsdp":
        fully_shard(model[0], mesh=mesh)  # type: ignore[index]
        fully_shard(model, mesh=mesh)
    elif how == "tp":
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:
        return DistributedDataParallel(model)
    return model


def wholes(state: Any) -> dict[str, Any]:
    """Return copies of the whole tensors of a state, by their paths."""
    found: dict[str, Any] = {}

    def walk(one: Any, at: str) -> None:
        if isinstance(one, dict):
            for key, value in one.items():
                walk(value, f"{at}.{key}")
        elif isinstance(one, list | tuple):
            walk(dict(enumerate(one)), at)
        elif isinstance(one, torch.Tensor):
            whole = one.full_tensor() if hasattr(one, "full_tensor") else one
            found[at] = whole.detach().numpy().copy()
        elif isinstance(one, np.ndarray):
            found[at] = one

    walk(state, "")
    return found


class Late(HostCopier):
    """Copies behind a call when the gradients of the next step are there; fails when it is told to."""

    def __init__(self, fails: bool) -> None:
        super().__init__(1)
        self.fails = fails
        self.let = threading.Event()

    def copy(self, local: LocalState, copies: Any, memory: Any) -> Copied:
        """Wait, and copy."""
        if threading.current_thread() is not threading.main_thread():
            assert self.let.wait(100)
            if self.fails:
                raise OSError("no memory")
        done: Copied = super().copy(local, copies, memory)
        return done


def main() -> None:
    """Train, save, go on, and compare what was saved with what was there at the save."""
    rank, world = join()
    directory, how = Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    model = split(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), how, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = {"model": model, "optim": optimizer}
    torch.manual_seed(1 if how == "tp" else 1 + rank)

    copier = Late(False)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        copier.let.set()
        optimizer.step()

    later_copies._AT_ONCE = 256  # type: ignore[misc]
    train()
    expected = []
    with ucp.AsyncSaver(fence=optimizer) as saver:
        for step in range(STEPS):
            saver._saver._copier = copier = Late(False)
            expected.append(wholes(state_to_save(state)))
            save = saver.save(directory / f"{step}.ucp", state, step=step)
            train()
            save.wait()
        # One rank cannot copy: all hear of it, train on, and save again.
        saver._saver._copier = copier = Late(rank == world - 1)
        save = saver.save(directory / "failed.ucp", state)
        train()
        with pytest.raises(OSError if rank == world - 1 else ucp.UcpError):
            save.wait()
        saver._saver._copier = copier = Late(False)
        expected.append(wholes(state_to_save(state)))
        save = saver.save(directory / f"{STEPS}.ucp", state, step=STEPS)
        train()
        save.wait()
    dist.barrier()
    assert not (directory / "failed.ucp" / "ucp.json").exists()
    if rank == 0:
        for step, values in enumerate(expected):
            assert list(ucp.validate(directory / f"{step}.ucp")) == []
            found = wholes(ucp.load(directory / f"{step}.ucp"))
            assert found.keys() == values.keys()
            for name, value in values.items():
                assert np.array_equal(found[name], value), (step, name)
        later = wholes(state_to_save(state)) if how == "ddp" else expected[0]
        assert any(not np.array_equal(later[name], expected[-1][name]) for name in later), "training went on"
    leave()


if __name__ == "__main__":
    main()
