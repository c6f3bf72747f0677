"""``ucp inspect``."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Final, get_args

import click
from click.core import ParameterSource

from ucpformat.cli.heading import brief_layout, heading
from ucpformat.cli.report import format_option, progress_bar, table
from ucpformat.cli.statistics_table import lines_of_statistics
from ucpformat.drawing.module_tree import Module, Sort, module_tree, rows_of_tree
from ucpformat.inspection.description import chosen_atoms, described
from ucpformat.inspection.plain_words import in_words
from ucpformat.inspection.statistics import statistics
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.urls import name_of
from ucpformat.text import counted, human_bytes, printable, shortened
from ucpformat.update_log.place import SUFFIX, has_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ucpformat.inspection.statistics import SlotStatistics
    from ucpformat.reader import AtomView, Checkpoint

__all__ = ["inspect"]

_LINES: Final = 24
"""Of the tree: it is shown as deep as fits, unless a depth is given."""
_PAGE: Final = 38
"""Lines of all that is shown, where neither depth nor a table is asked for."""
_FEWEST: Final = 8
_LEAST_NAME: Final = 16
_BESIDE: Final = 20
_VALUES: Final = 8
_FEWEST_VALUES: Final = 4
_NOTES: Final = 8
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
            width = max(_NARROWEST, shutil.get_terminal_size((_WIDTH, 24)).columns)
            head = list(heading(opened, chosen, width, show_all=show_all))
            rest = _rest(opened, chosen, width=None if show_all else width, most=_VALUES)
            lines: Iterable[str]
            if found:
                named = [(f"{atom}/{slot}", one) for (atom, slot), one in found.items()]
                lines = lines_of_statistics(named, width, has_blocks=_has_blocks())
            elif with_slots or show_all:
                lines = table(_COLUMNS, list(_rows(chosen)), right=frozenset({"size", "chunks"}), width=width)
            else:
                room = max(_FEWEST, min(_LINES, _PAGE - len(head) - len(rest)))
                lines = list(_tree(chosen, depth, sort, width, room))
                over = len(head) + len(lines) + len(rest) - _PAGE
                if over > 0 and depth is None:
                    rest = _rest(opened, chosen, width=width, most=max(_FEWEST_VALUES, _VALUES - over))
            for line in (*head, "", *lines, *([""] if rest else []), *rest):
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


def _tree(atoms: Sequence[AtomView], depth: int | None, sort: Sort, width: int, room: int) -> Iterator[str]:
    tree = module_tree(view.form() for view in atoms)
    if depth is None:
        depth = 1
        while depth < 8 and sum(1 for _ in _shown(tree, depth + 1, sort)) <= room:
            depth += 1
    bar = max(4, min(20, (width - 50) // 2))
    name_width = width - _SIZE - bar - 9
    for level, module in _shown(tree, depth, sort):
        share = module.nbytes / tree.nbytes if tree.nbytes else 0.0
        name = "  " * level + _named(module, name_width - 2 * level)
        drawn = click.style(_bar(share, bar), fg="blue")
        yield f"{human_bytes(module.nbytes):>{_SIZE}} {share:>5.0%}  {drawn} {name}".rstrip()


def _shown(tree: Module, depth: int, sort: Sort) -> Iterator[tuple[int, Module]]:
    return rows_of_tree(tree, depth=depth, sort=sort, most=_BESIDE)


def _named(module: Module, width: int) -> str:
    """Return the name and as many words about it as there is room for."""
    name = printable(module.name)
    for what in _what(module):
        if len(name) + len(what) <= width:
            return name + what
    what = next((what for what in _what(module) if width - len(what) >= _LEAST_NAME), "")
    return shortened(name, max(width - len(what), _LEAST_NAME)) + what


def _what(module: Module) -> tuple[str, ...]:
    if module.slots and not module.below:
        first = module.slots.get("value", next(iter(module.slots.values())))
        also = f", {len(module.slots)} slots" if len(module.slots) > 1 else ""
        shape = "x".join(map(str, first.shape)) or "scalar"
        return f"  {first.dtype} {shape}{also}", f"  {first.dtype} {shape}", f"  {shape}"
    atoms = f"  {counted(module.atoms, 'atom')}"
    return (f"  {module.alike:,} alike,{atoms[1:]}", atoms) if module.alike > 1 else (atoms,)


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


def _rest(opened: Checkpoint, atoms: Sequence[AtomView], *, width: int | None, most: int) -> list[str]:
    """Return values, notes, blobs and images, ``most`` values and lines of ``width`` characters where it is given."""
    values = [f"value {name} = {in_words(value)}" for name, value in opened.state.values.items()]
    notes = list(_notes(opened, atoms))
    if width is None:
        return list(map(printable, (*values, *notes)))
    lines = (*_first(values, most, "values"), *_first(notes, _NOTES, "notes"))
    return [shortened(printable(line), width) for line in lines]


def _first(lines: list[str], most: int, what: str) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"and {len(lines) - most + 1} other {what}, which --all shows"]


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
            f"{counted(len(image.files), 'file')}, {human_bytes(image.nbytes)}{rank}{needed}"
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
