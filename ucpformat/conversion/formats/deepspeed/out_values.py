"""What DeepSpeed's files hold beside tensors, as DeepSpeed 0.19.8 writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ucpformat.conversion.formats.deepspeed.files.state_values import SCALERS, WRAPPER
from ucpformat.conversion.formats.deepspeed.outlines import Outline
from ucpformat.errors import error
from ucpformat.tensor_files.stand_ins import TorchDtype
from ucpformat.tensor_files.torch_archive_writer import Call

__all__ = ["INFO", "VERSION", "configuration", "model_values", "scaler_state", "wrapper_values"]

VERSION: Final = "0.19.8"
"""The DeepSpeed whose files these are."""

INFO: Final = "universal_checkpoint_info"
_OF_SHARDS: Final = ("affine_map", "sub_param_shard_widths")
_SCALERS: Final = SCALERS.removesuffix(".")
_SCALER_NAMES: Final = ("LossScaler", "DynamicLossScaler")


def configuration(outline: Outline, degree: int = 1) -> dict[str, Any]:
    """Return ``ds_config``, which says how many tensor-parallel ranks there are where it says so at all."""
    kept = outline.values.get("ds_config")
    config = dict(kept) if isinstance(kept, dict) else {}
    parallel = config.get("tensor_parallel")
    if isinstance(parallel, dict) and "autotp_size" in parallel:
        config["tensor_parallel"] = {**parallel, "autotp_size": degree}
    return config


def universal_info(outline: Outline) -> dict[str, Any]:
    """Return ``universal_checkpoint_info`` as the client or AutoTP gave it, but for how the saving job's shards lay."""
    kept = outline.values.get(INFO)
    return (
        {key: value for key, value in kept.items() if key not in _OF_SHARDS} if isinstance(kept, dict) else {}
    )


def model_values(outline: Outline, rank: int = 0, degree: int = 1) -> dict[str, Any]:
    """Return members of model_states that are not about tensors: defaults, then what the checkpoint has.

    ``degree`` is how many tensor-parallel ranks are written.

    Raises:
        UcpError: ``UCP-E-NAME`` where a value and tensors outside the model have one name.
    """
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
    }
    for name, tensors in outline.client.items():
        held = kept.get(name, {})
        if not isinstance(held, dict) or (not isinstance(tensors, dict) and name in kept):
            raise error("UCP-E-NAME", f"a value and tensors outside the model are both called {name!r:.100}")
        kept[name] = {**held, **tensors} if isinstance(tensors, dict) else tensors
    if INFO in kept:
        kept[INFO] = universal_info(outline)
    fixed = {
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_version": VERSION,
        "ds_config": configuration(outline, degree),
    }
    return {**defaults, **kept, **fixed}


def wrapper_values(outline: Outline, stage: int) -> dict[str, Any]:
    """Return what DeepSpeed's optimizer keeps around torch's."""
    kept = _kept(outline)
    number = Call("deepspeed.runtime.zero.config", "ZeroStageEnum", (stage,))
    return {
        "loss_scaler": kept.get("loss_scaler") or _loss_scaler(outline, kept),
        "dynamic_loss_scale": kept.get("dynamic_loss_scale", False),
        "overflow": kept.get("overflow", False),
        **({"clip_grad": kept["clip_grad"]} if "clip_grad" in kept else {}),
        "zero_stage": number,
    }


def scaler_state(outline: Outline) -> dict[str, Any]:
    """Return the loss scale as the optimizers without ZeRO keep it (``runtime/fp16/unfused_optimizer.py``)."""
    kept = _kept(outline)
    scaler = kept.get("loss_scaler")
    state = (scaler.state or {}) if isinstance(scaler, Call) else kept
    is_dynamic = kept.get("dynamic_loss_scale") is True
    members = {
        "dynamic_loss_scale": is_dynamic,
        "cur_scale": state.get("cur_scale", 1.0),
        "cur_iter": state.get("cur_iter", 0),
    }
    names = ("last_overflow_iter", "scale_factor", "scale_window")
    return members | ({name: state[name] for name in names if name in state} if is_dynamic else {})


def _kept(outline: Outline) -> dict[str, Any]:
    wrapper = outline.values.get(WRAPPER)
    kept = dict(wrapper) if isinstance(wrapper, dict) else {}
    scaler = kept.get("loss_scaler")
    if isinstance(scaler, dict):
        state = scaler.get("state")
        name = scaler.get("class")
        known = name in _SCALER_NAMES and isinstance(state, dict)
        kept["loss_scaler"] = Call(_SCALERS, str(name), (), state, makes_instance=True) if known else None
    return kept


def _loss_scaler(outline: Outline, kept: Mapping[str, Any]) -> Call:
    """Return ZeRO's scaler of what optimizers without ZeRO keep; what they do not is of the run's configuration."""
    if kept.get("dynamic_loss_scale") is not True:
        state = {"cur_scale": kept.get("cur_scale", 1.0), "dynamic": False}
        return Call(_SCALERS, "LossScaler", (), state, True)
    config = outline.values.get("ds_config")
    half = config.get("fp16") if isinstance(config, dict) else None
    half = half if isinstance(half, dict) else {}
    hysteresis = half.get("hysteresis", 2)
    return Call(
        _SCALERS,
        "DynamicLossScaler",
        (),
        {
            "cur_scale": kept.get("cur_scale", 1.0),
            "dynamic": True,
            "cur_iter": kept.get("cur_iter", 0),
            "last_overflow_iter": kept.get("last_overflow_iter", -1),
            "scale_factor": kept.get("scale_factor", 2.0),
            "scale_window": kept.get("scale_window", 1000),
            "min_scale": half.get("min_loss_scale", 1),
            "delayed_shift": hysteresis,
            "cur_hysteresis": hysteresis,
            "consecutive_hysteresis": half.get("consecutive_hysteresis", False),
            "raise_error_at_min_scale": True,
            "dtype": TorchDtype("float16"),
        },
        True,
    )
