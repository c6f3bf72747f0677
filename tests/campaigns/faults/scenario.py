"""What is done while a call fails, and how it is looked at afterwards: what scenarios are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ucpformat as ucp
from tests.campaigns.faults.state import state
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.conversion.contract.registry import UCP
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.distributed.save import SaveOptions
from ucpformat.errors import error
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import open_run
from ucpformat.state_dict.save_load import save_state

__all__ = [
    "KEPT",
    "MADE",
    "Scenario",
    "collect_all",
    "command",
    "flatten",
    "flip",
    "leave_debris",
    "repair",
    "save_source",
    "save_together",
]


@dataclass(frozen=True)
class Scenario:
    """An operation in a directory.

    ``prepare`` makes what is there before, without faults; ``run`` is what may fail, and returns when it has succeeded.
    ``makes`` are the checkpoints that are there afterwards if it has, ``keeps`` those that are never harmed, each with
    the number of its state, ``gone`` those that are not there then, ``mends`` those that are damaged before, and whole
    if it has succeeded. ``formats`` are those of checkpoints that are no
    universal ones. With ``command`` it is `python -m ucpformat` with these arguments, in the directory. With ``world``
    it is so many processes of a gloo job, each of which is the one that meets the fault; of their many runs every
    ``stride``-th is done.
    """

    name: str
    run: Callable[[Path], None] = lambda _: None
    prepare: Callable[[Path], None] = lambda _: None
    makes: dict[str, int] | None = None
    keeps: dict[str, int] | None = None
    gone: Sequence[str] = ()
    mends: dict[str, int] | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    world: int = 1
    stride: int = 1


def save_together(path: str | Path, storage: str, *, number: int = 1, base: str | Path | None = None) -> None:
    """Save by two ranks, threads of this process; ``path`` is the checkpoint's, or its URL."""
    mesh = ucp.Mesh((ucp.MeshAxis("dp", 2),))
    layouts = {"model.w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (300,))}

    def work(group: ThreadGroup) -> None:
        held = state(number)
        held["model"]["w"] = held["model"]["w"][150 * group.rank :][:150]
        whose = None if base is None else str(base)
        options: Any = SaveOptions(storage, 256, None, base=whose)  # type: ignore[arg-type]
        save_state(path, held, options, group=group, layouts=layouts)

    for found in run_threads(2, work):
        if isinstance(found, BaseException):
            raise found


def leave_debris(path: Path) -> None:
    """What a writer that was killed has left."""
    for key in ("packs/x-0-0.pack", "index/x.json", ".ucp.json.0123"):
        (path / "c.ucp" / key).parent.mkdir(parents=True, exist_ok=True)
        (path / "c.ucp" / key).write_bytes(b"debris")


def collect_all(path: Path) -> None:
    found = collect(open_run(path), Retention(last=1), debris_age=0)
    for problem in found.failed.values():
        raise problem


def save_source(path: Path) -> None:
    ucp.save(path / "source.ucp", state(1))


def flatten(path: Path) -> None:
    convert_checkpoint(path / "source.ucp", path / "c.ucp", source_format=UCP, destination_format=UCP)


def flip(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def repair(path: Path) -> None:
    repaired = ucp.repair(path / "c.ucp", [path / "source.ucp"])
    for problem in repaired.problems:
        raise error(problem.code, problem.message, at=problem.at)


def command(name: str, arguments: str, **options: Any) -> Scenario:
    return Scenario(f"ucp {name}", command=arguments.split(), **options)


MADE = {"c.ucp": 1}

KEPT = {"source.ucp": 1}
