"""Makes DCP directories with the real torch, each with an independently gathered reference.

``launch("tests.conversion.formats.dcp.make", [OUT], 4)`` (or 2, or 1; see `tests.processes`) makes every case of that
world size under ``OUT/<case>``::

    dcp/             the checkpoint
    reference.json   {key: [dtype, shape, offset, length]} of every tensor, into
    reference.bin    the gathered full tensors, little-endian in C order
    objects.pt       torch.save of {key: object} for everything that is not a tensor

The reference never goes through DCP's writer: tensors come from ``full_tensor()``; keys from DCP's flattening.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import random
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.processes import join, leave

VOCABULARY = 101  # prime: uneven over every number of ranks
WIDTH = 16


class Narrow(nn.Module):
    """A bfloat16 parameter in a module of its own: FSDP2 wants one data type per group."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 3).to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.float().square().sum()


class Net(nn.Module):
    """Small, with what is awkward: a prime vocabulary, 3 rows on 4 ranks, a 0-d parameter, integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.three = nn.Parameter(torch.randn(3, 5))
        self.scale = nn.Parameter(torch.tensor(0.75))
        self.narrow = Narrow()
        self.register_buffer("count", torch.tensor(12345678901, dtype=torch.int64))
        self.register_buffer("table", torch.arange(-2, 3, dtype=torch.int32))
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.down(torch.relu(self.up(self.embed(ids))))
        loss: torch.Tensor = self.narrow(hidden.square().mean() * self.scale + self.three.square().sum())
        return loss


def trained(shard: Callable[[nn.Module], None], options: StateDictOptions | None = None) -> dict[str, Any]:
    """The state after three steps of Adam, everything a training script saves; ``shard`` distributes the net."""
    torch.manual_seed(0)
    net = Net()
    shard(net)
    groups = [
        {"params": [p for n, p in net.named_parameters() if n != "three"], "lr": 1e-2},
        {"params": [net.three], "lr": 1e-3, "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 5], gamma=0.5)
    ids = torch.arange(12).reshape(3, 4) * 7 % VOCABULARY
    for _ in range(3):
        loss = net(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    model, optim = get_state_dict(net, optimizer, options=options)
    random.seed(1)
    return {
        "model": model,
        "optim": optim,
        "lr_scheduler": scheduler.state_dict(),
        "rng": {"torch": torch.get_rng_state(), "python": random.getstate()},
        "step": 3,
        "sizes": [1, 2, [3]],
        "run": {"name": "münchen", "seen": 2**70, "loss": float("nan"), "tags": ("a", b"b", None)},
    }


def fsdp(net: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _fsdp(net, mesh)


def _fsdp(net: Any, mesh: Any) -> None:
    for part in (net.narrow, net.up, net.embed):
        fully_shard(part, mesh=mesh)
    fully_shard(net, mesh=mesh, ignored_params={net.scale})


def hsdp(net: nn.Module) -> None:
    _fsdp(net, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def _tensor_parallel(net: nn.Module, mesh: Any) -> None:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(net, mesh, plan)


def tensor_parallel(net: nn.Module) -> None:
    _tensor_parallel(net, init_device_mesh("cpu", (dist.get_world_size(),)))


def fsdp_tensor_parallel(net: nn.Module) -> None:
    """FSDP2 on top of tensor parallelism: up.weight is (_StridedShard(0), Shard(0))."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    _tensor_parallel(net, mesh["tp"])
    _fsdp(net, mesh["dp"])


def alone(net: nn.Module) -> None:
    """Not distributed."""


def odd_state() -> dict[str, Any]:
    """One process: every data type, every layout of memory, every kind of object."""
    generator = torch.Generator().manual_seed(5)

    def bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=generator).bool()
        size = torch.empty(0, dtype=dtype).element_size()
        return torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8).view(dtype)[
            ..., 0
        ]

    names = (
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64"
    )
    names += " complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    return {
        "dtypes": {name: bits(getattr(torch, name), 3, 5).contiguous() for name in names.split()},
        "layouts": {
            "transposed": bits(torch.float32, 6, 4).t(),
            "permuted": bits(torch.int16, 3, 4, 5).permute(2, 0, 1),
            "expanded": bits(torch.float32, 1, 4).expand(3, 4),
            "sliced": bits(torch.float64, 8, 8)[1:7:2, 2:5],
            "channels_last": bits(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last),
            "scalar": bits(torch.float64),
            "empty": torch.empty(0, 3),
            "parameter": nn.Parameter(torch.ones(2)),
        },
        "listed": [torch.ones(2), {"inner": torch.zeros(3)}, 5],
        "objects": odd_objects(),
    }


def odd_objects() -> dict[str, Any]:
    """Objects that DCP pickles, one of each allowed kind."""
    zone = datetime.timezone(datetime.timedelta(hours=1), "CET")
    return {
        "none": None,
        "numbers": (True, -5, 2**90, 1.5, -0.0, float("inf"), 3 - 4j),
        "text": ("", "ß", "\ud800", b"", b"\x00\xff", bytearray(b"xy")),
        "sets": ({1, "a"}, frozenset([2]), set()),
        "ordered": (OrderedDict([("b", 1), ("a", 2)]), Counter("aab")),
        "default": (_filled(defaultdict(list)), defaultdict(None)),
        "torch": (torch.Size([1, 2]), torch.bfloat16, torch.device("cuda:1"), torch.strided),
        "tensors": (torch.arange(6).reshape(2, 3).t(), torch.ones(2, dtype=torch.bfloat16), torch.tensor(3)),
        "numpy": (np.float32(1.5), np.arange(6).reshape(2, 3).T, np.array(["ab", "c"]), np.dtype(">i4")),
        "numpy_random": np.random.RandomState(3).get_state(),
        "time": (
            datetime.datetime(2024, 2, 29, 12, 30, 1, 5, zone),
            datetime.datetime(2024, 2, 29, fold=1),  # noqa: DTZ001
            datetime.date(2024, 2, 29),
            datetime.time(1, 2, 3, 4),
            datetime.timedelta(days=-1, seconds=5),
        ),
        "path": (pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("C:\\x"), pathlib.PurePosixPath(".")),
        "range": range(1, 9, 2),
        "module": (nn.Linear(2, 1).state_dict(),),
    }


def _filled(table: defaultdict[Any, list[int]]) -> defaultdict[Any, list[int]]:
    table["k"].append(1)
    table[(1, "t")].append(2)
    return table


class Maker:
    """Makes cases in one process of a world."""

    def __init__(self, out: Path, rank: int) -> None:
        self._out = out
        self._rank = rank

    def make(self, name: str, state: dict[str, Any], write: Callable[[dict[str, Any], Path], None]) -> None:
        folder = self._out / name
        folder.mkdir(parents=True, exist_ok=True)
        flat, _ = flatten_state_dict(state)
        table: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        with (folder / f"reference.{self._rank}").open("wb") as stream:
            for key, value in flat.items():
                if not isinstance(value, torch.Tensor):
                    objects[key] = value
                    continue
                full = value.full_tensor() if isinstance(value, DTensor) else value
                full = full.detach().contiguous()
                data = full.reshape(-1).view(torch.uint8).numpy().tobytes() if full.numel() else b""
                table[key] = [
                    str(full.dtype).removeprefix("torch."),
                    list(full.shape),
                    stream.tell(),
                    len(data),
                ]
                stream.write(data)
        write(state, folder / "dcp")
        if self._rank == 0:
            (folder / "reference.0").rename(folder / "reference.bin")
            torch.save(objects, folder / "objects.pt")
            (folder / "reference.json").write_text(json.dumps(table))
        else:
            (folder / f"reference.{self._rank}").unlink()


def save_plainly(state: dict[str, Any], path: Path) -> None:
    save(state, checkpoint_id=path)


def save_compressed(state: dict[str, Any], path: Path) -> None:
    save(state, storage_writer=FileSystemWriter(path, _extensions=[ZStandard()]))


def save_many_files(state: dict[str, Any], path: Path) -> None:
    save(state, storage_writer=FileSystemWriter(path, single_file_per_rank=False, thread_count=2))


def save_alone(state: dict[str, Any], path: Path) -> None:
    save(state, storage_writer=FileSystemWriter(path), use_collectives=False)


def save_shards(state: dict[str, Any], path: Path) -> None:
    save(state, storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True))


def save_consolidated(state: dict[str, Any], path: Path) -> None:
    index = {key: 1 + place % 2 for place, key in enumerate(sorted(state))}
    writer = HuggingFaceStorageWriter(
        str(path), fqn_to_index_mapping=index, save_distributed=True, enable_consolidation=True
    )
    save(state, storage_writer=writer)


def save_whole(state: dict[str, Any], path: Path) -> None:
    full = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in state.items()}
    index = {key: 1 + place % 2 for place, key in enumerate(sorted(state))}
    if dist.get_rank() == 0:  # all ranks would overwrite each other's files
        writer = HuggingFaceStorageWriter(str(path), fqn_to_index_mapping=index)
        save(full, storage_writer=writer, no_dist=True)


def floats(state: dict[str, Any]) -> dict[str, Any]:
    """The model's floating-point tensors: torch's consolidation fails on integers."""
    return {key: value for key, value in state["model"].items() if value.is_floating_point()}


def make_4(maker: Maker) -> None:
    flattened = StateDictOptions(flatten_optimizer_state_dict=True)
    state = trained(fsdp)
    maker.make("fsdp_4", state, save_plainly)
    maker.make("fsdp_4_zstd", state, save_compressed)
    maker.make("fsdp_4_files", state, save_many_files)
    maker.make("fsdp_4_per_rank", state, save_alone)
    maker.make("hf_shards_4", floats(state), save_shards)
    maker.make("hf_consolidated_4", floats(state), save_consolidated)
    maker.make("hf_whole", floats(state), save_whole)
    state["rng"]["rank"] = f"rank {dist.get_rank()}"
    maker.make("fsdp_4_per_rank_rng", state, save_alone)
    state = trained(hsdp, flattened)
    maker.make("hsdp_2x2", state, save_plainly)
    maker.make("hsdp_2x2_per_rank", state, save_alone)
    maker.make("fsdp_tp_2x2", trained(fsdp_tensor_parallel), save_plainly)
    maker.make("fsdp_tp_2x2_flattened", trained(fsdp_tensor_parallel, flattened), save_plainly)


def make_2(maker: Maker) -> None:
    maker.make("fsdp_2", trained(fsdp), save_plainly)
    maker.make("tp_2", trained(tensor_parallel), save_plainly)
    maker.make("fsdp_2_model", {**trained(fsdp)["model"]}, save_plainly)


def make_1(maker: Maker) -> None:
    maker.make("single", trained(alone), save_plainly)
    maker.make("odd", odd_state(), save_plainly)
    maker.make("odd_zstd", odd_state(), save_compressed)


def main() -> None:
    rank, world = join()
    {4: make_4, 2: make_2, 1: make_1}[world](Maker(Path(sys.argv[1]), rank))
    leave()


if __name__ == "__main__":
    main()
