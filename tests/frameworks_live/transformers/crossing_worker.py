"""Ranks of three jobs that take a Llama from one to the next: transformers under FSDP2, Megatron-core under TP and PP.

``python -m tests.frameworks_live.transformers.crossing_worker train|megatron FOLDER`` under `tests.processes.launch`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.frameworks_live.megatron import cpu
from tests.frameworks_live.transformers.equivalence_cases import LLAMA
from tests.frameworks_live.transformers.equivalence_worker import TOKENS
from tests.frameworks_live.transformers.megatron_model import gpt, prepare
from tests.processes import join, leave

LAYERS = 4
CONFIG: dict[str, Any] = {**LLAMA, "num_hidden_layers": LAYERS, "initializer_range": 0.2}
METADATA = {"non_homogeneous_layers": True, "singleton_local_shards": False}


def llama() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(3)
    config = LlamaConfig(**CONFIG)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def train(folder: Path) -> None:
    """Three steps of AdamW under FSDP2; saves the job, and the logits of the whole model."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard

    import ucpformat

    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        logits = model(TOKENS).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.roll(-1, 1).flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
    ucpformat.save(folder / "fsdp.ucp", state, step=3)
    with torch.no_grad():
        logits = model(TOKENS).logits
    if dist.get_rank() == 0:
        torch.save(logits, folder / "fsdp-logits.pt")
        model.config.save_pretrained(folder / "config")


def logits_of(module: Any, *, is_first: bool, is_last: bool) -> torch.Tensor | None:
    """The logits of all stages, on the last: what one stage sends, the next takes, two ranks further."""
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    length = TOKENS.shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
    positions = torch.arange(length).expand_as(TOKENS)
    rank = dist.get_rank()
    with torch.no_grad():
        if not is_first:
            hidden = torch.empty(length, TOKENS.shape[0], CONFIG["hidden_size"])
            dist.recv(hidden, rank - 2)
            module.set_input_tensor(hidden)
        found = module(TOKENS, positions, mask)
        if not is_last:
            dist.send(found.contiguous(), rank + 2)
            return None
        gathered: torch.Tensor = gather_from_tensor_model_parallel_region(found)
        return gathered


def weights(module: Any) -> dict[str, Any]:
    """What Megatron saves of a model, without the extra states that only TransformerEngine fills."""
    found = module.sharded_state_dict(metadata=METADATA)
    return {name: item for name, item in found.items() if not name.endswith("_extra_state")}


def megatron(folder: Path) -> None:
    """TP 2 x PP 2: loads what was exported, computes, changes all weights, computes and saves."""
    cpu.pretend()
    prepare()
    from megatron.core import dist_checkpointing, parallel_state

    parallel_state.initialize_model_parallel(2, 2)
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    module = gpt(
        layers=LAYERS,
        tied=False,
        gated=True,
        groups=CONFIG["num_key_value_heads"],
        stage=(first, last),
        degrees={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        config={"layernorm_epsilon": CONFIG["rms_norm_eps"]},
        model={"rotary_base": 10000},
    ).eval()
    loaded = dist_checkpointing.load({"model": weights(module)}, str(folder / "torch_dist"))
    missing, unexpected = module.load_state_dict(loaded["model"], strict=False)
    assert not unexpected
    assert all(name.endswith("_extra_state") for name in missing)
    before = logits_of(module, is_first=first, is_last=last)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.sin(parameter * 7), alpha=0.05)
    after = logits_of(module, is_first=first, is_last=last)
    if dist.get_rank() == 0:
        (folder / "again").mkdir()
    dist.barrier()
    state = {"model": weights(module), "iteration": 4}
    dist_checkpointing.save(state, str(folder / "again"), content_metadata=METADATA)
    if last and parallel_state.get_tensor_model_parallel_rank() == 0:
        torch.save((before, after), folder / "megatron-logits.pt")


def main() -> None:
    warnings.simplefilter("ignore")
    join()
    {"train": train, "megatron": megatron}[sys.argv[1]](Path(sys.argv[2]))
    leave()


if __name__ == "__main__":
    main()
