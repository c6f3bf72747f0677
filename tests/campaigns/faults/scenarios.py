"""What is done while a call fails: saves, conversions, collections, managers; and how it is looked at afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ucpformat as ucp
from tests.campaigns.faults.ranks import saves_as_rank
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

__all__ = ["SCENARIOS", "Scenario", "save_together"]


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


def _save(path: Path, **options: Any) -> None:
    ucp.save(path / "c.ucp", state(1), **options)


def _async(path: Path) -> None:
    with ucp.AsyncSaver() as saver:
        saver.save(path / "c.ucp", state(1))


def save_together(path: str | Path, storage: str) -> None:
    """Save by two ranks, threads of this process; ``path`` is the checkpoint's, or its URL."""
    mesh = ucp.Mesh((ucp.MeshAxis("dp", 2),))
    layouts = {"model.w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (300,))}

    def work(group: ThreadGroup) -> None:
        held = state(1)
        held["model"]["w"] = held["model"]["w"][150 * group.rank :][:150]
        options: Any = SaveOptions(storage, 256, None)  # type: ignore[arg-type]
        save_state(path, held, options, group=group, layouts=layouts)

    for found in run_threads(2, work):
        if isinstance(found, BaseException):
            raise found


def _debris(path: Path) -> None:
    """What a writer that was killed has left."""
    for key in ("packs/x-0-0.pack", "index/x.json", ".ucp.json.0123"):
        (path / "c.ucp" / key).parent.mkdir(parents=True, exist_ok=True)
        (path / "c.ucp" / key).write_bytes(b"debris")


def _steps(path: Path) -> None:
    for step in (1, 2):
        ucp.save(path / f"step-{step}.ucp", state(step))


def _steps_and_debris(path: Path) -> None:
    _steps(path)
    (path / "step-3.ucp" / "packs").mkdir(parents=True)
    (path / "step-3.ucp" / "packs" / "x").write_bytes(b"debris")


def _collect(path: Path) -> None:
    found = collect(open_run(path), Retention(last=1), debris_age=0)
    for problem in found.failed.values():
        raise problem


def _manager(path: Path) -> None:
    with ucp.CheckpointManager(path, keep_last=2) as manager:
        manager.save(3, state(3))


def _source(path: Path) -> None:
    ucp.save(path / "source.ucp", state(1))


def _convert(path: Path) -> None:
    convert_checkpoint(path / "source.ucp", path / "c.ucp", source_format=UCP, destination_format=UCP)


def _read(path: Path) -> None:
    with ucp.open(path / "source.ucp") as checkpoint:
        checkpoint["w"]["value"].read()
        checkpoint["b"]["value"].mapped()
        checkpoint.objects["step"]


def _validate(path: Path) -> None:
    for problem in ucp.validate(path / "source.ucp"):
        raise error(problem.code, problem.message, at=problem.at)


def _damaged(path: Path) -> None:
    """Make a copy of a checkpoint that has lost a document, and bytes of every pack."""
    _source(path)
    shutil.copytree(path / "source.ucp", path / "c.ucp")
    next((path / "c.ucp" / "index").iterdir()).unlink()
    for pack in (path / "c.ucp" / "packs").iterdir():
        _flip(pack)


def _damaged_root(path: Path) -> None:
    _damaged(path)
    _flip(path / "c.ucp" / "ucp.json")


def _flip(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _repair(path: Path) -> None:
    repaired = ucp.repair(path / "c.ucp", [path / "source.ucp"])
    for problem in repaired.problems:
        raise error(problem.code, problem.message, at=problem.at)


def _command(name: str, arguments: str, **options: Any) -> Scenario:
    return Scenario(f"ucp {name}", command=arguments.split(), **options)


def _job(world: int, storage: str, stride: int, compressor: Any = None) -> Scenario:
    what = "compressed" if compressor else storage
    run = saves_as_rank(world, storage, compressor)
    return Scenario(f"save, {world} processes, {what}", run, makes=MADE, world=world, stride=stride)


MADE = {"c.ucp": 1}
KEPT = {"source.ucp": 1}

IN_PROCESS: Sequence[Scenario] = (
    Scenario("save", _save, makes=MADE),
    Scenario("save over debris", _save, _debris, makes=MADE),
    Scenario("save, plain", lambda path: _save(path, storage="plain", chunk_bytes=512), makes=MADE),
    Scenario("save, compressed", lambda path: _save(path, compressor="auto"), makes=MADE),
    Scenario("save, asynchronous", _async, makes=MADE),
    Scenario("save, two ranks", lambda path: save_together(path / "c.ucp", "packed"), makes=MADE),
    Scenario("save, two ranks, plain", lambda path: save_together(path / "c.ucp", "plain"), makes=MADE),
    Scenario("convert", _convert, _source, makes=MADE, keeps=KEPT),
    Scenario("collect", _collect, _steps_and_debris, keeps={"step-2.ucp": 2}, gone=["step-1.ucp"]),
    Scenario("read", _read, _source, keeps=KEPT),
    Scenario("validate", _validate, _source, keeps=KEPT),
    Scenario("repair", _repair, _damaged, keeps=KEPT, mends=MADE),
    Scenario("repair of a root document", _repair, _damaged_root, keeps=KEPT, mends=MADE),
    Scenario("manager", _manager, _steps, makes={"step-3.ucp": 3}, keeps={"step-2.ucp": 2}),
)
COMMANDS: Sequence[Scenario] = (
    _command("repair", "repair c.ucp --from source.ucp", prepare=_damaged, keeps=KEPT, mends=MADE),
    _command("convert", "convert source.ucp c.ucp", prepare=_source, makes=MADE, keeps=KEPT),
    _command(
        "convert to dcp",
        "convert source.ucp out --to dcp",
        prepare=_source,
        makes={"out": 1},
        keeps=KEPT,
        formats={"out": "dcp"},
    ),
    _command(
        "convert to safetensors",
        "convert source.ucp out --to safetensors --weights-only",
        prepare=_source,
        makes={"out": 1},
        keeps=KEPT,
        formats={"out": "safetensors"},
    ),
    _command("cp", "cp source.ucp c.ucp", prepare=_source, makes=MADE, keeps=KEPT),
    _command(
        "gc",
        "gc . --keep-last 1 --debris-age 0",
        prepare=_steps_and_debris,
        keeps={"step-2.ucp": 2},
        gone=["step-1.ucp"],
    ),
)
JOBS: Sequence[Scenario] = (
    _job(2, "packed", 3),
    _job(2, "plain", 5),
    _job(2, "packed", 5, "auto"),
    _job(4, "packed", 13),
    _job(4, "plain", 17),
    _job(4, "packed", 17, "auto"),
)
SCENARIOS: Sequence[Scenario] = (*IN_PROCESS, *COMMANDS, *JOBS)
