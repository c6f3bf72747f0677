"""Compressors of chunks (SPEC 16.2): Zarr v3's gzip, zstd and blosc, with their exact configurations.

``compressor="auto"`` is a rule (docs/compression.md) that follows from ``python -m benchmarks compression`` on a
trained model: of all codecs of the format, Blosc's bit shuffle before LZ4 leaves the least of those that a thread does
at 1 GB/s and more. Slots are compressed in the data types of which it leaves 10 % less at least; other types, and what
was not measured, such as integers and quantised states, stay as they are, and so do slots of which there is little to
win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.errors import UcpError, error
from ucpformat.model.dtype import dtype
from ucpformat.model.fields import boolean, choice, integer, members, relocated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ucpformat.jsonio import JsonValue

__all__ = [
    "AUTO",
    "BLOSC_CODECS",
    "BLOSC_SHUFFLES",
    "COMPRESSORS",
    "LEAST_BYTES",
    "Compression",
    "Compressor",
    "compressor_of",
    "require_compression",
]

# Blosc's own maximum is that of a signed 32-bit integer.
_MAX_BLOCK: Final = 2**31 - 1
BLOSC_CODECS: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
BLOSC_SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")

_Reader = Callable[["JsonValue", str], object]
_MEMBERS: Final = frozenset({"name", "configuration"})
# Members of each configuration, sorted by name, as the derived Zarr document has them (SPEC 16.3).
COMPRESSORS: Final[Mapping[str, Mapping[str, _Reader]]] = {
    "blosc": {
        "blocksize": lambda value, at: integer(value, at, most=_MAX_BLOCK),
        "clevel": lambda value, at: integer(value, at, most=9),
        "cname": lambda value, at: choice(value, BLOSC_CODECS, at),
        "shuffle": lambda value, at: choice(value, BLOSC_SHUFFLES, at),
        "typesize": lambda value, at: integer(value, at, least=1, most=255),
    },
    "gzip": {"level": lambda value, at: integer(value, at, most=9)},
    "zstd": {
        "checksum": boolean,
        "level": lambda value, at: integer(value, at, least=-131072, most=22),
    },
}


@dataclass(frozen=True, slots=True)
class Compressor:
    """A Zarr v3 codec from bytes to bytes: its name and its whole configuration.

    >>> fast = ucp.Compressor("zstd", {"level": 1, "checksum": False})
    >>> report = ucp.save("run.ucp", {"w": np.ones(1000, np.float32)}, compressor=fast)
    """

    name: str
    configuration: Mapping[str, JsonValue]

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Compressor:
        """Read a codec object; raises ``UCP-E-SCHEMA``.

        >>> ucp.Compressor.from_json({"name": "gzip", "configuration": {"level": 5}}, at="").name
        'gzip'
        """
        try:
            return cls._read(value)
        except UcpError as refusal:
            raise relocated(refusal, at) from None

    @classmethod
    def _read(cls, value: JsonValue) -> Compressor:
        found = members(value, _MEMBERS, frozenset(), "")
        name = choice(found["name"], tuple(COMPRESSORS), "#/name")
        readers = COMPRESSORS[name]
        configuration = members(found["configuration"], frozenset(readers), frozenset(), "#/configuration")
        for member, read in readers.items():
            read(configuration[member], f"#/configuration/{member}")
        return cls(name, configuration)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads, its configuration sorted by name.

        >>> ucp.Compressor("gzip", {"level": 5}).to_json()
        {'name': 'gzip', 'configuration': {'level': 5}}
        """
        return {"name": self.name, "configuration": dict(sorted(self.configuration.items()))}


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
