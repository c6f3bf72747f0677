"""Megatron on a machine without CUDA: what it asks of a device, answered by the CPU. Nothing else is changed.

Imported before Megatron. Its arithmetic, buffers, process groups (gloo) and checkpoints are its own.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # its fused functions would be compiled for minutes

import torch
from torch.overrides import TorchFunctionMode

_type = torch.Tensor.type


class _OnCpu(TorchFunctionMode):
    """Makes tensors for ``device="cuda"`` on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def _cuda_type(self: torch.Tensor, dtype: Any = None, **settings: Any) -> Any:
    """What the distributed optimizer tells the precision of a parameter by."""
    if dtype is not None:
        return _type(self, dtype, **settings)
    return str(_type(self)).replace("torch.cuda.", "torch.").replace("torch.", "torch.cuda.")


def pretend() -> None:
    """Let Megatron find the CPU where it looks for CUDA."""
    anything: Any = torch.cuda
    anything.current_device = lambda: torch.device("cpu")
    anything.synchronize = anything.empty_cache = lambda *_: None
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    tensor.type = _cuda_type
    mode: Any = _OnCpu()
    mode.__enter__()
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    # Only dropout would use it, and there is none.
    CudaRNGStatesTracker.fork = lambda *_, **__: nullcontext()
