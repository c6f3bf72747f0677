"""A rank that builds its part of a Megatron-core model and fills it by Megatron-core's own account of where it lies.

``python -m tests.frameworks_live.transformers.megatron_worker FOLDER`` under `tests.processes.launch`. Every element
gets the marker of its place in the whole model (`marker`), as the `ShardedTensor`s of `sharded_state_dict` state it;
then the parameters go to ``CASE/RANK.pt`` under the names that they have in the whole model.
"""

from __future__ import annotations

import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.frameworks_live.transformers.megatron_cases import (
    MEGATRON_CASES,
    PADDED,
    PADDED_NAMES,
    SETTINGS,
    VOCABULARY,
    MegatronCase,
)
from tests.frameworks_live.transformers.megatron_model import gpt, prepare
from tests.processes import join, leave

EXPERTS = re.compile(r"mlp\.experts\.experts\.")


def marker(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A value for each element of a whole parameter; rows of the vocabulary that are padding have 0."""
    size = 1
    for extent in shape:
        size *= extent
    found = (torch.arange(1, size + 1) + zlib.crc32(name.encode()) % 500 * 20_000).float().reshape(shape)
    if name in PADDED_NAMES:
        found[VOCABULARY:] = 0
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What lies in nested dicts and lists, with its path."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}/{key}")
    else:
        yield path, value


def whole_name(sharded: Any) -> str:
    """The name that a parameter has in the whole model: the prepended axes of its ShardedTensor are numbers in it."""
    numbers = list(sharded.global_offset[: sharded.prepend_axis_num])
    name = str(sharded.key)
    if numbers and name.startswith("decoder.layers."):
        name = name.replace("decoder.layers.", f"decoder.layers.{numbers.pop(0)}.", 1)
    if numbers and EXPERTS.search(name):
        name = EXPERTS.sub(f"mlp.experts.local_experts.{numbers.pop(0)}.", name)
    assert not numbers, (sharded.key, sharded.global_offset)
    return name


def filled(module: Any) -> tuple[dict[str, torch.Tensor], dict[str, tuple[int, ...]]]:
    """The parameters of this rank after every element got its marker, and the shapes of the whole ones."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory, apply_factories

    state = module.sharded_state_dict()
    before = {
        path: value.data
        for path, value in leaves(state)
        if isinstance(value, ShardedTensor | ShardedTensorFactory) and value.data is not None
    }
    apply_factories(state)
    held: dict[str, torch.Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path, sharded in leaves(state):
        if not isinstance(sharded, ShardedTensor) or sharded.data is None:
            continue
        skip = sharded.prepend_axis_num
        shape = sharded.global_shape[skip:]
        name = whole_name(sharded)
        place = tuple(
            slice(offset, offset + extent)
            for offset, extent in zip(sharded.global_offset[skip:], sharded.data.shape, strict=True)
        )
        with torch.no_grad():
            sharded.data.copy_(marker(name, shape)[place])
        shapes[name] = shape
        # A factory has put what it made below the place of the parameter.
        held[name] = (before[path] if path in before else before[path.rpartition("/")[0]]).detach()
    parameters = {parameter.data_ptr() for parameter in module.parameters()}
    assert parameters == {tensor.data_ptr() for tensor in held.values()}, "not every parameter was filled"
    return held, shapes


def run(case: MegatronCase, rank: int, folder: Path) -> None:
    """Build the parts of one case and keep what they hold."""
    from megatron.core import parallel_state

    chunks = case.chunks if case.chunks > 1 else None
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        virtual_pipeline_model_parallel_size=chunks,
        expert_model_parallel_size=case.ep,
        expert_tensor_parallel_size=case.expert_tp,
    )
    settings = SETTINGS[case.family]
    stage = parallel_state.get_pipeline_model_parallel_rank()
    held: dict[str, torch.Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for chunk in range(case.chunks):
        module = gpt(
            layers=int(settings["layers"]),
            tied=bool(settings["tied"]),
            vocabulary=PADDED,
            gated=bool(settings.get("gated", False)),
            groups=settings.get("groups"),
            experts=settings.get("experts"),
            stage=(stage == 0 and chunk == 0, stage == case.pp - 1 and chunk == case.chunks - 1),
            chunk=chunk if chunks else None,
            degrees={
                "tensor_model_parallel_size": case.tp,
                "pipeline_model_parallel_size": case.pp,
                **({"virtual_pipeline_model_parallel_size": case.chunks} if chunks else {}),
                "expert_model_parallel_size": case.ep,
                "expert_tensor_parallel_size": case.expert_tp,
            },
        )
        mine, whole = filled(module)
        held |= mine
        shapes |= whole
    (folder / case.name).mkdir(exist_ok=True)
    torch.save({"held": held, "shapes": shapes}, folder / case.name / f"{rank}.pt")
    parallel_state.destroy_model_parallel()


def main() -> None:
    warnings.simplefilter("ignore")
    rank, world = join()
    prepare()
    for case in MEGATRON_CASES:
        if case.world == world:
            run(case, rank, Path(sys.argv[1]))
    leave()


if __name__ == "__main__":
    main()
