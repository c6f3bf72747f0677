"""Copies that several ranks hold of the same: whether they are equal, and whose is taken (docs/torch.md).

Ranks share the writing of what they hold alike, or the sending, which is right as long as it is alike. A plain tensor
says nothing of how ranks hold it: buffers of DistributedDataParallel differ from rank to rank, and so does everything
of a job that has forgotten to keep ranks the same. So ranks compare digests, and share what is equal; of what is not,
the copy of the first rank is taken, which is then the state of that rank as a whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from awscrt.checksums import combine_crc64nvme, crc64nvme

from ucpformat.distributed.description import Source
from ucpformat.distributed.group import Group, agreed
from ucpformat.distributed.share import flat_memory, seen_part
from ucpformat.errors import error
from ucpformat.geometry import lower, seen_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.description import Described
    from ucpformat.distributed.local_state import LocalState, SlotName
    from ucpformat.distributed.save_options import Replicas
    from ucpformat.geometry import Piece

__all__ = ["settle_replicas"]

_BLOCK_BYTES: Final = 1 << 24
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class _Copies:
    """What ranks hold alike of a slot: its ``pieces`` in their local tensors, or the whole of a plain one (None)."""

    slot: SlotName
    ranks: frozenset[int]
    pieces: tuple[Piece, ...] | None


def settle_replicas(local: LocalState, whole: Described, group: Group, mode: Replicas) -> None:
    """Let ``whole`` name one rank for every plain tensor of which ranks hold different copies; all ranks call this.

    A rank alone has no copies to compare.

    With ``"check"`` such copies are an error, and those of tensors that are held by a layout are compared as well.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, on all ranks, naming tensors and ranks.
    """
    if mode == "trust":
        return
    companies: dict[frozenset[int], list[_Copies]] = {}
    for copies in _replicated(whole, by_layout=mode == "check"):
        companies.setdefault(copies.ranks, []).append(copies)
    if not companies:
        return
    ordered = sorted(companies.items(), key=lambda entry: sorted(entry[0]))
    differing = list(_differing(local, group, ordered))
    if mode == "check" and differing:
        raise error("UCP-E-MISMATCH", _refusal(differing), at="/".join(differing[0][0].slot))
    numbers = {rank: number for number, rank in enumerate(group.ranks)}
    for copies, _ in differing:
        first = frozenset((min(copies.ranks, key=numbers.__getitem__),))
        sources = whole.sources[copies.slot]
        whole.sources[copies.slot] = [
            Source(None, None, first) if source.layout is None else source for source in sources
        ]


def _replicated(whole: Described, *, by_layout: bool) -> Iterator[_Copies]:
    for slot in sorted(whole.sources):
        for source in whole.sources[slot]:
            if source.layout is None:
                if len(source.ranks) > 1:
                    yield _Copies(slot, source.ranks, None)
            elif by_layout:
                shape = whole.atoms[slot[0]].slots[slot[1]].shape
                lowering = lower(source.layout, shape, place=source.place)
                for region in lowering.regions():
                    # Contributions to a pending reduction are no copies of one another.
                    for holders in region.contributions or (region.holders,):
                        ranks = source.ranks.intersection(holders)
                        if len(ranks) > 1:
                            pieces = seen_in(region.local_map.pieces, lowering.view, shape)
                            yield _Copies(slot, ranks, tuple(pieces))


def _differing(
    local: LocalState, group: Group, companies: Sequence[tuple[frozenset[int], list[_Copies]]]
) -> Iterator[tuple[_Copies, int]]:
    """Yield what differs between its ranks, with the first rank whose copy is not that of the first one.

    Ranks that hold the same say one digest of everything, and those of single tensors only where that differs.
    """
    digests: dict[int, list[bytes]] = {}

    def of_all() -> bytes:
        mine = [number for number, (ranks, _) in enumerate(companies) if group.rank in ranks]
        found = iter(_digests(local, [copies for number in mine for copies in companies[number][1]]))
        for number in mine:
            digests[number] = [next(found) for _ in companies[number][1]]
        return b"".join(hashlib.sha256(b"".join(digests[number])).digest() for number in mine)

    unequal = [
        number
        for number, said in _by_company(group, agreed(group, of_all), companies, [1] * len(companies), 32)
        if len(set(said.values())) > 1
    ]
    if not unequal:
        return
    chosen = [companies[number] for number in unequal]
    replies = agreed(group, lambda: b"".join(b"".join(digests.get(number, [])) for number in unequal))
    counts = [len(copies) for _, copies in chosen]
    for number, said in _by_company(group, replies, chosen, counts, _DIGEST_BYTES):
        first, *others = (rank for rank in group.ranks if rank in said)
        for place, copies in enumerate(chosen[number][1]):
            span = slice(place * _DIGEST_BYTES, (place + 1) * _DIGEST_BYTES)
            other = next((rank for rank in others if said[rank][span] != said[first][span]), None)
            if other is not None:
                yield copies, other


def _by_company(
    group: Group,
    replies: Sequence[bytes],
    companies: Sequence[tuple[frozenset[int], list[_Copies]]],
    counts: Sequence[int],
    size: int,
) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Yield what the ranks of each company said: ``counts`` digests of ``size`` bytes, company after company."""
    taken = dict.fromkeys(group.ranks, 0)
    by_rank = dict(zip(group.ranks, replies, strict=True))
    for number, (ranks, _) in enumerate(companies):
        said = {}
        for rank in ranks:
            start = taken[rank]
            taken[rank] += counts[number] * size
            said[rank] = by_rank[rank][start : taken[rank]]
        yield number, said


def _digests(local: LocalState, copies: Sequence[_Copies]) -> list[bytes]:
    """Return digests of what this rank holds: those of whole tensors on a device are made there."""
    on_device = [
        number for number, one in enumerate(copies) if one.pieces is None and one.slot in local.devices
    ]
    found: dict[int, bytes] = {}
    if on_device and local.digest_on_device is not None:
        made = local.digest_on_device([local.devices[copies[number].slot] for number in on_device])
        found.update(zip(on_device, made, strict=True))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="ucp-digest") as pool:
        for number, one in enumerate(copies):
            if number not in found:
                memory = flat_memory(local.arrays[one.slot]())
                parts = (
                    [memory] if one.pieces is None else [_part(memory, piece, one) for piece in one.pieces]
                )
                found[number] = _digest(parts, pool)
    return [found[number] for number in range(len(copies))]


def _part(memory: NDArray[np.generic], piece: Piece, copies: _Copies) -> NDArray[np.generic]:
    return flat_memory(seen_part(memory, piece, at="/".join(copies.slot)))


def _digest(parts: Sequence[NDArray[np.generic]], pool: ThreadPoolExecutor) -> bytes:
    value = 0
    for part in parts:
        raw = part.view(np.uint8).data if part.size else memoryview(b"")
        if len(raw) <= _BLOCK_BYTES:
            value = crc64nvme(raw, value)
            continue
        blocks = [raw[start : start + _BLOCK_BYTES] for start in range(0, len(raw), _BLOCK_BYTES)]
        for block, one in zip(blocks, pool.map(crc64nvme, blocks), strict=True):
            value = combine_crc64nvme(value, one, len(block))
    return int(value).to_bytes(_DIGEST_BYTES, "little")


def _refusal(differing: Sequence[tuple[_Copies, int]]) -> str:
    copies, other = differing[0]
    first = min(copies.ranks)
    many = f" of {len(differing)} tensors" if len(differing) > 1 else ""
    return (
        f"ranks {first} and {other} hold different copies{many}; broadcast them, "
        f"or take those of rank {first} by replicas='compare'"
    )
