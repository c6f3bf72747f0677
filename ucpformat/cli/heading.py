"""What ``ucp inspect`` says of a whole checkpoint, above the tree or the table."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from ucpformat.geometry import Blocks, Join, Layout, LocalOnly, Only, Shard
from ucpformat.inspection.plain_words import in_words
from ucpformat.text import counted, human_bytes, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ucpformat.geometry import Step
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.state import Optimizer
    from ucpformat.reader import AtomView, Checkpoint
    from ucpformat.views import SlotView

__all__ = ["brief_layout", "heading"]

_LAYOUTS: Final = 8
_MESHES: Final = 4
_GROUPS: Final = 8
_EXACT: Final = 10
"""Characters of a number that is shown as it is; others have six digits, unless all are asked for."""


def heading(opened: Checkpoint, atoms: Sequence[AtomView], width: int, *, show_all: bool) -> Iterator[str]:
    """Yield what it is, who made it, what it holds and where, its layouts and groups of options."""
    root = opened.root
    slots = [slot for view in atoms for slot in view.values()]
    step = "no step" if opened.step is None else f"step {opened.step}"
    by = "" if opened.producer is None else f", by {opened.producer}"
    title = f"universal checkpoint, {step}"
    first, *more = textwrap.wrap(
        printable(f"{title}{by}; format version {root.envelope.format_version}"),
        width,
        subsequent_indent="  ",
    )
    bold = first[: len(title)]
    yield click.style(bold, bold=True) + first[len(bold) :]
    yield from more
    logical = sum(slot.nbytes for slot in slots)
    yield from textwrap.wrap(
        f"{counted(len(atoms), 'atom')}, {counted(len(slots), 'slot')}, {human_bytes(logical)}; {_stored(opened)}",
        width,
        subsequent_indent="  ",
    )
    yield f"digest {root.digest}"
    if root.log is not None:
        yield f"epoch {root.log.epoch} of the update log {root.log.id} goes on from it"
    for feature in root.envelope.read_features:
        yield printable(f"needs {feature}")
    yield from _legend(slots, width)
    for name, optimizer in opened.state.optimizers.items():
        for line in _groups(name, optimizer, show_all=show_all):
            indent = line[: len(line) - len(line.lstrip())] + "  "
            yield from textwrap.wrap(printable(line), width, subsequent_indent=indent)


def _stored(opened: Checkpoint) -> str:
    packs = opened.packs
    if packs is None:
        return f"storage {opened.root.storage}"
    shared = sum(pack.length for pack in packs if pack.shared)
    of_them = f", {human_bytes(shared)} of them shared" if shared else ""
    return f"{human_bytes(sum(pack.length for pack in packs))} in {counted(len(packs), 'pack')}{of_them}"


def _legend(slots: Sequence[SlotView], width: int) -> Iterator[str]:
    """Yield the layouts of slots, the most frequent first, and what their words mean."""
    layouts = Counter(slot.layout for slot in slots if slot.layout is not None)
    if not layouts:
        return
    meshes = list(dict.fromkeys(layout.mesh for layout in layouts))
    for mesh in meshes[:_MESHES]:
        axes = " x ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
        yield printable(shortened(f"saved by {mesh.size} ranks: {axes}", width))
    if len(meshes) > _MESHES:
        yield f"and {len(meshes) - _MESHES} other meshes"
    counts: Counter[str] = Counter()
    meanings: dict[str, dict[str, str]] = {}
    for layout, count in layouts.items():
        words = brief_layout(layout)
        counts[words] += count
        meanings[words] = {
            _kind(step): f"{_word(step, layout)}: {_meaning(step, layout)}" for step in layout.steps
        }
    shown = counts.most_common(_LAYOUTS)
    told = [f"{words} ({counted(count, 'slot')})" for words, count in shown]
    more = "" if len(counts) <= _LAYOUTS else f", and {len(counts) - _LAYOUTS} others"
    yield from textwrap.wrap(printable(f"layouts: {', '.join(told)}{more}"), width, subsequent_indent="  ")
    by_kind: dict[str, str] = {}
    for words, _ in shown:
        for kind, meaning in meanings[words].items():
            by_kind.setdefault(kind, meaning)
    for meaning in by_kind.values():
        yield from textwrap.wrap(printable(meaning), width, initial_indent="  ", subsequent_indent="    ")


def _groups(name: str, optimizer: Optimizer, *, show_all: bool) -> Iterator[str]:
    """Yield the groups of an optimizer; what several have alike is told once."""
    groups = optimizer.groups
    if len(groups) == 1:
        (group,) = groups
        yield f"{name}, group 0 of 1: {counted(len(group.atoms), 'atom')}{_options(group.options, show_all=show_all)}"
        return
    first = groups[0].options if groups else {}
    alike = {
        key: value
        for key, value in first.items()
        if all(key in one.options and in_words(one.options[key]) == in_words(value) for one in groups)
    }
    yield f"{name}, {counted(len(groups), 'group')}{_options(alike, show_all=show_all, lead='; all have ')}"
    most = len(groups) if show_all or len(groups) <= _GROUPS else _GROUPS - 1
    for number, group in enumerate(groups[:most]):
        own = {key: value for key, value in group.options.items() if key not in alike}
        yield f"  group {number}: {counted(len(group.atoms), 'atom')}{_options(own, show_all=show_all)}"
    if most < len(groups):
        yield f"  and {len(groups) - most} other groups, which --all shows"


def _options(options: Mapping[str, JsonValue], *, show_all: bool, lead: str = "; ") -> str:
    words = ", ".join(f"{key}={_brief(value, show_all=show_all)}" for key, value in options.items())
    return lead + words if words else ""


def _brief(value: JsonValue, *, show_all: bool) -> str:
    words = in_words(value)
    if isinstance(value, float) and len(words) > _EXACT and not show_all:
        return f"{value:.6g}"
    return words


def brief_layout(layout: Layout) -> str:
    """Return a layout in a word per step: ``tp/0`` splits dim 0 over the axis tp.

    ``dim0:4`` is the axis of an importer that knew no more than that dim 0 was in 4 parts.
    """
    return " ".join(_word(step, layout) for step in layout.steps) or "replicated"


def _word(step: Step, layout: Layout) -> str:
    match step:
        case Shard(axis, dim):
            return f"{axis}:{_size(layout, axis)}" if _is_unknown(step) else f"{axis}/{dim}"
        case Only(axis, coordinates):
            return f"{axis}={','.join(map(str, coordinates))}"
        case Blocks(dim=dim) | Join(dim=dim):
            return f"{type(step).__name__.lower()}/{dim}"
        case _:
            return type(step).__name__.lower()


def _size(layout: Layout, axis: str) -> int:
    return next(one.size for one in layout.mesh.axes if one.name == axis)


def _is_unknown(step: Step) -> bool:
    return isinstance(step, Shard) and step.axis == f"dim{step.dim}"


def _kind(step: Step) -> str:
    return "parts" if _is_unknown(step) else type(step).__name__


_MEANINGS: Final = {
    "Join": "the blocks are one again",
    "Flatten": "what a rank has is seen in one dimension from here on",
    "View": "it is seen in another shape",
    "Permute": "dimensions are in another order",
    "Pad": "a dimension is longer, by padding at its end",
    "Concat": "it lies in a buffer with other tensors, which is split from here on",
    "Partial": "ranks have parts of a sum or a mean",
    "Scale": "ranks have a multiple of it",
}


def _meaning(step: Step, layout: Layout) -> str:
    match step:
        case Shard(axis, dim) if _is_unknown(step):
            return f"dimension {dim} was in {_size(layout, axis)} parts; nothing says by which ranks"
        case Shard(axis, dim):
            return f"dimension {dim} is split over the axis {axis}"
        case Only(axis, coordinates):
            places = ", ".join(map(str, coordinates))
            return f"only ranks at {places} of the axis {axis} have it"
        case Blocks(dim=dim):
            return f"dimension {dim} is blocks, each of which is split by itself"
        case LocalOnly():
            return "each rank has a tensor of its own"
        case _:
            return _MEANINGS[type(step).__name__]
