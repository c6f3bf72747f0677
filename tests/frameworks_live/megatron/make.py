# ruff: noqa: E402
"""Worker: trains a tiny GPT with megatron-core on gloo, saves it with `dist_checkpointing`, or resumes it.

``python -m tests.frameworks_live.megatron.make save FOLDER CASE`` and ``... load FOLDER CASE TP PP EP``. What
lies in the memory of each rank is dumped as it is, so that references need neither Megatron's checkpoints nor ours.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
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
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.frameworks_live.megatron.arguments import arguments
from tests.frameworks_live.megatron.cases import CASES, Case
from tests.processes import join, leave


def build(case: Case, tp: int, pp: int, ep: int, seed: int) -> tuple[Any, Any]:
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
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=ep,
        pipeline_dtype=torch.float32,
        bf16=case.bf16,
        params_dtype=torch.bfloat16 if case.bf16 else torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=case.experts, normalization="RMSNorm"),
        vocab_size=32,
        max_sequence_length=8,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=case.tied,
        position_embedding_type="rope",
    )
    if case.bf16:
        model.bfloat16()
    sharded = DistributedDataParallelConfig(
        use_distributed_optimizer=case.sharding is not None,
        bucket_size=case.bucket_size,
        overlap_grad_reduce=case.bucket_size is not None,
    )
    ddp = DistributedDataParallel(config, sharded, model)
    settings = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        use_distributed_optimizer=case.sharding is not None,
        clip_grad=0.0,
        bf16=case.bf16,
        params_dtype=torch.bfloat16 if case.bf16 else torch.float32,
    )
    return ddp, get_megatron_optimizer(settings, [ddp])


def step(ddp: Any, optimizer: Any, number: int, *, forward: bool) -> float:
    """One step; with stages or experts the gradients are made up, equal on all data-parallel ranks."""
    ddp.zero_grad_buffer()
    optimizer.zero_grad()
    loss = torch.zeros(())
    if forward:
        ids = (torch.arange(16).reshape(2, 8) * 5 + number) % 32
        places = torch.arange(8).expand(2, 8)
        loss = ddp(ids, places, None, labels=(ids + 1) % 32).mean()
        loss.backward()
        ddp.finish_grad_sync()
    else:
        for number_of, (_, parameter) in enumerate(ddp.named_parameters()):
            place = 0 if getattr(parameter, "shared_embedding", False) else number_of
            parameter.main_grad.copy_(torch.sin(parameter.detach() * 3 + number + place))
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


def sharded_state(case: Case, ddp: Any, optimizer: Any, *, is_loading: bool) -> dict[str, Any]:
    described = metadata(case)
    model = ddp.module.sharded_state_dict(metadata=described)
    return {
        "model": model,
        "optimizer": optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=described),
    }


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


def dump(ddp: Any, optimizer: Any) -> dict[str, Any]:
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
    first = ddp.module.decoder.layers[0].layer_number - 1
    return {
        "values": values,
        "states": states,
        "groups": groups,
        "first_layer": first,
        "tp": parallel_state.get_tensor_model_parallel_rank(),
        "first_expert": (ddp.module.config.num_moe_experts or 0)
        // parallel_state.get_expert_model_parallel_world_size()
        * parallel_state.get_expert_model_parallel_rank(),
    }


def save(folder: Path, case: Case, rank: int) -> None:
    ddp, optimizer = build(case, case.tp, case.pp, case.ep, seed=5)
    for number in range(2):
        step(ddp, optimizer, number, forward=case.forward)
    torch.save(dump(ddp, optimizer), folder / f"rank-{rank}.pt")
    state = sharded_state(case, ddp, optimizer, is_loading=False)
    state |= {
        "iteration": 7,
        "checkpoint_version": 3.0,
        "args": arguments(),
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
    if rank == 0:
        torch.save(
            [step(ddp, optimizer, number, forward=case.forward) for number in (2, 3)], folder / "losses.pt"
        )
    else:
        for number in (2, 3):
            step(ddp, optimizer, number, forward=case.forward)


def load(folder: Path, case: Case, rank: int, tp: int, pp: int, ep: int) -> None:
    ddp, optimizer = build(case, tp, pp, ep, seed=99)
    # Loading asks torch's Adam for its steps, which it has none of before the first; fused Adams differ.
    step(ddp, optimizer, 17, forward=case.forward)
    keep_steps(optimizer)
    state = sharded_state(case, ddp, optimizer, is_loading=True)
    loaded = dist_checkpointing.load(state, str(folder / "exported"))
    ddp.module.load_state_dict(loaded["model"])
    with torch.no_grad():
        optimizer.load_state_dict(loaded["optimizer"])
    for found in inner(optimizer):
        if hasattr(found, "_copy_main_params_to_model_params"):
            found._copy_main_params_to_model_params()
        for held in found.optimizer.state.values():
            held["step"] = held["step"].clone()  # 0.16.1 gives all of torch Adam's states one counter
    torch.save(dump(ddp, optimizer), folder / f"resumed-{rank}.pt")
    losses = [step(ddp, optimizer, number, forward=case.forward) for number in (2, 3)]
    if rank == 0:
        torch.save(losses, folder / "resumed-losses.pt")
        del loaded["model"], loaded["optimizer"]
        torch.save(loaded, folder / "resumed-common.pt")


def main() -> None:
    what, folder, name, *degrees = sys.argv[1:]
    case = CASES[name]
    rank, _ = join()
    tp, pp, ep = map(int, degrees) if degrees else (case.tp, case.pp, case.ep)
    parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    if what == "save":
        save(Path(folder), case, rank)
    else:
        load(Path(folder), case, rank, tp, pp, ep)
    leave()


if __name__ == "__main__":
    main()
