"""Whether the files of a directory are those of one save: what they say of themselves has to agree."""

from __future__ import annotations

from collections.abc import Sequence

from ucpformat.conversion.formats.deepspeed.files.directory import DeepSpeedDirectory
from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.object_tree import spelled

__all__ = ["check_one_save", "check_step"]


def check_step(first: ModelStates, model: ModelStates) -> None:
    """Refuse model files of two steps."""
    if repr(model.values.get("global_steps")) != repr(first.values.get("global_steps")):
        raise refused(f"of another step than {first.file.name}: from two saves", model.file.name)


def check_one_save(
    models: Sequence[ModelStates], ranks: Sequence[OptimizerStates], directory: DeepSpeedDirectory
) -> None:
    """Refuse files that are not of one save, and numbers of ranks that are not those of the files."""
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
    directory.check_counts(models, ranks)
    if ranks and (ranks[0].stage == 3) != directory.is_partitioned:
        raise refused(f"of another ZeRO stage than {first.file.name}: from two saves", ranks[0].file.name)
    is_flat = first.groups is not None or "partition_count" in (first.optimizer or {})
    if not ranks and is_flat:
        raise directory.missing("optim", 0, 0, is_bf16=_is_bf16(first))


def _is_bf16(model: ModelStates) -> bool:
    """Return whether the configuration says so, which the names of optimizers' files show."""
    config = model.values.get("ds_config")
    part = config.get("bf16") if isinstance(config, dict) else None
    return isinstance(part, dict) and part.get("enabled") is True
