"""What Megatron-LM saves as ``args``: a namespace with enumerations, of its own and of Python."""

from __future__ import annotations

import signal
from argparse import Namespace

import torch
from megatron.core.enums import ModelType
from megatron.core.rerun_state_machine import RerunMode
from megatron.core.transformer.enums import AttnBackend


def arguments() -> Namespace:
    return Namespace(
        num_layers=4,
        lr=1e-2,
        seed=5,
        names=["a", "b"],
        dtype=torch.float32,
        model_type=ModelType.encoder_or_decoder,
        attention_backend=AttnBackend.fused,
        exit_signal=signal.SIGTERM,
        rerun_mode=RerunMode.DISABLED,
    )
