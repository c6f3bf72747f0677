"""The two Zarr v3 libraries, each with the grid and the checksums of storage plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.contenders.base import sync_directories, sync_files
from ucpformat.geometry import chunk_grid
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.state import Array, TrainingState
    from ucpformat.storage.stores.store import Durability

__all__ = ["TensorStore", "ZarrPython"]


def _chunk_shape(array: Array) -> tuple[int, ...]:
    return chunk_grid(array.shape, array.itemsize, DEFAULT_CHUNK_BYTES).chunk_shape


@dataclass(frozen=True, slots=True)
class TensorStore:
    """All arrays at once, as its asynchronous interface invites to."""

    name: str = "tensorstore-zarr3"
    note: str = "TensorStore, driver zarr3, codecs bytes and crc32c, chunks of 16 MiB"

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        import tensorstore

        context = tensorstore.Context({"file_io_sync": durability == "fsync"})
        opened = [
            tensorstore.open(self._spec(directory, name), create=True, context=context, **_schema(array))
            for name, array in state.flat.items()
        ]
        written = [
            future.result().write(array, can_reference_source_data_indefinitely=True)
            for future, array in zip(opened, state.flat.values(), strict=True)
        ]
        for future in written:
            future.result()
        if durability == "fsync":
            sync_directories(directory)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        import tensorstore

        context = tensorstore.Context()
        opened = [
            tensorstore.open(self._spec(directory, name), open=True, context=context) for name in into.flat
        ]
        read = [
            tensorstore.array(array).write(future.result())
            for future, array in zip(opened, into.flat.values(), strict=True)
        ]
        for future in read:
            future.result()

    @staticmethod
    def _spec(directory: Path, name: str) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{directory}/{name}/"}}


def _schema(array: Array) -> dict[str, Any]:
    import tensorstore

    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    return {
        "dtype": tensorstore.dtype(array.dtype.name),
        "shape": array.shape,
        "chunk_layout": tensorstore.ChunkLayout(chunk_shape=_chunk_shape(array)),
        "codec": tensorstore.CodecSpec({"driver": "zarr3", "codecs": codecs}),
    }


@dataclass(frozen=True, slots=True)
class ZarrPython:
    """One array after the other, as its interface invites to."""

    name: str = "zarr-python"
    note: str = "zarr-python, no compressor, codecs bytes and crc32c, chunks of 16 MiB"

    def save(self, state: TrainingState, directory: Path, durability: Durability) -> None:
        """Write the state."""
        import zarr
        from zarr.codecs import Crc32cCodec

        root = zarr.create_group(str(directory / "state.zarr"))
        for name, array in state.flat.items():
            target = root.create_array(
                name,
                shape=array.shape,
                dtype=array.dtype,
                chunks=_chunk_shape(array) or "auto",
                compressors=[Crc32cCodec()],
            )
            target[...] = array
        if durability == "fsync":
            _sync_everything(directory)

    def load(self, directory: Path, into: TrainingState) -> None:
        """Fill the arrays."""
        import zarr
        from zarr.core.buffer import default_buffer_prototype

        buffer = default_buffer_prototype().nd_buffer
        for name, array in into.flat.items():
            source = zarr.open_array(str(directory / "state.zarr" / name), mode="r")
            if array.ndim:
                source.get_basic_selection(out=buffer.from_numpy_array(array))
            else:
                array.fill(np.asarray(source[...]).item())


def _sync_everything(directory: Path) -> None:
    for path in [directory, *(path for path in directory.rglob("*") if path.is_dir())]:
        sync_files(path)
