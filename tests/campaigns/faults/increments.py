"""Increments, by one process and by two, flattened, copied, repaired and collected; and images of processes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ucpformat as ucp
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
from tests.campaigns.faults.state import IMAGE, IMAGE_DATA, save_layers, state
from ucpformat.copying import copy_checkpoint

__all__ = ["COMMANDS_OF_INCREMENTS", "IMAGES", "INCREMENTS", "JOBS_OF_INCREMENTS"]


def _source_in_chunks(path: Path, **options: Any) -> None:
    ucp.save(path / "source.ucp", state(1), chunk_bytes=256, **options)


def _source_plain(path: Path) -> None:
    _source_in_chunks(path, storage="plain")


def _source_and_debris(path: Path) -> None:
    _source_in_chunks(path)
    leave_debris(path)


def _increment(path: Path, **options: Any) -> None:
    ucp.save(path / "c.ucp", state(11), base=path / "source.ucp", **options)


def _increments_async(path: Path) -> None:
    """The second is compared with the snapshot of the first, which is its base."""
    with ucp.AsyncSaver() as saver:
        saver.save(path / "first.ucp", state(1), chunk_bytes=256)
        saver.wait()
        saver.save(path / "c.ucp", state(11), base=path / "first.ucp")


def _source_of_rows(path: Path) -> None:
    ucp.save(path / "source.ucp", state(100))


def _increment_of_rows(path: Path, **options: Any) -> None:
    """Of the table two rows are written, over a layer that is shared."""
    ucp.save(path / "c.ucp", state(107), base=path / "source.ucp", **options)


def _layers(path: Path) -> None:
    save_layers(path, state)


def _run_of_increments(path: Path) -> None:
    """The second step shares with the first, and a third was left."""
    ucp.save(path / "step-1.ucp", state(1), chunk_bytes=256)
    ucp.save(path / "step-2.ucp", state(12), base=path / "step-1.ucp")


def _run_of_increments_and_debris(path: Path) -> None:
    """A saver that was killed has left files that are links to another checkpoint's."""
    _run_of_increments(path)
    (path / "step-3.ucp" / "packs").mkdir(parents=True)
    for pack in (path / "step-2.ucp" / "packs").iterdir():
        (path / "step-3.ucp" / "packs" / pack.name).hardlink_to(pack)


def _manager_of_increments(path: Path) -> None:
    with ucp.CheckpointManager(path, keep_last=2, incremental=True) as manager:
        manager.save(3, state(13))


def _source_increment(path: Path) -> None:
    """The base is removed: the increment has to do without."""
    ucp.save(path / "base.ucp", state(1), chunk_bytes=256)
    ucp.save(path / "source.ucp", state(11), base=path / "base.ucp")
    shutil.rmtree(path / "base.ucp")


def _damaged_increment(path: Path) -> None:
    """Every pack has lost a byte, the ones of the base in the base as well."""
    ucp.save(path / "base.ucp", state(1), chunk_bytes=256)
    ucp.save(path / "c.ucp", state(11), base=path / "base.ucp")
    copy_checkpoint(path / "c.ucp", path / "source.ucp")
    for pack in (path / "c.ucp" / "packs").iterdir():
        flip(pack)


def _source_and_image(path: Path) -> None:
    save_source(path)
    (path / IMAGE).write_bytes(IMAGE_DATA)


def _attach(path: Path) -> None:
    image = ucp.image_source(path / IMAGE, producer=("dmtcp", "3.0.0"))
    ucp.attach(path / "source.ucp", path / "c.ucp", {"trainer": image})


def _attached(path: Path) -> None:
    ucp.save(path / "bare.ucp", state(1))
    (path / IMAGE).write_bytes(IMAGE_DATA)
    image = ucp.image_source(path / IMAGE, producer=("dmtcp", "3.0.0"))
    ucp.attach(path / "bare.ucp", path / "source.ucp", {"trainer": image})


def _extract(path: Path) -> None:
    ucp.extract(path / "source.ucp", "trainer", path / "out")


def _job_of_increments(storage: str, stride: int) -> Scenario:
    return Scenario(
        f"increment, 2 processes, {storage}",
        saves_as_rank(2, storage, number=11, base="source.ucp"),
        _source_plain if storage == "plain" else _source_in_chunks,
        makes={"c.ucp": 11},
        keeps=KEPT,
        world=2,
        stride=stride,
    )


INCREMENT = {"c.ucp": 11}

OF_INCREMENT = {"source.ucp": 11}

ROWS = {"c.ucp": 107}

INCREMENTS: Sequence[Scenario] = (
    Scenario("increment", _increment, _source_in_chunks, makes=INCREMENT, keeps=KEPT),
    Scenario(
        "increment, plain",
        lambda path: _increment(path, storage="plain"),
        _source_plain,
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Scenario(
        "increment, compressed",
        lambda path: _increment(path, compressor="auto"),
        lambda path: _source_in_chunks(path, compressor="auto"),
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Scenario("increment, asynchronous", _increments_async, makes={"first.ucp": 1, **INCREMENT}),
    Scenario(
        "increment, two ranks",
        lambda path: save_together(path / "c.ucp", "packed", number=11, base=path / "source.ucp"),
        _source_in_chunks,
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Scenario(
        "increment, two ranks, plain",
        lambda path: save_together(path / "c.ucp", "plain", number=11, base=path / "source.ucp"),
        _source_plain,
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Scenario(
        "increment, over debris",
        _increment,
        _source_and_debris,
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Scenario("increment of rows", _increment_of_rows, _source_of_rows, makes=ROWS, keeps={"source.ucp": 100}),
    Scenario(
        "increment of declared rows",
        lambda path: _increment_of_rows(path, changed={"model.w": [], "model.b": [], "model.table": [0, 7]}),
        _source_of_rows,
        makes=ROWS,
        keeps={"source.ucp": 100},
    ),
    Scenario("increment of rows, flattened", flatten, _layers, makes=ROWS, keeps={"source.ucp": 107}),
    Scenario("increment, flattened", flatten, _source_increment, makes=INCREMENT, keeps=OF_INCREMENT),
    Scenario(
        "increment, its base collected",
        collect_all,
        _run_of_increments_and_debris,
        keeps={"step-2.ucp": 12},
        gone=["step-1.ucp"],
    ),
    Scenario("increment, repaired", repair, _damaged_increment, keeps=OF_INCREMENT, mends=INCREMENT),
    Scenario(
        "increment by a manager",
        _manager_of_increments,
        _run_of_increments,
        makes={"step-3.ucp": 13},
        keeps={"step-2.ucp": 12},
    ),
)

IMAGES: Sequence[Scenario] = (
    Scenario("attach", _attach, _source_and_image, makes=MADE, keeps=KEPT),
    Scenario("extract", _extract, _attached, makes={"out": 1}, keeps=KEPT, formats={"out": "image"}),
)

COMMANDS_OF_INCREMENTS: Sequence[Scenario] = (
    command(
        "convert of an increment",
        "convert source.ucp c.ucp",
        prepare=_source_increment,
        makes=INCREMENT,
        keeps=OF_INCREMENT,
    ),
    command(
        "cp of an increment",
        "cp source.ucp c.ucp",
        prepare=_source_increment,
        makes=INCREMENT,
        keeps=OF_INCREMENT,
    ),
    command(
        "gc of a base",
        "gc . --keep-last 1 --debris-age 0",
        prepare=_run_of_increments_and_debris,
        keeps={"step-2.ucp": 12},
        gone=["step-1.ucp"],
    ),
    command(
        "attach",
        f"attach source.ucp {IMAGE} -o c.ucp --name trainer --producer dmtcp 3.0.0",
        prepare=_source_and_image,
        makes=MADE,
        keeps=KEPT,
    ),
    command(
        "extract",
        "extract source.ucp trainer -o out",
        prepare=_attached,
        makes={"out": 1},
        keeps=KEPT,
        formats={"out": "image"},
    ),
)
JOBS_OF_INCREMENTS: Sequence[Scenario] = (_job_of_increments("packed", 5), _job_of_increments("plain", 7))
