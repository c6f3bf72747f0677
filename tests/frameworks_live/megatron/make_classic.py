"""Worker: trains a tiny GPT with megatron-core on gloo and saves it as Megatron-LM does without its new format.

``python -m tests.frameworks_live.megatron.make_classic FOLDER CASE...``. Megatron-LM's ``training`` is not in the
wheel: its ``checkpointing.py`` saves what the model and the optimizer return here, in directories of these names.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from tests.frameworks_live.megatron import make  # first of all, for it pretends a device
from tests.frameworks_live.megatron.arguments import arguments
from tests.frameworks_live.megatron.cases import CLASSIC, Case
from tests.processes import join, leave


def settings(case: Case, rank: int) -> Namespace:
    return Namespace(
        **vars(arguments()),
        rank=rank,
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        expert_model_parallel_size=case.ep,
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
        swiglu=True,
        num_experts=case.experts,
        untie_embeddings_and_output_weights=not case.tied,
        overlap_grad_reduce=case.bucket_size is not None,
        ddp_bucket_size=case.bucket_size,
    )


def save(folder: Path, case: Case, rank: int) -> None:
    ddps, optimizer = make.build(case, seed=5)
    for number in range(2):
        make.step(ddps, optimizer, number, case)
    (ddp,) = ddps
    torch.save(make.dump(ddps, optimizer), folder / f"rank-{rank}.pt")
    tp, pp, ep = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_expert_model_parallel_rank(),
    )
    name = f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if case.pp > 1 else "") + (f"_{ep:03d}" if case.ep > 1 else "")
    place = folder / "ckpt" / "iter_0000007" / name
    is_first = (
        parallel_state.get_expert_data_parallel_rank() == 0
        if case.ep > 1
        else (parallel_state.get_data_parallel_rank() == 0)
    )
    place.mkdir(parents=True, exist_ok=True)
    if case.sharding is not None:
        optimizer.save_parameter_state(str(place / "distrib_optim.pt"))
    if is_first:
        state = {
            "args": settings(case, rank),
            "checkpoint_version": 3.0,
            "iteration": 7,
            "model": ddp.module.state_dict_for_save_checkpoint(),
            "optimizer": optimizer.state_dict(),
            "rng_state": [{"numbers": torch.arange(3) + tp}],
        }
        torch.save(state, place / "model_optim_rng.pt")
    dist.barrier()
    if rank == 0:
        (folder / "ckpt" / "latest_checkpointed_iteration.txt").write_text("7")


def main() -> None:
    rank, _ = join()
    for name in sys.argv[2:]:
        case = CLASSIC[name]
        parallel_state.initialize_model_parallel(case.tp, case.pp, expert_model_parallel_size=case.ep)
        folder = Path(sys.argv[1], name)
        folder.mkdir(exist_ok=True)
        save(folder, case, rank)
        parallel_state.destroy_model_parallel()
    leave()


if __name__ == "__main__":
    main()
