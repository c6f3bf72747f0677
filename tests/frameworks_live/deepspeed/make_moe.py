"""One rank of a job with DeepSpeed's mixture of experts under ZeRO: trains and saves, or resumes.

``python -m tests.frameworks_live.deepspeed.make_moe make:CASE:FOLDER...`` under `tests.processes.launch`. Two layers
of experts, in expert-parallel groups of two; every rank tells what its optimizer holds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.frameworks_live.deepspeed.make import gather, options_of
from tests.processes import join, leave

WIDTH, EXPERTS, EXPERT_DEGREE = 8, 4, 2


@dataclass(frozen=True)
class MoeCase:
    """ZeRO stage, data type, and whether data parallelism comes before expert parallelism in the order of ranks."""

    stage: int
    dtype: torch.dtype = torch.bfloat16
    data_first: bool = False


MOES = {
    "moe-z1-bf16": MoeCase(1),
    "moe-z2-fp32": MoeCase(2, torch.float32),
    "moe-z2-data-first": MoeCase(2, data_first=True),
    "moe-z0-fp32": MoeCase(0, torch.float32),
}


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.down(torch.tanh(self.up(hidden)))
        return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        self.embed = nn.Embedding(21, WIDTH)
        self.first = MoE(WIDTH, Expert(), num_experts=EXPERTS, ep_size=EXPERT_DEGREE, k=1, use_residual=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.second = MoE(WIDTH, Expert(), num_experts=EXPERTS, ep_size=EXPERT_DEGREE, k=1)
        self.register_buffer("table", torch.arange(5.0))

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        hidden = hidden + self.first(hidden)[0]
        return self.norm(hidden + self.second(hidden)[0])


def engine_of(case: MoeCase, seed: int = 7) -> Any:
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    torch.manual_seed(seed)
    net = Net()
    groups = [
        {"params": [p for p in net.parameters() if p.ndim > 1], "name": "matrices", "lr": 0.01},
        {"params": [p for p in net.parameters() if p.ndim == 1], "name": "vectors", "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(split_params_into_different_moe_groups_for_optimizer(groups))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": case.stage, "reduce_scatter": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "use_data_before_expert_parallelism": case.data_first,
        "steps_per_print": 1000,
        **({"bf16": {"enabled": True}} if case.dtype == torch.bfloat16 else {}),
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return engine


def train(engine: Any, steps: int, rank: int, dtype: torch.dtype) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + rank)
        ids = torch.randint(0, 21, (4, 5), generator=generator)
        target = torch.randn(4, 5, WIDTH, generator=generator).to(dtype)
        engine.backward(nn.functional.mse_loss(engine(ids), target))
        engine.step()


def main() -> None:
    import deepspeed
    from deepspeed.utils import groups

    rank, _ = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for job in sys.argv[1:]:
        _, name, path = job.split(":")
        case = MOES[name]
        groups._EXPERT_PARALLEL_GROUP.clear()
        groups._EXPERT_DATA_PARALLEL_GROUP.clear()
        engine = engine_of(case)
        train(engine, 3, rank, case.dtype)
        engine.save_checkpoint(str(Path(path, "ckpt")), tag="step3", client_state={"epoch": 3})
        expert_rank = groups._get_expert_parallel_rank(f"ep_size_{EXPERT_DEGREE}")
        found = {
            "tensors": gather(engine, ("exp_avg", "exp_avg_sq")),
            "options": options_of(engine),
            "expert_rank": expert_rank,
        }
        torch.save(found, Path(path, f"reference-{rank}.pt"))
        engine.destroy()
    leave()


if __name__ == "__main__":
    main()
