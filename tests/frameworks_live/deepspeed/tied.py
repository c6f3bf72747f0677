"""Four gloo ranks on which DeepSpeed's ``PipelineModule`` ties an embedding; run by `tests.processes.launch`.

Two stages of two ranks, four of one, one of four: the ranks that hold the tied weight are those of our layout,
and of what they hold in one arrangement our plan makes what they hold in another.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.geometry.moves import moved
from tests.processes import join, leave
from ucpformat.geometry import Layout, Lowering, Mesh, MeshAxis, lower, tied_steps

SHAPE = (7, 3)


def pipeline(stages: int) -> Any:
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    embedding = TiedLayerSpec("embed", nn.Embedding, *SHAPE)
    layers = [embedding, *(LayerSpec(nn.Linear, 3, 3) for _ in range(4)), embedding]
    return PipelineModule(
        layers=layers, num_stages=stages, loss_fn=nn.CrossEntropyLoss(), partition_method="uniform"
    )


def main() -> None:
    warnings.simplefilter("ignore")
    import deepspeed

    _, world = join()
    deepspeed.init_distributed("gloo")
    found: dict[int, tuple[Lowering, dict[int, np.ndarray[Any, Any]]]] = {}
    for stages in (2, 4, 1):
        module = pipeline(stages)
        mine = {name: parameter for name, parameter in module.named_parameters() if "embed" in name}
        assert len(mine) <= 1
        for parameter in mine.values():
            with torch.no_grad():
                parameter.copy_(torch.arange(1, 22).reshape(SHAPE))
        said: list[Any] = [None] * world
        dist.all_gather_object(said, [parameter.detach().numpy().copy() for parameter in mine.values()])
        held = {other: arrays[0] for other, arrays in enumerate(said) if arrays}
        mesh = Mesh((MeshAxis("pp", stages), MeshAxis("dp", world // stages)))
        lowering = lower(Layout(mesh, tied_steps("pp", (0, stages - 1))), SHAPE)
        (region,) = lowering.regions()
        assert set(region.holders) == held.keys(), (stages, region.holders, held.keys())
        # DeepSpeed's own groups, over which it adds up the gradients of the copies.
        for tied in module.tied_comms.values():
            assert set(tied["ranks"]) <= set(region.holders)
        found[stages] = (lowering, held)
    for before, (source, arrays) in found.items():
        for after, (target, wanted) in found.items():
            made = moved(source, arrays, target)
            assert made.keys() == wanted.keys(), (before, after)
            for holder, array in wanted.items():
                np.testing.assert_array_equal(made[holder], array.reshape(-1))
    leave()


if __name__ == "__main__":
    main()
