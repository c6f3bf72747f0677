"""Arrays that Orbax keeps, by TensorStore: Zarr of either version, in files or in OCDBT.

Source: ``serialization/tensorstore_utils.py`` of orbax-checkpoint 0.12.8. A missing chunk is an error there and here,
never zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import MAX_DEPTH, deeper_than_limit
from ucpformat.model.dtype import DTYPES
from ucpformat.tensor_files.safetensors_file import parse_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ucpformat.geometry import Box

__all__ = ["ArraySource", "Arrays", "array_spec", "tensorstore", "translated"]

_MAX_CHUNK: Final = 64 << 20
"""What one chunk may have; more, where the array it is of has more."""
_CACHE: Final = 256 << 20
_COMPRESSORS: Final = frozenset({"bz2", "gzip", "zlib", "zstd"})
"""Of Zarr 2. Decoders of these stop where the chunk is full; Blosc's takes the memory that the chunk claims first."""
_CODECS: Final = frozenset({"bytes", "crc32c", "gzip", "sharding_indexed", "transpose", "zstd"})
"""Of Zarr 3."""


def tensorstore() -> Any:
    """Return the package tensorstore.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` where it is not installed.
    """
    try:
        import tensorstore
    except ImportError:
        raise error("UCP-E-SOURCE", "Orbax's arrays need TensorStore: install ucpformat[orbax]") from None
    return tensorstore


@contextmanager
def translated(at: str) -> Iterator[None]:
    """Raise TensorStore's errors as registered ones."""
    try:
        yield
    except (
        ValueError,
        OSError,
        RuntimeError,
        KeyError,
        IndexError,
        OverflowError,
        NotImplementedError,
    ) as problem:
        text = " ".join(str(problem).split())
        raise error(
            "UCP-E-SOURCE",
            f"TensorStore cannot read or write the array (in OCDBT as manifest.ocdbt says): {text:.400}",
            at=at,
        ) from None


def array_spec(folder: Path, name: str, *, use_ocdbt: bool, use_zarr3: bool) -> dict[str, Any]:
    """Return TensorStore's specification of one array."""
    base = f"file://{folder.resolve().as_posix()}/"
    kvstore: dict[str, Any] = (
        {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        if use_ocdbt
        else {"driver": "file", "path": f"{folder.resolve().as_posix()}/{name}/"}
    )
    return {"driver": "zarr3" if use_zarr3 else "zarr", "kvstore": kvstore}


def _unbounded(document: Mapping[str, Any], *, is_zarr3: bool) -> Iterator[object]:
    """Yield the codecs of an array that are none of those whose memory is bounded by the size of a chunk."""
    if not is_zarr3:
        compressor = document.get("compressor")
        name = compressor.get("id") if isinstance(compressor, dict) else compressor
        if name is not None and not (isinstance(name, str) and name in _COMPRESSORS):
            yield name
        return
    left = [document.get("codecs")]
    while left:
        codecs = left.pop()
        for codec in codecs if isinstance(codecs, list) else ():
            name = codec.get("name") if isinstance(codec, dict) else codec
            if not (isinstance(name, str) and name in _CODECS):
                yield name
            inside = codec.get("configuration") if isinstance(codec, dict) else None
            if isinstance(inside, dict):
                left += [inside.get("codecs"), inside.get("index_codecs")]


@dataclass(frozen=True, slots=True)
class ArraySource:
    """An open array as a source of boxes."""

    at: str
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        """The name of the data type, which is ours as well."""
        return str(self.array.dtype.name)

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box. Raises ``UCP-E-SOURCE`` for chunks that are missing or do not decode."""
        where = tuple(slice(start, stop) for start, stop in zip(box.offset, box.stop, strict=True))
        with translated(self.at):
            out[...] = self.array[where].read(order="C").result()


class Arrays:
    """The arrays of one item."""

    def __init__(self, folder: Path, item: str, *, use_ocdbt: bool, use_zarr3: bool) -> None:
        self._store = tensorstore()
        self._folder = folder
        self._item = item
        self._use_ocdbt = use_ocdbt
        self._use_zarr3 = use_zarr3
        self._context = self._store.Context({"cache_pool": {"total_bytes_limit": _CACHE}})

    def _check_documents(self, specs: Mapping[str, dict[str, Any]]) -> None:
        """Refuse metadata that nest without end, and codecs without bounds: TensorStore ends the process by them."""
        key = "zarr.json" if self._use_zarr3 else ".zarray"
        reading = {}
        for name, spec in specs.items():
            with translated(f"{self._item}{name}"):
                reading[name] = (
                    self._store.KvStore.open(spec["kvstore"], context=self._context).result().read(key)
                )
        for name, future in reading.items():
            at = f"{self._item}{name}"
            with translated(at):
                data = bytes(future.result().value)
            if deeper_than_limit(data):
                raise error("UCP-E-LIMIT", f"{key} nests deeper than {MAX_DEPTH} levels", at=at)
            try:
                document = parse_object(data, at)
            except UcpError as refusal:
                where = f"{key} (in OCDBT as manifest.ocdbt says)"
                raise error("UCP-E-SOURCE", f"{where}: {refusal.message}", at=at) from None
            for codec in _unbounded(document, is_zarr3=self._use_zarr3):
                raise error(
                    "UCP-E-SOURCE",
                    f"its chunks are encoded by {codec!r:.40}, which Orbax never writes, and what decodes it takes "
                    "as much memory as a chunk claims; save it again by Orbax, which uses zstd",
                    at=at,
                )

    def open(self, names: Mapping[str, object]) -> dict[str, ArraySource]:
        """Open arrays, all at once.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE``, naming the array, for what is missing or damaged; ``UCP-E-DTYPE`` and
                ``UCP-E-LIMIT``.
        """
        opening = {}
        specs = {
            name: array_spec(self._folder, name, use_ocdbt=self._use_ocdbt, use_zarr3=self._use_zarr3)
            for name in names
        }
        self._check_documents(specs)
        for name, spec in specs.items():
            spec |= {
                "recheck_cached_data": False,
                "recheck_cached_metadata": False,
                "fill_missing_data_reads": False,
            }
            with translated(f"{self._item}{name}"):
                opening[name] = self._store.open(spec, open=True, read=True, context=self._context)
        sources = {}
        for name, future in opening.items():
            at = f"{self._item}{name}"
            with translated(at):
                array = future.result()
                chunk = tuple(array.chunk_layout.read_chunk.shape or ())
            source = ArraySource(at, array)
            entry = DTYPES.get(source.dtype)
            if entry is None:
                raise error("UCP-E-DTYPE", f"the data type {source.dtype!r:.40} is not supported", at=at)
            whole = math.prod(source.shape)
            if math.prod(chunk) * entry.item_bytes > max(_MAX_CHUNK, whole * entry.item_bytes):
                raise error(
                    "UCP-E-LIMIT",
                    f"a chunk of {list(chunk)} elements is larger than the array of {list(source.shape)}",
                    at=at,
                )
            sources[name] = source
        return sources
