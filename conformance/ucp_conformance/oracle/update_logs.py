"""Update logs: every problem, and which steps count (SPEC-UPDATE-LOGS sections 1 to 4)."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ucp_conformance.oracle import documents
from ucp_conformance.oracle.bytes_of import ITEM_BYTES, crc32c
from ucp_conformance.oracle.problem import Problem, RefusalError, pointer
from ucp_conformance.oracle.store import Store
from ucp_conformance.oracle.strict_json import LARGEST, parse, same
from ucp_conformance.oracle.values import check_value

__all__ = [
    "Batch",
    "Chain",
    "Together",
    "TornError",
    "UpdateLog",
    "changes",
    "entry_parts",
    "indices",
    "log_problems",
    "together",
]

LOG_KEY: Final = "log.json"
_NUMBER: Final = r"(0|[1-9][0-9]*)"
_KEYS: Final = re.compile(rf"epochs/{_NUMBER}\.json|batches/{_NUMBER}/{_NUMBER}/{_NUMBER}\.batch")
_BLOCK: Final = 1 << 16


@dataclass
class Batch:
    """A batch all of whose bytes are right: its steps, each with the options that hold and its bytes."""

    first: int
    header: dict[str, Any]
    steps: list[tuple[dict[str, Any], list[Any], bytes]]
    digest: str

    @property
    def stop(self) -> int:
        """The state behind the last step."""
        return self.first + len(self.steps)


@dataclass
class Chain:
    """The batches of a rank that count, and what ends them."""

    first: int
    batches: list[Batch] = field(default_factory=list)
    fault: Problem | None = None
    is_torn: bool = False
    has_more: bool = False

    @property
    def stop(self) -> int:
        """The state behind the last one."""
        return self.batches[-1].stop if self.batches else self.first


class TornError(Exception):
    """A batch is shorter than it says."""


class UpdateLog:
    """A log at a path; raises `RefusalError` where its document is refused."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path)
        if self.store.size(LOG_KEY) is None:
            is_left = any(map(_KEYS.fullmatch, self.store.keys()))
            raise RefusalError("UCP-E-MISSING" if is_left else "UCP-E-NOT-FOUND", LOG_KEY)
        self.id = self.document(LOG_KEY, "update-log")[0]["id"]
        self._epochs: dict[int, tuple[dict[str, Any], str]] = {}
        self._chains: dict[tuple[int, int, int], Chain] = {}
        self.epochs: list[int] = []
        self.firsts: dict[tuple[int, int], list[int]] = {}
        for key in sorted(self.store.keys()):
            found = _KEYS.fullmatch(key)
            numbers = [] if found is None else [int(text) for text in found.groups() if text is not None]
            if not numbers or max(numbers) > LARGEST:
                continue
            if len(numbers) == 1:
                self.epochs += numbers
            else:
                self.firsts.setdefault((numbers[0], numbers[1]), []).append(numbers[2])
        self.epochs.sort()
        for firsts in self.firsts.values():
            firsts.sort()

    def document(self, key: str, kind: str) -> tuple[dict[str, Any], str]:
        """Return a document that meets its schema, and its digest."""
        data = self.store.read(key)
        value = parse(data, at=key, limit=documents.MOST_DOCUMENT)
        documents.standalone(value, key)
        documents.schema(kind, value, key)
        for name in ("read_features", "write_features"):
            if value[name]:
                raise RefusalError("UCP-E-FEATURE-SET", pointer(key, name))
        return dict(value), "sha256:" + hashlib.sha256(data).hexdigest()

    def epoch(self, number: int) -> tuple[dict[str, Any], str]:
        """Return an epoch and the digest of its document; refuses one that contradicts itself."""
        if number not in self._epochs:
            self._epochs[number] = self._sound_epoch(number)
        return self._epochs[number]

    def _sound_epoch(self, number: int) -> tuple[dict[str, Any], str]:
        key = f"epochs/{number}.json"
        epoch, digest = self.document(key, "update-log-epoch")
        for at, code in _epoch_faults(epoch, number, self.id):
            raise RefusalError(code, pointer(key, *at))
        if epoch["after"] is not None:
            other = f"epochs/{epoch['after']['epoch']}.json"
            before, known = self.epoch(epoch["after"]["epoch"])
            if known != epoch["after"]["digest"]:
                raise RefusalError("UCP-E-LOG", pointer(key, "after"), f"{other} has another digest")
            if before["first_step"] > epoch["first_step"]:
                raise RefusalError("UCP-E-LOG", pointer(key, "first_step"), f"{other} begins behind it")
        return epoch, digest

    def branch(self) -> list[tuple[dict[str, Any], int | None]]:
        """Return the epochs whose steps count, each with where the next one begins."""
        found: list[tuple[dict[str, Any], int | None]] = []
        number, stop = (self.epochs[-1], None) if self.epochs else (None, None)
        while number is not None:
            epoch, _ = self.epoch(number)
            found.insert(0, (epoch, stop))
            number, stop = (epoch["after"] or {}).get("epoch"), epoch["first_step"]
        return found

    def chain(self, number: int, rank: int, state: int = 0) -> Chain:
        """Return the batches of a rank that count from a state on."""
        if (number, rank, state) not in self._chains:
            self._chains[number, rank, state] = self._walked(number, rank, state)
        return self._chains[number, rank, state]

    def _walked(self, number: int, rank: int, state: int) -> Chain:
        epoch, digest = self.epoch(number)
        firsts = self.firsts.get((number, rank), [])
        while len(firsts) > 1 and firsts[1] <= state:
            firsts = firsts[1:]
        chain = Chain(firsts[0] if firsts else epoch["first_step"])
        for place, first in enumerate(firsts):
            key = f"batches/{number}/{rank}/{first}.batch"
            try:
                if first != chain.stop:
                    gap = f"batches/{number}/{rank}/{chain.stop}.batch"
                    raise RefusalError("UCP-E-LOG", gap if first > chain.stop else key, "a gap or an overlap")
                before = chain.batches[-1].digest if chain.batches else None
                if first == epoch["first_step"]:
                    before = digest
                chain.batches.append(self.batch(key, epoch, rank, first, before))
            except RefusalError as refusal:
                chain.fault = refusal.problem
                chain.has_more = place + 1 < len(firsts) or first > chain.stop
            except TornError:
                chain.fault, chain.is_torn = Problem("UCP-E-LOG", key, "torn"), True
                chain.has_more = place + 1 < len(firsts)
            if chain.fault is not None:
                break
        return chain

    def batch(self, key: str, epoch: Mapping[str, Any], rank: int, first: int, before: str | None) -> Batch:
        """Return a batch; raises what is wrong with it."""
        data = self.store.read(key)
        if data[:8] != b"UCPBATCH"[: len(data)]:
            raise RefusalError("UCP-E-LOG", key, "no batch")
        if len(data) < 48:
            raise TornError
        start = 48 + struct.unpack_from("<Q", data, 8)[0]
        if start - 48 > documents.MOST_DOCUMENT:
            raise RefusalError("UCP-E-LIMIT", key)
        if len(data) < start:
            raise TornError
        digest = hashlib.sha256(data[48:start])
        if digest.digest() != data[16:48]:
            raise RefusalError("UCP-E-LOG", key, "the header has another SHA-256")
        header = parse(data[48:start], at=key, limit=documents.MOST_DOCUMENT)
        documents.schema("update-log-batch", _without_values(header), key)
        _check_values(header, key)
        wanted = {"log": epoch["log"], "epoch": epoch["epoch"], "rank": rank, "first_step": first}
        for name, value in wanted.items():
            if header[name] != value:
                raise RefusalError("UCP-E-LOG", pointer(key, name))
        if rank >= epoch["ranks"] or first < epoch["first_step"]:
            raise RefusalError("UCP-E-LOG", key, "no rank or step of the epoch")
        if before is not None and header["previous"] != before:
            raise RefusalError("UCP-E-LOG", pointer(key, "previous"))
        for number, one in enumerate(header.get("sums", ())):
            if one["tensor"] >= len(epoch["tensors"]):
                raise RefusalError("UCP-E-LOG", pointer(key, "sums", number))
        if len(header.get("options", epoch["groups"])) != len(epoch["groups"]):
            raise RefusalError("UCP-E-LOG", pointer(key, "options"))
        for number, step in enumerate(header["steps"]):
            _check_step(step, number, header, epoch, pointer(key, "steps", number))
        end = start + sum(step["length"] for step in header["steps"])
        if len(data) < end:
            raise TornError
        if len(data) > end:
            raise RefusalError("UCP-E-LOG", key, "longer than its steps")
        steps, options = [], None
        for number, step in enumerate(header["steps"]):
            options = step.get("options", options)
            mine = data[start : start + step["length"]]
            start += step["length"]
            if crc32c(mine) != step["checksum"]:
                raise RefusalError("UCP-E-CHECKSUM", pointer(key, "steps", number))
            steps.append((step, options or [], mine))
        return Batch(first, header, steps, f"sha256:{digest.hexdigest()}")

    def described(self) -> dict[str, Any]:
        """Return the result of the protocol's ``log``, without a recovery."""
        branch = []
        for epoch, stop in self.branch():
            chains = self.chains(epoch)
            branch.append(
                {
                    "epoch": epoch["epoch"],
                    "first_step": epoch["first_step"],
                    "stop_step": stop,
                    "durable_step": min(chain.stop for chain in chains),
                    "batches": [[[one.first, one.stop] for one in chain.batches] for chain in chains],
                }
            )
        return {"id": self.id, "epochs": self.epochs, "branch": branch}

    def chains(self, epoch: Mapping[str, Any], state: int = 0) -> list[Chain]:
        """Return those of all ranks."""
        return [self.chain(epoch["epoch"], rank, state) for rank in range(epoch["ranks"])]


def _epoch_faults(
    epoch: Mapping[str, Any], number: int, log: str
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield what breaks UCP-D-151 to UCP-D-156, and names, data types and shapes."""
    for n, tensor in enumerate(epoch["tensors"]):
        if not documents.is_name(tensor["atom"]):
            yield ("tensors", n, "atom"), "UCP-E-NAME"
        if tensor["atom"] in [other["atom"] for other in epoch["tensors"][:n]]:
            yield ("tensors", n, "atom"), "UCP-E-NAME"
    for n, tensor in enumerate(epoch["tensors"]):
        if tensor["dtype"] not in ITEM_BYTES:
            yield ("tensors", n, "dtype"), "UCP-E-DTYPE"
    for n, tensor in enumerate(epoch["tensors"]):
        size = ITEM_BYTES[tensor["dtype"]] * math.prod(max(1, extent) for extent in tensor["shape"])
        if size > LARGEST or len(tensor["shape"]) > 32:
            yield ("tensors", n, "shape"), "UCP-E-SHAPE"
    if epoch["log"] != log:
        yield ("log",), "UCP-E-LOG"
    if epoch["epoch"] != number:
        yield ("epoch",), "UCP-E-LOG"
    after = epoch["after"]
    if (after is None) != (number == 0) or (after is not None and after["epoch"] >= number):
        yield ("after",), "UCP-E-LOG"
    for n, piece in enumerate(epoch["pieces"]):
        if piece["rank"] >= epoch["ranks"] or piece["tensor"] >= len(epoch["tensors"]):
            yield ("pieces", n), "UCP-E-LOG"
            return
        shape = epoch["tensors"][piece["tensor"]]["shape"]
        within = zip(piece["offset"], piece["shape"], shape, strict=False)
        if not len(piece["offset"]) == len(piece["shape"]) == len(shape) or not all(
            low + size <= extent and size for low, size, extent in within
        ):
            yield ("pieces", n), "UCP-E-LOG"
            return
    for n, tensor in enumerate(epoch["tensors"]):
        mine = [piece for piece in epoch["pieces"] if piece["tensor"] == n]
        held = Counter(itertools.chain.from_iterable(indices(piece, tensor["shape"]) for piece in mine))
        if sorted(held.elements()) != list(range(math.prod(tensor["shape"]))):
            yield ("tensors", n), "UCP-E-LOG"
    listed = Counter(itertools.chain.from_iterable(epoch["groups"]))
    wanted = {n for n, tensor in enumerate(epoch["tensors"]) if tensor["role"] == "gradient"}
    if listed != Counter(wanted):
        yield ("groups",), "UCP-E-LOG"


def indices(piece: Mapping[str, Any], shape: Sequence[int]) -> Iterator[int]:
    """Yield the row-major indices in the tensor of the elements of a piece, in its own order."""
    ranges = [range(low, low + size) for low, size in zip(piece["offset"], piece["shape"], strict=True)]
    for place in itertools.product(*ranges):
        index = 0
        for position, extent in zip(place, shape, strict=True):
            index = index * extent + position
        yield index


def _without_values(value: Any, name: str = "") -> Any:
    """Return a header with nulls for tagged values, which have a code of their own (UCP-R-023)."""
    if isinstance(value, list):
        return [_without_values(item, name) for item in value]
    if isinstance(value, dict):
        is_named = name in ("options", "values")
        return {key: None if is_named else _without_values(item, key) for key, item in value.items()}
    return value


def _check_values(header: Mapping[str, Any], key: str) -> None:
    holders = [(("values",), header["values"])]
    stated: list[tuple[tuple[str | int, ...], Any]] = [((), header)]
    stated += [(("steps", n), step) for n, step in enumerate(header["steps"])]
    for place, holder in stated:
        holders += [((*place, "options", n), group) for n, group in enumerate(holder.get("options", ()))]  # type: ignore[misc]
    for place, members in holders:
        for name, value in members.items():
            check_value(value, pointer(key, *place, name))


def _check_step(
    step: Mapping[str, Any], number: int, header: Mapping[str, Any], epoch: Mapping[str, Any], at: str
) -> None:
    """Refuse what breaks UCP-D-160, UCP-D-161, UCP-D-164 to UCP-D-166 or UCP-D-169."""
    if number == 0 and "options" not in step:
        raise RefusalError("UCP-E-LOG", at, "no options")
    if len(step.get("options", epoch["groups"])) != len(epoch["groups"]):
        raise RefusalError("UCP-E-LOG", pointer(at, "options"))
    listed = [entry["piece"] for entry in step["entries"]]
    if listed != sorted(set(listed)):
        raise RefusalError("UCP-E-LOG", pointer(at, "entries"), "pieces do not ascend")
    length = 0
    for n, entry in enumerate(step["entries"]):
        place = pointer(at, "entries", n)
        if entry["piece"] >= len(epoch["pieces"]):
            raise RefusalError("UCP-E-LOG", place, "no piece")
        piece = epoch["pieces"][entry["piece"]]
        tensor = epoch["tensors"][piece["tensor"]]
        is_gradient = tensor["role"] == "gradient"
        if piece["rank"] != header["rank"]:
            raise RefusalError("UCP-E-LOG", place, "a piece of another rank")
        if (is_gradient and "skipped" in step) or (not is_gradient and entry["form"] != "dense"):
            raise RefusalError("UCP-E-LOG", place)
        if entry["form"] == "rows" and not piece["shape"]:
            raise RefusalError("UCP-E-LOG", place, "no dimension, no rows")
        length += sum(entry_parts(entry, piece["shape"], ITEM_BYTES[tensor["dtype"]]))
    if length != step["length"]:
        raise RefusalError("UCP-E-LOG", pointer(at, "length"))


def entry_parts(entry: Mapping[str, Any], shape: Sequence[int], item: int) -> tuple[int, int, int]:
    """Return the bytes of an entry: of counts, of places, of values."""
    size, count = math.prod(shape), entry.get("count", 0)
    match entry["form"]:
        case "dense":
            return 0, 0, size * item
        case "sparse":
            return 4 * math.ceil(size / _BLOCK), 2 * count, count * item
    return 0, 4 * count, count * math.prod(shape[1:]) * item


def changes(
    entry: Mapping[str, Any], data: bytes, shape: Sequence[int], at: str
) -> tuple[list[int] | None, bytes]:
    """Return the elements of the piece that an entry has, None for all, and their values; refuses by UCP-D-163."""
    counts, places, _ = entry_parts(entry, shape, 0)
    if entry["form"] == "dense":
        return None, data
    if entry["form"] == "rows":
        found = [number for (number,) in struct.iter_unpack("<I", data[:places])]
        limit, width = shape[0], math.prod(shape[1:])
    else:
        sizes = [number for (number,) in struct.iter_unpack("<I", data[:counts])]
        within = [number for (number,) in struct.iter_unpack("<H", data[counts : counts + places])]
        blocks = [n for n, size in enumerate(sizes) for _ in range(min(size, entry["count"] + 1))]
        if len(blocks) != entry["count"]:
            raise RefusalError("UCP-E-LOG", at, "counts of blocks")
        found = [block * _BLOCK + place for block, place in zip(blocks, within, strict=True)]
        limit, width = math.prod(shape), 1
    if found != sorted(set(found)) or (found and found[-1] >= limit):
        raise RefusalError("UCP-E-LOG", at, "places do not ascend, or leave the piece")
    return [row * width + n for row in found for n in range(width)], data[counts + places :]


@dataclass
class Together:
    """What all ranks have of a step; ``entries`` by piece: the entry, its bytes and its place."""

    at: str
    options: list[Any]
    skipped: bool
    entries: dict[int, tuple[dict[str, Any], bytes, str]]


def together(epoch: Mapping[str, Any], chains: Sequence[Chain], step: int) -> Together:
    """Return a step of all ranks; refuses where they disagree (UCP-D-163, UCP-D-167, UCP-D-168)."""
    found: Together | None = None
    number = epoch["epoch"]
    for rank, chain in enumerate(chains):
        batch = next(one for one in chain.batches if one.first <= step < one.stop)
        record, options, data = batch.steps[step - batch.first]
        at = f"batches/{number}/{rank}/{batch.first}.batch#/steps/{step - batch.first}"
        found = found or Together(at, options, "skipped" in record, {})
        if found.skipped != ("skipped" in record) or not same(found.options, options):
            raise RefusalError("UCP-E-LOG", at, "ranks disagree")
        for entry in record["entries"]:
            piece = epoch["pieces"][entry["piece"]]
            item = ITEM_BYTES[epoch["tensors"][piece["tensor"]]["dtype"]]
            length = sum(entry_parts(entry, piece["shape"], item))
            found.entries[entry["piece"]] = entry, data[:length], at
            changes(entry, data[:length], piece["shape"], at)
            data = data[length:]
    if found is None:
        raise AssertionError("an epoch has ranks")
    for n, tensor in enumerate(epoch["tensors"]):
        forms = [
            found.entries[m][0]["form"] if m in found.entries else "none"
            for m, piece in enumerate(epoch["pieces"])
            if piece["tensor"] == n
        ]
        if tensor["role"] != "value" and ({"none", "rows"} & set(forms)) and len(set(forms)) > 1:
            raise RefusalError("UCP-E-LOG", found.at, "some pieces, or rows of some")
    return found


def log_problems(path: Path) -> list[Problem]:
    """Return everything that is wrong with a log."""
    found = documents.Collected()
    with found.refusals():
        log = UpdateLog(path)
        for number in sorted({*log.epochs, *(epoch for epoch, _ in log.firsts)}):
            with found.refusals():
                _epoch_problems(log, number, found)
    return found.problems


def _epoch_problems(log: UpdateLog, number: int, found: documents.Collected) -> None:
    epoch, _ = log.epoch(number)
    for (other, rank), firsts in sorted(log.firsts.items()):
        if other == number and rank >= epoch["ranks"]:
            found.add("UCP-E-LOG", f"batches/{number}/{rank}/{firsts[0]}.batch", "no rank of the epoch")
    chains = log.chains(epoch)
    for chain in chains:
        if chain.fault is not None:
            is_debris = chain.is_torn and not chain.has_more
            code = "UCP-W-UNREFERENCED" if is_debris else chain.fault.code
            found.add(code, chain.fault.at, chain.fault.why)
    for step in range(max(chain.first for chain in chains), min(chain.stop for chain in chains)):
        with found.refusals():
            together(epoch, chains, step)
