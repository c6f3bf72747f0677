"""Drivers with one planted defect each, of those that a driver may well have: what the vectors are there to find."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oracle_driver import OracleDriver

from ucp_conformance.oracle import arithmetic, layout_rules, stored_chunks, values
from ucp_conformance.oracle.bytes_of import content_digest, sha256
from ucp_conformance.oracle.examine import Examination, Logical
from ucp_conformance.oracle.problem import Problem, RefusalError

__all__ = ["PLANTED"]


class TellsTwice(OracleDriver):
    """Reports beside a problem what follows from it."""

    follows: Mapping[str, str] = {
        "UCP-E-LENGTH": "UCP-E-DIGEST",
        "UCP-E-CHECKSUM": "UCP-E-CODEC",
        "UCP-E-CODEC": "UCP-E-CONTENT",
        "UCP-E-TABLE": "UCP-E-SEGMENT",
    }

    def examined(self, path: str) -> Examination:
        seen = super().examined(path)
        more = [Problem(self.follows[p.code], p.at) for p in seen.problems if p.code in self.follows]
        return Examination([*seen.problems, *more], seen.logical)


class RefusesNoncharacters(OracleDriver):
    """Parses I-JSON as RFC 7493 has it."""

    def inspect(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found = super().inspect(params)
        if any("\uffff" in atom["name"] for atom in found["atoms"]):
            raise RefusalError("UCP-E-JSON", "ucp.json")
        return found


class FillsHoles(OracleDriver):
    """Writes zeros where no local tensor has an element."""

    def check_cover(self, held: Sequence[int], count: int, shape: Sequence[int]) -> None:
        pass


class ExtendsInputs(OracleDriver):
    """Makes a tensor as long as it has to be, with zeros or without its end."""

    def given(self, path: str, item: int, shape: Sequence[int]) -> bytes:
        size = item
        for extent in shape:
            size *= extent
        return Path(path).read_bytes()[:size].ljust(size, b"\0")


class StoresAnyBool(OracleDriver):
    """Takes every byte for a bool."""

    def check_bits(self, raw: bytes | bytearray, dtype: str) -> None:
        if dtype != "bool":
            super().check_bits(raw, dtype)


class PublishesInPlace(OracleDriver):
    """Writes the root document under its name."""

    def publish(self, root: bytes, path: Path) -> None:
        (path / "ucp.json").write_bytes(root)


class LeavesDrafts(OracleDriver):
    """Publishes by a hard link, and keeps the draft."""

    def publish(self, root: bytes, path: Path) -> None:
        draft = path / f".ucp.json.{secrets.token_hex(4)}"
        draft.write_bytes(root)
        (path / "ucp.json").hardlink_to(draft)


class WritesOverDebris(OracleDriver):
    """Looks for a root document alone before it writes."""

    def check_place(self, path: Path) -> None:
        if (path / "ucp.json").exists():
            raise RefusalError("UCP-E-EXISTS", "ucp.json")


class ClearsCheckpoints(OracleDriver):
    """Clears whatever lies where it is to write."""

    def check_place(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)


class _Drops(OracleDriver):
    """Leaves something out of what it rewrites."""

    def opened(self, path: str, touched: Sequence[str] = ()) -> Logical:
        logical = super().opened(path, touched)
        if "blobs/" in touched and "packs/" in touched:
            self.drop(logical)
        return logical

    def drop(self, logical: Logical) -> None:
        raise NotImplementedError


class DropsAtomAnnotations(_Drops):
    """Rewrites atoms without their annotations."""

    def drop(self, logical: Logical) -> None:
        for atom in logical.atoms:
            atom.pop("annotations", None)


class DropsSlotAnnotations(_Drops):
    """Rewrites slots without their annotations."""

    def drop(self, logical: Logical) -> None:
        for atom in logical.atoms:
            for slot in atom["slots"].values():
                slot.pop("annotations", None)


class DropsStateAnnotations(OracleDriver):
    """Rewrites the state document without its annotations."""

    state_kept = ("values", "optimizers")


class IgnoresContent(OracleDriver):
    """Rewrites slots whose recorded digest is another."""

    checked_before_rewriting = frozenset()


class CopiesDamagedBlobs(OracleDriver):
    """Rewrites blobs without a look at their digests."""

    def rewrite(self, params: Mapping[str, Any]) -> dict[str, Any]:
        # The source as it would be if its digests were right.
        source = Path(params["source"]).with_name(secrets.token_hex(4))
        shutil.copytree(params["source"], source)
        root = json.loads((source / "ucp.json").read_bytes())
        state = source / root["state"]["key"] if "state" in root else None
        if state is not None:
            document = json.loads(state.read_bytes())
            for blob in document["blobs"].values():
                data = source / blob["object"]["key"]
                if data.exists():
                    blob["object"] |= {
                        "length": data.stat().st_size,
                        "digest": sha256(data.read_bytes()),
                    }
            self._seal(source, root, state, json.dumps(document).encode())
        return super().rewrite({**params, "source": str(source)})

    def _seal(self, source: Path, root: dict[str, Any], state: Path, data: bytes) -> None:
        state.write_bytes(data)
        root["state"] |= {"length": len(data), "digest": sha256(data)}
        blank = "sha256:" + "0" * 64
        text = json.dumps(root | {"digest": blank}).encode()
        (source / "ucp.json").write_bytes(text.replace(blank.encode(), sha256(text).encode(), 1))


class AccumulatesWide(OracleDriver):
    """Adds 16-bit floats in binary64."""

    def reduced(self, contributions: Sequence[bytes], dtype: str, reduce: str) -> bytes:
        narrow, wide = arithmetic._narrow, lambda value, to: value if to == "float32" else narrow(value, to)
        arithmetic._narrow = wide if dtype == "float16" else narrow
        try:
            return super().reduced(contributions, dtype, reduce)
        finally:
            arithmetic._narrow = narrow


class AddsBackwards(OracleDriver):
    """Adds the last contribution first."""

    def reduced(self, contributions: Sequence[bytes], dtype: str, reduce: str) -> bytes:
        return super().reduced(contributions[::-1] if reduce != "max" else contributions, dtype, reduce)


class MaximumOfBytes(OracleDriver):
    """Compares integers without their signs."""

    def reduced(self, contributions: Sequence[bytes], dtype: str, reduce: str) -> bytes:
        unsigned = f"u{dtype}" if reduce == "max" and dtype.startswith("int") else dtype
        return super().reduced(contributions, unsigned, reduce)


class CountsVolume(OracleDriver):
    """Takes boxes for a tiling that have as many elements as the chunk."""

    def __init__(self) -> None:
        right = stored_chunks.SlotChunks.check

        def check(slot: Any, number: int, position: tuple[int, ...], table: Any) -> None:
            try:
                right(slot, number, position, table)
            except RefusalError as refusal:
                boxes = [box for box in slot.boxes(number, table) if box is not None]
                held = sum(shape[0] * shape[1] for _, shape in boxes if len(shape) == 2)
                _, clipped = slot.grid.box(position)
                if refusal.problem.why != "boxes overlap" or held != clipped[0] * clipped[1]:
                    raise

        stored_chunks.SlotChunks.check = check  # type: ignore[method-assign, assignment]


class _OtherValues(OracleDriver):
    """Takes a tagged value for canonical that is not."""

    why: str

    def examined(self, path: str) -> Examination:
        right, why = values._check, self.why

        def check(value: Any, at: str) -> None:
            try:
                right(value, at)
            except ValueError as wrong:
                if str(wrong) != why or not self.forgives(value):
                    raise

        values._check = check
        try:
            return super().examined(path)
        finally:
            values._check = right

    def forgives(self, value: Any) -> bool:
        return True


class HasLeapSeconds(_OtherValues):
    """Takes second 60."""

    why = ""

    def examined(self, path: str) -> Examination:
        right = values._moment

        def moment(kind: str, value: Any) -> None:
            right(kind, value.replace(":60", ":59") if isinstance(value, str) else value)

        values._moment = moment
        try:
            return super().examined(path)
        finally:
            values._moment = right


class SortsByUtf16(_OtherValues):
    """Takes sets whose elements are in the order of UTF-16."""

    why = "elements are not in order of their texts"

    def forgives(self, value: Any) -> bool:
        body = value.get("$set", []) if isinstance(value, dict) else []
        return len(body) > 1 and all(isinstance(item, str) for item in body) and body[0] > "\uffff"


class ComparesSetsInOrder(_OtherValues):
    """Takes two sets for different whose elements are equal, in another order."""

    why = "two keys are equal"

    def forgives(self, value: Any) -> bool:
        return "$frozenset" in json.dumps(value)


class BigEndianChecksum(OracleDriver):
    """Takes the bytes of the codec's checksum in either order."""

    def examined(self, path: str) -> Examination:
        seen = super().examined(path)
        return Examination([p for p in seen.problems if "codec crc32c" not in p.why], seen.logical)


class DigestsAnEmptyBlock(OracleDriver):
    """Has one empty block in a slot without bytes."""

    def examined(self, path: str) -> Examination:
        seen = super().examined(path)
        held = seen.logical.data.values() if seen.logical is not None else ()
        empty = bool(held) and all(data == b"" for data in held) and content_digest(b"") != ""
        kept = [p for p in seen.problems if not (empty and p.code == "UCP-E-CONTENT")]
        return Examination(kept, seen.logical)


class SharesBlobs(OracleDriver):
    """Takes two blobs of one key."""

    def examined(self, path: str) -> Examination:
        seen = super().examined(path)
        kept = [p for p in seen.problems if not (p.code == "UCP-E-KEY" and "/blobs/" in p.at)]
        return Examination(kept, seen.logical or Logical({"storage": "packed", "chunk_bytes": 32}))


class UsesDecidingAxesLate(OracleDriver):
    """Takes a shared `shard` for one that stands beside the steps of blocks."""

    def lower(self, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return super().lower(params)
        except RefusalError as refusal:
            if "decides the size" in refusal.problem.why and params["steps"][0]["kind"] == "blocks":
                return {"locals": []}
            raise


class MultipliesLimits(OracleDriver):
    """Counts ranges of dimensions times those of the flat tensor."""

    def read(self, params: Mapping[str, Any]) -> dict[str, Any]:
        counts = [
            step["count"] for step in params.get("steps", ()) if step["kind"] == "blocks" and "count" in step
        ]
        product = 1
        for count in counts:
            product *= count
        if product > layout_rules.MOST:
            raise RefusalError("UCP-E-LIMIT", "", "too many ranges")
        return super().read(params)


PLANTED: dict[str, type[OracleDriver]] = {
    "tells-twice": TellsTwice,
    "refuses-noncharacters": RefusesNoncharacters,
    "fills-holes": FillsHoles,
    "extends-inputs": ExtendsInputs,
    "stores-any-bool": StoresAnyBool,
    "publishes-in-place": PublishesInPlace,
    "leaves-drafts": LeavesDrafts,
    "writes-over-debris": WritesOverDebris,
    "clears-checkpoints": ClearsCheckpoints,
    "drops-atom-annotations": DropsAtomAnnotations,
    "drops-slot-annotations": DropsSlotAnnotations,
    "drops-state-annotations": DropsStateAnnotations,
    "ignores-content": IgnoresContent,
    "copies-damaged-blobs": CopiesDamagedBlobs,
    "accumulates-wide": AccumulatesWide,
    "adds-backwards": AddsBackwards,
    "maximum-of-bytes": MaximumOfBytes,
    "counts-volume": CountsVolume,
    "has-leap-seconds": HasLeapSeconds,
    "sorts-by-utf-16": SortsByUtf16,
    "compares-sets-in-order": ComparesSetsInOrder,
    "big-endian-checksum": BigEndianChecksum,
    "digests-an-empty-block": DigestsAnEmptyBlock,
    "shares-blobs": SharesBlobs,
    "uses-deciding-axes-late": UsesDecidingAxesLate,
    "multiplies-limits": MultipliesLimits,
}
