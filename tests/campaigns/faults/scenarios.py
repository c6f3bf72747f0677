"""Every operation that is done while a call fails: saves, conversions, collections, managers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ucpformat as ucp
from tests.campaigns.faults.increments import COMMANDS_OF_INCREMENTS, IMAGES, INCREMENTS, JOBS_OF_INCREMENTS
from tests.campaigns.faults.ranks import saves_as_rank
from tests.campaigns.faults.scenario import (
    KEPT,
    MADE,
    Scenario,
    collect_all,
    command,
    flatten,
    flip,
    leave_debris,
    repair,
    save_source,
    save_together,
)
from tests.campaigns.faults.state import state
from ucpformat.errors import error

__all__ = ["SCENARIOS"]


def _save(path: Path, **options: Any) -> None:
    ucp.save(path / "c.ucp", state(1), **options)


def _async(path: Path) -> None:
    with ucp.AsyncSaver() as saver:
        saver.save(path / "c.ucp", state(1))


def _steps(path: Path) -> None:
    for step in (1, 2):
        ucp.save(path / f"step-{step}.ucp", state(step))


def _steps_and_debris(path: Path) -> None:
    _steps(path)
    (path / "step-3.ucp" / "packs").mkdir(parents=True)
    (path / "step-3.ucp" / "packs" / "x").write_bytes(b"debris")


def _manager(path: Path) -> None:
    with ucp.CheckpointManager(path, keep_last=2) as manager:
        manager.save(3, state(3))


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
    save_source(path)
    shutil.copytree(path / "source.ucp", path / "c.ucp")
    next((path / "c.ucp" / "index").iterdir()).unlink()
    for pack in (path / "c.ucp" / "packs").iterdir():
        flip(pack)


def _damaged_root(path: Path) -> None:
    _damaged(path)
    flip(path / "c.ucp" / "ucp.json")


def _job(world: int, storage: str, stride: int, compressor: Any = None) -> Scenario:
    what = "compressed" if compressor else storage
    run = saves_as_rank(world, storage, compressor)
    return Scenario(f"save, {world} processes, {what}", run, makes=MADE, world=world, stride=stride)


IN_PROCESS: Sequence[Scenario] = (
    Scenario("save", _save, makes=MADE),
    Scenario("save over debris", _save, leave_debris, makes=MADE),
    Scenario("save, plain", lambda path: _save(path, storage="plain", chunk_bytes=512), makes=MADE),
    Scenario("save, compressed", lambda path: _save(path, compressor="auto"), makes=MADE),
    Scenario("save, asynchronous", _async, makes=MADE),
    Scenario("save, two ranks", lambda path: save_together(path / "c.ucp", "packed"), makes=MADE),
    Scenario("save, two ranks, plain", lambda path: save_together(path / "c.ucp", "plain"), makes=MADE),
    Scenario("convert", flatten, save_source, makes=MADE, keeps=KEPT),
    Scenario("collect", collect_all, _steps_and_debris, keeps={"step-2.ucp": 2}, gone=["step-1.ucp"]),
    Scenario("read", _read, save_source, keeps=KEPT),
    Scenario("validate", _validate, save_source, keeps=KEPT),
    Scenario("repair", repair, _damaged, keeps=KEPT, mends=MADE),
    Scenario("repair of a root document", repair, _damaged_root, keeps=KEPT, mends=MADE),
    Scenario("manager", _manager, _steps, makes={"step-3.ucp": 3}, keeps={"step-2.ucp": 2}),
)

COMMANDS: Sequence[Scenario] = (
    command("repair", "repair c.ucp --from source.ucp", prepare=_damaged, keeps=KEPT, mends=MADE),
    command("convert", "convert source.ucp c.ucp", prepare=save_source, makes=MADE, keeps=KEPT),
    command(
        "convert to dcp",
        "convert source.ucp out --to dcp",
        prepare=save_source,
        makes={"out": 1},
        keeps=KEPT,
        formats={"out": "dcp"},
    ),
    command(
        "convert to safetensors",
        "convert source.ucp out --to safetensors --weights-only",
        prepare=save_source,
        makes={"out": 1},
        keeps=KEPT,
        formats={"out": "safetensors"},
    ),
    command("cp", "cp source.ucp c.ucp", prepare=save_source, makes=MADE, keeps=KEPT),
    command(
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

SCENARIOS: Sequence[Scenario] = (
    *IN_PROCESS,
    *INCREMENTS,
    *IMAGES,
    *COMMANDS,
    *COMMANDS_OF_INCREMENTS,
    *JOBS,
    *JOBS_OF_INCREMENTS,
)
