"""One process that is each rank of a world in turn: Megatron's own groups on torch's fake backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import (
    ShardedTensor,
    ShardedTensorFactory,
    apply_factories,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from numpy.typing import NDArray
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.conversion.formats.megatron.sharded_tensor import ShardedTensorFacts, facts_of


@contextmanager
def world(rank: int, size: int, **degrees: Any) -> Iterator[None]:
    """Megatron's parallel state for one rank; ``degrees`` are those of `initialize_model_parallel`."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **degrees)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def counter_(tensor: torch.Tensor) -> None:
    """Megatron's ``init_method``: every cell of the whole weight gets its row-major position."""
    with torch.no_grad():
        tensor.copy_(torch.arange(tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape))


def configuration(**settings: Any) -> TransformerConfig:
    return TransformerConfig(
        **{
            "num_layers": 2,
            "hidden_size": 8,
            "num_attention_heads": 4,
            "use_cpu_initialization": True,
            "add_bias_linear": False,
            "init_method": counter_,
            "output_layer_init_method": counter_,
            **settings,
        }
    )


def array(tensor: torch.Tensor) -> NDArray[np.int64]:
    return tensor.detach().to(torch.int64).numpy()


def shards(state: dict[str, Any]) -> dict[str, list[tuple[ShardedTensorFacts, NDArray[np.int64]]]]:
    """The ShardedTensors of a sharded state dict by their key, factories built, with their data."""
    apply_factories(state)
    found: dict[str, list[tuple[ShardedTensorFacts, NDArray[np.int64]]]] = {}

    def walk(value: Any) -> None:
        match value:
            case dict():
                list(map(walk, value.values()))
            case list():
                list(map(walk, value))
            case ShardedTensor():
                assert value.data is not None
                found.setdefault(value.key, []).append((facts_of(value), array(value.data)))
            case ShardedTensorFactory():
                raise AssertionError("a factory is left")

    walk(state)
    return found


def every_rank(size: int, work: Callable[[int], Any], **degrees: Any) -> list[Any]:
    """What ``work`` returns on each rank."""
    found = []
    for rank in range(size):
        with world(rank, size, **degrees):
            found.append(work(rank))
    return found
