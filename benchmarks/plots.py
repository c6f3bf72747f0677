"""Runs as pictures: rates of everybody, with the middle half of the rounds; curves of growth, with their exponents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.growth.curves import exponent
from benchmarks.results import Task, quartiles

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.growth.curves import Curves
    from benchmarks.results import Run

__all__ = ["draw", "draw_curves"]

_OURS: Final = "#0b6e4f"
_LIMIT: Final = "#9aa5b1"
_PEER: Final = "#c8553d"


def draw(run: Run, path: Path) -> None:
    """Write the picture, in the format that the name of the file says (``.svg`` or ``.png``)."""
    pyplot = _pyplot()
    tasks = [
        what for what in ("save", "save durable", "load") if any(task.what == what for task in run.series)
    ]
    names = run.contenders()
    figure, axes = pyplot.subplots(
        1, len(tasks), sharey=True, squeeze=False, figsize=(3.6 * len(tasks), 0.36 * len(names) + 1.3)
    )
    for axis, what in zip(axes[0], tasks, strict=True):
        for row, name in enumerate(names):
            series = run.series.get(Task(name, what))
            if series is not None:
                rates = [run.nbytes / reading.seconds / 1e9 for reading in series.readings]
                _bar(axis, row, name, rates)
        axis.set_title(what, fontsize=10)
        axis.set_xlabel("GB/s", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figure.suptitle(f"{run.nbytes / 2**20:.0f} MiB in {run.arrays} tensors", fontsize=10)
    _written(figure, path)


def _bar(axis: Any, row: int, name: str, rates: list[float]) -> None:
    ordered = sorted(rates)
    middle = ordered[len(ordered) // 2]
    low, high = quartiles(rates)
    colour = _OURS if name.startswith("ucp") else _LIMIT if name.startswith("raw") else _PEER
    axis.barh(row, middle, color=colour, height=0.7)
    axis.plot([low, high], [row, row], color="black", linewidth=1)


def draw_curves(curves: Curves, path: Path) -> None:
    """Seconds over sizes, both in powers of ten, a panel for each case; the legend has the exponents that fit."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        1, len(curves.cases), squeeze=False, figsize=(5.2 * len(curves.cases), 4.8)
    )
    for axis, (case, points) in zip(axes[0], curves.cases.items(), strict=True):
        for name in dict.fromkeys(name for point in points for name in point.values):
            if name.endswith(" s"):
                found = exponent(points, name)
                label = name.removesuffix(" s").removesuffix(" CPU").removesuffix(",")
                axis.plot(
                    [point.size for point in points],
                    [point.values[name] for point in points],
                    marker="o",
                    markersize=3,
                    linewidth=1,
                    label=label if found is None else f"{label} ({found:.2f})",
                )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(case if case.startswith(curves.over) else f"{curves.over}: {case}", fontsize=8)
        axis.set_ylabel("seconds of processor time", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(visible=True, linewidth=0.3)
        axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.14))
        axis.spines[["top", "right"]].set_visible(False)
    _written(figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "ucpformat"  # the same file for the same run
    from matplotlib import pyplot

    return pyplot


def _written(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=144)
    _pyplot().close(figure)
