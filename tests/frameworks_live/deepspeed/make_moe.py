"""One rank of a job with DeepSpeed's mixture of experts under ZeRO: trains and saves, or resumes.

``python -m tests.frameworks_live.deepspeed.make_moe make:CASE:FOLDER... load:CASE:PATH:RESULT...`` under
`tests.processes.launch`. Two layers of experts; every rank tells what its optimizer holds.
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

WIDTH, EXPERTS = 8, 4


@dataclass(frozen=True)
class MoeCase:
    """ZeRO stage, data type, expert-parallel degree, and whether data parallelism is the outer of both."""

    stage: int
    dtype: torch.dtype = torch.bfloat16
    data_first: bool = False
    degree: int = 2


MOES = {
    "moe-z1-bf16": MoeCase(1),
    "moe-z2-fp32": MoeCase(2, torch.float32),
    "moe-z2-data-first": MoeCase(2, data_first=True),
    "moe-z0-fp32": MoeCase(0, torch.float32),
}
TARGETS = {
    "moe-z1-bf16-ep1": MoeCase(1, degree=1),
    "moe-z2-bf16-ep4": MoeCase(2, degree=4),
    "moe-z1-bf16-data-first-ep2": MoeCase(1, data_first=True),
    "moe-z1-fp32-ep2": MoeCase(1, torch.float32),
    "moe-z0-fp32-ep1": MoeCase(0, torch.float32, degree=1),
}
"""What is only ever loaded into."""


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.down(torch.tanh(self.up(hidden)))
        return found


class Net(nn.Module):
    def __init__(self, degree: int) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE

        # No token is dropped and none is drawn: the losses are the same under every degree.
        options = {"num_experts": EXPERTS, "ep_size": degree, "drop_tokens": False, "use_rts": False}
        self.embed = nn.Embedding(21, WIDTH)
        self.first = MoE(WIDTH, Expert(), use_residual=True, **options)
        self.norm = nn.LayerNorm(WIDTH)
        self.second = MoE(WIDTH, Expert(), **options)
        self.register_buffer("table", torch.arange(5.0))

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        hidden = hidden + self.first(hidden)[0]
        return self.norm(hidden + self.second(hidden)[0])


def engine_of(case: MoeCase, seed: int = 7, **more: Any) -> Any:
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    torch.manual_seed(seed)
    net = Net(case.degree)
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
        **more,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return engine


def train(engine: Any, steps: int, rank: int, dtype: torch.dtype) -> list[float]:
    losses = []
    for _ in range(steps):
        generator = torch.Generator().manual_seed(10 * engine.global_steps + rank)
        ids = torch.randint(0, 21, (4, 5), generator=generator)
        target = torch.randn(4, 5, WIDTH, generator=generator).to(dtype)
        loss = nn.functional.mse_loss(engine(ids), target)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    import deepspeed
    from deepspeed.utils import groups

    rank, _ = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for job in sys.argv[1:]:
        what, name, path, *result = job.split(":")
        case = (MOES | TARGETS)[name]
        groups._EXPERT_PARALLEL_GROUP.clear()
        groups._EXPERT_DATA_PARALLEL_GROUP.clear()
        universal = {"checkpoint": {"load_universal": True}} if path.endswith(".uni") else {}
        engine = engine_of(case, 7 if what == "make" else 99, **universal)
        if what == "make":
            train(engine, 3, rank, case.dtype)
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
            "options": options_of(engine),
            "expert_rank": groups._get_expert_parallel_rank(f"ep_size_{case.degree}"),
            "global_steps": engine.global_steps,
        }
        # The same data on all ranks.
        found["losses"] = train(engine, 2, 0, case.dtype)
        torch.save(found, out / f"reference-{rank}.pt")
        engine.destroy()
    leave()


if __name__ == "__main__":
    main()
