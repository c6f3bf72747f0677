"""``ucp view`` and ``ucp serve``: checkpoints in a browser."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ucpformat.cli.log_of_run import LogOfRun
from ucpformat.cli.report import SIZE, progress_bar
from ucpformat.cli.sides import open_sides, settings_option
from ucpformat.errors import UcpError, error, naming
from ucpformat.inspection.statistics import statistics
from ucpformat.manager.run_directory import open_run
from ucpformat.model.root import ROOT_KEY
from ucpformat.planning import movements, pair
from ucpformat.reader import open_checkpoint
from ucpformat.replay.plan import log_url
from ucpformat.storage.stores.not_a_checkpoint import not_a_checkpoint
from ucpformat.storage.stores.urls import open_store
from ucpformat.text import human_bytes, printable
from ucpformat.update_log.place import has_log
from ucpformat.viewing.page import carried, origin_of, remote, single_page
from ucpformat.viewing.previews import previews
from ucpformat.viewing.server import PageServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from ucpformat.inspection.statistics import SlotStatistics
    from ucpformat.reader import Checkpoint
    from ucpformat.storage.stores.store import Objects

__all__ = ["checkpoints_of", "serve", "view"]


_to_option = click.option(
    "--to",
    "arrangement",
    metavar="B",
    help="Show as well what each rank sends to each other if the first checkpoint goes to the layouts of B, "
    "which `ucp plan` reads.",
)


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option(
    "--output",
    "-o",
    "target",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.",
)
@click.option(
    "--stats",
    "with_statistics",
    is_flag=True,
    help="Read all tensors: the page has statistics.",
)
@click.option(
    "--values",
    "most_values",
    type=SIZE,
    default=0,
    metavar="SIZE",
    help="Let the page have the first elements and a heat map of each tensor, the largest first, up to this size.",
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Where browsers find CHECKPOINT, and given again OTHER: the page reads them there, and carries nothing.",
)
@_to_option
@settings_option
def view(
    checkpoint: str,
    other: str | None,
    target: Path,
    with_statistics: bool,
    most_values: int,
    urls: tuple[str, ...],
    arrangement: str | None,
    settings: tuple[tuple[str, int | list[int]], ...],
) -> None:
    """Write one HTML page that shows CHECKPOINT and what differs in OTHER.

    The page carries documents, not tensors: to see more of them, drop the directory of the checkpoint on it.
    """
    names = [name for name in (checkpoint, other) if name is not None]
    if urls and (most_values or len(urls) != len(names)):
        raise click.UsageError("give a --url for each checkpoint, and no --values: the page reads them there")
    origins = [origin_of(url) for url in urls]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_checkpoint(name)) for name in names]
        shown = []
        for number, (name, one) in enumerate(zip(names, opened, strict=True)):
            known = _statistics(one) if with_statistics else None
            if urls:
                shown.append(remote(urls[number], name, known))
                continue
            pictures = previews(one, most_values // len(names)) if most_values else None
            shown.append(carried(one, name, known, pictures))
            if pictures is not None:
                count = sum(map(len, pictures.values()))
                slots = sum(len(atom) for atom in one.values())
                click.echo(printable(f"{name}: values of {count:,} of {slots:,} slots"))
        plan = _plan(checkpoint, arrangement, settings, stack)
        text = single_page(shown, compared=None if other is None else 1, plan=plan, origins=origins)
    target.write_text(text, encoding="utf-8")
    click.echo(printable(f"{target}: {human_bytes(target.stat().st_size)}"))


def _plan(
    checkpoint: str,
    arrangement: str | None,
    settings: Sequence[tuple[str, int | list[int]]],
    stack: ExitStack,
) -> dict[str, object] | None:
    """Return who moves what from the ranks that saved the checkpoint to those of ``arrangement``."""
    if arrangement is None:
        if settings:
            raise click.UsageError("--set gives values to the parameters of --to, which is missing")
        return None
    sides = open_sides(checkpoint, arrangement, settings, stack)
    return movements(pair(*sides, "ranks")).to_json()


def _statistics(opened: Checkpoint) -> dict[tuple[str, str], SlotStatistics]:
    slots = {(name, slot): found for name, atom in opened.items() for slot, found in atom.items()}
    with progress_bar("reading", lambda: sum(slot.nbytes for slot in slots.values())) as progress:
        return dict(zip(slots, statistics(list(slots.values()), progress=progress), strict=True))


@click.command()
@click.argument("path", metavar="PATH")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port; by default, one that is free."
)
@_to_option
@settings_option
def serve(
    path: str,
    other: str | None,
    port: int,
    arrangement: str | None,
    settings: tuple[tuple[str, int | list[int]], ...],
) -> None:
    """Serve a page that shows PATH, a checkpoint or a run, to browsers on this machine, until it is interrupted.

    OTHER is a checkpoint with which it is compared. Nothing but what the root documents reach is served.
    """
    with ExitStack() as stack:
        names = [*checkpoints_of(path), *([] if other is None else [other])]
        if arrangement is not None and not names:
            raise error("UCP-E-NOT-FOUND", "there is no checkpoint to plan from yet", at=path)
        is_run = names[:1] != [path]
        checkpoints = [(name, _opened(name, stack, is_run=is_run and name != other)) for name in names]
        compared = None if other is None else len(names) - 1
        plan = _plan(names[0] if names else path, arrangement, settings, stack)
        of_run = LogOfRun.of(path) if is_run else None
        log = None if of_run is None else of_run.to_json()
        server = PageServer(checkpoints, port=port, compared=compared, plan=plan, log=log)
        stack.enter_context(server)
        signal.signal(signal.SIGTERM, _stop)
        click.echo(server.url)
        server.serve_forever()


def _opened(name: str, stack: ExitStack, *, is_run: bool) -> Checkpoint | Objects:
    """Return a checkpoint; of a run, where its root document is refused, its store, so that the page says so."""
    try:
        return stack.enter_context(open_checkpoint(name))
    except UcpError as refusal:
        if not is_run:
            raise
        click.echo(printable(str(refusal)), err=True)
    store = open_store(name)
    stack.callback(store.close)
    return store


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def checkpoints_of(path: str) -> list[str]:
    """Return the checkpoint, or those of a run, the newest first; none of a run that has an update log alone."""
    with naming(path):
        store = open_store(path)
        try:
            if store.size(ROOT_KEY) is not None:
                return [path]
        finally:
            store.close()
        directory = open_run(path)
        if not directory.steps() and not has_log(log_url(path)):
            raise error("UCP-E-NOT-FOUND", not_a_checkpoint(path), at=path)
        return [directory.path(step) for step in reversed(directory.steps())]
