"""``ucp inspect``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ucpformat.cli.report import format_option, human_bytes, printable, table
from ucpformat.geometry import Blocks, Join, Layout, Only, Shard
from ucpformat.inspection import chosen_atoms, described
from ucpformat.reader import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.jsonio import JsonValue
    from ucpformat.reader import AtomView, Checkpoint

__all__ = ["brief_layout", "inspect"]


@click.command()
@click.argument("checkpoint")
@click.option(
    "--atoms", default="*", show_default=True, metavar="GLOB", help="Only atoms whose name matches."
)
@format_option
def inspect(checkpoint: str, atoms: str, output: str) -> None:
    """Show what CHECKPOINT holds: documents are read, data are not."""
    with open_checkpoint(checkpoint) as opened:
        chosen = chosen_atoms(opened, [] if atoms == "*" else [atoms])
        if output == "json":
            click.echo(json.dumps(described(opened, chosen), indent=2))
        else:
            _print(opened, chosen)


def _print(opened: Checkpoint, atoms: list[AtomView]) -> None:
    for line in _lines(opened, atoms):
        click.echo(printable(line))


def _lines(opened: Checkpoint, atoms: list[AtomView]) -> Iterator[str]:
    root = opened.root
    slots = [slot for view in atoms for slot in view.values()]
    producer = "" if opened.producer is None else f", by {opened.producer}"
    step = "" if opened.step is None else f", step {opened.step}"
    yield f"universal checkpoint, version {root.envelope.format_version}, {root.storage}{step}{producer}"
    yield f"digest {root.digest}"
    yield f"{len(atoms)} atoms, {len(slots)} slots, {human_bytes(sum(slot.nbytes for slot in slots))}"
    headings = ("atom", "slot", "dtype", "shape", "layout", "size", "chunks")
    yield from table(headings, list(_rows(atoms)), right=frozenset({"size", "chunks"}))
    for name, note in opened.annotations.items():
        yield f"annotation {name} = {_brief(note)}"
    for view in atoms:
        if view.aliases:
            yield f"{view.name} is also {', '.join(view.aliases)}"
    noted = sum(bool(view.annotations) for view in atoms), sum(bool(slot.annotations) for slot in slots)
    if any(noted):
        yield f"{noted[0]} atoms and {noted[1]} slots have annotations, which --format json shows"
    for name, optimizer in opened.state.optimizers.items():
        for number, group in enumerate(optimizer.groups):
            options = ", ".join(f"{key}={_brief(value)}" for key, value in group.options.items())
            yield f"optimizer {name}, group {number}: {len(group.atoms)} atoms; {options}"
    for name, value in opened.state.values.items():
        yield f"value {name} = {_brief(value)}"
    for name, blob in opened.state.blobs.items():
        yield f"blob {name}: {blob.media_type}, {human_bytes(blob.object.length)}"
    for name, image in opened.images.items():
        needed = ", required" if image.is_required else ""
        rank = "" if image.rank is None else f", of rank {image.rank}"
        yield (
            f"process image {name}: {image.media_type} by {image.producer.name} {image.producer.version}, "
            f"{len(image.files)} files, {human_bytes(image.nbytes)}{rank}{needed}"
        )


def _rows(atoms: list[AtomView]) -> Iterator[tuple[str, ...]]:
    for view in atoms:
        for position, (name, slot) in enumerate(view.items()):
            yield (
                view.name if position == 0 else "",
                name,
                slot.dtype.name,
                "x".join(map(str, slot.shape)) or "scalar",
                "" if slot.layout is None else brief_layout(slot.layout),
                human_bytes(slot.nbytes),
                str(slot.stored.grid.count),
            )


def _brief(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


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
