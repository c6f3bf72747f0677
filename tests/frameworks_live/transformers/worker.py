"""A rank that lets transformers or DeepSpeed divide models, and keeps what it then holds.

``python -m tests.frameworks_live.transformers.worker FOLDER`` under `tests.processes.launch`. The folder has
``hub/FAMILY``, what ``save_pretrained`` wrote; what this rank holds of a case goes to ``CASE/RANK.pt``.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tests.frameworks_live.transformers.cases import CASES, Case, model
from tests.processes import join, leave

os.environ["DS_ACCELERATOR"] = "cpu"


def divided_by_transformers(case: Case, folder: Path) -> Any:
    """The model, loaded under the plans that come with its class."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    sizes = {f"{axis}_size": size for axis, size in case.degrees.items()}
    return AutoModelForCausalLM.from_pretrained(
        folder / "hub" / case.family, distributed_config=DistributedConfig(**sizes)
    )


def divided_by_autotp(case: Case) -> Any:
    """The model, in whose place DeepSpeed put layers of its own."""
    import deepspeed

    # Its own all-reduce in shared memory would be compiled first, and shared with other jobs of this machine.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine, *_ = deepspeed.initialize(
        model=model(case.family),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "tensor_parallel": {"autotp_size": case.world},
            "zero_optimization": {"stage": 0},
        },
    )
    return engine.module


def held(module: Any) -> dict[str, torch.Tensor]:
    """What this rank has of each parameter."""
    return {
        name: (value.to_local() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in module.named_parameters()
    }


def check_logits(case: Case, module: Any) -> None:
    """The divided model computes what the whole one does, so that the division is one it can work with."""
    tokens = torch.arange(1, 9)[None]
    with torch.no_grad():
        found = module(tokens).logits
        found = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(found, model(case.family)(tokens).logits, atol=1e-5, rtol=1e-4)


def main() -> None:
    warnings.simplefilter("ignore")
    rank, world = join()
    folder = Path(sys.argv[1])
    for case in CASES:
        if case.world != world:
            continue
        module = (
            divided_by_transformers(case, folder) if case.by == "transformers" else divided_by_autotp(case)
        )
        # Stages of a pipeline compute with each other; BLOOM's alibi and multi-query attention do not run under
        # AutoTP as `deepspeed.initialize` applies it: they count heads in places that it leaves whole.
        if case.by == "transformers" and "pp" not in case.degrees:
            check_logits(case, module)
        (folder / case.name).mkdir(exist_ok=True)
        torch.save(held(module), folder / case.name / f"{rank}.pt")
    leave()


if __name__ == "__main__":
    main()
