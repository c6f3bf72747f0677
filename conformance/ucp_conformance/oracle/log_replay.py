"""Recoveries from update logs, by `ucp.sgd` (SPEC-UPDATE-LOGS sections 4 to 6)."""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.update_logs import Chain, Together, UpdateLog, changes, indices, together

__all__ = ["Recovered", "recovered", "tensor_sum"]

_MASK: Final = (1 << 64) - 1
_EXACTNESS: Final = ("bitwise", "tolerance", "lossy")


@dataclass
class Recovered:
    """Where a recovery ends, in which epoch, how exact it is, and the values of tensors by atom."""

    epoch: int
    step: int
    exactness: str
    values: dict[str, bytes]


def recovered(log: UpdateLog, logical: Any, *, allow_loss: bool = False) -> Recovered:
    """Replay a log on a checkpoint that the oracle has examined, as UCP-R-039 to UCP-R-045 say."""
    progress = logical.root.get("progress", {})
    position, step = progress.get("log", {}), progress.get("step", 0)
    branch = log.branch()
    mine = [n for n, (epoch, _) in enumerate(branch) if epoch["epoch"] == position.get("epoch")]
    if position.get("id") != log.id or not mine:
        raise RefusalError("UCP-E-LOG", "", "no checkpoint of the branch")
    first, end = branch[mine[0]]
    if not first["first_step"] <= step <= (step if end is None else end):
        raise RefusalError("UCP-E-LOG", "", "no state of the branch")
    values = {name: bytes(data) for (name, slot), data in logical.data.items() if slot == "value"}
    described = {atom["name"]: atom["slots"].get("value") for atom in logical.atoms}
    exactness = 0
    unknown: set[str] = set()
    for epoch, stop in branch[mine[0] :]:
        if stop is not None and step >= stop:
            continue
        chains = log.chains(epoch, step)
        if any(chain.first > step for chain in chains):
            raise RefusalError("UCP-E-LOG", "", "steps were removed")
        durable = min(chain.stop for chain in chains)
        goes_on = stop is not None and durable >= stop
        to = stop if goes_on else max(step, _end(chains, durable))
        if to is None:
            raise AssertionError("an epoch that others go on from has a stop")
        lost = not goes_on and (stop is not None or any(chain.has_more for chain in chains))
        if lost and not allow_loss:
            raise RefusalError("UCP-E-LOG", "", "durable steps would be lost")
        if to > step:
            _require_own(epoch, described)
            mine_too = 1 if epoch["optimizer"]["profile"] else 0
            exactness = max(exactness, mine_too, _EXACTNESS.index(epoch["exactness"]))
        while step < to:
            made = together(epoch, chains, step)
            _make(epoch, made, values)
            unknown = _residuals_not_stored(epoch, made)
            step += 1
            _compare_sums(epoch, chains, step, values)
        if not goes_on:
            break
    # The last one that was looked at: the loop ends with the epoch in which the recovery does.
    values |= {atom: bytes(len(values[atom])) for atom in unknown}
    return Recovered(epoch["epoch"], step, _EXACTNESS[exactness], values)


def _residuals_not_stored(epoch: Mapping[str, Any], step: Together) -> set[str]:
    """Return the atoms of residuals that the state behind a step is without (UCP-R-046)."""
    there = {epoch["pieces"][number]["tensor"] for number in step.entries}
    return {
        tensor["atom"]
        for n, tensor in enumerate(epoch["tensors"])
        if tensor["role"] == "residual" and n not in there
    }


def _end(chains: Sequence[Chain], durable: int) -> int:
    ends = set.intersection(*({chain.first, *(one.stop for one in chain.batches)} for chain in chains))
    return max((end for end in ends if end <= durable), default=-1)


def _require_own(epoch: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Refuse what is not of `ucp.sgd`, and other tensors than the checkpoint has (UCP-R-043)."""
    if epoch["optimizer"]["type"] != "ucp.sgd":
        raise RefusalError("UCP-E-MISMATCH", "", "another optimizer")
    for tensor in epoch["tensors"]:
        slot = described.get(tensor["atom"])
        like = None if slot is None else (slot["dtype"], slot["shape"])
        if like != ("float32", tensor["shape"]) or tensor["dtype"] != "float32":
            raise RefusalError("UCP-E-MISMATCH", "", f"another tensor {tensor['atom']}")


def _single(number: float) -> float:
    """Return the nearest binary32."""
    return float(ctypes.c_float(number).value)


def _rate(options: Mapping[str, Any]) -> float:
    rate = options.get("lr")
    if isinstance(rate, dict) and "$float" in rate:
        rate = float(rate["$float"])
    if set(options) != {"lr"} or not isinstance(rate, int | float) or isinstance(rate, bool):
        raise RefusalError("UCP-E-MISMATCH", "", "other options")
    return _single(rate)


def _make(epoch: Mapping[str, Any], step: Together, values: dict[str, bytes]) -> None:
    rates = {tensor: _rate(step.options[n]) for n, group in enumerate(epoch["groups"]) for tensor in group}
    for number, (entry, data, at) in step.entries.items():
        piece = epoch["pieces"][number]
        tensor = epoch["tensors"][piece["tensor"]]
        target = list(indices(piece, tensor["shape"]))
        chosen, bytes_ = changes(entry, data, piece["shape"], at)
        all_of_them: Sequence[int] = range(len(target))
        given = dict(
            zip(all_of_them if chosen is None else chosen, struct.iter_unpack("<4s", bytes_), strict=True)
        )
        if chosen is not None and entry["form"] == "sparse":
            given = {place: given.get(place, (bytes(4),)) for place in range(len(target))}
        whole = bytearray(values[tensor["atom"]])
        for place, (raw,) in given.items():
            here = slice(4 * target[place], 4 * target[place] + 4)
            if tensor["role"] != "gradient":
                whole[here] = raw
                continue
            value, gradient = struct.unpack("<f", whole[here])[0], struct.unpack("<f", raw)[0]
            after = ctypes.c_float(value - _single(rates[piece["tensor"]] * gradient))
            whole[here] = struct.pack("<f", after.value)
        values[tensor["atom"]] = bytes(whole)


def _compare_sums(
    epoch: Mapping[str, Any], chains: Sequence[Chain], state: int, values: Mapping[str, bytes]
) -> None:
    """Refuse a state with other sums than the log has of it."""
    ended = [one for chain in chains for one in chain.batches if one.stop == state]
    wanted: Counter[tuple[int, str]] = Counter()
    for batch in ended if len(ended) == len(chains) else ():
        for one in batch.header.get("sums", ()):
            wanted[one["tensor"], one["slot"]] += int(one["sum"], 16)
    for (number, slot), value in wanted.items():
        if slot != "value" or value & _MASK != tensor_sum(values[epoch["tensors"][number]["atom"]], 4):
            raise RefusalError("UCP-E-LOG", "", "other sums")


def tensor_sum(data: bytes, item: int, places: Sequence[int] | None = None) -> int:
    """Return the sum of elements (section 5): those of a whole tensor, or those with the given indices."""
    total = 0
    words, width = max(1, item // 8), min(item, 8)
    for n, start in enumerate(range(0, len(data), item)):
        index = n if places is None else places[n]
        for word in range(words):
            at = start + word * width
            value = int.from_bytes(data[at : at + width], "little")
            total += _mixed(_mixed(index * words + word + 1) ^ value)
    return total & _MASK


def _mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
