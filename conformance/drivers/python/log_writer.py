"""Epochs of update logs that the driver's process has begun, and the batches of their ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.model.references import sha256_digest
from ucpformat.update_log.batch import Sum
from ucpformat.update_log.batch_writer import BatchWriter
from ucpformat.update_log.creation import create_epoch, create_log, drawn_id
from ucpformat.update_log.documents import After, Epoch, LoggedTensor, LogPiece
from ucpformat.update_log.drafts import BatchDraft, Captured, StepDraft
from ucpformat.update_log.place import LOG_KEY, LogPlace
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.sums import box_sum

__all__ = ["begin_epoch", "forget_epochs", "write_batch"]

Json = dict[str, Any]


@dataclass
class OpenEpoch:
    """An epoch that this process has begun, with a writer for each rank that has written."""

    place: LogPlace
    epoch: Epoch
    digest: str
    writers: dict[int, BatchWriter] = field(default_factory=dict)

    def writer(self, rank: int) -> BatchWriter:
        if rank not in self.writers:
            self.writers[rank] = BatchWriter(self.place, self.epoch, self.digest, rank, most_bytes=1 << 28)
        return self.writers[rank]


EPOCHS: dict[tuple[str, int], OpenEpoch] = {}


def begin_epoch(params: Json) -> Json:
    path = params["path"]
    place = LogPlace(path)
    is_new = params["after"] is None and not place.has(LOG_KEY)
    log, number, after = (drawn_id(), 0, None) if is_new else found_log(place, params["after"])
    drafted = Epoch(
        log,
        params.get("epoch", number),
        drawn_id(),
        params["first_step"],
        after,
        params["ranks"],
        tuple(
            LoggedTensor(one["atom"], one["role"], one["dtype"], tuple(one["shape"]))
            for one in params["tensors"]
        ),
        tuple(
            LogPiece(one["tensor"], one["rank"], tuple(one["offset"]), tuple(one["shape"]))
            for one in params["pieces"]
        ),
        tuple(map(tuple, params["groups"])),
        params["optimizer"]["type"],
        params["optimizer"]["profile"],
        params["exactness"],
    )
    data = (create_log if is_new else create_epoch)(place, drafted)
    epoch = Epoch.parse(data, at=path)
    EPOCHS[path, epoch.epoch] = OpenEpoch(place, epoch, sha256_digest(data))
    return {"log": epoch.log, "epoch": epoch.epoch}


def found_log(place: LogPlace, after: int | None) -> tuple[str, int, After | None]:
    """Return the id of a log, the number of its next epoch, and what that goes on from."""
    with StoredLog(place.url) as log:
        numbers = log.keys.epochs
        if after is None and numbers:
            raise error("UCP-E-EXISTS", "the log has epochs, and a new one goes on from none", at=place.url)
        before = None if after is None else After(after, log.epoch(after).digest)
        return log.document.id, numbers[-1] + 1 if numbers else 0, before


def write_batch(params: Json) -> Json:
    opened = EPOCHS[params["path"], params["epoch"]]
    writer = opened.writer(params["rank"])
    steps = list(drafts(params["steps"], opened.epoch))
    batch = BatchDraft(
        writer.durable_step,
        steps,
        params["values"],
        sums(params.get("sums", ()), opened.epoch),
        tuple(params["options"]) if "options" in params else None,
    )
    writer.put(batch)
    writer.drain()
    return {"durable_step": writer.durable_step}


def drafts(steps: list[Json], epoch: Epoch) -> Iterator[StepDraft]:
    """Yield steps; options that are those of the step before are left out, as `UpdateLog` leaves them out."""
    before: list[Json] | None = None
    for step in steps:
        options = None if step["options"] == before else tuple(step["options"])
        before = step["options"]
        captured = [captured_of(entry, epoch) for entry in step["entries"]]
        yield StepDraft(captured, options, "skipped" in step)


def captured_of(entry: Json, epoch: Epoch) -> Captured:
    piece = piece_of(entry, epoch)
    values = elements(entry["in"], epoch.tensors[piece.tensor].dtype)
    told = entry.get("rows", entry.get("places"))
    places = None if told is None else np.array(told, np.int64)
    return Captured(entry["piece"], values, places, are_rows="rows" in entry)


def piece_of(given: Json, epoch: Epoch) -> LogPiece:
    if given["piece"] >= len(epoch.pieces):
        raise error("UCP-E-LOG", f"there is no piece {given['piece']}")
    return epoch.pieces[given["piece"]]


def elements(path: str, name: str) -> NDArray[np.generic]:
    """Return the elements of a file; one that is cut is refused."""
    data = Path(path).read_bytes()
    kind = dtype(name)
    if len(data) % kind.item_bytes:
        raise error("UCP-E-MISMATCH", f"{len(data)} bytes, and an element has {kind.item_bytes}")
    return np.frombuffer(data, kind.numpy)


def sums(given: list[Json], epoch: Epoch) -> list[Sum]:
    """Return the sum of each tensor and slot, of all pieces that are given."""
    found: Counter[tuple[int, str]] = Counter()
    for one in given:
        piece = piece_of(one, epoch)
        tensor = epoch.tensors[piece.tensor]
        values = elements(one["in"], tensor.dtype)
        if values.size != math.prod(piece.shape):
            raise error("UCP-E-MISMATCH", f"{values.size} elements of piece {one['piece']}")
        found[piece.tensor, one["slot"]] += box_sum(values.reshape(piece.shape), piece.box, tensor.shape)
    return [Sum(tensor, slot, total % (1 << 64)) for (tensor, slot), total in found.items()]


def forget_epochs(params: Mapping[str, Any]) -> Json:
    for opened in EPOCHS.values():
        opened.place.close()
    EPOCHS.clear()
    return {}
