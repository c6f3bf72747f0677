"""What DeepSpeed's files hold beside tensors, as DeepSpeed 0.19.8 writes it."""

from __future__ import annotations

from typing import Any, Final

from ucpformat.frameworks.deepspeed.outlines import Outline
from ucpformat.frameworks.deepspeed.state_values import WRAPPER
from ucpformat.frameworks.deepspeed.torch_writer import Call

__all__ = ["VERSION", "model_values", "wrapper_values"]

VERSION: Final = "0.19.8"
"""The DeepSpeed whose files these are."""

_LOSS_SCALER: Final = Call(
    "deepspeed.runtime.fp16.loss_scaler", "LossScaler", (), {"cur_scale": 1.0, "dynamic": False}, True
)


def model_values(outline: Outline, rank: int = 0) -> dict[str, Any]:
    """Members of model_states that are not about tensors: defaults, then what the checkpoint has."""
    own = f"rank/{rank}/"
    kept = {
        name: value
        for name, value in outline.values.items()
        if name != WRAPPER and not name.startswith(("rank/", "mp_rank/"))
    }
    kept |= {name.removeprefix(own): value for name, value in outline.values.items() if name.startswith(own)}
    defaults: dict[str, Any] = {
        "lr_scheduler": None,
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": outline.step,
        "global_samples": 0,
        "ds_config": {},
    }
    fixed = {
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_version": VERSION,
    }
    return {**defaults, **kept, **fixed}


def wrapper_values(outline: Outline, stage: int) -> dict[str, Any]:
    """What DeepSpeed's optimizer keeps around torch's."""
    found = outline.values.get(WRAPPER)
    kept = dict(found) if isinstance(found, dict) else {}
    number = Call("deepspeed.runtime.zero.config", "ZeroStageEnum", (stage,))
    return {
        "loss_scaler": kept.get("loss_scaler", _LOSS_SCALER),
        "dynamic_loss_scale": kept.get("dynamic_loss_scale", False),
        "overflow": kept.get("overflow", False),
        **({"clip_grad": kept["clip_grad"]} if "clip_grad" in kept else {}),
        "zero_stage": number,
    }
