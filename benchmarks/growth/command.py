"""``python -m benchmarks growth``: see README.md above."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from benchmarks.facts import machine_facts
from benchmarks.giant import Grid, Optimizer, Size
from benchmarks.growth.atoms import at_atoms, at_bytes, at_coordinates, at_layouts
from benchmarks.growth.curves import Curves, Point, rows
from benchmarks.growth.ranks import GRIDS, MODEL, Job, at_ranks
from benchmarks.plots import draw_curves
from benchmarks.scale import TRILLION
from benchmarks.tables import aligned, piped

__all__ = ["MODELS", "OVER", "command", "measure"]

_At = Callable[[int, int, Path], Point]
_MIB: Final = 1 << 20
MODELS: Final[dict[str, Size]] = {"billions": MODEL, "trillion": TRILLION}
OPTIMIZERS: Final[tuple[Optimizer, ...]] = ("tensors", "buffers")

OVER: Final[dict[str, tuple[int, ...]]] = {
    "bytes": (64, 128, 256, 512, 1024),
    "atoms": (1_000, 3_000, 10_000, 30_000, 100_000),
    "ranks": tuple(GRIDS),
    "layouts": (16, 64, 256, 1024, 4096, 16384),
}
"""Sizes by what is varied; bytes in MiB."""


def _rank_case(model: Size, optimizer: Optimizer, *, commits: bool) -> _At:
    def at(ranks: int, repeats: int, directory: Path) -> Point:
        del directory
        pp, tp, ep, edp = GRIDS[ranks] if ranks in GRIDS else _grid(ranks)
        source = Job(model, Grid(pp, tp, ep, edp, optimizer))
        # Half as many stages, half the tensor parallelism, four times the copies: every slot lies otherwise.
        target = Job(model, Grid(pp // 2, tp // 2, ep, 4 * edp, optimizer))
        return at_ranks(source, target, repeats, commits=commits)

    return at


def _grid(ranks: int) -> tuple[int, int, int, int]:
    """16 stages, tensor parallelism over 8, and experts over 8 ranks inside of data parallelism."""
    if ranks % 1024:
        raise click.BadParameter(f"ranks are one of {[*GRIDS]}, or a multiple of 1024")
    return 16, 8, 8, ranks // 1024


def _cases(over: str, model: Size) -> dict[str, _At]:
    if over == "ranks":
        commits = model is not TRILLION  # whose receipts, all in one process, take gigabytes
        return {f"moments in {one}": _rank_case(model, one, commits=commits) for one in OPTIMIZERS}
    if over == "layouts":
        return {"layouts": at_layouts, "coordinates of one mesh": at_coordinates}
    if over == "atoms":
        return {"atoms": at_atoms}
    return {"MiB": lambda size, repeats, directory: at_bytes(size * _MIB, repeats, directory)}


def measure(
    over: str,
    sizes: tuple[int, ...],
    repeats: int,
    directory: Path,
    model: Size,
    report: Callable[[str], None],
) -> Iterator[tuple[str, list[Point]]]:
    """Measure every case at every size."""
    for case, at in _cases(over, model).items():
        points = []
        for size in sizes:
            report(f"{case}: {size:,}")
            points.append(at(size, repeats, directory))
        yield case, points


def _sizes(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    del context, parameter
    if value is None:
        return None
    words = value.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise click.BadParameter("sizes are whole numbers with commas between, such as 1000,10000")
    return tuple(map(int, words))


@click.command("growth")
@click.option("--over", required=True, type=click.Choice([*OVER]), help="What is varied.")
@click.option("--sizes", callback=_sizes, help="At which sizes, with commas between; bytes in MiB.")
@click.option("--repeats", default=3, type=click.IntRange(1), help="The least processor time of so many.")
@click.option(
    "--model",
    default="billions",
    type=click.Choice([*MODELS]),
    help="Over ranks: what is saved; the trillion is planned alone.",
)
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every value here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the tables here.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw it here, as .svg or .png.")
def command(
    over: str,
    sizes: tuple[int, ...] | None,
    repeats: int,
    model: str,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
    plot_path: Path | None,
) -> None:
    """How time, memory and documents grow with bytes, atoms, ranks or layouts."""
    chosen = OVER[over] if sizes is None else sizes
    words = (
        f"python -m benchmarks growth --over {over} --sizes {','.join(map(str, chosen))} --repeats {repeats}"
    )
    curves = Curves(
        words if model == "billions" else f"{words} --model {model}",
        dict(machine_facts(directory)),
        over,
        dict(
            measure(over, chosen, repeats, directory, MODELS[model], lambda line: click.echo(line, err=True))
        ),
    )
    for case, points in curves.cases.items():
        click.echo(f"{case}\n{aligned(rows(case, points))}\n")
    if json_path is not None:
        json_path.write_text(json.dumps(curves.to_json(), indent=1) + "\n")
    if markdown_path is not None:
        tables = "\n\n".join(piped(rows(case, points)) for case, points in curves.cases.items())
        markdown_path.write_text(
            f"`{curves.command}`: the least of {repeats}, {curves.facts['processor']}, load "
            f"{curves.facts['load_at_start']} at the start; exponents of the three largest sizes.\n\n{tables}\n"
        )
    if plot_path is not None:
        draw_curves(curves, plot_path)
