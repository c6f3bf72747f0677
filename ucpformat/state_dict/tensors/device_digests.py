"""Digests of tensors, made on the device where they lie: ranks compare their copies by them, and nothing keeps them.

Two sums of 64-bit words, modulo 2^64: the plain one, and one in which each word has an odd weight that its place is
mixed into. Integers wrap the same way in any order, so that equal tensors have equal digests on any device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["digests_on_device"]

_WORD: Final = 8
_BLOCK_WORDS: Final = (
    1 << 23
)  # whose weights lie on the device beside the tensor, and for a moment their mix: twice 64 MiB
_MIX: Final = -0x61C8864680B583EB  # odd, with bits everywhere
_MASK: Final = (1 << 64) - 1


def digests_on_device(tensors: Sequence[Any]) -> list[bytes]:
    """Return eight bytes for each tensor; the host waits once for all of them on a device."""
    import torch

    sums = [_sums(tensor) for tensor in tensors]
    found: list[bytes] = [b""] * len(sums)
    by_device: dict[Any, list[int]] = {}
    for number, one in enumerate(sums):
        by_device.setdefault(one.device, []).append(number)
    for numbers in by_device.values():
        values = torch.stack([sums[number] for number in numbers]).tolist()
        for number, both in zip(numbers, values, strict=True):
            said = b"".join((one & _MASK).to_bytes(_WORD, "little") for one in both)
            found[number] = hashlib.sha256(said).digest()[:_WORD]
    return found


def _sums(tensor: Any) -> Any:
    import torch

    raw = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if raw.storage_offset() % _WORD:
        raw = raw.clone()
    whole = raw.numel() // _WORD * _WORD
    words = raw[:whole].view(torch.int64)
    rest = torch.zeros(_WORD, dtype=torch.uint8, device=raw.device)
    rest[: raw.numel() - whole] = raw[whole:]
    plain = rest.view(torch.int64).sum()
    weighted = plain * (2 * raw.numel() + 1)
    for start in range(0, words.numel(), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS]
        weights = torch.arange(start, start + block.numel(), dtype=torch.int64, device=raw.device)
        weights = weights.mul_(_MIX).bitwise_xor_(weights >> 31).bitwise_or_(1)
        plain = plain + block.sum()
        weighted = weighted + weights.mul_(block).sum()
    return torch.stack([plain, weighted])
