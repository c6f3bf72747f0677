"""Which slots are worth compressing, and how: the rule behind ``compressor="auto"`` (docs/compression.md).

It follows from ``python -m benchmarks compression`` on a trained model: of all codecs of the format, Blosc's bit
shuffle before LZ4 leaves the least of those that a thread does at 1 GB/s and more. Slots are compressed in the data
types of which it leaves 10 % less at least; other types, and what was not measured, such as integers and quantised
states, stay as they are, and so do slots of which there is little to win.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.errors import error
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AUTO", "LEAST_BYTES", "Compression", "compressor_of", "require_compression"]

Compression = Compressor | Literal["auto"]
"""One compressor for all slots, or one for each by the rule."""
AUTO: Final = "auto"
LEAST_BYTES: Final = 1 << 16
_PAYING: Final = frozenset({"bfloat16", "float32"})


def require_compression(chosen: object) -> None:
    """Refuse what is no `Compression`, by ``UCP-E-MISMATCH``."""
    if not (chosen is None or isinstance(chosen, Compressor) or chosen == AUTO):
        message = f'compressor= is "auto" or a ucpformat.Compressor, not {chosen!r}'
        raise error("UCP-E-MISMATCH", message)


def compressor_of(chosen: Compression | None, dtype_name: str, shape: Sequence[int]) -> Compressor | None:
    """Return the compressor of one slot, given what the caller chose for all."""
    if chosen != AUTO or isinstance(chosen, Compressor):
        return chosen
    if dtype_name not in _PAYING:
        return None
    item_bytes = dtype(dtype_name).item_bytes
    if math.prod(shape) * item_bytes < LEAST_BYTES:
        return None
    return Compressor(
        "blosc",
        {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": "bitshuffle", "typesize": item_bytes},
    )
