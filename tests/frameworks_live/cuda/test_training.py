"""Training on a CUDA device: what is saved in the middle goes on bit by bit, there and on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ucpformat as ucp


def model_and_optimizer(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.BatchNorm1d(256), nn.Dropout(0.1), nn.Linear(256, 8)
    )
    model = model.cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    found = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(32, 64, generator=generator).cuda()
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True, "foreach": True}])
@pytest.mark.parametrize("background", [False, True])
def test_training_resumes_bit_by_bit(tmp_path: Path, options: dict[str, Any], background: bool) -> None:
    model, optimizer = model_and_optimizer(**options)
    losses(model, optimizer, range(5))
    state = {"model": model, "optim": optimizer, "cuda": torch.cuda.get_rng_state()}
    if background:
        saving = ucp.async_save(tmp_path / "a.ucp", state)
        expected = losses(model, optimizer, range(5, 10))
        saving.wait()
    else:
        ucp.save(tmp_path / "a.ucp", state)
        expected = losses(model, optimizer, range(5, 10))

    again, fresh = model_and_optimizer(**options)
    losses(again, fresh, range(1))
    resumed: dict[str, Any] = {"model": again, "optim": fresh, "cuda": torch.cuda.get_rng_state()}
    ucp.load(tmp_path / "a.ucp", resumed)
    torch.cuda.set_rng_state(resumed["cuda"])
    assert losses(again, fresh, range(5, 10)) == expected


@pytest.mark.usefixtures("nccl")
def test_fsdp2_over_nccl_resumes_and_plain_tensors_read_it(tmp_path: Path) -> None:
    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))

    def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = model_and_optimizer()
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    model, optimizer = sharded()
    losses(model, optimizer, range(5))
    weights, moments = get_state_dict(model, optimizer)
    ucp.save(tmp_path / "a.ucp", {"model": weights, "optim": moments, "cuda": torch.cuda.get_rng_state()})
    expected = losses(model, optimizer, range(5, 10))

    again, fresh = sharded()
    losses(again, fresh, range(1))
    weights, moments = get_state_dict(again, fresh)
    state: dict[str, Any] = {"model": weights, "optim": moments, "cuda": torch.cuda.get_rng_state()}
    ucp.load(tmp_path / "a.ucp", state)
    set_state_dict(again, fresh, model_state_dict=state["model"], optim_state_dict=state["optim"])
    torch.cuda.set_rng_state(state["cuda"])
    assert losses(again, fresh, range(5, 10)) == expected

    plain, _ = model_and_optimizer()
    ucp.load(tmp_path / "a.ucp", {"model": plain})
    saved = ucp.load(tmp_path / "a.ucp", only="model.*", tensors="torch")["model"]
    assert torch.equal(plain.state_dict()["0.weight"].cpu(), saved["0.weight"])


@pytest.mark.usefixtures("nccl")
def test_a_manager_saves_in_the_background_under_nccl(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with ucp.CheckpointManager(tmp_path / "run", keep_last=2, asynchronous=True) as manager:
        for step in range(4):
            losses(model, optimizer, range(step, step + 1))
            manager.save(step, {"model": model, "optim": optimizer})
        expected = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    with ucp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.steps() == [2, 3]
        again, fresh = model_and_optimizer()
        assert manager.resume({"model": again, "optim": fresh}) == 3
    assert all(torch.equal(again.state_dict()[name].cpu(), tensor) for name, tensor in expected.items())


@pytest.mark.usefixtures("nccl")
def test_redistribution_between_tensors_of_a_device(tmp_path: Path) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("tp",))
    whole = torch.randn(64, 48, device="cuda")
    source = {"w": distribute_tensor(whole, mesh, [Shard(0)])}
    target = {"w": distribute_tensor(torch.zeros(64, 48, device="cuda"), mesh, [Replicate()])}
    ucp.redistribute(source, into=target)
    assert torch.equal(target["w"].to_local(), whole)
