"""One rank of a DeepSpeed job that resumes: stock ``load_checkpoint``, then two steps more.

``python -m tests.frameworks_live.deepspeed.resume CASE:PATH:RESULT...``; PATH is what DeepSpeed loads, as universal
where its name ends in ``.uni``. RESULT gets what DeepSpeed gathers after loading, and the losses after it.
"""

from __future__ import annotations

import sys

import torch

from tests.frameworks_live.deepspeed.cases import ALL_CASES
from tests.frameworks_live.deepspeed.make import engine_of, gather, loss_scale_of, options_of, train
from tests.processes import join, leave


def resume(name: str, path: str, result: str, rank: int, world: int) -> None:
    case = ALL_CASES[name]
    universal = {"checkpoint": {"load_universal": True}} if path.endswith(".uni") else {}
    engine = engine_of(case, world, seed=99, **universal)
    loaded, client = engine.load_checkpoint(path)
    assert loaded is not None
    found = {
        "tensors": gather(engine, case.states),
        "options": options_of(engine),
        "global_steps": engine.global_steps,
        "loss_scale": loss_scale_of(engine),
        "scheduler": engine.lr_scheduler.state_dict(),
        "client": {key: client[key] for key in ("epoch", "note", "nested", "rng")},
    }
    dtype: torch.dtype = getattr(torch, case.dtype)
    found["losses"] = train(engine, 2, 0, dtype)
    if rank == 0:
        torch.save(found, result)
    engine.destroy()


def main() -> None:
    import deepspeed

    rank, world = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for job in sys.argv[1:]:
        name, path, result = job.split(":")
        resume(name, path, result, rank, world)
    leave()


if __name__ == "__main__":
    main()
