# ruff: noqa: E402
"""Worker: trains a tiny GPT with megatron-core on gloo, saves it with `dist_checkpointing`, or resumes it.

``python -m tests.frameworks_live.megatron.make save FOLDER CASE`` and ``... load FOLDER CASE``. What
lies in the memory of each rank is dumped as it is, so that references need neither Megatron's checkpoints nor ours.
"""

from __future__ import annotations

import sys
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

warnings.simplefilter("ignore")

from tests.frameworks_live.megatron import cpu

cpu.pretend()

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.rerun_state_machine import (
    RerunMode,
    get_rerun_state_machine,
    initialize_rerun_state_machine,
)
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.frameworks_live.megatron.arguments import arguments
from tests.frameworks_live.megatron.cases import CASES, Case
from tests.frameworks_live.megatron.references import global_name
from tests.processes import join, leave


def build(case: Case, seed: int) -> tuple[list[Any], Any]:
    """The chunks of the model that this rank has, and their optimizer."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=16,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=24,
        moe_ffn_hidden_size=24 if case.experts else None,
        num_moe_experts=case.experts,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        use_cpu_initialization=True,
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        expert_model_parallel_size=case.ep,
        virtual_pipeline_model_parallel_size=case.chunks,
        num_layers_in_first_pipeline_stage=case.first_stage,
        pipeline_dtype=torch.float32,
        bf16=case.bf16,
        params_dtype=torch.bfloat16 if case.bf16 else torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
    )
    models = []
    for chunk in range(case.chunks or 1):
        stage = {} if case.chunks is None else {"ignore_virtual": False, "vp_stage": chunk}
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(num_experts=case.experts, normalization="RMSNorm"),
            vocab_size=32,
            max_sequence_length=8,
            pre_process=parallel_state.is_pipeline_first_stage(**stage),
            post_process=parallel_state.is_pipeline_last_stage(**stage),
            share_embeddings_and_output_weights=case.tied,
            position_embedding_type="rope",
            vp_stage=None if case.chunks is None else chunk,
        )
        models.append(model.bfloat16() if case.bf16 else model)
    sharded = DistributedDataParallelConfig(
        use_distributed_optimizer=case.sharding is not None,
        bucket_size=case.bucket_size,
        overlap_grad_reduce=case.bucket_size is not None,
    )
    ddps = [DistributedDataParallel(config, sharded, model) for model in models]
    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        use_distributed_optimizer=case.sharding is not None,
        clip_grad=0.0,
        bf16=case.bf16,
        params_dtype=torch.bfloat16 if case.bf16 else torch.float32,
    )
    return ddps, get_megatron_optimizer(settings, ddps)


def step(ddps: list[Any], optimizer: Any, number: int, case: Case) -> float:
    """One step; with stages or experts the gradients are made up, of names and values alone, whatever the degrees."""
    for ddp in ddps:
        ddp.zero_grad_buffer()
    optimizer.zero_grad()
    loss = torch.zeros(())
    if case.forward:
        (ddp,) = ddps
        ids = (torch.arange(16).reshape(2, 8) * 5 + number) % 32
        places = torch.arange(8).expand(2, 8)
        loss = ddp(ids, places, None, labels=(ids + 1) % 32).mean()
        loss.backward()
        ddp.finish_grad_sync()
    else:
        for ddp in ddps:
            for local, parameter in ddp.module.named_parameters():
                name = global_name(local, first_layer(ddp), first_expert(ddp))
                place = 0 if getattr(parameter, "shared_embedding", False) else zlib.crc32(name.encode()) % 50
                parameter.main_grad.copy_(torch.sin(parameter.detach().float() * 3 + number + place))
    optimizer.step()
    return float(loss.detach())


def metadata(case: Case) -> dict[str, Any]:
    return {
        "distrib_optim_sharding_type": case.sharding,
        "singleton_local_shards": False,
        "non_homogeneous_layers": case.by_layer,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }


def sharded_state(case: Case, ddps: list[Any], optimizer: Any, *, is_loading: bool) -> dict[str, Any]:
    described = metadata(case)
    models = {
        name: ddp.module.sharded_state_dict(metadata=described)
        for name, ddp in zip(model_names(ddps), ddps, strict=True)
    }
    return {
        **models,
        "optimizer": optimizer.sharded_state_dict(models, is_loading=is_loading, metadata=described),
    }


def model_names(ddps: list[Any]) -> list[str]:
    """What Megatron-LM calls the chunks of a rank in its state."""
    return ["model"] if len(ddps) == 1 else [f"model{number}" for number in range(len(ddps))]


def first_layer(ddp: Any) -> int:
    """The number of the first layer of a chunk in the whole model."""
    layers = ddp.module.decoder.layers
    return int(layers[0].layer_number) - 1 if len(layers) else 0


def first_expert(ddp: Any) -> int:
    """The number of the first expert of a rank."""
    held = (
        int(ddp.module.config.num_moe_experts or 0) // parallel_state.get_expert_model_parallel_world_size()
    )
    return int(held) * int(parallel_state.get_expert_model_parallel_rank())


def keep_steps(optimizer: Any) -> None:
    """Let torch Adam's ``step`` be what it is from the groups: 0.16.1 copies one that was not stored over it."""
    for found in inner(optimizer):
        if hasattr(found, "_set_main_param_and_optimizer_states"):
            original = found._set_main_param_and_optimizer_states

            def put(parameter: Any, tensors: Any, found: Any = found, original: Any = original) -> None:
                group, order = found.model_param_group_index_map[parameter]
                main = found.optimizer.param_groups[group]["params"][order]
                original(parameter, {**tensors, "step": found.optimizer.state[main]["step"].clone()})

            found._set_main_param_and_optimizer_states = put


def inner(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def dump(ddps: list[Any], optimizer: Any) -> list[dict[str, Any]]:
    """What each chunk holds."""
    return [dump_chunk(ddp, optimizer) for ddp in ddps]


def dump_chunk(ddp: Any, optimizer: Any) -> dict[str, Any]:
    """Local values and states by name; a state of a flat shard with the range that it is of its parameter."""
    names = {parameter: name for name, parameter in ddp.module.named_parameters()}
    values = {name: parameter.detach().clone() for parameter, name in names.items()}
    states: dict[str, dict[str, tuple[int, torch.Tensor]]] = {}
    groups = []
    for found in inner(optimizer):
        for parameter, name in names.items():
            if hasattr(found, "model_param_gbuf_map"):
                if parameter not in found.model_param_gbuf_map:
                    continue
                begin = found._get_model_param_range_map(parameter)["param"].start
                tensors = found._get_main_param_and_optimizer_states(parameter)
            else:
                main = getattr(parameter, "main_param", parameter)
                if main not in found.optimizer.state:
                    continue
                begin, tensors = 0, {**found.optimizer.state[main]}
                if main is not parameter:
                    tensors["param"] = main
            states[name] = {
                key: (begin, tensor.detach().clone())
                for key, tensor in tensors.items()
                if isinstance(tensor, torch.Tensor) and tensor.ndim
            }
        groups += [
            {key: item for key, item in group.items() if key != "params"}
            for group in found.optimizer.param_groups
        ]
    return {
        "values": values,
        "states": states,
        "groups": groups,
        "first_layer": first_layer(ddp),
        "tp": parallel_state.get_tensor_model_parallel_rank(),
        "first_expert": first_expert(ddp),
    }


def save(folder: Path, case: Case, rank: int) -> None:
    ddps, optimizer = build(case, seed=5)
    for number in range(2):
        step(ddps, optimizer, number, case)
    torch.save(dump(ddps, optimizer), folder / f"rank-{rank}.pt")
    state = sharded_state(case, ddps, optimizer, is_loading=False)
    state |= {
        "iteration": 7,
        "checkpoint_version": 3.0,
        "args": arguments(),
        "opt_param_scheduler": scheduler().state_dict(),
        # As a save has it that is asked for to run a step again.
        "rerun_state_machine": get_rerun_state_machine().state_dict(None, "torch_dist", force=True),
    }
    state["rng_state"] = dist_checkpointing.ShardedObject(
        "rng_state", [{"numbers": torch.arange(3) + rank}], (dist.get_world_size(),), (rank,)
    )
    described = metadata(case)
    del described["dp_cp_group"]
    if rank == 0:
        (folder / "ckpt").mkdir()
    dist.barrier()
    dist_checkpointing.save(state, str(folder / "ckpt"), content_metadata=described)
    go_on(folder, "", ddps, optimizer, case, rank)


def scheduler() -> Any:
    """Of no groups: one that has some sets their learning rates."""
    return OptimizerParamScheduler(
        SimpleNamespace(param_groups=[]),
        init_lr=0.0,
        max_lr=1e-2,
        min_lr=1e-3,
        lr_warmup_steps=3,
        lr_decay_steps=10,
        lr_decay_style="cosine",
        start_wd=0.01,
        end_wd=0.01,
        wd_incr_steps=10,
        wd_incr_style="constant",
    )


def go_on(folder: Path, stem: str, ddps: list[Any], optimizer: Any, case: Case, rank: int) -> None:
    """Two more steps: their losses, and what every rank holds after them."""
    losses = [step(ddps, optimizer, number, case) for number in (2, 3)]
    torch.save(dump(ddps, optimizer), folder / f"{stem}later-{rank}.pt")
    if rank == 0:
        torch.save(losses, folder / f"{stem}losses.pt")


def load(folder: Path, case: Case, rank: int) -> None:
    ddps, optimizer = build(case, seed=99)
    # Loading asks torch's Adam for its steps, which it has none of before the first; fused Adams differ.
    step(ddps, optimizer, 17, case)
    keep_steps(optimizer)
    state = sharded_state(case, ddps, optimizer, is_loading=True)
    loaded = dist_checkpointing.load(state, str(folder / "exported"))
    for name, ddp in zip(model_names(ddps), ddps, strict=True):
        ddp.module.load_state_dict(loaded.pop(name))
    with torch.no_grad():
        optimizer.load_state_dict(loaded.pop("optimizer"))
    for found in inner(optimizer):
        if hasattr(found, "_copy_main_params_to_model_params"):
            found._copy_main_params_to_model_params()
        for held in found.optimizer.state.values():
            held["step"] = held["step"].clone()  # 0.16.1 gives all of torch Adam's states one counter
    torch.save(dump(ddps, optimizer), folder / f"resumed-{rank}.pt")
    go_on(folder, "resumed-", ddps, optimizer, case, rank)
    if rank == 0:
        torch.save(loaded, folder / "resumed-common.pt")


def resumed(case: Case) -> Case:
    """The job that loads: what lay in buckets lies with its parameters."""
    world, tp, pp, ep = case.resumed
    return replace(
        case,
        world=world,
        tp=tp,
        pp=pp,
        ep=ep,
        chunks=case.resumed_chunks,
        first_stage=case.resumed_first_stage,
        sharding=case.sharding and "fully_reshardable",
    )


def main() -> None:
    what, folder, name = sys.argv[1:]
    case = CASES[name] if what == "save" else resumed(CASES[name])
    rank, _ = join()
    parallel_state.initialize_model_parallel(
        case.tp,
        case.pp,
        virtual_pipeline_model_parallel_size=case.chunks,
        expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=1 if case.experts else None,
    )
    initialize_rerun_state_machine(mode=RerunMode.VALIDATE_RESULTS)
    (save if what == "save" else load)(Path(folder), case, rank)
    leave()


if __name__ == "__main__":
    main()
