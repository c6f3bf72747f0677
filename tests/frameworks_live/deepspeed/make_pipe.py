"""One rank of a job under DeepSpeed's ``PipelineModule``, with ZeRO-1 and without: trains, saves, resumes.

``python -m tests.frameworks_live.deepspeed.make_pipe make:CASE:FOLDER... load:CASE:PATH:RESULT...`` under
`tests.processes.launch`. A tied, padded embedding, frozen layers, buffers and layers without parameters are there.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.documentation.markdown import run_by
from tests.frameworks_live.deepspeed.make import gather, loss_scale_of, options_of
from tests.processes import join, leave

VOCABULARY, PADDED, WIDTH = 21, 24, 12
STEPS = 3


@dataclass(frozen=True)
class PipeCase:
    """Stages, data type, ZeRO stage, and how layers are divided."""

    stages: int
    dtype: torch.dtype = torch.bfloat16
    zero: int = 1
    method: str = "uniform"
    has_positions: bool = False
    has_head_file: bool = False


PIPES = {
    "pipe2-bf16": PipeCase(2),
    "pipe2-fp32": PipeCase(2, torch.float32),
    "pipe2-z0-bf16": PipeCase(2, zero=0),
    "pipe2-z0-fp32": PipeCase(2, torch.float32, zero=0),
    "pipe2-z0-fp16": PipeCase(2, torch.float16, zero=0),
    "pipe2-positions": PipeCase(2, has_positions=True),
    "pipe2-positions-files": PipeCase(2, has_positions=True, has_head_file=True),
    "pipe2-z0-fp32-positions": PipeCase(2, torch.float32, 0, has_positions=True),
    "pipe2-z0-fp32-positions-files": PipeCase(2, torch.float32, 0, has_positions=True, has_head_file=True),
    "pipe2-z0-fp16-positions": PipeCase(2, torch.float16, 0, has_positions=True),
    "pipe2-z0-bf16-positions": PipeCase(2, zero=0, has_positions=True),
    "pipe1-bf16": PipeCase(1),
    "pipe3-bf16": PipeCase(3),
    "pipe1-fp32": PipeCase(1, torch.float32),
    "pipe3-fp32": PipeCase(3, torch.float32, method="parameters"),
    "pipe1-z0-fp16": PipeCase(1, torch.float16, zero=0),
    "pipe3-z0-fp32": PipeCase(3, torch.float32, zero=0),
    "pipe3-fp16": PipeCase(3, torch.float16),
    "pipe3-z0-bf16": PipeCase(3, zero=0),
}


MADE = tuple(name for name in PIPES if name.startswith("pipe2-"))
"""What is saved, on four ranks; all else is what it is loaded as."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 17)
        self.down = nn.Linear(17, WIDTH)
        self.register_buffer("table", torch.arange(5.0))

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = hidden + self.down(torch.tanh(self.up(hidden)))
        return found


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        values = torch.linspace(-1, 1, PADDED * WIDTH).reshape(PADDED, WIDTH)
        self.weight = nn.Parameter(values, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.weight.mean(0)


class Embed(nn.Embedding):
    pass


class Placed(Embed):
    """Beside the tied weight one that is not tied: each stage that has the layer trains its own."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__(words, width)
        self.positions = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        # As the head, where the layer has no function of its own: only such a layer has a file.
        return head(self, ids) if ids.is_floating_point() else super().forward(ids) + self.positions


def head(layer: nn.Embedding, hidden: Tensor) -> Tensor:
    if isinstance(layer, Placed):
        hidden = hidden * (1 + layer.positions.mean())
    return hidden @ layer.weight.T


def criterion(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())


def engine_of(case: PipeCase, world: int, seed: int = 7, **more: Any) -> Any:
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    # DeepSpeed refuses fp16 on CPUs for what they cannot do fast.
    get_accelerator().is_fp16_supported = lambda: True
    torch.manual_seed(seed)
    kind = Placed if case.has_positions else Embed
    layers = [
        TiedLayerSpec("embed", kind, PADDED, WIDTH),
        LayerSpec(Block),
        Fixed(),
        LayerSpec(Block),
        torch.tanh,
        LayerSpec(nn.LayerNorm, WIDTH),
        LayerSpec(Block),
        TiedLayerSpec("embed", kind, PADDED, WIDTH, forward_fn=None if case.has_head_file else head),
    ]
    net = PipelineModule(
        layers=layers,
        num_stages=case.stages,
        loss_fn=criterion,
        partition_method=case.method,
    )
    named = [item for item in net.parameters() if item.requires_grad]
    groups = [
        {"params": [item for item in named if item.ndim > 1], "lr": 0.01, "weight_decay": 0.1},
        {"params": [item for item in named if item.ndim == 1], "lr": 0.02, "weight_decay": 0.0},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 4 * world // case.stages,
        # Without ZeRO, DeepSpeed clips each stage by its own norm: other stages would take other steps.
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": case.zero, "reduce_scatter": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
        **more,
    }
    if case.dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
    if case.dtype == torch.float16:
        config["fp16"] = {"enabled": True, "initial_scale_power": 6, "loss_scale_window": 2}
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW([group for group in groups if group["params"]]), config=config
    )
    return engine


def train(engine: Any, steps: int) -> list[float]:
    """The same data in every micro-batch, so that a resumed run of any degree takes the same steps."""
    losses = []
    for _ in range(steps):
        generator = torch.Generator().manual_seed(engine.global_steps)
        ids = torch.randint(0, VOCABULARY, (2, 5), generator=generator)
        target = torch.randint(0, VOCABULARY, (2, 5), generator=generator)
        losses.append(float(engine.train_batch(iter([(ids, target)] * 64))))
    return losses


def held(engine: Any) -> dict[str, Any]:
    """What this stage holds, gathered over its data-parallel ranks."""
    return {
        "loss_scale": loss_scale_of(engine),
        "tensors": gather(engine, ("exp_avg", "exp_avg_sq")),
        "options": options_of(engine),
        "global_steps": engine.global_steps,
    }


def load(engine: Any, path: str, *, is_flat: bool) -> Any:
    """Load what was saved, and return what the client added; ``is_flat`` without ZeRO under bf16.

    `BF16_Optimizer` has flat groups then, as under ZeRO-1, and since 0.18 `load_checkpoint` does not look for their
    files: 0.19 fails, on DeepSpeed's own checkpoints too. The engine's second step is what it does under ZeRO.
    """
    if not is_flat or version("deepspeed").startswith("0.16."):
        loaded, client = engine.load_checkpoint(path)
        assert loaded is not None
        return client
    with suppress(TypeError, KeyError):
        engine.load_checkpoint(path)
        raise AssertionError("DeepSpeed loads bf16 pipelines without ZeRO again")
    (block,) = run_by("tests/frameworks_live/deepspeed/make_pipe.py", "docs/frameworks/deepspeed.md")
    names: dict[str, Any] = {"engine": engine, "path": path, "os": os}
    exec(block.text, names)
    return names["client_state"]


def main() -> None:
    import deepspeed

    _, world = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for job in sys.argv[1:]:
        what, name, path, *result = job.split(":")
        case = PIPES[name]
        universal = {"checkpoint": {"load_universal": True}} if path.endswith(".uni") else {}
        engine = engine_of(case, world, 7 if what == "make" else 99, **universal)
        if what == "make":
            train(engine, STEPS)
            engine.save_checkpoint(str(Path(path, "ckpt")), tag="step3", client_state={"epoch": 3})
            out = Path(path)
        else:
            client = load(engine, path, is_flat=case.zero == 0 and case.dtype == torch.bfloat16)
            assert client["epoch"] == 3
            out = Path(result[0])
            out.mkdir(exist_ok=True)
        found = held(engine)
        found["losses"] = train(engine, 2)
        found["later"] = held(engine)["tensors"]
        if engine.grid.get_data_parallel_rank() == 0:
            torch.save(found, out / f"reference-{engine.grid.get_pipe_parallel_rank()}.pt")
        engine.destroy()
    leave()


if __name__ == "__main__":
    main()
