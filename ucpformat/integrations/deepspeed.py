"""A DeepSpeed engine under ZeRO-1 or 2, or without ZeRO, as checkpoints of a `CheckpointManager`.

Takes the place of ``engine.save_checkpoint`` and ``load_checkpoint``: no conversion, and any number of ranks may load.
Sources: deepspeed/utils/tensor_fragment.py, mixed_precision_linkage.py and runtime/zero/stage_1_and_2.py of
DeepSpeed 0.19. DeepSpeed itself says which part of a parameter lies where in a rank's flat partition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ucpformat.errors import error
from ucpformat.geometry import Flatten, Layout, Mesh, MeshAxis, Shard
from ucpformat.integrations.random_states import fill_random_states, random_states
from ucpformat.reader import open_checkpoint
from ucpformat.state_dict.tensors.local_tensors import TensorLayout
from ucpformat.state_dict.torch_group import group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.manager import CheckpointManager

__all__ = ["load_state", "save_state"]

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_MASTER = "master"
_STEP = "step"


@dataclass(slots=True)
class _Parts:
    """What this rank holds, and how the ranks hold it."""

    state: dict[str, Any]
    layouts: dict[str, TensorLayout] = field(default_factory=dict)


def save_state(engine: Any, manager: CheckpointManager, step: int, **options: Any) -> Any:
    """Save the engine's model, optimizer, schedule and counters as the checkpoint of ``step``; every rank calls this.

    ``options`` are those of `CheckpointManager.save`, which also says what comes back.

    Raises:
        UcpError: ``UCP-E-OBJECT`` for an engine that divides otherwise (ZeRO-3, offloading, pipelines, experts).
    """
    parts = _parts(engine)
    return manager.save(step, parts.state | random_states(), layouts=parts.layouts, **options)


def load_state(engine: Any, manager: CheckpointManager, step: int | None = None) -> int | None:
    """Fill the engine from a step, or from the newest one; None where there is none.

    Random generators go on where they were if as many ranks load as saved; else they stay as they are, with a warning.

    Raises:
        UcpError: as `save_state` and `CheckpointManager.restore`.
    """
    found = manager.latest() if step is None else step
    if found is None:
        return None
    path = manager.path(found)
    if _is_zero(engine.optimizer):
        _make_states(engine, _state_names(path))
    parts = _parts(engine)
    manager.restore(parts.state, found, layouts=parts.layouts)
    _take_back(engine, parts.state)
    fill_random_states(path)
    return found


def _is_zero(optimizer: Any) -> bool:
    return hasattr(optimizer, "single_partition_of_fp32_groups")


def _parts(engine: Any) -> _Parts:
    import torch

    optimizer = engine.optimizer
    refused = (
        "its ranks divide the model (pipeline or tensor parallelism, or experts)"
        if engine.mp_world_size > 1 or engine.has_moe_layers
        else None
        if type(optimizer).__module__.startswith("torch.optim")
        else "its optimizer is none of torch's, and not that of ZeRO-1 or 2"
        if not _is_zero(optimizer)
        else "it offloads its optimizer"
        if optimizer.cpu_offload
        else None
    )
    if refused is not None:
        message = f"{refused}; save with DeepSpeed, and convert with ucp convert"
        raise error("UCP-E-OBJECT", message, at=type(engine).__name__)
    state: dict[str, Any] = {
        "model": dict(engine.module.state_dict()),
        "engine": {name: getattr(engine, name) for name in _COUNTERS},
    }
    if engine.lr_scheduler is not None:
        state["schedule"] = engine.lr_scheduler
    if isinstance(optimizer, torch.optim.Optimizer):
        return _Parts({**state, "model": engine.module, "optim": optimizer})
    scaler = {
        name: value
        for name, value in vars(optimizer.loss_scaler).items()
        if type(value) in (int, float, bool)
    }
    return _divided(engine, {**state, "scaler": scaler})


def _divided(engine: Any, state: dict[str, Any]) -> _Parts:
    """Return masters and states of ZeRO-1 and 2: of every parameter, a run of its flattened elements on each rank."""
    optimizer = engine.optimizer
    if not any(optimizer.optimizer.state.get(flat) for flat in optimizer.single_partition_of_fp32_groups):
        message = "the optimizer has no states before the engine's first step; save after it"
        raise error("UCP-E-OBJECT", message, at=type(engine).__name__)
    _link(optimizer)
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    members = [[(names[id(one)], one) for one in group] for group in optimizer.bit16_groups]
    layouts = _layouts([one for group in members for one in group])
    parts = _Parts(state)
    states: dict[str, dict[str, Any]] = {}
    for group, flat in zip(members, optimizer.single_partition_of_fp32_groups, strict=True):
        for name, parameter in group:
            held = states.setdefault(name, {})
            if _STEP in optimizer.optimizer.state[flat]:
                held[_STEP] = optimizer.optimizer.state[flat][_STEP]
            fragment = parameter._hp_mapping
            if fragment is None:
                continue
            tensors = {key: fragment.get_optim_state_fragment(key) for key in fragment.get_optim_state_keys()}
            if parameter.dtype != flat.dtype:
                tensors[_MASTER] = fragment.hp_fragment
            held.update(tensors)
            parts.layouts.update({f"optim.state.{name}.{key}": layouts[name] for key in tensors})
    groups = [
        {
            **{key: value for key, value in options.items() if key != "params"},
            "params": [name for name, _ in group],
        }
        for options, group in zip(optimizer.param_groups, members, strict=True)
    ]
    state["optim"] = {"state": states, "param_groups": groups}
    return parts


def _link(optimizer: Any) -> None:
    """Let DeepSpeed find the states of every parameter: by itself it looks once, after the step of the first group."""
    if all(optimizer.optimizer.state.get(flat) for flat in optimizer.single_partition_of_fp32_groups):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _layouts(members: Sequence[tuple[str, Any]]) -> dict[str, TensorLayout]:
    """Return how the ranks hold each parameter's run of elements; ranks tell each other where theirs begin."""
    group = group_of(None)
    mine = {
        name: [
            parameter._hp_mapping.lp_fragment_address.start,
            parameter._hp_mapping.lp_fragment_address.numel,
        ]
        for name, parameter in members
        if parameter._hp_mapping is not None
    }
    told = [json.loads(one) for one in group.all_gather(json.dumps(mine).encode())]
    mesh = Mesh((MeshAxis("dp", len(told)),), tuple(group.ranks))
    found = {}
    for name, parameter in members:
        runs = [one.get(name, [None, 0]) for one in told]
        begin = 0
        for start, length in runs:
            if length and start != begin:
                raise error("UCP-E-LAYOUT", "the parts of ranks are not in their order", at=name)
            begin += length
        sizes = tuple(length for _, length in runs)
        found[name] = TensorLayout(Layout(mesh, (Flatten(), Shard("dp", 0, sizes))), tuple(parameter.shape))
    return found


def _state_names(path: str) -> list[str]:
    """Return names of the optimizer's tensors in a checkpoint."""
    with open_checkpoint(path) as checkpoint:
        found = {
            name for view in checkpoint.values() for name in view if name not in ("value", _MASTER, _STEP)
        }
        return sorted(name for name in found if not name.startswith("value."))


def _make_states(engine: Any, names: Sequence[str]) -> None:
    """Make the states of a fresh optimizer, as its first step would make them, to be filled."""
    import torch

    optimizer = engine.optimizer
    for flat in optimizer.single_partition_of_fp32_groups:
        state = optimizer.optimizer.state[flat]
        if not state:
            state[_STEP] = torch.tensor(0.0)
            state.update({name: torch.zeros_like(flat) for name in names})
    _link(optimizer)


def _take_back(engine: Any, state: dict[str, Any]) -> None:
    """Take back what is not filled in place."""
    for name, value in state["engine"].items():
        setattr(engine, name, value)
    optimizer = engine.optimizer
    if not _is_zero(optimizer):
        return
    vars(optimizer.loss_scaler).update(state["scaler"])
    saved = state["optim"]
    for options, group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        options.update({key: value for key, value in group.items() if key != "params"})
    for members, group, flat in zip(
        optimizer.bit16_groups, saved["param_groups"], optimizer.single_partition_of_fp32_groups, strict=True
    ):
        first = saved["state"].get(group["params"][0], {}) if group["params"] else {}
        if _STEP in first:
            optimizer.optimizer.state[flat][_STEP] = first[_STEP]
        for parameter in members:
            if parameter.dtype == flat.dtype and parameter._hp_mapping is not None:
                parameter._hp_mapping.update_hp()
