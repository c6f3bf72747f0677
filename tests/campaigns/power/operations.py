"""What is recorded: saves, conversions, copies, collections and managers, all durable; each in a directory of its own.

`python -m tests.campaigns.power.operations DIRECTORY [NAME ...]` does them, under the library of trace.c.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ucpformat as ucp
from tests.campaigns.faults.state import save_layers, with_row
from tests.campaigns.power.recording import mark
from tests.distributed.thread_group import ThreadGroup, run_threads
from tests.update_log.logs import LogMaker
from ucpformat.conversion.contract.registry import UCP
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.copying import copy_checkpoint
from ucpformat.distributed.save import SaveOptions
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import open_run
from ucpformat.state_dict.save_load import save_state

__all__ = ["OPERATIONS", "Operation", "content"]

_ENGINE = EngineOptions(workers=2, pool="threads")
LOG = "updates.ucplog"
LOGGED_STEPS = 10
VALUES = np.arange(1, 3001, dtype=np.float32)


def content(number: int) -> dict[str, Any]:
    """What a save of this number holds; from 10 on it is that of the first digit, but for one chunk of 4096 bytes.

    From 100 on it is that of the first digit, and a table of which the row of the last two is another.
    """
    if number >= 100:
        return with_row(content, number)
    if number >= 10:
        found = content(int(str(number)[0]))
        found["model"]["w"][1100:1200] -= number
        return {**found, "step": number}
    return {"model": {"w": VALUES + number, "b": np.full(7, number, np.int32)}, "step": number}


@dataclass(frozen=True)
class Operation:
    """``prepare`` makes what is on the disk before; ``run`` says by `done` what it has acknowledged.

    ``makes`` are the checkpoints that are there from then on, by name, each with the number of its content; ``keeps``
    those that are there always, ``removes`` those that are gone from then on, and are whole or gone before; ``mends``
    those that are whole from then on, and are whole or seen to be damaged before. ``formats`` are those of checkpoints
    that are not universal ones. ``logs`` are update logs, by name, with how many steps they have at the end: of each
    as many count as were acknowledged, by ``name@steps``.
    """

    name: str
    run: Callable[[Path], None]
    prepare: Callable[[Path], None] = lambda _: None
    makes: dict[str, int] = field(default_factory=dict)
    keeps: dict[str, int] = field(default_factory=dict)
    removes: dict[str, int] = field(default_factory=dict)
    mends: dict[str, int] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    logs: dict[str, int] = field(default_factory=dict)


def done(name: str) -> None:
    """Say that an operation on a checkpoint was acknowledged."""
    mark(f"done {name}")


def _save(path: Path, **options: Any) -> None:
    ucp.save(path / "deep/er/c.ucp", content(1), **options)
    done("deep/er/c.ucp")


def _save_again(path: Path) -> None:
    """An attempt that made directories has died: they are there, and another one relies on them."""
    spec = ucp.AtomSpec("w", {"value": ucp.SlotSpec("float32", VALUES.shape)})
    writer = ucp.CheckpointWriter(path / "deep/er/c.ucp", [spec])
    writer.write("w", "value", VALUES)
    writer.leave()
    _save(path)


def _async(path: Path) -> None:
    with ucp.AsyncSaver() as saver:
        saver.save(path / "deep/er/c.ucp", content(1))
        saver.wait()
        done("deep/er/c.ucp")


def _together(path: Path, world: int, storage: Any, *, number: int = 1, base: Path | None = None) -> None:
    """Ranks that are threads of this process: what they ask of the disk is what processes ask."""
    mesh = ucp.Mesh((ucp.MeshAxis("dp", world),))
    layouts = {"model.w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (len(VALUES),))}
    rows = len(VALUES) // world

    def work(group: ThreadGroup) -> None:
        held = content(number)
        held["model"]["w"] = held["model"]["w"][rows * group.rank :][:rows]
        options = SaveOptions(storage, 4096, None, base=None if base is None else str(base))
        save_state(path / "deep/er/c.ucp", held, options, group=group, layouts=layouts)

    for ended in run_threads(world, work):
        if isinstance(ended, BaseException):
            raise ended
    done("deep/er/c.ucp")


def _debris(path: Path) -> None:
    for key in ("packs/x-0-0.pack", "index/x.json", ".ucp.json.0123"):
        (path / "deep/er/c.ucp" / key).parent.mkdir(parents=True, exist_ok=True)
        (path / "deep/er/c.ucp" / key).write_bytes(b"debris")


def _log(path: Path) -> None:
    """Two ranks write batches, one process after another goes on, and old batches are removed."""
    maker = LogMaker(path / "run" / LOG)
    maker.epoch()
    for step in range(LOGGED_STEPS):
        number = step // 4
        if step and step % 4 == 0:
            maker.epoch(number, step, after=number - 1)
        for rank in (0, 1):
            maker.batch(number, rank, step)
        done(f"run/{LOG}@{step + 1}")
    for rank in (0, 1):
        maker.place.remove([f"batches/0/{rank}/0.batch"])


def _source(path: Path) -> None:
    ucp.save(path / "source.ucp", content(1))


def _convert(path: Path, name: str, format_name: str, **options: Any) -> None:
    convert_checkpoint(
        path / "source.ucp",
        path / name,
        source_format=UCP,
        destination_format=format_name,
        engine=_ENGINE,
        **options,
    )
    done(name)


def _copy(path: Path) -> None:
    copy_checkpoint(path / "source.ucp", path / "deep/er/c.ucp")
    done("deep/er/c.ucp")


def _steps(path: Path) -> None:
    for step in (1, 2):
        ucp.save(path / f"step-{step}.ucp", content(step))


def _steps_and_debris(path: Path) -> None:
    _steps(path)
    (path / "step-3.ucp" / "packs").mkdir(parents=True)
    (path / "step-3.ucp" / "packs" / "x").write_bytes(b"debris")


def _collect(path: Path) -> None:
    found = collect(open_run(path), Retention(last=1), debris_age=0)
    for problem in found.failed.values():
        raise problem
    done("step-1.ucp")


def _manager(path: Path) -> None:
    with ucp.CheckpointManager(path, keep_last=2) as manager:
        manager.save(3, content(3))
        manager.wait()
        done("step-3.ucp")


def _damaged(path: Path) -> None:
    """Make a copy of a checkpoint that has lost a document, and a byte of each pack and of its root document."""
    _source(path)
    copy_checkpoint(path / "source.ucp", path / "c.ucp")
    next((path / "c.ucp" / "index").iterdir()).unlink()
    for damaged in (*(path / "c.ucp" / "packs").iterdir(), path / "c.ucp" / "ucp.json"):
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)


def _repair(path: Path) -> None:
    repaired = ucp.repair(path / "c.ucp", [path / "source.ucp"])
    assert repaired.is_whole, repaired.problems
    done("c.ucp")


def _source_in_chunks(path: Path, **options: Any) -> None:
    ucp.save(path / "source.ucp", content(1), chunk_bytes=4096, **options)


def _increment(path: Path, **options: Any) -> None:
    ucp.save(path / "deep/er/c.ucp", content(11), base=path / "source.ucp", **options)
    done("deep/er/c.ucp")


def _increments_async(path: Path) -> None:
    """The second is compared with the snapshot of the first."""
    with ucp.AsyncSaver() as saver:
        saver.save(path / "source.ucp", content(1), chunk_bytes=4096)
        saver.wait()
        done("source.ucp")
        saver.save(path / "deep/er/c.ucp", content(11), base=path / "source.ucp")
        saver.wait()
        done("deep/er/c.ucp")


def _increment_of_what_is_not_durable(path: Path, storage: Any) -> None:
    """Nothing was asked for the base: what is acknowledged of the increment holds for what it shares as well."""
    save_state(path / "source.ucp", content(1), SaveOptions(storage, 4096, None, durability="none"))
    _increment(path, storage=storage)


def _source_increment(path: Path) -> None:
    ucp.save(path / "base.ucp", content(1), chunk_bytes=4096)
    ucp.save(path / "source.ucp", content(11), base=path / "base.ucp")


def _increment_of_a_removed_base(path: Path) -> None:
    """The base is gone before the increment is saved again by another, whose base it is."""
    _increment(path)
    shutil.rmtree(path / "source.ucp")
    ucp.save(path / "again.ucp", content(12), base=path / "deep/er/c.ucp")
    done("again.ucp")


def _steps_of_increments(path: Path) -> None:
    ucp.save(path / "step-1.ucp", content(1), chunk_bytes=4096)
    ucp.save(path / "step-2.ucp", content(12), base=path / "step-1.ucp")


def _manager_of_increments(path: Path) -> None:
    with ucp.CheckpointManager(path, keep_last=2, incremental=True) as manager:
        manager.save(3, content(13))
        manager.wait()
        done("step-3.ucp")


def _base_of_rows(path: Path) -> None:
    ucp.save(path / "source.ucp", content(100))


def _increment_of_rows(path: Path, number: int = 107, **options: Any) -> None:
    """Of the table two rows are written, over layers that are shared."""
    ucp.save(path / "deep/er/c.ucp", content(number), base=path / "source.ucp", **options)
    done("deep/er/c.ucp")


def _layers(path: Path) -> None:
    save_layers(path, content)


def _attach(path: Path) -> None:
    (path / "trainer.dmtcp").write_bytes(bytes(range(256)) * 9)
    image = ucp.image_source(path / "trainer.dmtcp", producer=("dmtcp", "3.0.0"))
    ucp.attach(path / "source.ucp", path / "deep/er/c.ucp", {"trainer": image})
    done("deep/er/c.ucp")


MADE = {"deep/er/c.ucp": 1}
KEPT = {"source.ucp": 1}
INCREMENT = {"deep/er/c.ucp": 11}
ROWS = {"deep/er/c.ucp": 107}


def _conversion(format_name: str, name: str, what: str = "", **options: Any) -> Operation:
    return Operation(
        f"convert to {format_name}{what}",
        lambda path: _convert(path, name, format_name, **options),
        _source,
        makes={name: 1},
        keeps=KEPT,
        formats={} if format_name == UCP else {name: format_name},
    )


OPERATIONS: Sequence[Operation] = (
    Operation("update log", _log, logs={f"run/{LOG}": LOGGED_STEPS}),
    Operation("save", _save, makes=MADE),
    Operation("save, plain", lambda path: _save(path, storage="plain", chunk_bytes=4096), makes=MADE),
    Operation("save, compressed", lambda path: _save(path, compressor="auto"), makes=MADE),
    Operation("save over debris", _save, _debris, makes=MADE),
    Operation("save over one that was left", _save_again, makes=MADE),
    Operation("save, asynchronous", _async, makes=MADE),
    Operation("save, two ranks", lambda path: _together(path, 2, "packed"), makes=MADE),
    Operation("save, four ranks, plain", lambda path: _together(path, 4, "plain"), makes=MADE),
    Operation("increment", _increment, _source_in_chunks, makes=INCREMENT, keeps=KEPT),
    Operation(
        "increment, plain",
        lambda path: _increment(path, storage="plain"),
        lambda path: _source_in_chunks(path, storage="plain"),
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Operation("increment, asynchronous", _increments_async, makes={**KEPT, **INCREMENT}),
    Operation(
        "increment of what is not durable",
        lambda path: _increment_of_what_is_not_durable(path, "packed"),
        makes=INCREMENT,
    ),
    Operation(
        "increment of what is not durable, plain",
        lambda path: _increment_of_what_is_not_durable(path, "plain"),
        makes=INCREMENT,
    ),
    Operation(
        "increment, two ranks",
        lambda path: _together(path, 2, "packed", number=11, base=path / "source.ucp"),
        _source_in_chunks,
        makes=INCREMENT,
        keeps=KEPT,
    ),
    Operation(
        "increment, its base removed",
        _increment_of_a_removed_base,
        _source_in_chunks,
        makes={**INCREMENT, "again.ucp": 12},
    ),
    Operation("increment of rows", _increment_of_rows, _base_of_rows, makes=ROWS, keeps={"source.ucp": 100}),
    Operation(
        "increment of declared rows",
        lambda path: _increment_of_rows(path, changed={"model.w": [], "model.b": [], "model.table": [0, 7]}),
        _base_of_rows,
        makes=ROWS,
        keeps={"source.ucp": 100},
    ),
    Operation(
        "increment of rows, over layers",
        lambda path: _increment_of_rows(path, 109),
        _layers,
        makes={"deep/er/c.ucp": 109},
        keeps={"source.ucp": 107},
    ),
    Operation(
        "increment of rows, flattened",
        lambda path: _convert(path, "deep/er/c.ucp", UCP),
        _layers,
        makes=ROWS,
        keeps={"source.ucp": 107},
    ),
    Operation("increment of rows, copied", _copy, _layers, makes=ROWS, keeps={"source.ucp": 107}),
    Operation(
        "cp of an increment",
        _copy,
        _source_increment,
        makes=INCREMENT,
        keeps={"base.ucp": 1, "source.ucp": 11},
    ),
    Operation(
        "convert to ucp, an increment",
        lambda path: _convert(path, "deep/er/c.ucp", UCP),
        _source_increment,
        makes=INCREMENT,
        keeps={"base.ucp": 1, "source.ucp": 11},
    ),
    Operation("attach", _attach, _source, makes=MADE, keeps=KEPT),
    Operation("cp", _copy, _source, makes=MADE, keeps=KEPT),
    _conversion(UCP, "deep/c.ucp"),
    _conversion(UCP, "deep/c.ucp", ", plain", storage="plain"),
    _conversion("dcp", "deep/out"),
    _conversion("safetensors", "deep/out", weights_only=True),
    _conversion(
        "safetensors", "deep/out", ", several files", weights_only=True, settings={"max_shard_size": "8KB"}
    ),
    _conversion("torch-save", "deep/out.pt"),
    _conversion("megatron", "deep/out"),
    _conversion("orbax", "deep/out"),
    Operation("repair", _repair, _damaged, keeps=KEPT, mends={"c.ucp": 1}),
    Operation("collect", _collect, _steps_and_debris, keeps={"step-2.ucp": 2}, removes={"step-1.ucp": 1}),
    Operation(
        "collect the base of an increment",
        _collect,
        _steps_of_increments,
        keeps={"step-2.ucp": 12},
        removes={"step-1.ucp": 1},
    ),
    Operation(
        "manager, increments",
        _manager_of_increments,
        _steps_of_increments,
        makes={"step-3.ucp": 13},
        keeps={"step-2.ucp": 12},
        removes={"step-1.ucp": 1},
    ),
    Operation(
        "manager",
        _manager,
        _steps,
        makes={"step-3.ucp": 3},
        keeps={"step-2.ucp": 2},
        removes={"step-1.ucp": 1},
    ),
)


def main(directory: Path, operations: Sequence[Operation]) -> None:
    """Do operations, each in a directory of its number."""
    for number, operation in enumerate(operations):
        path = directory / str(number)
        path.mkdir()
        operation.prepare(path)
        mark(f"begin {number}")
        operation.run(path)
        mark(f"end {number}")


if __name__ == "__main__":
    wanted = [one for one in OPERATIONS if one.name in sys.argv[2:] or not sys.argv[2:]]
    main(Path(sys.argv[1]), wanted)
