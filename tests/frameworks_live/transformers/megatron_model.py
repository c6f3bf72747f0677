"""Megatron-core's GPTModel on a CPU, which it does not foresee: its device is asked for, and its generators forked."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def prepare() -> None:
    """Stand in for what Megatron-core asks of CUDA: names of devices and states of generators, no arithmetic."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        # Without Transformer Engine, 0.16 asks for a name that it has not defined.
        moe_utils.te_general_gemm = None
    random.initialize_rng_tracker()
    random.get_cuda_rng_tracker().fork = lambda name="": contextlib.nullcontext()


def gpt(
    *,
    layers: int,
    tied: bool,
    vocabulary: int = 96,
    gated: bool = False,
    groups: int | None = None,
    experts: int | None = None,
    stage: tuple[bool, bool] = (True, True),
    chunk: int | None = None,
    degrees: dict[str, int] | None = None,
    config: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> Any:
    """A GPTModel, or the part of it that is this rank's; ``stage`` says whether it is the first and the last."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    normalization = "RMSNorm" if gated else "LayerNorm"
    settings: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": 32,
        "num_attention_heads": 8,
        "num_query_groups": groups,
        "ffn_hidden_size": 48,
        "normalization": normalization,
        "add_bias_linear": not gated,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": True,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "pipeline_dtype": torch.float32,
        **(degrees or {}),
    }
    if gated:
        settings |= {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    if experts:
        settings |= {
            "num_moe_experts": experts,
            "moe_ffn_hidden_size": 48,
            "moe_router_topk": 2,
            "moe_router_pre_softmax": False,
            "moe_token_dispatcher_type": "allgather",
            "moe_permute_fusion": False,
            "moe_router_load_balancing_type": "none",
        }
    made = TransformerConfig(**{**settings, **(config or {})})
    return GPTModel(
        made,
        get_gpt_layer_local_spec(num_experts=experts, normalization=normalization),
        vocab_size=vocabulary,
        max_sequence_length=32,
        pre_process=stage[0],
        post_process=stage[1],
        share_embeddings_and_output_weights=tied,
        **{
            "position_embedding_type": "rope" if gated else "learned_absolute",
            "vp_stage": chunk,
            **(model or {}),
        },
    )
