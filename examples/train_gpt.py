"""Train a small byte-level GPT on the sources of Python's standard library, under any mix of FSDP2 and TP.

An ordinary PyTorch script: it knows nothing of ucpformat. It saves and resumes with stock
``torch.distributed.checkpoint``; `demo.py` beside it converts between two runs. By hand, on one machine::

    torchrun --nproc-per-node 4 examples/train_gpt.py --dp 2 --tp 2 --until 60 --save-at 30 --save out/step-30

The batch of a step is the same for every layout: all ranks draw the same global batch from one generator
(whose state is part of the checkpoint) and each data-parallel rank takes its slice. Two runs that differ only
in layout therefore differ only in the order of float32 sums.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

VOCAB = 256
CONTEXT = 64
WIDTH = 96
HEADS = 4
BLOCKS = 3
GLOBAL_BATCH = 24
PEAK_LEARNING_RATE = 3e-3
WARMUP_STEPS = 10
HORIZON_STEPS = 150
SEED = 20240229


class Attention(nn.Module):
    """Causal self-attention; the number of heads follows the local width, so that TP needs no change."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, time, WIDTH)`` to the same shape."""
        batch, time, _ = x.shape
        query, key, value = (
            project(x).view(batch, time, -1, WIDTH // HEADS).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, -1))
        return merged


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, time, WIDTH)`` to the same shape."""
        x = x + self.attention(self.norm_1(x))
        grown: Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return grown


class GPT(nn.Module):
    """A decoder over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(torch.empty(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, in nats per byte, of predicting ``targets``; int64 ``(batch, time)``."""
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Which ranks hold what: ``dp`` FSDP2 shards, each split over ``tp`` tensor-parallel ranks."""

    mesh: DeviceMesh | None
    dp: int
    tp: int

    @property
    def dp_rank(self) -> int:
        """The place of the calling process on the data-parallel axis."""
        return 0 if self.mesh is None else int(self.mesh.get_local_rank("dp"))

    def apply(self, model: GPT) -> None:
        """Turn the model's parameters into DTensors in place; with one process, leave it plain."""
        if self.mesh is None:
            return
        if self.tp > 1:
            parallelize_module(
                model,
                self.mesh["tp"],
                {
                    "embed": RowwiseParallel(input_layouts=Replicate()),
                    "blocks.*.attention.query": ColwiseParallel(),
                    "blocks.*.attention.key": ColwiseParallel(),
                    "blocks.*.attention.value": ColwiseParallel(),
                    "blocks.*.attention.out": RowwiseParallel(),
                    "blocks.*.up": ColwiseParallel(),
                    "blocks.*.down": RowwiseParallel(),
                    "head": ColwiseParallel(output_layouts=Replicate()),
                },
            )
        if self.dp > 1:
            for block in model.blocks:
                fully_shard(block, mesh=self.mesh["dp"])
            fully_shard(model, mesh=self.mesh["dp"])

    def mean(self, loss: Tensor) -> float:
        """Average a loss over the data-parallel ranks, whose slices have equal size."""
        total = loss.detach().clone()
        if self.mesh is not None:
            dist.all_reduce(total, group=self.mesh.get_group("dp"))
        return total.item() / self.dp


def start(dp: int, tp: int, rendezvous: str) -> Parallelism:
    """Join the process group and build the ("dp", "tp") mesh; rank and size come from the environment."""
    if dp * tp == 1:
        return Parallelism(None, 1, 1)
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    return Parallelism(init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp")), dp, tp)


def standard_library_text() -> Tensor:
    """Return the top-level modules of Python's standard library, ordered by name, as uint8 bytes."""
    modules = sorted(Path(os.__file__).parent.glob("*.py"), key=lambda path: path.name)
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in modules)), dtype=torch.uint8)


def learning_rate(step: int) -> float:
    """Give the factor on the peak rate: linear warm-up, then cosine down to a tenth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    progress = min(1.0, (step - WARMUP_STEPS) / (HORIZON_STEPS - WARMUP_STEPS))
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * progress))


class Training:
    """Everything that a step changes: model, optimizer, schedule, step number and the data generator."""

    def __init__(self, parallelism: Parallelism) -> None:
        torch.manual_seed(SEED)
        self.parallelism = parallelism
        self.model = GPT()
        parallelism.apply(self.model)
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=PEAK_LEARNING_RATE,
            betas=(0.9, 0.95),
            foreach=False,  # the parameters live on two meshes, (dp, tp) and (dp)
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate)
        self.generator = torch.Generator().manual_seed(SEED)
        self.step = 0

    def state(self) -> dict[str, Any]:
        """Return the checkpoint: what `torch.distributed.checkpoint` saves, and the target that it fills."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optim": optimizer,
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
            "rng": self.generator.get_state(),
        }

    def save(self, directory: str) -> None:
        """Write the whole state; every rank takes part."""
        dcp.save(self.state(), checkpoint_id=directory)  # type: ignore[attr-defined]

    def load(self, directory: str) -> None:
        """Continue from a checkpoint, whatever layout it was saved under."""
        state = self.state()
        dcp.load(state, checkpoint_id=directory)  # type: ignore[attr-defined]
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        self.scheduler.load_state_dict(state["scheduler"])
        self.generator.set_state(state["rng"])
        self.step = state["step"]

    def forget_moments(self) -> None:
        """Set AdamW back to its first step: what a checkpoint without optimizer state would give."""
        for slots in self.optimizer.state.values():
            for tensor in slots.values():
                tensor.zero_()

    def advance(self, text: Tensor, make_step: Callable[[], object] | None = None) -> float:
        """Take one optimizer step, by ``make_step`` if given; return the loss over the global batch, nats per byte."""
        starts = torch.randint(len(text) - CONTEXT, (GLOBAL_BATCH,), generator=self.generator)
        mine = starts.chunk(self.parallelism.dp)[self.parallelism.dp_rank]
        windows = torch.stack([text[i : i + CONTEXT + 1] for i in mine.tolist()]).long()
        loss: Tensor = self.model(windows[:, :-1], windows[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        (make_step or self.optimizer.step)()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.step += 1
        return self.parallelism.mean(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small byte-level GPT under FSDP2 x TP.")
    parser.add_argument("--dp", type=int, default=1, help="FSDP2 shards")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--until", type=int, required=True, metavar="STEP", help="stop after this many steps")
    parser.add_argument("--save-at", type=int, metavar="STEP", help="write --save after this many steps")
    parser.add_argument("--save", metavar="DIR", help="where torch.distributed.checkpoint writes")
    parser.add_argument(
        "--resume", metavar="DIR", help="a torch.distributed.checkpoint directory to continue from"
    )
    parser.add_argument(
        "--forget-moments", action="store_true", help="then reset AdamW: a control for the demo"
    )
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write the losses here, one JSON array")
    parser.add_argument(
        "--rendezvous", default="env://", metavar="URL", help="init_method of the process group"
    )
    arguments = parser.parse_args()
    if GLOBAL_BATCH % arguments.dp:
        parser.error(f"--dp must divide the global batch of {GLOBAL_BATCH} sequences")

    training = Training(start(arguments.dp, arguments.tp, arguments.rendezvous))
    if arguments.resume:
        training.load(arguments.resume)
    if arguments.forget_moments:
        training.forget_moments()
    text = standard_library_text()
    losses = []
    while training.step < arguments.until:
        losses.append({"step": training.step, "loss": training.advance(text)})
        if arguments.save and training.step == arguments.save_at:
            training.save(arguments.save)
    if arguments.losses and int(os.environ.get("RANK", "0")) == 0:
        arguments.losses.write_text(json.dumps(losses))
    if dist.is_initialized():
        leave()


def leave() -> NoReturn:
    """End a process of a group with status 0, but without the interpreter's teardown.

    Gloo's worker threads outlive ``destroy_process_group`` while a mesh or FSDP module holds the group, and one
    that lets go of a tensor during the teardown aborts the process (ProcessGroupGloo.cpp, `AsyncWork`).
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
