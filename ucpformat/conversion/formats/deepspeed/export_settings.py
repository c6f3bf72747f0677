"""What DeepSpeed's files are written for: settings of the caller, else as the checkpoint was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ucpformat.conversion.formats.deepspeed.pipeline.stage_outlines import pipeline_settings
from ucpformat.errors import error
from ucpformat.state_dict.keys.origins import SOURCE

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content

__all__ = ["DeepSpeedSettings"]


@dataclass(frozen=True, slots=True)
class DeepSpeedSettings:
    """What to write. ``sub_group_size`` counts elements per rank, as DeepSpeed's setting does.

    ``ep_size`` is None for that of each group of experts; ``data_first`` is `use_data_before_expert_parallelism`.
    """

    stage: int
    world_size: int
    tag: str
    sub_group_size: int = 1_000_000_000
    round_robin: bool = False
    buffers: frozenset[str] | None = None
    pipeline: tuple[int, ...] = ()
    ties: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ep_size: int | None = None
    data_first: bool = False
    tensor_degree: int = 1

    @classmethod
    def read(cls, settings: Mapping[str, str], content: Content) -> DeepSpeedSettings:
        """Read settings from ``--set``; stage, degree and order are those of the saved checkpoint, unless given.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for a setting that is out of range.
        """
        source = content.state.annotations.get(SOURCE)
        noted = source if isinstance(source, dict) else {}
        tag = settings.get("tag", f"global_step{content.step or 0}")
        if not tag or tag in (".", "..") or set(tag) & set("/\\\0\n"):
            raise error("UCP-E-MISMATCH", f"the tag {tag!r} is no name of a directory")
        names = settings.get("buffers")
        pipeline, ties = pipeline_settings(settings, noted)
        return cls(
            _number(settings, "stage", noted.get("stage", 1), 0, 3),
            _number(settings, "world_size", noted.get("world_size", 1), 1, 1 << 20),
            tag,
            _number(settings, "sub_group_size", 1_000_000_000, 1, 1 << 53),
            settings.get("round_robin", "false") in ("true", "1"),
            None if names is None else frozenset(filter(None, names.split(","))),
            pipeline,
            ties,
            _number(settings, "ep_size", 1, 1, 1 << 20) if "ep_size" in settings else None,
            _data_first(settings, content),
            _number(settings, "tp_degree", 1, 1, 1 << 20),
        )

    def place(self, rank: int, expert_degree: int) -> tuple[int, int]:
        """Return a data-parallel rank's expert-parallel rank, and its place among the ranks that have the same one.

        As ``_create_expert_and_data_parallel`` of ``utils/groups.py`` has it.
        """
        if self.data_first:
            return divmod(rank, self.world_size // expert_degree)
        place, expert_rank = divmod(rank, expert_degree)
        return expert_rank, place


def _data_first(settings: Mapping[str, str], content: Content) -> bool:
    if "data_before_experts" in settings:
        return settings["data_before_experts"] in ("true", "1")
    config = content.state.values.get("ds_config")
    return isinstance(config, dict) and config.get("use_data_before_expert_parallelism") is True


def _number(settings: Mapping[str, str], name: str, usual: object, low: int, high: int) -> int:
    text = settings.get(name, str(usual))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise error("UCP-E-MISMATCH", f"{name} is a number from {low} to {high}, not {text!r}")
    return int(text)
