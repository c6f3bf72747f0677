"""One rank of a job under AutoTP and ZeRO: as `make`, with the reference of every tensor-parallel rank.

Arguments: the folder for what is made, or ``load:CASE:DEGREE:PATH:RESULT`` for what stock DeepSpeed is to resume.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.frameworks_live.deepspeed.make import gather
from tests.processes import join, leave

DEGREE = 2
STAGES = {
    "tp-z1-bf16": (1, True),
    "tp-z2-fp32": (2, False),
    "tp-z0-fp32": (0, False),
    "tp-z3-bf16": (3, True),
    "tp-z3-tied": (3, True),
}


class Block(nn.Module):
    """A fused projection of unequal parts, column- and row-parallel layers, frozen ones too, what is replicated."""

    def __init__(self, *, has_frozen: bool, is_tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(21, 12)
        self.qkv = nn.Linear(12, 16)
        self.mix = nn.Linear(4, 12)
        self.up = nn.Linear(12, 18)
        self.down = nn.Linear(18, 12)
        self.norm = nn.LayerNorm(12)
        self.fixed = nn.Linear(12, 14)
        self.narrow = nn.Linear(14, 12)
        for layer in (self.fixed, self.narrow):
            layer.requires_grad_(not has_frozen)
        self.register_buffer("table", torch.arange(5.0))
        self.head: nn.Linear | None = None
        if is_tied:
            self.head = nn.Linear(12, 21, bias=False)
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        # Each rank has its part of all three: what comes of them does not depend on how many ranks there are.
        fused = torch.tanh(self.qkv(hidden))
        unit = fused.shape[-1] // 4
        query, key, value = torch.split(fused, [2 * unit, unit, unit], -1)
        mixed = query.view(*query.shape[:-1], unit, 2).sum(-1) + key * value
        hidden = hidden + self.mix(mixed) + self.narrow(self.fixed(hidden))
        if self.head is not None:
            hidden = hidden + self.head(hidden).mean(-1, keepdim=True)
        return self.norm(hidden + self.down(torch.relu(self.up(hidden))))


def configuration(stage: int, bf16: bool, degree: int = DEGREE) -> dict[str, Any]:
    layers = [
        {
            "patterns": [r".*qkv\.weight$"],
            "partition_type": "column",
            "shape": [[8, 4, 4], -1],
            "partition_dim": 0,
        },
        {"patterns": [r".*(up|fixed)\.weight$"], "partition_type": "column"},
        {"patterns": [r".*(down|mix|narrow)\.weight$"], "partition_type": "row"},
    ]
    return {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage, "reduce_scatter": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
        "tensor_parallel": {
            "autotp_size": degree,
            "partition_config": {"use_default_specs": False, "layer_specs": layers},
        },
        **({"bf16": {"enabled": True}} if bf16 else {}),
    }


def engine_of(name: str, degree: int = DEGREE, seed: int = 7) -> Any:
    import deepspeed

    stage, bf16 = STAGES[name]
    torch.manual_seed(seed)
    # Without ZeRO, nothing names the parameters, and frozen ones could not be told from those of equal shape.
    net = Block(has_frozen=stage > 0, is_tied=name.endswith("tied"))
    optimizer = torch.optim.AdamW([item for item in net.parameters() if item.requires_grad], lr=0.01)
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=optimizer, config=configuration(stage, bf16, degree)
    )
    return engine


def train(engine: Any, name: str, steps: int, data_rank: int) -> list[float]:
    losses = []
    for step in range(engine.global_steps, engine.global_steps + steps):
        generator = torch.Generator().manual_seed(10 * step + data_rank)
        ids = torch.randint(0, 21, (4, 5), generator=generator)
        target = torch.randn(4, 5, 12, generator=generator)
        target = target.to(torch.bfloat16 if STAGES[name][1] else torch.float32)
        loss = torch.nn.functional.mse_loss(engine(ids), target)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    return losses


def save(engine: Any, name: str, folder: Path) -> None:
    """What this tensor-parallel rank has, and what it has after two steps more of the same data on all ranks."""
    from deepspeed.utils import groups

    keys = ("exp_avg", "exp_avg_sq")
    found = {"tensors": gather(engine, keys), "info": engine.module.universal_checkpoint_info}
    found["losses"] = train(engine, name, 2, 0)
    found["later"] = gather(engine, keys)
    if groups.get_data_parallel_rank() == 0:
        torch.save(found, folder / f"reference-{groups.get_tensor_model_parallel_rank()}.pt")


def make(folder: Path, name: str, rank: int) -> None:
    from deepspeed.utils import groups

    engine = engine_of(name)
    train(engine, name, 3, groups.get_data_parallel_rank())
    engine.save_checkpoint(str(folder / "ckpt"), tag="step3", client_state={"epoch": 3})
    save(engine, name, folder)
    engine.destroy()


def load(name: str, degree: int, path: str, result: Path) -> None:
    engine = engine_of(name, degree, 99)
    loaded, client = engine.load_checkpoint(path)
    assert loaded is not None
    assert client["epoch"] == engine.global_steps == 3
    result.mkdir(exist_ok=True)
    save(engine, name, result)
    engine.destroy()


def main() -> None:
    import deepspeed

    rank, _ = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    if not sys.argv[1].startswith("load:"):
        for name in STAGES:
            folder = Path(sys.argv[1], name)
            folder.mkdir(parents=True, exist_ok=True)
            make(folder, name, rank)
    for job in sys.argv[1:]:
        if job.startswith("load:"):
            _, name, degree, path, result = job.split(":")
            load(name, int(degree), path, Path(result))
    leave()


if __name__ == "__main__":
    main()
