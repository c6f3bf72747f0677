"""Compressors of chunks (SPEC 16.2): Zarr v3's gzip, zstd and blosc, with their exact configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import UcpError
from ucpformat.model.fields import boolean, choice, integer, members, relocated

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["BLOSC_CODECS", "BLOSC_SHUFFLES", "COMPRESSORS", "Compressor"]

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
