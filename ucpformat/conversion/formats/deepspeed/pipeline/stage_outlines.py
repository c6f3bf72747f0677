"""The stages of a pipeline to write: which layers each has, and which tied weights (see `layer_files`)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.conversion.formats.deepspeed.outlines import Group, Outline
from ucpformat.conversion.formats.deepspeed.pipeline.layer_files import NUMBERED
from ucpformat.conversion.formats.deepspeed.pipeline.tied_layers import TIED, own_name, own_parts, tied_parts
from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["StageOutline", "listed_numbers", "pipeline_settings", "stages_of"]


@dataclass(slots=True)
class StageOutline:
    """One stage: its parameter groups, its atoms, and of each layer those by the keys that the layer's file has.

    A stage with experts has no layers' files: its module is in its model file (``_save_moe_checkpoint``).
    """

    groups: list[Group] = field(default_factory=list)
    atoms: list[str] = field(default_factory=list)
    layers: dict[int, dict[str, str]] = field(default_factory=dict)

    @property
    def has_experts(self) -> bool:
        """Whether there is a mixture of experts in it."""
        return any(map(expert_name, self.atoms))


def pipeline_settings(
    settings: Mapping[str, str], noted: Mapping[str, JsonValue]
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Return the first layer of each stage and the stages of each tie: as set, or as the checkpoint was saved.

    ``pipeline`` is ``0,4``, one number per stage, empty for none; ``ties`` is ``embed:0,1``, several joined by ``;``.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for what is neither.
    """
    text = settings.get("pipeline")
    saved = noted.get("first_layers")
    first = tuple(_integers(saved) if text is None else listed_numbers(text, "pipeline") if text else ())
    if first and (first[0] != 0 or any(a >= b for a, b in pairwise(first))):
        raise error("UCP-E-MISMATCH", f"pipeline lists first layers, ascending from 0, not {list(first)}")
    ties: dict[str, tuple[int, ...]] = {}
    held = noted.get("ties")
    before = len(_integers(saved))
    for name, stages in (held if isinstance(held, dict) else {}).items():
        bounds = set(_integers(stages))
        if len(first) == before:
            ties[name] = tuple(sorted(bounds))
        elif bounds <= {0, before - 1}:
            # The first stage and the last, wherever the last now begins.
            ties[name] = tuple(sorted({0 if stage == 0 else len(first) - 1 for stage in bounds}))
    for entry in filter(None, settings.get("ties", "").split(";")):
        name, _, stages = entry.partition(":")
        ties[name] = tuple(listed_numbers(stages, "ties"))
        if not set(ties[name]) <= set(range(len(first))):
            raise error("UCP-E-MISMATCH", f"the tie {name!r} is on stages from 0 to {len(first) - 1}")
    return first, ties


def _integers(value: object) -> list[int]:
    return [item for item in value if type(item) is int] if isinstance(value, list) else []


def listed_numbers(text: str, name: str) -> list[int]:
    """Return numbers joined by commas. Raises ``UCP-E-MISMATCH`` for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise error("UCP-E-MISMATCH", f"{name} has numbers, joined by commas, not {text!r:.50}")
    return [int(part) for part in parts]


def stages_of(
    outline: Outline, first: Sequence[int], ties: Mapping[str, tuple[int, ...]], zero_stage: int
) -> list[StageOutline]:
    """Return what each stage has; one stage of everything where there is no pipeline.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for names that are of no layer, and ties whose stages are not known.
    """
    if not first:
        return [StageOutline(list(outline.groups), list(outline.module))]
    if zero_stage > 1:
        raise error(
            "UCP-E-MISMATCH",
            f"DeepSpeed has pipelines with ZeRO-1 and without, not with ZeRO-{zero_stage}; set stage=1",
        )
    stages = [StageOutline() for _ in first]
    holders: dict[str, tuple[int, ...]] = {}
    for name, view in outline.module.items():
        aliases = [match for alias in view.aliases if (match := NUMBERED.fullmatch(alias))]
        if own := own_parts(name):
            holders[name] = (_own_stage(*own, first, ties),)
        elif parts := tied_parts(name):
            holders[name] = _tied_stages(parts[0], ties, aliases, first)
        elif match := NUMBERED.fullmatch(name):
            aliases = [match]
            holders[name] = (_stage(int(match[1]), first),)
        else:
            raise error(
                "UCP-E-MISMATCH",
                f"{name!r} is of no layer of a pipeline; set pipeline= (empty) to write a plain module",
            )
        others = {own_name(name, number) for number in range(len(first))} & outline.module.keys()
        if others:
            holders[name] = tuple(n for n in holders[name] if own_name(name, n) not in others)
        for number in holders[name]:
            stages[number].atoms.append(name)
        for match in aliases:
            stages[_stage(int(match[1]), first)].layers.setdefault(int(match[1]), {})[match[2]] = name
    _check_ties(stages)
    if zero_stage == 0:
        _check_own(stages, outline)
    for number, stage in enumerate(stages):
        for group in outline.groups:
            names = [name for name in group.names if number in holders.get(name, ())]
            if names:
                stage.groups.append(Group(names, group.options))
        if not stage.groups:
            raise error("UCP-E-MISMATCH", f"stage {number} would train nothing; divide the layers otherwise")
        if not stage.has_experts and any(other.has_experts for other in stages):
            raise error(
                "UCP-E-MISMATCH",
                f"stage {number} would have no experts, and DeepSpeed does not start where others have: its ranks "
                "make the groups of experts together; divide the layers otherwise",
            )
    return stages


def _own_stage(name: str, stage: int, first: Sequence[int], ties: Mapping[str, tuple[int, ...]]) -> int:
    """Return the stage that trains a parameter of a tied layer by itself."""
    tie, _ = tied_parts(name) or ("", "")
    if not 0 < stage < len(first) or stage not in ties.get(tie, (stage,)):
        held = f", {tie!r} on {', '.join(map(str, ties[tie]))}" if len(first) > 1 and tie in ties else ""
        raise error(
            "UCP-E-MISMATCH",
            f"{name!r} was trained apart on stage {stage}, and {len(first)} stages are to be written{held}; divide the "
            f"layers as they were, or leave it out with --drop '{own_name(name, stage)}/*'",
        )
    return stage


def _check_own(stages: Sequence[StageOutline], outline: Outline) -> None:
    """Refuse weights of one stage that nothing would hold: without ZeRO, float32 has no copies beside layers' files."""
    for stage in stages:
        held = {name for keys in stage.layers.values() for name in keys.values()}
        for name in stage.atoms:
            is_copied = outline.module[name]["value"].dtype.name in ("bfloat16", "float16")
            if own_parts(name) and name not in held and not is_copied and not stage.has_experts:
                raise error(
                    "UCP-E-MISMATCH",
                    f"without ZeRO no file would hold {name!r}, for its layer has none; set stage=1, or leave it out "
                    f"with --drop '{name}/*'",
                )


def _check_ties(stages: Sequence[StageOutline]) -> None:
    """Refuse tied weights that neither a layer's file nor the model file of a stage with experts would hold."""
    held = {name for stage in stages for keys in stage.layers.values() for name in keys.values()}
    held |= {name for stage in stages if stage.has_experts for name in stage.atoms}
    for stage in stages:
        for name in stage.atoms:
            if name not in held and own_parts(name) is None and (parts := tied_parts(name)):
                raise error(
                    "UCP-E-MISMATCH",
                    f"no layer is known to hold {name!r}; convert its source with --from-set "
                    f"tied_layers={parts[0]}:LAYER",
                )


def _stage(layer: int, first: Sequence[int]) -> int:
    return bisect_right(first, layer) - 1


def _tied_stages(
    tie: str, ties: Mapping[str, tuple[int, ...]], aliases: Sequence[re.Match[str]], first: Sequence[int]
) -> tuple[int, ...]:
    known = {_stage(int(match[1]), first) for match in aliases}
    if len(first) == 1:
        return (0,)
    if tie not in ties:
        raise error(
            "UCP-E-MISMATCH",
            f"which stages hold the weights of {TIED}{tie} is not known; set ties={tie}:STAGE,STAGE",
        )
    return tuple(sorted(known | set(ties[tie])))
