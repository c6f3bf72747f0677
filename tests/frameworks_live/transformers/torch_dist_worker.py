"""Ranks that save what Megatron-core's GPTModel holds in ``torch_dist``, divided among them, with its logits."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from tests.frameworks_live.transformers.equivalence_cases import EQUIVALENTS
from tests.frameworks_live.transformers.equivalence_worker import TOKENS
from tests.frameworks_live.transformers.megatron_model import gpt, prepare
from tests.processes import join, leave


def main() -> None:
    warnings.simplefilter("ignore")
    rank, world = join()
    prepare()
    torch.cuda.synchronize = lambda *_: None
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    for case in EQUIVALENTS:
        torch.manual_seed(7 + rank)
        module = gpt(layers=3, degrees={"tensor_model_parallel_size": world}, **case.megatron).eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                # What is not divided has to be the same on all ranks; parts may be anything.
                made = torch.Generator().manual_seed(len(name) * 31 + sum(map(ord, name)))
                own = (
                    parameter.tensor_model_parallel if hasattr(parameter, "tensor_model_parallel") else False
                )
                noise = torch.randn(parameter.shape, generator=None if own else made)
                parameter.copy_(noise * 0.2 + (0.5 if parameter.ndim == 1 else 0.0))
        folder = Path(sys.argv[1]) / case.name
        folder.mkdir(exist_ok=True)
        length = TOKENS.shape[1]
        mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
        with torch.no_grad():
            positions = torch.arange(length).expand_as(TOKENS)
            logits = gather_from_tensor_model_parallel_region(module(TOKENS, positions, mask))
        if rank == 0:
            torch.save(logits, folder / "logits.pt")
        torch.distributed.barrier()
        (folder / "ckpt").mkdir(exist_ok=True)
        dist_checkpointing.save(module.sharded_state_dict(), str(folder / "ckpt"))
    leave()


if __name__ == "__main__":
    main()
