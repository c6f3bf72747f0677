"""Ranks that save a model under FSDP1, sharded, as Accelerate does (utils/fsdp_utils.py), and whole beside it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

from tests.processes import join, leave


def gathered(states: dict[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """The whole states, from every rank's shards and where torch says that they lie."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, slots in states["state"].items():
        for slot, held in slots.items():
            if not hasattr(held, "local_shards"):
                found.setdefault(name, {})[slot] = held
                continue
            made = torch.zeros(held.size())
            for shard in held.local_shards():
                place = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
                made[tuple(slice(start, start + size) for start, size in place)] = shard.tensor
            torch.distributed.all_reduce(made)
            found.setdefault(name, {})[slot] = made
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    rank, _ = join()
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    model: Any = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 5) + rank).square().sum().backward()
    optimizer.step()
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        weights = model.state_dict()
        states = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    assert all(hasattr(tensor, "local_shards") for tensor in weights.values())
    save({"model": weights}, checkpoint_id=folder / "state" / "pytorch_model_fsdp_0")
    save({"optimizer": states}, checkpoint_id=folder / "state" / "optimizer_0")
    torch.save(
        {"step": 1, "torch_manual_seed": torch.get_rng_state()},
        folder / "state" / f"random_states_{rank}.pkl",
    )
    with FullyShardedDataParallel.summon_full_params(model):
        values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    # On CPUs, torch 2.13 gathers all whole states of a parameter into one memory: they are put together here.
    whole = {"model": values, "optimizer": gathered(states), "groups": states["param_groups"]}
    if rank == 0:
        torch.save(whole, folder / "whole.pt")
    leave()


if __name__ == "__main__":
    main()
