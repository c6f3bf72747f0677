"""One rank of a DeepSpeed training job on CPU: trains, saves, and gathers the reference by DeepSpeed's own API.

``python -m tests.frameworks_live.deepspeed.make FOLDER CASE...`` under `tests.processes.launch`. Every case gets
``FOLDER/<case>-dp<world>/ckpt``, DeepSpeed's checkpoint, and ``reference.pt`` beside it: plain tensors and numbers.
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tests.frameworks_live.deepspeed.cases import CASES, Case
from tests.frameworks_live.deepspeed.model import Net, groups_of, sample
from tests.processes import join, leave

TAG = "global_step3"
STEPS = 3


def configuration(case: Case, world: int) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": case.stage,
        "reduce_scatter": False,
        "round_robin_gradients": case.round_robin,
        **case.zero,
    }
    rates = [0.02, 0.03][: case.groups]
    rates_low = [0.001, 0.002][: case.groups]
    config: dict[str, Any] = {
        "train_batch_size": 4 * world,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1000,
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 10, "warmup_max_lr": rates, "warmup_min_lr": rates_low},
        },
        **case.config,
    }
    if case.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    if case.dtype == "float16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 6, "loss_scale_window": 2}
    return config


def engine_of(case: Case, world: int, seed: int = 7, **more: Any) -> Any:
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed refuses fp16 on CPUs for what they cannot do fast.
    get_accelerator().is_fp16_supported = lambda: True
    torch.manual_seed(seed)
    net = Net(frozen=case.frozen)
    groups = groups_of(net, case.groups)
    optimizer = case.optimizer(groups)
    config = {**configuration(case, world), **more}
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return engine


def train(engine: Any, steps: int, rank: int, dtype: torch.dtype) -> list[float]:
    losses = []
    for step in range(steps):
        ids, target = sample(1000 * engine.global_steps + step * 0 + rank, dtype)
        loss = torch.nn.functional.mse_loss(engine(ids), target)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    return losses


def gather(engine: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """Values, master copies and optimizer states in full, by DeepSpeed's own functions; every rank calls it."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    optimizer = engine.optimizer
    if hasattr(optimizer, "_hp_optimizer_states_linked"):
        # DeepSpeed links the states after the step of the first group, and forgets the later ones.
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, parameter in engine.module.named_parameters():
        held = tensors.setdefault(name, {})
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            held["value"] = parameter.detach().clone()
        if not parameter.requires_grad:
            continue
        master = safe_get_full_fp32_param(parameter)
        if (
            master is None
        ):  # no ZeRO: DeepSpeed has no function for it, torch's own optimizer holds the states
            held |= plain_states(optimizer, parameter)
            continue
        held["master"] = master.clone().reshape(held["value"].shape)
        for key in keys:
            held[key] = safe_get_full_optimizer_state(parameter, key).clone().reshape(held["value"].shape)
    for name, buffer in engine.module.named_buffers():
        tensors[name] = {"value": buffer.detach().clone()}
    return tensors


def plain_states(optimizer: Any, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    held = {}
    if hasattr(optimizer, "fp16_groups"):
        pairs = zip(chain(*optimizer.fp16_groups), chain(*optimizer.fp32_groups), strict=True)
        parameter = next(master for low, master in pairs if low is parameter)
        held["master"] = parameter.detach().clone()
        optimizer = optimizer.optimizer
    states = optimizer.state[parameter]
    return held | {key: value.clone() for key, value in states.items() if value.ndim}


def options_of(engine: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in engine.optimizer.param_groups
    ]


def loss_scale_of(engine: Any) -> float:
    """The scale of the loss, which each of DeepSpeed's optimizers keeps in a place of its own."""
    found: float = getattr(getattr(engine.optimizer, "loss_scale_config", engine.optimizer), "cur_scale", 1)
    return found


def shapes_of(engine: Any) -> list[Any]:
    """Names and shapes in the order of the flat buffers, which DeepSpeed computes for ZeRO alone."""
    found: list[Any] = engine._get_zero_param_shapes() if engine.zero_optimization() else []
    return found


def buffers_of(engine: Any) -> list[torch.Tensor]:
    """The flat fp32 buffers of this rank as they lie in memory."""
    for member in (
        "single_partition_of_fp32_groups",
        "fp32_groups_flat_partition",
        "fp32_partitioned_groups_flat",
    ):
        found = getattr(engine.optimizer, member, None)
        if found is not None:
            return [buffer.detach().clone() for buffer in found]
    return []


def make(folder: Path, name: str, rank: int, world: int) -> None:
    case = CASES[name]
    engine = engine_of(case, world)
    dtype: torch.dtype = getattr(torch, case.dtype)
    torch.save(buffers_of(engine), folder / f"initial-{rank}.pt")
    train(engine, STEPS, 0 if case.same_data else rank, dtype)
    client = {"epoch": 3, "note": "client", "nested": {"a": [1, 2.5, None]}, "rng": torch.get_rng_state()}
    engine.save_checkpoint(str(folder / "ckpt"), tag=TAG, client_state=client)
    reference: dict[str, Any] = {
        "tensors": gather(engine, case.states),
        "options": options_of(engine),
        "groups": case.groups,
        "global_steps": engine.global_steps,
        "tied": {"head.weight": "embed.weight"},
        "rng": client["rng"],
        "shapes": [[(name, list(shape)) for name, shape in group.items()] for group in shapes_of(engine)],
        "paddings": getattr(engine.optimizer, "round_robin_bit16_padding", None),
        "loss_scale": loss_scale_of(engine),
        "scheduler": engine.lr_scheduler.state_dict() if engine.lr_scheduler else None,
    }
    torch.save(buffers_of(engine), folder / f"buffers-{rank}.pt")
    # The same data on all ranks: a resumed run of any degree takes the same steps.
    reference["losses"] = train(engine, 2, 0, dtype)
    if rank == 0:
        torch.save(reference, folder / "reference.pt")
    engine.destroy()


def main() -> None:
    import deepspeed

    rank, world = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1], f"{name}-dp{world}")
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, name, rank, world)
    leave()


if __name__ == "__main__":
    main()
