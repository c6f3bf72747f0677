"""What is done while requests fail: saves, loads, conversions, copies, collections, managers at an ``s3://`` URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import fsspec
import numpy as np

import ucpformat as ucp
from tests.campaigns.faults.scenario import save_together
from tests.campaigns.faults.state import state
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.copying import copy_checkpoint
from ucpformat.geometry import Box
from ucpformat.manager.collection import collect
from ucpformat.manager.retention import Retention
from ucpformat.manager.run_directory import open_run
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.remote.s3_uploads import S3Uploads
from ucpformat.storage.stores.remote.store import RemoteStore

__all__ = ["SCENARIOS", "Place", "Scenario"]


@dataclass(frozen=True)
class Place:
    """Where an operation works: a prefix of the object store, and a local directory."""

    url: str
    local: Path


@dataclass(frozen=True)
class Scenario:
    """An operation.

    ``prepare`` makes what is there before, without faults; ``run`` is what may fail, and returns when it has succeeded.
    ``makes`` are the checkpoints below the URL that are there afterwards if it has, ``keeps`` those that are never
    harmed, each with the number of its state; ``local`` is one that it makes in the local directory. ``judge`` says
    what is wrong afterwards, where there is more than checkpoints; it is given what the operation has raised.
    """

    name: str
    run: Callable[[Place], None]
    prepare: Callable[[Place], None] = lambda _: None
    makes: dict[str, int] | None = None
    keeps: dict[str, int] | None = None
    local: str | None = None
    judge: Callable[[Place, BaseException | None], str | None] | None = None


STEPS: Final = ("step-1.ucp", "step-2.ucp")
LAST: Final = {"step-2.ucp": 2}
PART_BYTES: Final = 256
"""moto can be told to take such parts; S3 takes 5 MiB."""


def _save(place: Place, *, in_parts: bool = False, **options: Any) -> None:
    with patch.object(S3Uploads, "part_bytes", PART_BYTES if in_parts else S3Uploads.part_bytes):
        ucp.save(f"{place.url}/c.ucp", state(1), **options)


def _async(place: Place) -> None:
    with ucp.AsyncSaver() as saver:
        saver.save(f"{place.url}/c.ucp", state(1))


def _together(place: Place, storage: str) -> None:
    save_together(f"{place.url}/c.ucp", storage)


def _debris(place: Place, name: str = "c.ucp") -> None:
    """What a writer that was killed has left: objects, and parts of an upload."""
    filesystem = fsspec.filesystem("s3")
    for key in ("packs/x-0-0.pack", "index/x.json"):
        filesystem.pipe_file(f"{place.url}/{name}/{key}", b"debris")
    bucket, key, _ = filesystem.split_path(f"{place.url}/{name}/packs/dead-0-0.pack")
    upload = filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]
    filesystem.call_s3(
        "upload_part", Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"dead" * 4096
    )


def _saved(place: Place, names: Sequence[str]) -> None:
    for number, name in enumerate(names, 1):
        ucp.save(f"{place.url}/{name}", state(number))


def _steps_and_debris(place: Place) -> None:
    _saved(place, STEPS)
    _debris(place, "step-3.ucp")


def _again(place: Place) -> None:
    """What is committed is refused, and stays."""
    try:
        ucp.save(f"{place.url}/c.ucp", state(2))
    except ucp.UcpError as problem:
        if problem.code != "UCP-E-EXISTS":
            raise
    else:
        raise AssertionError("a committed checkpoint was written over")


def _same(found: Any, number: int) -> None:
    expected = state(number)
    for name in ("w", "b"):
        if not np.array_equal(found["model"][name], expected["model"][name]):
            raise AssertionError("success was told, and other values came")


def _load(place: Place) -> None:
    _same(ucp.load(f"{place.url}/c.ucp"), 1)


def _read_boxes(place: Place) -> None:
    out = np.zeros(40, np.float32)
    with open_checkpoint(f"{place.url}/c.ucp") as checkpoint:
        checkpoint.read_boxes([(checkpoint["w"]["value"].stored, Box((100,), (40,)), out)])
    if not np.array_equal(out, state(1)["model"]["w"][100:140]):
        raise AssertionError("success was told, and other values came")


def _validate(place: Place) -> None:
    for problem in ucp.validate(f"{place.url}/c.ucp", workers=1):
        if problem.severity == "error":
            raise ucp.UcpError(problem.code, problem.message, at=problem.at)


def _collect(place: Place) -> None:
    found = collect(open_run(place.url), Retention(last=1), debris_age=0)
    for problem in found.failed.values():
        raise problem


def _manager(place: Place) -> None:
    with ucp.CheckpointManager(place.url, keep_last=2) as manager:
        manager.save(3, state(3))


def _restore(place: Place) -> None:
    """The newest is taken, and not passed over for a fault of the way to it."""
    with ucp.CheckpointManager(place.url) as manager:
        held = state(0)
        step = manager.restore(held)
    if step != 2:
        raise AssertionError(f"success was told, and step {step} was restored instead of 2")
    _same(held, 2)


def _convert(source: str | Path, destination: str | Path, *, resume: bool = False) -> None:
    engine = EngineOptions(batch_bytes=512, workers=1, resume=resume)
    convert_checkpoint(source, destination, source_format="ucp", destination_format="ucp", engine=engine)


def _local_source(place: Place) -> None:
    ucp.save(place.local / "source.ucp", state(1))


def _interrupted(place: Place) -> None:
    """A conversion that was stopped before its commit."""
    _local_source(place)
    stopped = patch.object(RemoteStore, "publish", side_effect=KeyboardInterrupt)
    with stopped, suppress(KeyboardInterrupt):
        _convert(place.local / "source.ucp", f"{place.url}/c.ucp", resume=True)


def _out(place: Place) -> None:
    _convert(f"{place.url}/c.ucp", place.local / "out.ucp")


def _into(place: Place) -> None:
    _convert(place.local / "source.ucp", f"{place.url}/c.ucp")


def _resume(place: Place) -> None:
    _convert(place.local / "source.ucp", f"{place.url}/c.ucp", resume=True)


def _copy_in(place: Place) -> None:
    copy_checkpoint(place.local / "source.ucp", f"{place.url}/c.ucp")


def _copy_out(place: Place) -> None:
    copy_checkpoint(f"{place.url}/c.ucp", place.local / "out.ucp", durability="none")


def _copy_within(place: Place, name: str) -> None:
    copy_checkpoint(f"{place.url}/{name}", f"{place.url}/c.ucp")


def _base(place: Place, **options: Any) -> None:
    ucp.save(f"{place.url}/base.ucp", state(1), chunk_bytes=256, **options)


def _increment(place: Place, *, in_parts: bool = False, **options: Any) -> None:
    most = PART_BYTES if in_parts else S3Uploads.most_copied
    with patch.object(S3Uploads, "most_copied", most), patch.object(S3Uploads, "copied_bytes", PART_BYTES):
        ucp.save(f"{place.url}/c.ucp", state(11), base=f"{place.url}/base.ucp", **options)


def _increment_async(place: Place) -> None:
    """The second is compared with the snapshot of the first, and fetches nothing of it."""
    with ucp.AsyncSaver() as saver:
        saver.save(f"{place.url}/first.ucp", state(1), chunk_bytes=256)
        saver.wait()
        saver.save(f"{place.url}/c.ucp", state(11), base=f"{place.url}/first.ucp")


def _increment_together(place: Place, storage: str) -> None:
    save_together(f"{place.url}/c.ucp", storage, number=11, base=f"{place.url}/base.ucp")


def _increments(place: Place) -> None:
    """The second step shares with the first, and a third was left."""
    ucp.save(f"{place.url}/step-1.ucp", state(1), chunk_bytes=256)
    ucp.save(f"{place.url}/step-2.ucp", state(12), base=f"{place.url}/step-1.ucp")
    _debris(place, "step-3.ucp")


def _base_of_rows(place: Place) -> None:
    ucp.save(f"{place.url}/base.ucp", state(100))


def _increment_of_rows(place: Place) -> None:
    """Of the table two rows are sent, over a layer that is copied."""
    rows = {"model.w": [], "model.b": [], "model.table": [0, 7]}
    ucp.save(f"{place.url}/c.ucp", state(107), base=f"{place.url}/base.ucp", changed=rows)


def _manager_of_increments(place: Place) -> None:
    with ucp.CheckpointManager(place.url, keep_last=2, incremental=True) as manager:
        manager.save(3, state(13))


def _alone(place: Place) -> None:
    """An increment whose base is gone."""
    _base(place)
    ucp.save(f"{place.url}/alone.ucp", state(11), base=f"{place.url}/base.ucp")
    fsspec.filesystem("s3").rm(f"{place.url}/base.ucp", recursive=True)


def _flatten(place: Place) -> None:
    _convert(f"{place.url}/alone.ucp", f"{place.url}/c.ucp")


MADE = {"c.ucp": 1}
INCREMENT = {"c.ucp": 11}
BASE = {"base.ucp": 1}

INCREMENTS: Sequence[Scenario] = (
    Scenario("increment", _increment, _base, makes=INCREMENT, keeps=BASE),
    Scenario("increment, in parts", partial(_increment, in_parts=True), _base, makes=INCREMENT, keeps=BASE),
    Scenario(
        "increment, plain",
        partial(_increment, storage="plain"),
        partial(_base, storage="plain"),
        makes=INCREMENT,
        keeps=BASE,
    ),
    Scenario(
        "increment, compressed",
        partial(_increment, compressor="auto"),
        partial(_base, compressor="auto"),
        makes=INCREMENT,
        keeps=BASE,
    ),
    Scenario("increment, asynchronous", _increment_async, makes={"first.ucp": 1, **INCREMENT}),
    Scenario(
        "increment, two ranks",
        partial(_increment_together, storage="packed"),
        _base,
        makes=INCREMENT,
        keeps=BASE,
    ),
    Scenario(
        "increment, two ranks, plain",
        partial(_increment_together, storage="plain"),
        partial(_base, storage="plain"),
        makes=INCREMENT,
        keeps=BASE,
    ),
    Scenario(
        "increment of declared rows",
        _increment_of_rows,
        _base_of_rows,
        makes={"c.ucp": 107},
        keeps={"base.ucp": 100},
    ),
    Scenario("increment, flattened", _flatten, _alone, makes=INCREMENT, keeps={"alone.ucp": 11}),
    Scenario(
        "increment, copied within the store",
        partial(_copy_within, name="alone.ucp"),
        _alone,
        makes=INCREMENT,
        keeps={"alone.ucp": 11},
    ),
    Scenario("increment, its base collected", _collect, _increments, keeps={"step-2.ucp": 12}),
    Scenario(
        "increment by a manager",
        _manager_of_increments,
        _increments,
        makes={"step-3.ucp": 13},
        keeps={"step-2.ucp": 12},
    ),
)

SCENARIOS: Sequence[Scenario] = (
    Scenario("save", _save, makes=MADE),
    Scenario("save over debris", _save, _debris, makes=MADE),
    Scenario("save over a committed one", _again, partial(_saved, names=["c.ucp"]), keeps=MADE),
    Scenario("save in parts", partial(_save, in_parts=True), makes=MADE),
    Scenario("save, plain", partial(_save, storage="plain", chunk_bytes=512), makes=MADE),
    Scenario("save, compressed", partial(_save, compressor="auto"), makes=MADE),
    Scenario("save, asynchronous", _async, makes=MADE),
    Scenario("save, two ranks", partial(_together, storage="packed"), makes=MADE),
    Scenario("save, two ranks, plain", partial(_together, storage="plain"), makes=MADE),
    Scenario("load", _load, partial(_saved, names=["c.ucp"]), keeps=MADE),
    Scenario("read a range", _read_boxes, partial(_saved, names=["c.ucp"]), keeps=MADE),
    Scenario("validate", _validate, partial(_saved, names=["c.ucp"]), keeps=MADE),
    Scenario("convert from", _out, partial(_saved, names=["c.ucp"]), keeps=MADE, local="out.ucp"),
    Scenario("convert to", _into, _local_source, makes=MADE),
    Scenario("resume a conversion", _resume, _interrupted, makes=MADE),
    Scenario("copy from", _copy_out, partial(_saved, names=["c.ucp"]), keeps=MADE, local="out.ucp"),
    Scenario("copy to", _copy_in, _local_source, makes=MADE),
    Scenario(
        "copy within the store",
        partial(_copy_within, name="base.ucp"),
        partial(_base, storage="plain"),
        makes=MADE,
        keeps=BASE,
    ),
    Scenario("collect", _collect, _steps_and_debris, keeps={"step-2.ucp": 2}),
    Scenario("manager, save", _manager, partial(_saved, names=STEPS), makes={"step-3.ucp": 3}, keeps=LAST),
    Scenario("manager, restore", _restore, partial(_saved, names=STEPS), keeps=LAST),
    *INCREMENTS,
)
