"""One rank of a job under AutoTP and ZeRO: as `make`, with the reference of every tensor-parallel rank."""

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
}


class Block(nn.Module):
    """A fused projection of unequal parts, column- and row-parallel layers, frozen ones too, what is replicated."""

    def __init__(self, *, has_frozen: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(21, 12)
        self.qkv = nn.Linear(12, 16)
        self.mix = nn.Linear(16, 12)
        self.up = nn.Linear(12, 18)
        self.down = nn.Linear(18, 12)
        self.norm = nn.LayerNorm(12)
        self.fixed = nn.Linear(12, 14)
        self.narrow = nn.Linear(14, 12)
        for layer in (self.fixed, self.narrow):
            layer.requires_grad_(not has_frozen)
        self.register_buffer("table", torch.arange(5.0))

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        hidden = hidden + self.mix(torch.tanh(self.qkv(hidden))) + self.narrow(self.fixed(hidden))
        return self.norm(hidden + self.down(torch.relu(self.up(hidden))))


def configuration(stage: int, bf16: bool) -> dict[str, Any]:
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
            "autotp_size": DEGREE,
            "partition_config": {"use_default_specs": False, "layer_specs": layers},
        },
        **({"bf16": {"enabled": True}} if bf16 else {}),
    }


def make(folder: Path, name: str, rank: int) -> None:
    import deepspeed
    from deepspeed.utils import groups

    stage, bf16 = STAGES[name]
    torch.manual_seed(7)
    # Without ZeRO, nothing names the parameters, and frozen ones could not be told from those of equal shape.
    net = Block(has_frozen=stage > 0)
    optimizer = torch.optim.AdamW([item for item in net.parameters() if item.requires_grad], lr=0.01)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=configuration(stage, bf16))
    tensor_rank = groups.get_tensor_model_parallel_rank()
    data_rank = groups.get_data_parallel_rank()
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + data_rank)
        ids = torch.randint(0, 21, (4, 5), generator=generator)
        target = torch.randn(4, 5, 12, generator=generator).to(torch.bfloat16 if bf16 else torch.float32)
        engine.backward(torch.nn.functional.mse_loss(engine(ids), target))
        engine.step()
    engine.save_checkpoint(str(folder / "ckpt"), tag="step3", client_state={"epoch": 3})
    tensors = gather(engine, ("exp_avg", "exp_avg_sq"))
    if data_rank == 0:
        info = engine.module.universal_checkpoint_info
        torch.save({"tensors": tensors, "info": info}, folder / f"reference-{tensor_rank}.pt")
    engine.destroy()


def main() -> None:
    import deepspeed

    rank, _ = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for name in STAGES:
        folder = Path(sys.argv[1], name)
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, name, rank)
    leave()


if __name__ == "__main__":
    main()
