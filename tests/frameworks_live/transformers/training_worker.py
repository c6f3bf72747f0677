"""Ranks that train one Llama in turn: transformers under FSDP2, Megatron-core under TP 2 x PP 2, and FSDP2 again.

``python -m tests.frameworks_live.transformers.training_worker JOB FOLDER`` under `tests.processes.launch`; each job
goes on where a checkpoint leaves it, and keeps the losses of its steps. A batch depends on its number alone.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.frameworks_live.transformers.crossing_worker import CONFIG, LAYERS, llama
from tests.processes import join, leave

LR, WEIGHT_DECAY, BETAS, EPS = 4e-3, 0.1, (0.8, 0.97), 1e-7
BEFORE, AFTER = 4, 4
"""Steps before a checkpoint, and after it."""


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a batch, two rows of 12, and what follows each."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, CONFIG["vocab_size"], (2, 13), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def sharded() -> tuple[Any, torch.optim.Optimizer]:
    """The model under FSDP2, and AdamW with a group that decays and one that does not."""
    from torch.distributed.fsdp import fully_shard

    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)


def train(model: Any, optimizer: torch.optim.Optimizer, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        tokens, labels = batch(number)
        loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def first(folder: Path) -> None:
    """FSDP2 from the beginning: saves, and goes on, the control."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    import ucpformat

    model, optimizer = sharded()
    train(model, optimizer, range(BEFORE))
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
    ucpformat.save(folder / "fsdp.ucp", state, step=BEFORE)
    keep(folder / "control.pt", train(model, optimizer, range(BEFORE, BEFORE + 2 * AFTER)))


def again(folder: Path) -> None:
    """FSDP2 from what Megatron left, by stock DCP: all of it, and two ways with a part of the states lost."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    def resumed(spoil: Callable[[dict[str, Any]], None]) -> list[float]:
        model, optimizer = sharded()
        train(model, optimizer, range(100, 101))  # what is loaded has to take the place of something else
        weights, states = get_state_dict(model, optimizer)
        loaded: dict[str, Any] = {"model": weights, "optim": states}
        load(loaded, checkpoint_id=folder / "again.dcp")
        for held in loaded["optim"]["state"].values():
            spoil(held)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
        return train(model, optimizer, range(BEFORE + AFTER, BEFORE + 2 * AFTER))

    keep(folder / "again.pt", [resumed(spoil) for spoil in (lambda _: None, no_moments, one_step)])


def no_moments(held: dict[str, Any]) -> None:
    held["exp_avg"].zero_()


def one_step(held: dict[str, Any]) -> None:
    held["step"].fill_(1)


def keep(path: Path, losses: object) -> None:
    if dist.get_rank() == 0:
        torch.save(losses, path)


def megatron(folder: Path) -> None:
    """TP 2 x PP 2 with the distributed optimizer from what FSDP2 left; saves, and goes on; spoiled twice, too."""
    from tests.frameworks_live.megatron import make  # first of all, for it pretends a device

    warnings.simplefilter("ignore")
    from megatron.core import dist_checkpointing, parallel_state

    parallel_state.initialize_model_parallel(2, 2)
    kept: list[list[float]] = []
    for spoil in (no_moments, one_step, None):
        ddp, optimizer = built()
        megatron_train(ddp, optimizer, range(100, 101))
        make.keep_steps(optimizer)
        described = {
            **dist_checkpointing.load_content_metadata(str(folder / "torch_dist")),
            "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        }
        loaded = dist_checkpointing.load(
            megatron_state(ddp, optimizer, described, is_loading=True), str(folder / "torch_dist")
        )
        assert loaded["iteration"] == BEFORE
        ddp.module.load_state_dict(loaded["model"])
        with torch.no_grad():
            optimizer.load_state_dict(loaded["optimizer"])
        for found in make.inner(optimizer):
            found._copy_main_params_to_model_params()
            for held in found.optimizer.state.values():
                held["step"] = held["step"].clone()  # 0.16.1 gives all of torch Adam's states one counter
                if spoil is not None:
                    spoil(held)
        kept.append(megatron_train(ddp, optimizer, range(BEFORE, BEFORE + AFTER)))
    if dist.get_rank() == 0:
        (folder / "again").mkdir()
    dist.barrier()
    state = megatron_state(ddp, optimizer, described, is_loading=False)
    state["iteration"] = BEFORE + AFTER
    del described["dp_cp_group"]
    dist_checkpointing.save(state, str(folder / "again"), content_metadata=described)
    kept[-1] += megatron_train(ddp, optimizer, range(BEFORE + AFTER, BEFORE + 2 * AFTER))
    if parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0:
        torch.save(kept, folder / "megatron.pt")


def built() -> tuple[Any, Any]:
    """The part of the model that is this rank's, other weights in it, and Megatron's optimizer."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from tests.frameworks_live.transformers.megatron_model import gpt

    torch.manual_seed(99)
    module = gpt(
        layers=LAYERS,
        tied=False,
        gated=True,
        groups=CONFIG["num_key_value_heads"],
        stage=(parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()),
        degrees={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        config={
            "layernorm_epsilon": CONFIG["rms_norm_eps"],
            "gradient_accumulation_fusion": False,
            "batch_p2p_comm": False,
        },
        model={"rotary_base": 10000},
    )
    ddp = DistributedDataParallel(
        module.config, DistributedDataParallelConfig(use_distributed_optimizer=True), module
    )
    # Other numbers than the checkpoint's: what is loaded has to take their place.
    settings = OptimizerConfig(optimizer="adam", lr=1.0, use_distributed_optimizer=True, clip_grad=0.0)
    return ddp, get_megatron_optimizer(settings, [ddp])


def megatron_state(
    ddp: Any, optimizer: Any, described: dict[str, Any], *, is_loading: bool
) -> dict[str, Any]:
    model = {
        name: item
        for name, item in ddp.module.sharded_state_dict(metadata=described).items()
        if not name.endswith("_extra_state")
    }
    states = optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=described)
    return {"model": model, "optimizer": states}


def megatron_train(ddp: Any, optimizer: Any, numbers: range) -> list[float]:
    """Megatron's own pipeline schedule; the losses are there on the last stage."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    losses = []

    def forward(iterator: Any, module: Any) -> tuple[Any, Any]:
        tokens, labels = next(iterator)
        length = tokens.shape[1]
        mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
        found = module(tokens, torch.arange(length).expand_as(tokens), mask, labels=labels)
        return found, lambda output: (output.mean(), {"loss": output.mean().detach()})

    for number in numbers:
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        reduced = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter([batch(number)]),
            model=ddp,
            num_microbatches=1,
            seq_length=batch(number)[0].shape[1],
            micro_batch_size=2,
            forward_only=False,
        )
        optimizer.step()
        losses += [float(found["loss"]) for found in reduced]
    return losses


def main() -> None:
    warnings.simplefilter("ignore")
    join()
    {"first": first, "megatron": megatron, "again": again}[sys.argv[1]](Path(sys.argv[2]))
    leave()


if __name__ == "__main__":
    main()
