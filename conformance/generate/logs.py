"""Update logs that can still be changed: what follows from the rest is computed when they are sealed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft, dump
from ucp_conformance.oracle.bytes_of import crc32c

__all__ = [
    "FOLDER",
    "ID",
    "LogDraft",
    "checkpoint",
    "dense",
    "epoch_document",
    "floats_of",
    "rows",
    "sparse",
    "step",
]

FOLDER: Final = "updates.ucplog"
ID: Final = "8f14e45fceea167a5a36dedd4bea2543"
_ENVELOPE: Final[dict[str, Any]] = {
    "format": "ucp",
    "format_version": 0,
    "read_features": [],
    "write_features": [],
    "extensions": {},
    "annotations": {},
}
Step = dict[str, Any]


def floats_of(*numbers: float) -> bytes:
    """Return little-endian float32."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def dense(piece: int, data: bytes) -> dict[str, Any]:
    """Return an entry with all elements of a piece."""
    return {"piece": piece, "form": "dense", "bytes": data}


def sparse(piece: int, places: Sequence[int], data: bytes, blocks: int = 1) -> dict[str, Any]:
    """Return an entry with elements at some places."""
    counts = [sum(place >> 16 == block for place in places) for block in range(blocks)]
    head = struct.pack(f"<{blocks}I", *counts)
    head += struct.pack(f"<{len(places)}H", *(place & 0xFFFF for place in places))
    return {"piece": piece, "form": "sparse", "count": len(places), "bytes": head + data}


def rows(piece: int, numbers: Sequence[int], data: bytes) -> dict[str, Any]:
    """Return an entry with some rows."""
    head = struct.pack(f"<{len(numbers)}I", *numbers)
    return {"piece": piece, "form": "rows", "count": len(numbers), "bytes": head + data}


def step(*entries: dict[str, Any], **members: Any) -> Step:
    """Return a step; ``members`` are those of its record, and override what follows from the entries."""
    return {"entries": list(entries), **members}


def epoch_document(**members: Any) -> dict[str, Any]:
    """Return an epoch document, members of which are replaced."""
    return {**_ENVELOPE, "kind": "update-log-epoch", "log": ID, **members}


@dataclass
class LogDraft:
    """Epoch documents by number, and steps of batches by epoch, rank and first step; `files` seals them.

    ``headers`` bend headers before they are digested, ``after`` the objects of the log when all is done.
    """

    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    batches: dict[tuple[int, int, int], list[Step]] = field(default_factory=dict)
    headers: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=lambda: {**_ENVELOPE, "kind": "update-log", "id": ID})
    after: list[Callable[[dict[str, bytes]], object]] = field(default_factory=list)
    checkpoints: dict[str, Draft] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Return the objects of a run: the log, and checkpoints beside it."""
        mine = {"log.json": dump(self.log)}
        digests: dict[int, str] = {}
        for number, epoch in sorted(self.epochs.items()):
            document = dict(epoch)
            after = document["after"]
            if isinstance(after, dict) and "digest" not in after:
                document["after"] = {**after, "digest": digests[after["epoch"]]}
            mine[f"epochs/{number}.json"] = dump(document)
            digests[number] = _digest(mine[f"epochs/{number}.json"])
        previous: dict[tuple[int, int], str] = {}
        for (number, rank, first), steps in sorted(self.batches.items()):
            before = previous.get((number, rank), digests.get(number, ""))
            header, payload = self._batch((number, rank, first), steps, before)
            text = dump(header)
            previous[number, rank] = _digest(text)
            head = b"UCPBATCH" + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest()
            mine[f"batches/{number}/{rank}/{first}.batch"] = head + text + payload
        for change in self.after:
            change(mine)
        found = {f"{FOLDER}/{key}": data for key, data in mine.items()}
        for name, draft in self.checkpoints.items():
            found |= {f"{name}/{key}": data for key, data in draft.files().items()}
        return found

    def _batch(
        self, key: tuple[int, int, int], steps: Sequence[Step], previous: str
    ) -> tuple[dict[str, Any], bytes]:
        number, rank, first = key
        payload = b""
        records = []
        for one in steps:
            data = b"".join(entry["bytes"] for entry in one["entries"])
            payload += data
            records.append(
                {
                    **{name: value for name, value in one.items() if name != "entries"},
                    "length": one.get("length", len(data)),
                    "checksum": one.get("checksum", crc32c(data)),
                    "entries": [
                        {name: value for name, value in entry.items() if name != "bytes"}
                        for entry in one["entries"]
                    ],
                }
            )
        header = {
            "log": ID,
            "epoch": number,
            "rank": rank,
            "first_step": first,
            "previous": previous,
            "steps": records,
            "values": {"cursor": first + len(records)},
        }
        return {**header, **self.headers.get(key, {})}, payload


def checkpoint(atoms: Mapping[str, tuple[tuple[int, ...], bytes]], state: int, **log: Any) -> Draft:
    """Return a packed checkpoint of float32 with the position of a state in a log; ``log`` replaces its members."""
    position = {"id": ID, "epoch": 0, **log}
    drafts = [
        AtomDraft(name, {"value": SlotDraft("float32", shape, data)})
        for name, (shape, data) in sorted(atoms.items())
    ]
    return Draft(drafts, chunk_bytes=64, root={"progress": {"step": state, "log": position}})


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
