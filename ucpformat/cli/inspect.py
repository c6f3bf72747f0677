"""``ucp inspect``."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Final, get_args

import click
from click.core import ParameterSource

from ucpformat.cli.report import format_option, progress_bar, table
from ucpformat.cli.statistics_table import lines_of_statistics
from ucpformat.drawing.module_tree import Module, Sort, module_tree, rows_of_tree
from ucpformat.geometry import Blocks, Join, Layout, Only, Shard
from ucpformat.inspection.description import chosen_atoms, described
from ucpformat.inspection.plain_words import in_words
from ucpformat.inspection.statistics import statistics
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import name_of
from ucpformat.text import human_bytes, printable, shortened
from ucpformat.update_log.place import SUFFIX, has_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ucpformat.inspection.statistics import SlotStatistics
    from ucpformat.model.state import Optimizer
    from ucpformat.reader import AtomView, Checkpoint
    from ucpformat.views import SlotView

__all__ = ["brief_layout", "inspect"]

_LINES: Final = 24
"""Of the tree: it is shown as deep as fits, unless a depth is given."""
_BESIDE: Final = 20
_VALUES: Final = 8
_WIDTH: Final = 100
_NARROWEST: Final = 40
_SIZE: Final = 10
_OF_CHECKPOINTS: Final = ("atoms", "depth", "sort", "with_slots", "show_all", "with_statistics", "refused")
_FULL: Final = "█"
_PARTS: Final = " ▏▎▍▌▋▊▉"


@click.command()
@click.argument("checkpoint")
@click.option(
    "--atoms", default="*", show_default=True, metavar="GLOB", help="Only atoms whose name matches."
)
@click.option("--depth", type=click.IntRange(0), help="Levels of the tree; as many as fit, unless given.")
@click.option(
    "--sort", type=click.Choice(get_args(Sort)), default="size", show_default=True, help="Order of modules."
)
@click.option("--slots", "with_slots", is_flag=True, help="A table of all slots in place of the tree.")
@click.option("--all", "show_all", is_flag=True, help="The table, and every value and note uncut.")
@click.option(
    "--stats", "with_statistics", is_flag=True, help="Read all tensors: NaN, range, mean, norm, magnitudes."
)
@click.option(
    "--fail-on",
    "refused",
    multiple=True,
    type=click.Choice(["nan", "inf"]),
    help="End with 1 where a tensor has such elements; repeatable, and reads as --stats does.",
)
@format_option
@click.pass_context
def inspect(
    context: click.Context,
    checkpoint: str,
    atoms: str,
    depth: int | None,
    sort: Sort,
    with_slots: bool,
    show_all: bool,
    with_statistics: bool,
    refused: tuple[str, ...],
    output: str,
) -> None:
    """Show what CHECKPOINT holds: documents are read, and data with --stats alone; or what an update log follows."""
    if _is_log(checkpoint):
        given = [
            name for name in _OF_CHECKPOINTS if context.get_parameter_source(name) != ParameterSource.DEFAULT
        ]
        if given:
            message = "this is an update log, and the option is about checkpoints: leave it out."
            raise click.BadParameter(
                message, context, next(p for p in context.command.params if p.name == given[0])
            )
        from ucpformat.cli.update_log import show_log

        show_log(checkpoint, output)
        return
    with open_checkpoint(checkpoint) as opened:
        chosen = chosen_atoms(opened, [] if atoms == "*" else [atoms])
        found = _statistics(chosen) if with_statistics or refused else {}
        if output == "json":
            click.echo(json.dumps(described(opened, chosen, found), indent=2))
        else:
            lines: Iterable[str]
            width = max(_NARROWEST, shutil.get_terminal_size((_WIDTH, 24)).columns)
            if found:
                named = [(f"{atom}/{slot}", one) for (atom, slot), one in found.items()]
                lines = map(printable, lines_of_statistics(named, has_blocks=_has_blocks()))
            elif with_slots or show_all:
                rows = table(_COLUMNS, list(_rows(chosen)), right=frozenset({"size", "chunks"}))
                lines = map(printable, rows)
            else:
                lines = _tree(chosen, depth, sort, width)
            rest = list(_rest(opened, chosen, None if show_all else width))
            for line in (*_heading(opened, chosen, width), "", *lines, *([""] if rest else []), *rest):
                click.echo(line)
    if any(getattr(one, kind) for one in found.values() for kind in refused):
        context.exit(1)


def _is_log(path: str) -> bool:
    return name_of(path.rstrip("/")).endswith(SUFFIX) and has_log(path)


def _statistics(atoms: Sequence[AtomView]) -> dict[tuple[str, str], SlotStatistics]:
    slots = {(view.name, name): slot for view in atoms for name, slot in view.items()}
    with progress_bar("reading", lambda: sum(slot.nbytes for slot in slots.values())) as progress:
        found = statistics(list(slots.values()), progress=progress)
    return dict(zip(slots, found, strict=True))


def _heading(opened: Checkpoint, atoms: Sequence[AtomView], width: int) -> Iterator[str]:
    root = opened.root
    slots = [slot for view in atoms for slot in view.values()]
    step = "no step" if opened.step is None else f"step {opened.step}"
    by = "" if opened.producer is None else f", by {opened.producer}"
    title = f"universal checkpoint, {step}"
    yield click.style(title, bold=True) + printable(f"{by}; format version {root.envelope.format_version}")
    logical = sum(slot.nbytes for slot in slots)
    yield f"{_count(atoms, 'atom')}, {_count(slots, 'slot')}, {human_bytes(logical)}; {_stored(opened)}"
    yield f"digest {root.digest}"
    if root.progress is not None and root.progress.log is not None:
        yield f"epoch {root.progress.log.epoch} of the update log {root.progress.log.id} goes on from it"
    for feature in root.envelope.read_features:
        yield printable(f"needs {feature}")
    yield from _legend(slots, width)
    for name, optimizer in opened.state.optimizers.items():
        yield from _groups(name, optimizer, width)


def _count(items: Sequence[object], what: str) -> str:
    return f"{len(items):,} {what}{'' if len(items) == 1 else 's'}"


def _stored(opened: Checkpoint) -> str:
    packs = opened.packs
    if packs is None:
        return f"storage {opened.root.storage}"
    shared = sum(pack.length for pack in packs if pack.shared)
    of_them = f", {human_bytes(shared)} of them shared" if shared else ""
    return f"{human_bytes(sum(pack.length for pack in packs))} in {_count(packs, 'pack')}{of_them}"


def _legend(slots: Sequence[SlotView], width: int) -> Iterator[str]:
    """Yield the layouts of slots, the most frequent first, and what their words mean."""
    counts = Counter(slot.layout for slot in slots if slot.layout is not None)
    if not counts:
        return
    meshes = dict.fromkeys(layout.mesh for layout in counts)
    for mesh in meshes:
        axes = " x ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
        yield printable(shortened(f"saved by {mesh.size} ranks: {axes}", width))
    told = [f"{brief_layout(layout)} ({_times(count)})" for layout, count in counts.most_common(_VALUES)]
    more = "" if len(counts) <= _VALUES else f", and {len(counts) - _VALUES} others"
    yield printable(shortened(f"layouts: {', '.join(told)}{more}", width))
    if any("/" in text for text in told):
        yield "  tp/0: dimension 0 is split over the axis tp"


def _times(count: int) -> str:
    return f"{count:,} slot{'' if count == 1 else 's'}"


def _groups(name: str, optimizer: Optimizer, width: int) -> Iterator[str]:
    for number, group in enumerate(optimizer.groups):
        options = ", ".join(f"{key}={in_words(value)}" for key, value in group.options.items())
        text = f"{name}, group {number} of {len(optimizer.groups)}: {_count(group.atoms, 'atom')}; {options}"
        yield from textwrap.wrap(printable(text), width, subsequent_indent="  ")


def _tree(atoms: Sequence[AtomView], depth: int | None, sort: Sort, width: int) -> Iterator[str]:
    tree = module_tree(view.form() for view in atoms)
    if depth is None:
        depth = 1
        while depth < 8 and sum(1 for _ in _shown(tree, depth + 1, sort)) <= _LINES:
            depth += 1
    bar = max(4, min(20, (width - 50) // 2))
    name_width = width - _SIZE - bar - 9
    for level, module in _shown(tree, depth, sort):
        share = module.nbytes / tree.nbytes if tree.nbytes else 0.0
        name = shortened(printable("  " * level + module.name + _what(module)), name_width)
        drawn = click.style(_bar(share, bar), fg="blue")
        yield f"{human_bytes(module.nbytes):>{_SIZE}} {share:>5.0%}  {drawn} {name}".rstrip()


def _shown(tree: Module, depth: int, sort: Sort) -> Iterator[tuple[int, Module]]:
    return rows_of_tree(tree, depth=depth, sort=sort, most=_BESIDE)


def _what(module: Module) -> str:
    if module.slots and not module.below:
        first = module.slots.get("value", next(iter(module.slots.values())))
        also = f", {len(module.slots)} slots" if len(module.slots) > 1 else ""
        return f"  {first.dtype} {'x'.join(map(str, first.shape)) or 'scalar'}{also}"
    alike = f"  {module.alike:,} alike," if module.alike > 1 else " "
    return f"{alike} {module.atoms:,} atom{'' if module.atoms == 1 else 's'}"


def _bar(share: float, width: int) -> str:
    if not _has_blocks():
        return ("#" * round(share * width)).ljust(width)
    eighths = round(share * width * 8)
    whole, rest = divmod(eighths, 8)
    return (_FULL * whole + (_PARTS[rest] if rest else "")).ljust(width)


def _has_blocks() -> bool:
    try:
        (_FULL + _PARTS + "…").encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _rest(opened: Checkpoint, atoms: Sequence[AtomView], width: int | None) -> Iterator[str]:
    """Yield values, notes, blobs and images, the first few and on lines of ``width`` characters where it is given."""
    lines = [*_notes(opened, atoms)]
    values = [f"value {name} = {in_words(value)}" for name, value in opened.state.values.items()]
    if width is not None and len(values) > _VALUES:
        values = [*values[: _VALUES - 1], f"and {len(values) - _VALUES + 1} other values, which --all shows"]
    for line in (*values, *lines):
        text = printable(line)
        yield text if width is None else shortened(text, width)


def _notes(opened: Checkpoint, atoms: Sequence[AtomView]) -> Iterator[str]:
    for name, note in opened.annotations.items():
        yield f"annotation {name} = {json.dumps(note)}"
    for view in atoms:
        if view.aliases:
            yield f"{view.name} is also {', '.join(view.aliases)}"
    if opened.pipeline is not None:
        yield "a pipeline was in flight: only its own stages can go on"
    for name, blob in opened.state.blobs.items():
        yield f"blob {name}: {blob.media_type}, {human_bytes(blob.object.length)}"
    for name, image in opened.images.items():
        needed = ", required" if image.is_required else ""
        rank = "" if image.rank is None else f", of rank {image.rank}"
        yield (
            f"process image {name}: {image.media_type} by {image.producer.name} {image.producer.version}, "
            f"{_count(image.files, 'file')}, {human_bytes(image.nbytes)}{rank}{needed}"
        )


_COLUMNS: Final = ("atom", "slot", "dtype", "shape", "layout", "size", "chunks")


def _rows(atoms: Sequence[AtomView]) -> Iterator[tuple[str, ...]]:
    for view in atoms:
        for position, (name, slot) in enumerate(view.items()):
            yield (
                view.name if position == 0 else "",
                name,
                slot.stored.dtype.name,
                "x".join(map(str, slot.shape)) or "scalar",
                "" if slot.layout is None else brief_layout(slot.layout),
                human_bytes(slot.nbytes),
                str(slot.stored.grid.count),
            )


def brief_layout(layout: Layout) -> str:
    """Return a layout in a word per step: ``tp/0`` splits dim 0 over the axis tp.

    ``dim0:4`` is the axis of an importer that knew no more than that dim 0 was in 4 parts.
    """
    sizes = {axis.name: axis.size for axis in layout.mesh.axes}
    words = []
    for step in layout.steps:
        match step:
            case Shard(axis, dim):
                words.append(f"{axis}:{sizes[axis]}" if axis == f"dim{dim}" else f"{axis}/{dim}")
            case Only(axis, coordinates):
                words.append(f"{axis}={','.join(map(str, coordinates))}")
            case Blocks(dim=dim) | Join(dim=dim):
                words.append(f"{type(step).__name__.lower()}/{dim}")
            case _:
                words.append(type(step).__name__.lower())
    return " ".join(words) or "replicated"
