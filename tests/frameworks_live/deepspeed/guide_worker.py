"""One rank that types the block of docs/guides/deepspeed.md, in the directory that is given."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import pytest
import torch

import ucpformat as ucp
from tests.documentation.markdown import run_by
from tests.documentation.running import Reader
from tests.processes import join, leave
from ucpformat.integrations.deepspeed import save_state

if __name__ == "__main__":
    rank, world = join()
    os.chdir(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    (block,) = run_by("tests/frameworks_live/deepspeed/guide_worker.py", "docs/guides/deepspeed.md")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    config = {
        "train_batch_size": 2 * world,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }

    def train_step(engine: Any, step: int) -> None:
        if (step + 1) % 500 == 0:
            engine.backward(engine(torch.ones(2, 4)).mean())
            engine.step()

    names = {"deepspeed": deepspeed, "model": model, "optimizer": optimizer, "config": config, "steps": 1000}
    names["train_step"] = train_step
    other = torch.nn.Linear(4, 4)
    early, *_ = deepspeed.initialize(
        model=other, optimizer=torch.optim.AdamW(other.parameters()), config=config
    )
    with pytest.raises(ucp.UcpError, match="before the engine's first step"):
        save_state(early, ucp.CheckpointManager("early"), 0)
    Reader(Path.cwd(), names).run(block)
    assert ucp.CheckpointManager("run").steps() == [500, 1000]
    leave()
