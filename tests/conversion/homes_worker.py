"""One rank of two: shards of FSDP1, tensor subclasses that are divided, and DistributedDataParallel."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by optimizers, when they are made
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard

import ucpformat
from tests.conversion.composites import Recipe, Rounding, Scaled, alike
from tests.processes import join, leave
from ucpformat import Layout, Mesh, MeshAxis, TensorLayout, UcpError
from ucpformat import Shard as ShardStep


def check(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.manual_seed(7)
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()


def fsdp1(path: Path) -> None:
    """Without a device mesh FSDP1 gives ShardedTensors; into FSDP2 and back, and itself."""

    def job(seed: int) -> dict[str, Any]:
        model = FullyShardedDataParallel(net(seed), device_id=torch.device("cpu"), use_orig_params=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step(model, optimizer)
        return {"model": model, "optim": optimizer}

    made, other = job(1), job(2)
    shards = list(get_model_state_dict(made["model"]).values())
    check(all(type(one).__name__ == "ShardedTensor" for one in shards), "FSDP1 gives no ShardedTensor")
    ucpformat.save(path, made)
    ucpformat.load(path, other)
    with FullyShardedDataParallel.summon_full_params(made["model"]):
        whole = {name: value.clone() for name, value in made["model"].module.state_dict().items()}
    with FullyShardedDataParallel.summon_full_params(other["model"]):
        for name, value in other["model"].module.state_dict().items():
            check(torch.equal(value, whole[name]), f"{name} of FSDP1 into FSDP1")
    for mine, theirs in zip(made["optim"].state.values(), other["optim"].state.values(), strict=True):
        check(torch.equal(mine["exp_avg_sq"], theirs["exp_avg_sq"]), "states of FSDP1")
    divided = net(3)
    fully_shard(divided)
    ucpformat.load(path, {"model": divided})
    for name, value in divided.state_dict().items():
        check(torch.equal(value.full_tensor(), whole[name]), f"{name} of FSDP1 into FSDP2")


def divided_subclasses(path: Path) -> None:
    """A DTensor whose local tensor is a subclass: parts of its shape are held as it is, others as is said."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    codes, scale = torch.randint(-100, 100, (6, 4), dtype=torch.int8), torch.rand(6)

    def divided(codes: torch.Tensor, scale: torch.Tensor) -> Any:
        rows = slice(3 * rank, 3 * rank + 3)
        local = Scaled(codes[rows].clone(), scale[rows].clone(), Recipe(Rounding.NEAREST))
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)

    made, other = divided(codes, scale), divided(torch.zeros_like(codes), torch.zeros_like(scale))
    layouts = {"w.scale": TensorLayout(Layout(Mesh((MeshAxis("dp", 2),)), (ShardStep("dp", 0),)), (6,))}
    try:
        ucpformat.save(path, {"w": made})
    except UcpError as refusal:
        check(refusal.code == "UCP-E-MISMATCH" and refusal.at == "w.scale", f"refused with {refusal}")
    else:
        raise AssertionError("a part whose layout nothing tells was saved")
    ucpformat.save(path, {"w": made}, layouts=layouts)
    ucpformat.load(path, {"w": other}, layouts=layouts)
    check(alike(other.to_local(), made.to_local()), "a divided subclass")
    if rank == 0:
        with ucpformat.open(path) as checkpoint:
            check(torch.equal(torch.from_numpy(checkpoint["w"]["value.codes"].read()), codes), "codes")
            check(torch.equal(torch.from_numpy(checkpoint["w"]["value.scale"].read()), scale), "scale")


def data_parallel(path: Path) -> None:
    """BatchNorm's buffers differ from rank to rank: a save has those of the first rank, with all else, or refuses."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for number in range(2):
        optimizer.zero_grad()
        torch.manual_seed(10 * rank + number)
        ddp(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    for value in first.values():
        dist.broadcast(value, 0)
    differing = [name for name, value in model.state_dict().items() if not torch.equal(value, first[name])]
    check(differing == ([] if rank == 0 else ["1.running_mean", "1.running_var"]), f"{differing} differ")
    state = {"model": model, "optim": optimizer}
    ucpformat.save(path / "ddp.ucp", state)
    ucpformat.async_save(path / "ddp-async.ucp", state).wait()
    for name in ("ddp.ucp", "ddp-async.ucp"):
        found = ucpformat.load(path / name, tensors="torch")["model"]
        check(all(torch.equal(found[key], value) for key, value in first.items()), f"{name} is no rank's")
    try:
        ucpformat.save(path / "refused.ucp", state, replicas="check")
    except UcpError as refusal:
        check("ranks 0 and 1 hold different copies of 2 tensors" in refusal.message, refusal.message)
    else:
        raise AssertionError("replicas that differ passed the check")


if __name__ == "__main__":
    join()
    warnings.simplefilter("ignore")
    root = Path(sys.argv[1])
    fsdp1(root / "fsdp1.ucp")
    divided_subclasses(root / "subclass.ucp")
    data_parallel(root)
    leave()
