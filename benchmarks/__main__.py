"""``python -m benchmarks save-load``, ``stall`` and ``reshard``: see README.md here."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from benchmarks.ballast import ballast_options, loaded, words
from benchmarks.contenders import CONTENDERS
from benchmarks.plots import draw
from benchmarks.save_load import compare
from benchmarks.sizes import UNITS, in_bytes
from benchmarks.tables import aligned, markdown, piped, text
from benchmarks.workloads import WORKLOADS

_LATER: Final = {
    "compression": "benchmarks.compression",
    "diff": "benchmarks.diff",
    "free-pages": "benchmarks.free_pages",
    "growth": "benchmarks.growth.command",
    "increments": "benchmarks.increments",
    "log-objects": "benchmarks.log_objects",
    "open": "benchmarks.opening",
    "replica": "benchmarks.replica",
    "replicas": "benchmarks.replicas",
    "revisions": "benchmarks.revisions",
    "objects": "benchmarks.objects",
    "snapshots": "benchmarks.snapshots",
    "together": "benchmarks.together",
    "update-log": "benchmarks.update_log",
    "validate": "benchmarks.validation",
}


class _Commands(click.Group):
    """Commands that need torch are imported when they are asked for: save-load also runs where there is none."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *_LATER})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _LATER:
            return super().get_command(context, name)
        found: click.Command = import_module(_LATER[name]).command
        return found


@click.group(invoke_without_command=True, cls=_Commands)
@click.pass_context
def main(context: click.Context) -> None:
    """Measure; without a command, save-load."""
    if context.invoked_subcommand is None:
        context.invoke(save_load)


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> frozenset[str]:
    known = [contender.name for contender in CONTENDERS]
    names = frozenset(value.split(",") if value else known)
    if names - set(known):
        raise click.BadParameter(f"choose from {', '.join(known)}")
    return names


@main.command("save-load")
@click.option("--state", "state_name", default="gpt", type=click.Choice([*WORKLOADS]), help="What is saved.")
@click.option("--size", "nbytes", default="1GiB", callback=in_bytes, help="Bytes of state, such as 64MiB.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--only", "names", callback=_names, help="Contenders, with commas between.")
@click.option("--torch-threads", default=1, type=click.IntRange(1), help="Threads that torch copies with.")
@click.option("--in-place", is_flag=True, help="Load into the arrays that were saved: half of the memory.")
@click.option("--cold", is_flag=True, help="Drop the files' pages before each load.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the tables here.")
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the rates here, as .svg or .png."
)
@ballast_options
def save_load(
    state_name: str,
    nbytes: int,
    repeats: int,
    names: frozenset[str],
    torch_threads: int,
    in_place: bool,
    cold: bool,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
    plot_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Save a GPT-like state and load it again: the raw limits, this library, and its peers, in turn."""
    warnings.simplefilter("ignore")
    if find_spec("torch"):
        import torch

        torch.set_num_threads(torch_threads)
    contenders = [contender for contender in CONTENDERS if contender.name in names]
    with (
        loaded(directory, steady, kept) as ballast,
        tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-") as room,
    ):
        run = compare(
            contenders,
            state_name=state_name,
            nbytes=nbytes,
            repeats=repeats,
            directory=Path(room),
            command=_command(
                state_name,
                nbytes,
                repeats,
                [contender.name for contender in contenders],
                torch_threads,
                in_place=in_place,
                cold=cold,
            )
            + words(ballast),
            report=lambda line: click.echo(line, err=True),
            in_place=in_place,
            cold=cold,
            ballast=ballast,
        )
    click.echo(text(run))
    if json_path is not None:
        json_path.write_text(json.dumps(run.to_json(), indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(markdown(run))
    if plot_path is not None:
        draw(run, plot_path)


@main.command("two-ranks")
@click.option("--size", "nbytes", default="512MiB", callback=in_bytes, help="Bytes of state, such as 64MiB.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the tables here.")
@ballast_options
def two_ranks(
    nbytes: int,
    repeats: int,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Save and load by two gloo ranks that hold a half each: this library, and torch DCP with its threads."""
    from benchmarks.two_ranks import compare_two_ranks

    command = f"python -m benchmarks two-ranks --size {nbytes >> 20}MiB --repeats {repeats}"
    with loaded(directory.absolute(), steady, kept) as ballast:
        run = compare_two_ranks(nbytes, repeats, directory.absolute(), command + words(ballast), ballast)
    click.echo(text(run))
    if json_path is not None:
        json_path.write_text(json.dumps(run.to_json(), indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(markdown(run))


@main.command()
@click.option("--size", "nbytes", default="1GiB", callback=in_bytes, help="Bytes of state, such as 64MiB.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--torch-threads", default=1, type=click.IntRange(1), help="Threads that torch copies with.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@ballast_options
def stall(
    nbytes: int, repeats: int, torch_threads: int, directory: Path, steady: bool, kept: Path | None
) -> None:
    """For how long asynchronous saves keep training: a plain copy, this library, and torch's."""
    warnings.simplefilter("ignore")
    import torch

    from benchmarks.stall import measure as measure_stalls

    torch.set_num_threads(torch_threads)
    with loaded(directory, steady, kept) as ballast:
        found = measure_stalls(
            nbytes, repeats, directory, lambda line: click.echo(line, err=True), ballast=ballast
        )
    click.echo(found.text())


def _command(
    state: str, nbytes: int, repeats: int, names: list[str], torch_threads: int, *, in_place: bool, cold: bool
) -> str:
    """How to have the same again; without paths, which are nobody's business."""
    unit = max((unit for unit in UNITS if nbytes % UNITS[unit] == 0), key=UNITS.__getitem__)
    words = [
        "save-load",
        "--state",
        state,
        "--size",
        f"{nbytes // UNITS[unit]}{unit}",
        "--repeats",
        str(repeats),
    ]
    if len(names) < len(CONTENDERS):
        words += ["--only", ",".join(names)]
    if torch_threads > 1:
        words += ["--torch-threads", str(torch_threads)]
    if in_place:
        words.append("--in-place")
    if cold:
        words.append("--cold")
    return shlex.join(["python", "-m", "benchmarks", *words])


@main.command("reshard")
@click.option(
    "--size", "nbytes", default="512MiB", callback=in_bytes, help="Bytes of matrices, such as 256MiB."
)
@click.option("--side", default=2048, type=click.IntRange(8), help="Rows and columns of a matrix in fp32.")
@click.option("--repeats", default=5, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--cold", is_flag=True, help="Drop the files' pages before each share is read.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def reshard(
    nbytes: int,
    side: int,
    repeats: int,
    cold: bool,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Read what four ranks saved as each of eight, split otherwise: this library and torch DCP, in turn."""
    warnings.simplefilter("ignore")
    import torch

    from benchmarks.reshard import Work, compare_reshard, table

    torch.set_num_threads(1)
    command = f"python -m benchmarks reshard --size {nbytes >> 20}MiB --side {side} --repeats {repeats}"
    with loaded(directory.absolute(), steady, kept) as ballast:
        outcome = compare_reshard(
            Work(max(1, nbytes // Work(1, side).nbytes), side),
            repeats=repeats,
            directory=directory.absolute(),
            command=command + (" --cold" if cold else "") + words(ballast),
            cold=cold,
            report=lambda line: click.echo(line, err=True),
            ballast=ballast,
        )
    click.echo(aligned(table(outcome)))
    if json_path is not None:
        json_path.write_text(json.dumps(outcome.to_json(), indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(f"`{outcome.command}`\n\n{piped(table(outcome))}\n")


if __name__ == "__main__":
    sys.exit(main())
