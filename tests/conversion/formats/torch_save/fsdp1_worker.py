"""Ranks that save a model under FSDP1, sharded, as Accelerate does (utils/fsdp_utils.py), and whole beside it.

And by plain ``torch.save``: one file of each rank, two files of each, and what ``LOCAL_STATE_DICT`` gives.
"""

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


def save_by_files(folder: Path, rank: int, weights: dict[str, Any], states: dict[str, Any]) -> None:
    """What differs from rank to rank is in ``rng`` and ``seed`` alone, and in the third directory in a buffer."""
    for name in ("one", "two", "unequal", "local"):
        (folder / name).mkdir(exist_ok=True)
    rest = {
        "step": 1,
        "seed": 10 + rank,
        "rng": torch.tensor([1, 2, rank]),
        "scale": torch.tensor(2.0),
        "same": [1, None],
    }
    torch.save({"model": weights, "optimizer": states, **rest}, folder / "one" / f"state-rank{rank}.pt")
    torch.save(weights, folder / "two" / f"model_rank_{rank}.bin")
    torch.save({**states, "seed": 10 + rank}, folder / "two" / f"optimizer_rank_{rank}.bin")
    unequal = {**weights, "table": weights["table"] + rank}
    torch.save({"model": unequal}, folder / "unequal" / f"model.rank{rank}.pt")


def main() -> None:
    warnings.simplefilter("ignore")
    rank, _ = join()
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3), torch.nn.Linear(3, 2))
    inner.register_buffer("table", torch.arange(6.0))
    model: Any = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 5) + rank).square().sum().backward()
    optimizer.step()
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        weights = model.state_dict()
        states = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    assert all(hasattr(tensor, "local_shards") for name, tensor in weights.items() if name != "table")
    save({"model": weights}, checkpoint_id=folder / "state" / "pytorch_model_fsdp_0")
    save({"optimizer": states}, checkpoint_id=folder / "state" / "optimizer_0")
    torch.save(
        {"step": 1, "torch_manual_seed": torch.get_rng_state()},
        folder / "state" / f"random_states_{rank}.pkl",
    )
    save_by_files(folder, rank, weights, states)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save({"model": model.state_dict()}, folder / "local" / f"model_rank{rank}.pt")
    with FullyShardedDataParallel.summon_full_params(model):
        values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    values["table"] = weights["table"]
    # On CPUs, torch 2.13 gathers all whole states of a parameter into one memory: they are put together here.
    whole = {"model": values, "optimizer": gathered(states), "groups": states["param_groups"]}
    if rank == 0:
        torch.save(whole, folder / "whole.pt")
    leave()


if __name__ == "__main__":
    main()
