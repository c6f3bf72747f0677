"""What an attempt leaves beside its packs until it is committed, and what a later process makes of it.

``packs/ATTEMPT.plan`` says of what source and job the attempt is, ``packs/ATTEMPT-N.receipt`` where each chunk of
batch N lies, with its checksums. A receipt is written when its pack is durable, by the worker that wrote the pack.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.engine.worker import joined_store, objects_of, unsealed
from ucpformat.errors import error
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.draft import is_staged
from ucpformat.storage.writing.stored_columns import Receipt

if TYPE_CHECKING:
    from ucpformat.conversion.engine.work_order import Batch, Cut, Order, Recipe
    from ucpformat.storage.stores.store import Store

__all__ = ["Earlier", "begin", "clear", "earlier", "finish", "source_state"]

_PLAN: Final = re.compile(r"packs/([0-9a-f]+)\.plan")


@dataclass(frozen=True, slots=True)
class Earlier:
    """An attempt to go on with: its name, and the receipts of its finished batches by number."""

    attempt: str
    receipts: Mapping[int, bytes]


def source_state(recipe: Recipe) -> str:
    """Return a digest of what the source's files are, by name, size and time of change: nothing is read."""
    states: list[list[Any]] = []
    if "://" in recipe.source or "::" in recipe.source:
        import fsspec

        from ucpformat.storage.stores.remote.access import translated

        with translated(recipe.source):
            filesystem, path = fsspec.core.url_to_fs(recipe.source)
            listing = filesystem.find(path, detail=True)
        for name, info in sorted(listing.items()):
            marks = [str(info.get(key)) for key in ("ETag", "etag", "mtime", "LastModified", "created")]
            states.append([name, info.get("size"), *marks])
    else:
        root = Path(recipe.source)
        files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        for path in files:
            status = path.stat()
            states.append([os.fspath(path.relative_to(root)), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(states).encode("utf-8", "surrogatepass")).hexdigest()


def _plan(order: Order, batches: Sequence[Batch]) -> dict[str, Any]:
    if order.recipe is None:
        raise AssertionError("what is journaled has a recipe")
    cuts = hashlib.sha256(repr(batches).encode()).hexdigest()
    return {
        "source": source_state(order.recipe),
        "job": [order.digest, order.storage, cuts, str(order.recipe.source_format)],
    }


def begin(order: Order, batches: Sequence[Batch]) -> None:
    """Write what the attempt is of."""
    with joined_store(order) as store:
        if store.size(order.plan_key) is None:
            store.create(order.plan_key, [memoryview(json.dumps(_plan(order, batches)).encode())])


def earlier(store: Store, order: Order, batches: Sequence[Batch], cut: Cut) -> Earlier | None:
    """Return what an attempt that was interrupted has finished; everything else that lies there is removed.

    Raises:
        UcpError: ``UCP-E-SOURCE`` where the source changed since, ``UCP-E-MISMATCH`` where it was another
            conversion.
    """
    keys = set(store.keys())
    attempts = [match[1] for match in map(_PLAN.fullmatch, keys) if match is not None]
    if len(attempts) != 1:
        store.clear(keys)
        return None
    (attempt,) = attempts
    plan_key = f"packs/{attempt}.plan"
    noted = _noted(store, plan_key)
    wanted = _plan(order, batches)
    if noted is not None and noted.get("job") != wanted["job"]:
        raise error(
            "UCP-E-MISMATCH",
            "another conversion was begun here: of another source, or with other options; "
            "give those again, or leave --resume out to begin anew",
            at=store.url,
        )
    if noted is not None and noted.get("source") != wanted["source"]:
        raise error(
            "UCP-E-SOURCE",
            "the source changed since this conversion was begun; leave --resume out to begin anew",
            at="" if order.recipe is None else order.recipe.source,
        )
    names = [(source.atom, source.slot) for source in cut.sources]
    kept: set[str] = {plan_key}
    receipts: dict[int, bytes] = {}
    if noted is not None:
        for batch in batches:
            key = f"packs/{attempt}-{batch.number}.receipt"
            data = unsealed(store.read(key, 0, store.size(key) or 0)) if key in keys else None
            if data is None:
                continue
            objects = objects_of(Receipt.unpack(data, names), cut)
            if all(store.size(name) == length for name, length in objects.items()):
                receipts[batch.number] = data
                kept |= {key, *objects}
    store.clear(keys - kept if noted is not None else keys)
    if noted is None:
        return None
    return Earlier(attempt, receipts)


def _noted(store: Store, key: str) -> dict[str, Any] | None:
    try:
        noted = json.loads(store.read(key, 0, store.size(key) or 0))
    except ValueError:
        return None
    return noted if isinstance(noted, dict) else None


def finish(order: Order, packs: Collection[str]) -> None:
    """Remove the journal of an attempt that is committed, and packs of workers whose work another one did too."""
    with joined_store(order) as store:
        for key in list(store.keys()):
            if key not in packs and _is_mine(order, key):
                store.remove(key)


def clear(order: Order) -> None:
    """Remove everything of an attempt that is given up, unless a root document reaches it."""
    with joined_store(order) as store:
        if store.size(ROOT_KEY) is not None:
            return
        for key in list(store.keys()):
            if order.storage == "plain" or _is_mine(order, key):
                store.remove(key)


def _is_mine(order: Order, key: str) -> bool:
    """Return whether an object is a pack or note of this attempt, or what a worker that died had not finished."""
    return key.startswith(f"packs/{order.attempt}") or is_staged(key)
