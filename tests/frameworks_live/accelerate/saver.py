"""A rank of a job that trains a little and saves by ``Accelerator.save_state`` into the folder that is given."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
from accelerate import Accelerator

from tests.processes import join, leave


class Counter:
    """What a job registers beside models and optimizers."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": 5}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nothing is loaded")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rank, _ = join()
    # Accelerate asks for them, and finds the group made.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_RANK=str(rank))
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(rank)
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    accelerator.register_for_checkpointing(Counter())
    for _ in range(2):
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(3, 4)).sum())
        optimizer.step()
        scheduler.step()
    accelerator.save_state(sys.argv[1])
    leave()
