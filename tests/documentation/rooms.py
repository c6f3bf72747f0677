"""What lies in the directory of a page before its first block, and what its blocks find defined."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import ucpformat as ucp
from ucpformat.model.dtype import dtype
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

Namespace = dict[str, Any]


def plan(directory: Path, namespace: Namespace) -> None:
    """The checkpoint that the page speaks of; keys and bytes are always the same."""
    spec = AtomSpec("wq.weight", {"value": SlotSpec("bfloat16", (4096, 512))})
    with CheckpointWriter(directory / "saved.ucp", [spec], attempt="5f3a9c01") as writer:
        writer.write("wq.weight", "value", np.ones((4096, 512), dtype("bfloat16").numpy))


def integrity(directory: Path, namespace: Namespace) -> None:
    """A checkpoint whose keys and bytes are always the same."""
    shapes = {"fc1.weight": (768, 1024), "fc2.weight": (256, 1024)}
    specs = [AtomSpec(name, {"value": SlotSpec("float32", shape)}) for name, shape in shapes.items()]
    with CheckpointWriter(directory / "step-1000.ucp", specs, attempt="5f3a9c01", step=1000) as writer:
        for name, shape in shapes.items():
            writer.write(name, "value", np.full(shape, 0.5, np.float32))
    shutil.copytree(directory / "step-1000.ucp", directory / "copy.ucp")
    namespace.update(ucp=ucp)


def stock_dcp(path: Path, width: int = 64) -> None:
    """What stock torch saves of a linear layer and its optimizer."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(width)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save(  # type: ignore[attr-defined]
            {"model": model_state, "optim": optimizer_state}, checkpoint_id=path, no_dist=True
        )


def readme(directory: Path, namespace: Namespace) -> None:
    stock_dcp(directory / "step-1000.dcp")


def convert(directory: Path, namespace: Namespace) -> None:
    stock_dcp(directory / "step-100.dcp")


def deepspeed(directory: Path, namespace: Namespace) -> None:
    import torch

    model = torch.nn.Linear(64, 64)
    state = {"model": model, "optim": torch.optim.AdamW(model.parameters())}
    ucp.save(directory / "run.ucp", state, step=100)


def torch_save(directory: Path, namespace: Namespace) -> None:
    import torch

    model = torch.nn.Linear(64, 64)
    torch.save({"model": model.state_dict(), "epoch": 3}, directory / "run.pt")


def safetensors(directory: Path, namespace: Namespace) -> None:
    """Two models of Hugging Face with random weights, a DCP checkpoint, and an atom map."""
    stock_dcp(directory / "step-100.dcp")
    attention = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    shared = {f"self_attn.{name}": shape for name, shape in attention.items()}
    mlp = {"gate_proj": (96, 64), "up_proj": (96, 64), "down_proj": (64, 96)}
    experts = {
        f"block_sparse_moe.experts.{expert}.{name}": shape
        for expert in range(2)
        for name, shape in {"w1": (96, 64), "w2": (64, 96), "w3": (96, 64)}.items()
    }
    _hugging_face(directory / "llama", {**shared, **{f"mlp.{name}": shape for name, shape in mlp.items()}})
    _hugging_face(directory / "mixtral", {**shared, **experts, "block_sparse_moe.gate": (2, 64)})
    envelope = {"format": "ucp", "format_version": 0, "read_features": [], "write_features": []}
    rest = {"extensions": {}, "annotations": {}, "kind": "atom-map", "parameters": [{"name": "hidden"}]}
    entries = [
        {
            "left": {"kind": "atom", "name": "model.norm.weight", "shape": ["=hidden"]},
            "right": "final.weight",
        },
        {"left": "{rest:path}", "right": "{rest:path}"},
    ]
    (directory / "mine.json").write_text(json.dumps({**envelope, **rest, "entries": entries}))


def _hugging_face(path: Path, layer: dict[str, tuple[int, ...]]) -> None:
    """A model of one layer, with the configuration in which atom maps look their parameters up."""
    from safetensors.numpy import save_file

    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    norms = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
    shapes |= {f"{name}.weight": (64,) for name in norms}
    shapes |= {f"{name}.weight": (128, 64) for name in ("model.embed_tokens", "lm_head")}
    numbers = np.random.default_rng(0)
    tensors = {name: numbers.random(shape, np.float32) for name, shape in shapes.items()}
    config = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "num_local_experts": 2, "vocab_size": 128,
    }  # fmt: skip
    path.mkdir()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))


class Counter:
    """What keeps its own place, as data loaders and torchtitan's train state do."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> Namespace:
        return {"step": self.step}

    def load_state_dict(self, state: Namespace) -> None:
        self.step = state["step"]


def training(directory: Path, namespace: Namespace) -> None:
    """A training job under FSDP2, as the guides speak of one, that trains for three steps."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model: Any = fully_shard(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    counter = Counter()

    def train_step() -> None:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        schedule.step()
        counter.step += 1

    namespace.update(model=model, optimizer=optimizer, schedule=schedule, scheduler=schedule, loss=1.0)
    namespace.update(data=counter, train_state=counter, train_step=train_step, steps=3, interval=2)


ROOMS: Final[dict[str, Callable[[Path, Namespace], None]]] = {
    "README.md": readme,
    "docs/convert.md": convert,
    "docs/frameworks/deepspeed.md": deepspeed,
    "docs/frameworks/safetensors.md": safetensors,
    "docs/frameworks/torch_save.md": torch_save,
    "docs/guides/pytorch.md": training,
    "docs/guides/torchtitan.md": training,
    "docs/integrity.md": integrity,
    "docs/plan.md": plan,
}
"""By page; a page that is not here begins in an empty directory, with nothing defined."""
