"""A run as tables, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from benchmarks.results import Task

if TYPE_CHECKING:
    from benchmarks.results import Run

__all__ = ["aligned", "markdown", "piped", "text"]

Row = Sequence[str]

_TASKS: Final = ("save", "save durable", "load")
_REFERENCES: Final = ("raw-crc32c", "raw", "torch-dcp", "safetensors", "orbax")
_MEBIBYTE: Final = 1 << 20


def text(run: Run) -> str:
    """Aligned columns."""
    return "\n\n".join((_summary(run), aligned(_medians(run)), aligned(_ratios(run)))) + "\n"


def markdown(run: Run) -> str:
    """The same tables, and what each contender is."""
    notes = [f"* `{name}`: {note}" for name, note in run.notes.items()]
    return "\n\n".join((_summary(run), piped(_medians(run)), piped(_ratios(run)), "\n".join(notes))) + "\n"


def _summary(run: Run) -> str:
    facts = run.facts
    packages = facts["packages"]
    versions = (
        ", ".join(f"{name} {found}" for name, found in packages.items()) if isinstance(packages, dict) else ""
    )
    memory = int(str(facts["memory_bytes"])) / (1 << 30)
    repeats = max((len(series.readings) for series in run.series.values()), default=0)
    steady = ", page cache kept full" if facts.get("steady") else ""
    return (
        f"`{run.command}`: {run.nbytes / _MEBIBYTE:.0f} MiB in {run.arrays} arrays, medians of {repeats} rounds.\n"
        f"{facts['cores']} cores ({facts['processor']}), {memory:.0f} GiB, Linux {facts['kernel']}, "
        f"{facts['file_system']}, load {facts['load_at_start']} at the start{steady}; "
        f"Python {facts['python']}, {versions}."
    )


def _done(run: Run) -> list[str]:
    return [what for what in _TASKS if any(task.what == what for task in run.series)]


def _medians(run: Run) -> list[Row]:
    tasks = _done(run)
    rows: list[Row] = [
        [
            "",
            *(column for what in tasks for column in (f"{what} GB/s", "CPU s", "MiB")),
            "stored MiB",
            "objects",
        ]
    ]
    for name in run.contenders():
        cells = [name]
        for what in tasks:
            series = run.series.get(Task(name, what))
            if series is None:
                cells += ["", "", ""]
                continue
            cells += [
                f"{run.rate(Task(name, what)):.2f}",
                f"{series.cpu_seconds:.2f}",
                f"{series.peak_bytes / _MEBIBYTE:.0f}",
            ]
        stored = run.footprints[name]
        rows.append([*cells, f"{stored.nbytes / _MEBIBYTE:.1f}", str(stored.objects)])
    return rows


def _ratios(run: Run) -> list[Row]:
    """How many times faster this library is than each reference, with the middle half of the rounds."""
    references = [name for name in _REFERENCES if name in run.notes]
    tasks = [Task(name, what) for name in run.contenders() if name.startswith("ucp-") for what in _done(run)]
    rows = [
        [f"{task.contender}, {task.what}", *(_ratio(run, task, other) for other in references)]
        for task in tasks
        if task in run.series
    ]
    return [["times faster than", *references], *rows]


def _ratio(run: Run, task: Task, other: str) -> str:
    if Task(other, task.what) not in run.series:
        return ""
    ratio = run.ratio(task, other)
    return f"{ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def aligned(rows: Sequence[Row]) -> str:
    """Columns for a terminal."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if position == 0 else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def piped(rows: Sequence[Row]) -> str:
    """The same for Markdown."""
    head, *body = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
