"""Training jobs under real parallelism: FSDP2, tensor parallelism, HSDP, expert parallelism, ZeRO's flat buffers.

Each job trains the same small model for a step or two with the framework's own arithmetic, gives its state as it would
save it, and tells the whole of that state by the framework's own means, to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # by optimizers, when they are made: half a second that ranks would take one by one
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ucpformat
from ucpformat import Flatten, Layout, Mesh, MeshAxis, TensorLayout
from ucpformat.geometry import BufferMember, Concat, buffer_places
from ucpformat.geometry import Shard as ShardStep

State = dict[str, Any]


class Experts(nn.Module):
    """Experts that all tokens go through; their stacked weights may be a DTensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, 6) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.full_tensor() if isinstance(self.weight, DTensor) else self.weight
        return x + torch.einsum("bi,eio->bo", x, weight)


class Net(nn.Module):
    """Extents that do not divide by 4, and buffers."""

    seen: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 6)
        self.norm = nn.LayerNorm(6)
        self.experts = Experts()
        self.head = nn.Linear(6, 5)
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        x = self.norm(self.down(torch.relu(self.up(x))))
        self.mean.copy_(x.detach().mean(0))
        return torch.as_tensor(self.head(self.experts(x)))


@dataclass
class Job:
    """A state to save or to fill, the layouts of what does not tell its own, and how to see the state whole."""

    state: State
    whole: Callable[[], dict[str, Any]]
    layouts: dict[str, TensorLayout] = field(default_factory=dict)


def _values(seed: int) -> State:
    return {
        "epoch": seed,
        "note": f"seed {seed}",
        "schedule": {"last": [0.5 * seed, None], "pair": (1, seed)},
    }


def _train(net: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    for step in range(2):
        torch.manual_seed(1000 * seed + step)
        optimizer.zero_grad()
        net(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()


def _whole(state: State) -> dict[str, Any]:
    """Every leaf by its dotted name; DTensors put together by torch."""
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{path}.{key}" if path else str(key), item)
        elif isinstance(value, DTensor):
            found[path] = value.full_tensor().clone()
        else:
            found[path] = value.clone() if isinstance(value, torch.Tensor) else value

    walk("", state)
    return found


def _mesh(*axes: tuple[str, int]) -> DeviceMesh:
    return init_device_mesh(
        "cpu", tuple(size for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes)
    )


def _tensor_parallel(net: nn.Module, mesh: DeviceMesh) -> None:
    parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _single(net: Net) -> None:
    pass


def _fsdp(net: Net) -> None:
    mesh = _mesh(("dp", dist.get_world_size()))
    fully_shard(net.experts, mesh=mesh)
    fully_shard(net, mesh=mesh)


def _fsdp_tp(net: Net) -> None:
    mesh = _mesh(("dp", dist.get_world_size() // 2), ("tp", 2))
    _tensor_parallel(net, mesh["tp"])
    fully_shard(net, mesh=mesh["dp"])


def _hsdp(net: Net) -> None:
    mesh = _mesh(("replicate", 2), ("shard", dist.get_world_size() // 2))
    fully_shard(net, mesh=mesh)


def _tp(net: Net) -> None:
    _tensor_parallel(net, _mesh(("tp", dist.get_world_size())))


def _ep(net: Net) -> None:
    mesh = _mesh(("dp", dist.get_world_size() // 2), ("ep", 2))
    net.experts.weight = nn.Parameter(distribute_tensor(net.experts.weight.detach(), mesh["ep"], [Shard(0)]))
    fully_shard(net.experts, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])


_SPREAD: dict[str, tuple[int, Callable[[Net], None]]] = {
    "single": (1, _single),
    "fsdp2": (2, _fsdp),
    "fsdp4": (4, _fsdp),
    "fsdp_tp": (4, _fsdp_tp),
    "hsdp": (4, _hsdp),
    "tp4": (4, _tp),
    "ep": (4, _ep),
    "fsdp8": (8, _fsdp),
    "fsdp4_tp2": (8, _fsdp_tp),
}
WORLDS = {**{name: world for name, (world, _) in _SPREAD.items()}, "zero3": 3}
"""The number of ranks of every job."""


def make_job(name: str, seed: int) -> Job:
    """Train a job for two steps from a seed; every rank of it calls this."""
    torch.manual_seed(seed)
    net = Net()
    if name == "zero3":
        return _zero(net, seed)
    _SPREAD[name][1](net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 * (1 + seed), foreach=False)
    _train(net, optimizer, seed)
    model, optim = get_state_dict(net, optimizer)
    state = {"model": model, "optim": optim, **_values(seed)}
    return Job(state, lambda: _whole(state))


def _zero(net: Net, seed: int) -> Job:
    """ZeRO-1 by hand, as DeepSpeed does it: one flat buffer of all parameters, each rank steps its part of it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    named = dict(net.named_parameters())
    mesh = Mesh((MeshAxis("dp", world),))

    def layout(group: str) -> Layout:
        return Layout(mesh, (Flatten(), Concat(group), ShardStep("dp", 0, "even")))

    shapes = [tuple(parameter.shape) for parameter in named.values()]
    places = buffer_places([BufferMember(layout("flat"), shape) for shape in shapes], align=4, multiple=world)
    total = places[0].totals[0]

    def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
        flat = torch.zeros(total)
        for tensor, place in zip(tensors, places, strict=True):
            flat[place.offsets[0] : place.offsets[0] + tensor.numel()] = tensor.detach().flatten()
        return flat

    def gathered(part: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(parts, part)
        return torch.cat(parts)

    def unflattened(flat: torch.Tensor) -> list[torch.Tensor]:
        return [
            flat[place.offsets[0] : place.offsets[0] + parameter.numel()].view(parameter.shape).clone()
            for parameter, place in zip(named.values(), places, strict=True)
        ]

    mine = slice(rank * (total // world), (rank + 1) * (total // world))
    part = nn.Parameter(flattened(list(named.values()))[mine].clone())
    optimizer = torch.optim.AdamW([part], lr=0.01 * (1 + seed), foreach=False)
    for step in range(2):
        torch.manual_seed(1000 * seed + step)
        net.zero_grad()
        net(torch.randn(3, 6)).square().mean().backward()
        part.grad = flattened([torch.as_tensor(parameter.grad) for parameter in named.values()])[mine]
        optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(named.values(), unflattened(gathered(part.detach())), strict=True):
                parameter.copy_(value)
    moments = {slot: optimizer.state[part][slot] for slot in ("exp_avg", "exp_avg_sq")}
    steps = {name: optimizer.state[part]["step"].clone() for name in named}
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    optim = {
        "state": {name: {"step": steps[name], **moments} for name in named},
        "param_groups": [{**group, "params": list(named)}],
    }
    layouts = {
        f"optim.state.{name}.{slot}": TensorLayout(layout(slot), shape, place)
        for name, shape, place in zip(named, shapes, places, strict=True)
        for slot in moments
    }
    state = {"model": dict(net.state_dict()), "optim": optim, **_values(seed)}

    def whole() -> dict[str, Any]:
        found = _whole(state)
        for slot, moment in moments.items():
            values = unflattened(gathered(moment))
            found.update(
                {f"optim.state.{name}.{slot}": value for name, value in zip(named, values, strict=True)}
            )
        return found

    return Job(state, whole, layouts)


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """What is not the same, bit for bit, in two whole states."""
    found = sorted(left.keys() ^ right.keys())
    for name in left.keys() & right.keys():
        one, other = left[name], right[name]
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            same = one.dtype == other.dtype and torch.equal(one, other)
        else:
            same = type(one) is type(other) and one == other
        if not same:
            found.append(name)
    return found


def save(job: Job, path: str, **options: Any) -> str:
    """Save a job's state with ucp."""
    return ucpformat.save(path, job.state, layouts=job.layouts, **options).digest


def load(job: Job, path: str, **options: Any) -> None:
    """Fill a job's state with ucp."""
    ucpformat.load(path, job.state, layouts=job.layouts, **options)
