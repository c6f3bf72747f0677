"""One rank of a job with tensor or pipeline parallelism, and experts or not: trains, saves, and tells what it has.

``python -m tests.frameworks_live.deepspeed.make_moe_parallel CASE:FOLDER... load:CASE:PATH:RESULT...`` under
`tests.processes.launch`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.frameworks_live.deepspeed.make import gather
from tests.frameworks_live.deepspeed.make_pipe import criterion, head
from tests.processes import join, leave

WIDTH, INNER, WORDS, EXPERTS, DEGREE = 8, 6, 21, 4, 2


@dataclass(frozen=True)
class ParallelCase:
    """ZeRO stage, data type, pipeline stages, and whether experts are split among tensor-parallel ranks, or not there.

    A pipeline with experts is of no tensor-parallel ranks, all else of two.
    """

    zero: int
    dtype: torch.dtype = torch.bfloat16
    stages: int = 1
    is_split: bool = False
    has_experts: bool = True
    degree: int = DEGREE

    @property
    def has_shards(self) -> bool:
        return self.stages == 1 or not self.has_experts


CASES = {
    "tp-split-z1-bf16": ParallelCase(1, is_split=True),
    "tp-split-z0-fp32": ParallelCase(0, torch.float32, is_split=True),
    "tp-whole-z1-bf16": ParallelCase(1),
    "tp-whole-z2-fp32": ParallelCase(2, torch.float32),
    "pp-z1-bf16": ParallelCase(1, stages=2),
    "pp-z1-fp32": ParallelCase(1, torch.float32, stages=2),
    "pp-z0-fp32": ParallelCase(0, torch.float32, stages=2),
    "pp-tp-z1-bf16": ParallelCase(1, stages=2, has_experts=False),
    "pp-tp-z0-fp32": ParallelCase(0, torch.float32, stages=2, has_experts=False),
}

TARGETS = {
    "pp3-z1-bf16": ParallelCase(1, stages=3, degree=1),
    "pp-z1-fp32-ep1": ParallelCase(1, torch.float32, stages=2, degree=1),
    "pp3-z0-fp32": ParallelCase(0, torch.float32, stages=3, degree=1),
}
"""What is only ever loaded into."""


class Grid:
    """What DeepSpeed calls an mpu: two tensor-parallel ranks next to each other."""

    size = 2

    def __init__(self) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        rows = [list(range(first, first + self.size)) for first in range(0, world, self.size)]
        columns = [list(range(first, world, self.size)) for first in range(self.size)]
        made = {tuple(ranks): dist.new_group(ranks) for ranks in (*rows, *columns)}
        self.tensor = next(made[tuple(ranks)] for ranks in rows if rank in ranks)
        self.data = next(made[tuple(ranks)] for ranks in columns if rank in ranks)

    def get_model_parallel_group(self) -> Any:
        return self.tensor

    def get_model_parallel_world_size(self) -> int:
        return self.size

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank() % self.size

    def get_data_parallel_group(self) -> Any:
        return self.data

    def get_data_parallel_world_size(self) -> int:
        return dist.get_world_size() // self.size

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank() // self.size

    get_tensor_model_parallel_group = get_model_parallel_group
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_rank = get_model_parallel_rank


GRID: list[Grid] = []
"""The one grid, of which no module can hold a copy."""


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, hidden: Tensor) -> Tensor:
        hidden = hidden.clone()
        dist.all_reduce(hidden, group=GRID[0].tensor)
        return hidden

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return gradient


class SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, hidden: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=GRID[0].tensor)
        return gradient


class Block(nn.Module):
    """Two layers, the first split by columns and the second by rows, or neither."""

    def __init__(self, *, is_split: bool) -> None:
        super().__init__()
        self.is_split = is_split
        inner = INNER // (Grid.size if is_split else 1)
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH, bias=False)
        if is_split:
            with torch.no_grad():
                for item in self.parameters():
                    item.add_(0.1 * GRID[0].get_model_parallel_rank())  # shards are not equal
                    setattr(item, "tensor_model_parallel", True)  # noqa: B010

    def forward(self, hidden: Tensor) -> Any:
        if not self.is_split:
            return self.down(torch.tanh(self.up(hidden)))
        together: Any = Sum.apply
        apart: Any = SumGradients.apply
        return together(self.down(torch.tanh(self.up(apart(hidden)))))


def mixture(*, is_split: bool, degree: int = DEGREE) -> Any:
    from deepspeed.moe.layer import MoE

    return MoE(
        WIDTH,
        Block(is_split=is_split),
        num_experts=EXPERTS,
        ep_size=degree,
        min_capacity=6,  # even: tensor-parallel ranks share it
        use_rts=False,
        enable_expert_tensor_parallelism=is_split,
    )


class Net(nn.Module):
    def __init__(self, case: ParallelCase) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.dense = Block(is_split=True)
        self.first = mixture(is_split=case.is_split)
        self.second = mixture(is_split=case.is_split)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        hidden = hidden + self.dense(hidden)
        hidden = hidden + self.first(hidden)[0]
        return self.norm(hidden + self.second(hidden)[0])


class Layer(nn.Module):
    """A layer of a pipeline: a mixture of experts, or a block that tensor-parallel ranks share."""

    def __init__(self, *, has_experts: bool, degree: int) -> None:
        super().__init__()
        self.has_experts = has_experts
        self.inner = mixture(is_split=False, degree=degree) if has_experts else Block(is_split=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor) -> Any:
        found = self.inner(hidden)
        return self.norm(hidden + (found[0] if self.has_experts else found))


def pipeline(case: ParallelCase) -> Any:
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipeModelDataParallelTopology

    def layer() -> Any:
        return LayerSpec(Layer, has_experts=case.has_experts, degree=case.degree)

    tied = (nn.Embedding, WORDS, WIDTH)
    if case.has_experts:
        topology = PipeDataParallelTopology(num_pp=case.stages, num_dp=dist.get_world_size() // case.stages)
    else:
        topology = PipeModelDataParallelTopology(num_pp=case.stages, num_mp=Grid.size, num_dp=1)
    return PipelineModule(
        layers=[
            TiedLayerSpec("embed", *tied),
            layer(),
            LayerSpec(nn.Linear, WIDTH, WIDTH),
            layer(),
            layer(),
            TiedLayerSpec("embed", *tied, forward_fn=head),
        ],
        topology=topology,
        loss_fn=criterion,
        partition_method="uniform",
    )


def engine_of(case: ParallelCase, seed: int = 7, **more: Any) -> Any:
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    torch.manual_seed(seed)
    net = pipeline(case) if case.stages > 1 else Net(case)
    groups: Any = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "name": "matrices", "lr": 0.01},
        {"params": [p for p in net.parameters() if p.ndim == 1], "name": "vectors", "lr": 0.02},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 4 * (1 if case.stages == 1 else dist.get_world_size() // case.stages),
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": case.zero, "reduce_scatter": case.zero > 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
        **({"bf16": {"enabled": True}} if case.dtype == torch.bfloat16 else {}),
        **more,
    }
    if case.has_experts:
        groups = split_params_into_different_moe_groups_for_optimizer(groups)
    optimizer = torch.optim.AdamW(groups)
    mpu = None if case.stages > 1 else GRID[0]
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config, mpu=mpu)
    return engine


def train(engine: Any, case: ParallelCase, steps: int = 3) -> list[float]:
    """Train, and return the losses of a pipeline."""
    losses = []
    for step in range(engine.global_steps, engine.global_steps + steps):
        if case.stages > 1:
            generator = torch.Generator().manual_seed(step)
            ids, target = (torch.randint(0, WORDS, (2, 5), generator=generator) for _ in range(2))
            losses.append(float(engine.train_batch(iter([(ids, target)] * 64))))
            continue
        generator = torch.Generator().manual_seed(10 * step + GRID[0].get_data_parallel_rank())
        ids = torch.randint(0, WORDS, (2, 5), generator=generator)
        target = torch.randn(2, 5, WIDTH, generator=generator).to(case.dtype)
        engine.backward(nn.functional.mse_loss(engine(ids), target))
        engine.step()
    return losses


def main() -> None:
    import deepspeed
    from deepspeed.utils import groups

    rank, _ = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    if dist.get_world_size() % Grid.size == 0:
        GRID.append(Grid())
    # Gloo wants both tensors of one shape or flat, where NCCL does not: what DeepSpeed gathers here is not.
    gathering = deepspeed.comm.all_gather_into_tensor
    deepspeed.comm.all_gather_into_tensor = lambda out, held, *more, **named: gathering(
        out, held.reshape(-1), *more, **named
    )
    for job in sys.argv[1:]:
        what, name, path, *result = ("make:" + job if job.count(":") == 1 else job).split(":")
        case = (CASES | TARGETS)[name]
        groups._EXPERT_PARALLEL_GROUP.clear()
        groups._EXPERT_DATA_PARALLEL_GROUP.clear()
        groups.mpu = None
        groups.expert_tensor_parallel_world_size = 1
        universal = {"checkpoint": {"load_universal": True}} if path.endswith(".uni") else {}
        engine = engine_of(case, 7 if what == "make" else 99, **universal)
        if what == "make":
            train(engine, case)
            engine.save_checkpoint(str(Path(path, "ckpt")), tag="step3", client_state={"epoch": 3})
            out = Path(path)
        else:
            loaded, client = engine.load_checkpoint(path)
            assert loaded is not None
            assert client["epoch"] == 3
            out = Path(result[0])
            out.mkdir(exist_ok=True)
        found = {
            "tensors": gather(engine, ("exp_avg", "exp_avg_sq")),
            "expert_rank": groups._get_expert_parallel_rank(f"ep_size_{case.degree}")
            if engine.has_moe_layers
            else 0,
            "tensor_rank": GRID[0].get_model_parallel_rank() if case.has_shards else 0,
            "global_steps": engine.global_steps,
        }
        if case.stages > 1 and case.has_experts:
            found["losses"] = train(engine, case, 2)
            found["later"] = gather(engine, ("exp_avg", "exp_avg_sq"))
        torch.save(found, out / f"reference-{rank}.pt")
        engine.destroy()
    leave()


if __name__ == "__main__":
    main()
