"""Whether the files of a directory are those of one save: what they say of themselves has to agree."""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.frameworks.deepspeed.directory import DeepSpeedDirectory, missing
from ucpformat.frameworks.deepspeed.expert_names import expert_name
from ucpformat.frameworks.deepspeed.fields import refused
from ucpformat.frameworks.deepspeed.states import ModelStates, OptimizerStates
from ucpformat.frameworks.torch_dcp.object_tree import spelled

__all__ = ["check_one_save", "check_step"]


def check_step(first: ModelStates, model: ModelStates) -> None:
    """Refuse model files of two steps."""
    if repr(model.values.get("global_steps")) != repr(first.values.get("global_steps")):
        raise refused(f"of another step than {first.file.name}: from two saves", model.file.name)


def check_one_save(
    models: Sequence[ModelStates], ranks: Sequence[OptimizerStates], directory: DeepSpeedDirectory
) -> None:
    """Refuse files that are not of one save, and a rank that is missing at the end."""
    first = models[0]
    for other in models[1:]:
        for key in ("global_steps", "dp_world_size", "ds_version"):
            if spelled(other.values.get(key)) != spelled(first.values.get(key)):
                raise refused(
                    f"{key} is {other.values.get(key)!r:.40}, in {first.file.name} it is "
                    f"{first.values.get(key)!r:.40}: from two saves",
                    other.file.name,
                )
        if other.groups != first.groups or other.frozen != first.frozen:
            raise refused(f"other parameters than {first.file.name}: from two saves", other.file.name)
    degree = _data_degree(ranks[0], first) if ranks else len(models)
    if ranks and degree > len(ranks):
        raise missing(len(ranks), 0, "optim_states", directory.tag)
    if ranks and degree < len(ranks):
        raise refused(f"{len(ranks)} ranks have files, and only {degree} saved", ranks[-1].file.name)
    if directory.is_partitioned and len(models) != degree:
        raise missing(len(models), 0, "model_states", directory.tag)
    if ranks and (ranks[0].stage == 3) != directory.is_partitioned:
        raise refused(f"of another ZeRO stage than {first.file.name}: from two saves", ranks[0].file.name)
    if not ranks and first.groups is not None:
        raise missing(0, 0, "optim_states", directory.tag)


def _data_degree(states: OptimizerStates, model: ModelStates) -> int:
    """How many ranks share what is no expert: those of experts may be of all tensor-parallel ranks."""
    shared = [
        count
        for count, shapes in zip(states.counts, model.groups or (), strict=False)
        if not any(map(expert_name, shapes))
    ]
    return max(shared or states.counts, default=0)
