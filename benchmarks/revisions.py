"""Two revisions of the library: saves, opens, loads, validations and conversions in turn, each side in its process."""

from __future__ import annotations

import io
import json
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.facts import machine_facts
from benchmarks.measure import Reading
from benchmarks.sizes import in_bytes
from benchmarks.tables import aligned, piped
from benchmarks.workloads import gpt_shapes

__all__ = ["Comparison", "Side", "command", "compare", "revision_at", "table"]

_ROOT: Final = Path(__file__).parents[1]
_WORKER: Final = Path(__file__).with_name("revision_worker.py")
_MEASURE: Final = Path(__file__).with_name("measure.py")
_OPERATIONS: Final = ("save", "open_and_slice", "load", "validate", "convert")
_SECONDS: Final[Callable[[Reading], float]] = operator.attrgetter("seconds")
_CPU_SECONDS: Final[Callable[[Reading], float]] = operator.attrgetter("cpu_seconds")

_STATES: Final[dict[str, Callable[[int], dict[str, tuple[int, ...]]]]] = {
    "gpt": lambda nbytes: gpt_shapes(nbytes // 4),
    "single": lambda nbytes: {"weight": (nbytes // 4,)},
    "small": lambda nbytes: {f"layers.{number}.weight": (256,) for number in range(nbytes // 1024)},
}


@dataclass(frozen=True, slots=True)
class Side:
    """A process that works by one revision of the library."""

    process: subprocess.Popen[str]

    def ask(self, order: object) -> Any:
        """Send a line and return the answer.

        Raises:
            click.ClickException: The process has ended; what was wrong is on standard error.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            answer = self.process.stdout.readline()
        if not answer:
            raise click.ClickException("the process of one side has ended; see above")
        return json.loads(answer)

    def do(self, operation: str, path: Path) -> Reading:
        """Measure one operation."""
        return Reading(**self.ask({"do": operation, "path": str(path)}))


@dataclass(slots=True)
class Comparison:
    """Readings of one operation on one state, round by round, of both sides."""

    state: str
    operation: str
    base: list[Reading] = field(default_factory=list)
    this: list[Reading] = field(default_factory=list)

    def ratios(self, of: Callable[[Reading], float]) -> list[float]:
        """What this revision took over what the base took, within each round, sorted."""
        pairs = zip(self.this, self.base, strict=True)
        return sorted(of(mine) / max(of(theirs), 1e-9) for mine, theirs in pairs)


@contextmanager
def revision_at(revision: str, directory: Path) -> Iterator[Path]:
    """Unpack the library as it is in a revision of this repository."""
    archive = subprocess.run(
        ["git", "-C", str(_ROOT), "archive", revision, "ucpformat", "schema", "pyproject.toml"],
        stdout=subprocess.PIPE,
        check=False,
    )
    if archive.returncode:
        raise click.ClickException(f"{revision!r} is no revision of this repository")
    with tempfile.TemporaryDirectory(dir=directory, prefix=".revision-") as place:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(place, filter="data")
        yield Path(place)


@contextmanager
def _side(tree: Path, shapes: dict[str, tuple[int, ...]]) -> Iterator[Side]:
    process = subprocess.Popen(
        [sys.executable, str(_WORKER), str(_MEASURE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    try:
        side = Side(process)
        at = side.ask(shapes)["revision"]
        if not Path(at).is_relative_to(tree):
            raise click.ClickException(f"the library was taken from {at}, and not from {tree}")
        yield side
    finally:
        process.kill()
        process.communicate()


def compare(base: Path, states: dict[str, int], repeats: int, directory: Path) -> list[Comparison]:
    """Both sides in turn, in rounds, each begun by the other; a round that warms up and compares does not count.

    ``base`` is the tree of the other revision, ``states`` are names of `_STATES` and their bytes.
    """
    found: list[Comparison] = []
    for state, nbytes in states.items():
        shapes = _STATES[state](nbytes)
        rows = {operation: Comparison(state, operation) for operation in _OPERATIONS}
        with ExitStack() as stack:
            room = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory, prefix=".benchmark-")))
            sides = {
                "base": stack.enter_context(_side(base, shapes)),
                "this": stack.enter_context(_side(_ROOT, shapes)),
            }
            for name, side in sides.items():
                side.do("prepare", room / f"{name}.ucp")
            for number in range(repeats + 1):
                readings = _round(sides, number, room)
                if number:
                    for operation, row in rows.items():
                        row.base.append(readings["base"][operation])
                        row.this.append(readings["this"][operation])
        found += rows.values()
    return found


def _round(sides: dict[str, Side], number: int, room: Path) -> dict[str, dict[str, Reading]]:
    readings: dict[str, dict[str, Reading]] = defaultdict(dict)
    names = list(sides) if number % 2 else list(reversed(sides))
    for operation in _OPERATIONS:
        for name in names:
            if operation in ("save", "convert"):
                os.sync()
            readings[name][operation] = sides[name].do(operation, room / f"{name}.ucp")
    for name in names:
        if not number:
            sides[name].do("check", room / f"{name}.ucp")
        shutil.rmtree(room / f"{name}.ucp")
        shutil.rmtree(room / f"{name}.ucp.converted")
    return readings


def table(comparisons: list[Comparison], revision: str) -> list[list[str]]:
    """Medians, and ratios within rounds with their middle half."""
    rows = [["state", "operation", f"{revision}, ms", "this, ms", "time, this to it", "CPU, this to it"]]
    rows += [
        [
            one.state,
            one.operation.replace("_", " "),
            f"{1e3 * statistics.median(map(_SECONDS, one.base)):.1f}",
            f"{1e3 * statistics.median(map(_SECONDS, one.this)):.1f}",
            _middle(one.ratios(_SECONDS)),
            _middle(one.ratios(_CPU_SECONDS)),
        ]
        for one in comparisons
    ]
    return rows


def _middle(ratios: list[float]) -> str:
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def _sizes(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, int]:
    sizes = {}
    for word in value.split(","):
        name, _, size = word.partition("=")
        if name not in _STATES:
            raise click.BadParameter(f"{name!r} is none of {', '.join(_STATES)}")
        sizes[name] = in_bytes(context, parameter, size)
    return sizes


@click.command("revisions")
@click.argument("revision")
@click.option(
    "--states",
    default="gpt=1GiB,single=384MiB,small=10MiB",
    callback=_sizes,
    help=f"States ({', '.join(_STATES)}) and their sizes.",
)
@click.option("--repeats", default=11, type=click.IntRange(1), help="Rounds after the one that warms up.")
@click.option("--directory", default=".", type=click.Path(path_type=Path), help="Which file system.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
def command(
    revision: str,
    states: dict[str, int],
    repeats: int,
    directory: Path,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Save, open, load, validate and convert by this tree and by REVISION, in turn."""
    facts = machine_facts(directory)
    with revision_at(revision, directory) as base:
        comparisons = compare(base, states, repeats, directory)
    sizes = ",".join(f"{name}={nbytes >> 10}KiB" for name, nbytes in states.items())
    line = f"python -m benchmarks revisions {revision} --states {sizes} --repeats {repeats}"
    rows = table(comparisons, revision)
    click.echo(aligned(rows))
    if json_path is not None:
        found = {"command": line, "facts": facts, "comparisons": [asdict(one) for one in comparisons]}
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(f"`{line}`\n\n{piped(rows)}\n")
