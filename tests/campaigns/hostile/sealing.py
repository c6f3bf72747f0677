"""Making lengths, digests and checksums of a changed universal checkpoint right again, as who means harm does."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from crc32c import crc32c

from tests.builders import BLANK, RawTable, dump, seal
from tests.campaigns.hostile.seeds import Document

__all__ = ["sealed"]

_MIB = 1 << 20


def sealed(document: Document) -> dict[str, bytes]:
    """The files with all that can be made right, from the packs up to the root; what cannot be parsed stays."""
    found = dict(document)
    try:
        root = json.loads(found["ucp.json"])
        _seal_packs(found, root)
        for reference in (root.get("packs"), root.get("state"), *_of_parts(root)):
            if isinstance(reference, dict) and reference.get("key") in found:
                _refer(reference, found[reference["key"]])
        root["digest"] = BLANK
        found["ucp.json"] = seal(dump(root))
    except Exception:
        return found
    return found


def _refer(reference: dict[str, Any], data: bytes) -> None:
    reference["length"] = len(data)
    reference["digest"] = "sha256:" + hashlib.sha256(data).hexdigest()


def _of_parts(root: dict[str, Any]) -> list[Any]:
    return [part[name] for part in root["parts"] for name in ("index", "table")]


def _seal_packs(found: dict[str, bytes], root: dict[str, Any]) -> None:
    state = json.loads(found[root["state"]["key"]])
    for blob in state["blobs"].values():
        if blob["object"]["key"] in found:
            _refer(blob["object"], found[blob["object"]["key"]])
    found[root["state"]["key"]] = dump(state)
    if "packs" not in root:
        return
    packs = json.loads(found[root["packs"]["key"]])
    for pack in packs["packs"]:
        if pack["key"] in found:
            pack["length"] = len(found[pack["key"]])
    found[root["packs"]["key"]] = dump(packs)
    for part in root["parts"]:
        table = RawTable.parse(found[part["table"]["key"]])
        checksums: list[int] = []
        for container, _, offset, length, _ in table.rows:
            data = found[packs["packs"][container]["key"]][offset : offset + length]
            checksums += [crc32c(data[start : start + _MIB]) for start in range(0, len(data), _MIB)]
        if len(checksums) == len(table.checksums):
            table.checksums = checksums
            found[part["table"]["key"]] = table.build()
