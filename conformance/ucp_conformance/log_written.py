"""Whether what an implementation has written of an update log is what it was asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ucp_conformance.oracle.bytes_of import ITEM_BYTES
from ucp_conformance.oracle.log_replay import tensor_sum
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.strict_json import same
from ucp_conformance.oracle.update_logs import Batch, TornError, UpdateLog, changes, entry_parts, indices

__all__ = ["batch_fault", "epoch_fault"]


def epoch_fault(path: Path, params: Mapping[str, Any], result: Mapping[str, Any], wanted: int) -> str | None:
    """Return what is wrong with an epoch that was begun, which had to get the number ``wanted``."""
    if result["epoch"] != wanted:
        return f"it is epoch {result['epoch']} and not {wanted}"
    try:
        log = UpdateLog(path)
        epoch, _ = log.epoch(wanted)
        before = None
        if params["after"] is not None:
            before = {"epoch": params["after"], "digest": log.epoch(params["after"])[1]}
    except RefusalError as refusal:
        return f"what was written is not good: {refusal.problem.code} at {refusal.problem.at}"
    if log.id != result["log"]:
        return "the reply tells another log"
    for name in ("first_step", "ranks", "tensors", "pieces", "groups", "optimizer", "exactness"):
        if not same(epoch[name], params[name]):
            return f"{name}: expected {params[name]}; got {epoch[name]}"
    return None if same(epoch["after"], before) else f"after: expected {before}; got {epoch['after']}"


def batch_fault(
    path: Path, params: Mapping[str, Any], first: int, before: str, inputs: Mapping[str, bytes]
) -> tuple[str | None, str]:
    """Return what is wrong with a batch that begins with a step, and its digest; ``before`` is what it goes on from.

    ``inputs`` are the bytes of the files that ``params`` name.
    """
    number, rank = params["epoch"], params["rank"]
    try:
        log = UpdateLog(path)
        epoch, _ = log.epoch(number)
        batch = log.batch(f"batches/{number}/{rank}/{first}.batch", epoch, rank, first, before)
    except RefusalError as refusal:
        problem = refusal.problem
        return f"what was written is not good: {problem.code} at {problem.at} {problem.why}", ""
    except TornError:
        return "what was written is shorter than it says", ""
    return _content_fault(batch, epoch, params, inputs), batch.digest


def _content_fault(
    batch: Batch, epoch: Mapping[str, Any], params: Mapping[str, Any], inputs: Mapping[str, bytes]
) -> str | None:
    if len(batch.steps) != len(params["steps"]):
        return f"{len(batch.steps)} steps and not {len(params['steps'])}"
    if not same(batch.header["values"], params["values"]):
        return f"values: expected {params['values']}; got {batch.header['values']}"
    # Options behind the last step are those of that step, unless the batch says otherwise.
    last = batch.steps[-1][1]
    wanted = params.get("options", params["steps"][-1]["options"])
    if not same(batch.header.get("options", last), wanted):
        return f"options behind the last step: expected {wanted}"
    for n, (asked, (record, options, data)) in enumerate(zip(params["steps"], batch.steps, strict=True)):
        if ("skipped" in asked) != ("skipped" in record):
            return f"step {n}: {'not ' * ('skipped' in asked)}skipped"
        if not same(options, asked["options"]):
            return f"step {n}: options: expected {asked['options']}; got {options}"
        fault = _entries_fault(asked["entries"], record["entries"], data, epoch, inputs)
        if fault is not None:
            return f"step {n}: {fault}"
    return _sums_fault(batch, epoch, params.get("sums", ()), inputs)


def _entries_fault(
    asked: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    data: bytes,
    epoch: Mapping[str, Any],
    inputs: Mapping[str, bytes],
) -> str | None:
    have_pieces, want_pieces = [one["piece"] for one in found], [one["piece"] for one in asked]
    if have_pieces != want_pieces:
        return f"entries of the pieces {have_pieces}, and not {want_pieces}"
    for want, entry in zip(asked, found, strict=True):
        piece = epoch["pieces"][entry["piece"]]
        item = ITEM_BYTES[epoch["tensors"][piece["tensor"]]["dtype"]]
        length = sum(entry_parts(entry, piece["shape"], item))
        try:
            places, values = changes(entry, data[:length], piece["shape"], "")
        except RefusalError as refusal:
            return f"piece {entry['piece']}: {refusal.problem.why}"
        data = data[length:]
        if (entry["form"] == "rows") != ("rows" in want):
            given = "rows" if "rows" in want else "elements"
            return f"piece {entry['piece']}: {entry['form']}, where {given} were given"
        size = math.prod(piece["shape"])
        have = _spread(places, values, item, size)
        width = math.prod(piece["shape"][1:])
        told = want.get("places", [row * width + k for row in want.get("rows", ()) for k in range(width)])
        is_whole = "places" not in want and "rows" not in want
        wanted = _spread(None if is_whole else told, inputs[want["in"]], item, size)
        if have != wanted or ("rows" in want and list(places or ()) != told):
            return f"piece {entry['piece']}: other elements"
    return None


def _spread(places: Sequence[int] | None, values: bytes, item: int, size: int) -> bytes:
    """Return all elements of a piece, zeros where none is told."""
    if places is None:
        return values
    whole = bytearray(item * size)
    for n, place in enumerate(places):
        whole[place * item : (place + 1) * item] = values[n * item : (n + 1) * item]
    return bytes(whole)


def _sums_fault(
    batch: Batch, epoch: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], inputs: Mapping[str, bytes]
) -> str | None:
    wanted: Counter[tuple[int, str]] = Counter()
    for one in asked:
        piece = epoch["pieces"][one["piece"]]
        tensor = epoch["tensors"][piece["tensor"]]
        own = list(indices(piece, tensor["shape"]))
        wanted[piece["tensor"], one["slot"]] += tensor_sum(
            inputs[one["in"]], ITEM_BYTES[tensor["dtype"]], own
        )
    found: Counter[tuple[int, str]] = Counter()
    for one in batch.header.get("sums", ()):
        found[one["tensor"], one["slot"]] += int(one["sum"], 16)
    mask = (1 << 64) - 1
    if {key: total & mask for key, total in found.items()} != {
        key: total & mask for key, total in wanted.items()
    }:
        return "other sums"
    return None
