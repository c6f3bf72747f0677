"""Mixtures of experts to write: which rank has which experts, and what it calls them (see `experts`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.errors import error

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.export_settings import DeepSpeedSettings
    from ucpformat.conversion.formats.deepspeed.outlines import Group, Outline

__all__ = ["ExpertLayers", "SharedGroup", "shared_groups"]

_NAME: Final = re.compile(r"ep_size_([1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A parameter group: of every expert-parallel rank the names, one rank where it has no experts.

    ``local`` are the names of experts as their rank knows them.
    """

    names: Sequence[Sequence[str]]
    options: Mapping[str, Any]
    local: Mapping[str, str] = field(default_factory=dict)

    @property
    def degree(self) -> int:
        """How many expert-parallel ranks there are."""
        return len(self.names)


class ExpertLayers:
    """The mixtures of a module in order: what is before the numbers of each one's experts, and how many there are.

    ``names`` are those of a stage of a pipeline, whose mixtures are counted for themselves.
    """

    def __init__(self, outline: Outline, names: Sequence[str] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self._names = list(outline.module) if names is None else names
        here = set(self._names)
        trained = [name for group in outline.groups for name in group.names if name in here]
        noted = outline.note.get("expert_layers")
        for before in noted if isinstance(noted, list) else ():
            self.counts[str(before)] = 0
        for name in (*trained, *self._names):
            if parsed := expert_name(name):
                before, number, _ = parsed
                self.counts[before] = max(self.counts.get(before, 0), number + 1)
        self.counts = {before: count for before, count in self.counts.items() if count}

    def files(self) -> Iterator[tuple[int, int, list[str]]]:
        """Yield layer, expert and names of every file of an expert."""
        held: dict[tuple[int, int], list[str]] = {
            (layer, number): [] for layer, count in enumerate(self.counts.values()) for number in range(count)
        }
        layers = {before: layer for layer, before in enumerate(self.counts)}
        for name in self._names:
            if parsed := expert_name(name):
                held[layers[parsed[0]], parsed[1]].append(name)
        for (layer, number), names in held.items():
            yield layer, number, names


def shared_groups(outline: Outline, groups: Sequence[Group], chosen: DeepSpeedSettings) -> list[SharedGroup]:
    """Return the parameter groups with the experts of each expert-parallel rank.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for groups of experts and others, for experts that differ, for degrees that
            do not divide their number, and for what DeepSpeed cannot hold: experts under ZeRO-3.
    """
    layers = ExpertLayers(outline)
    return [_shared(outline, layers, number, group, chosen) for number, group in enumerate(groups)]


def _shared(
    outline: Outline, layers: ExpertLayers, number: int, group: Group, chosen: DeepSpeedSettings
) -> SharedGroup:
    parsed = [expert_name(name) for name in group.names]
    experts = [place for place in parsed if place is not None]
    if not experts:
        return SharedGroup([group.names], group.options)
    if len(experts) != len(parsed):
        raise error(
            "UCP-E-MISMATCH", f"parameter group {number} has experts and others; DeepSpeed keeps them apart"
        )
    if chosen.stage == 3:
        raise error("UCP-E-MISMATCH", "DeepSpeed has no experts under ZeRO-3; set stage=2")
    match = _NAME.fullmatch(str(group.options.get("name")))
    degree = chosen.ep_size or (int(match[1]) if match else 1)
    # As the module has them: mixture by mixture, expert by expert, its parameters in their order.
    keys: dict[str, dict[str, set[int]]] = {}
    for before, expert, behind in experts:
        keys.setdefault(before, {}).setdefault(behind, set()).add(expert)
    names: list[list[str]] = [[] for _ in range(degree)]
    local: dict[str, str] = {}
    for before, behinds in keys.items():
        count = layers.counts[before]
        if count % degree:
            raise error(
                "UCP-E-MISMATCH", f"ep_size {degree} does not divide the {count} experts of {before!r}"
            )
        for expert in range(count):
            rank, place = divmod(expert, count // degree)
            for behind, numbers in behinds.items():
                name = f"{before}{expert}{behind}"
                if len(numbers) != count:
                    raise error(
                        "UCP-E-MISMATCH", f"parameter group {number} has some of the experts of {before!r}"
                    )
                local[name] = f"{before}{place}{behind}"
                names[rank].append(name)
                if outline.shape(name) != outline.shape(local[name]):
                    raise error(
                        "UCP-E-MISMATCH",
                        f"{name!r} has another shape than {local[name]!r}, with which it shares a place",
                    )
    return SharedGroup(names, {**group.options, "name": f"ep_size_{degree}", "moe": True}, local)
