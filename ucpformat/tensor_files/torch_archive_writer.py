"""Writing what ``torch.load`` reads, without torch and without the classes that a pickle names.

An archive is a zip of stored records (torch/serialization.py): ``data.pkl``, a pickle of protocol 2 whose persistent
ids name storages, and a record for each storage, which is streamed. Containers are spelled out opcode by opcode, so
that a class may be named that is not installed here; everything else is what Python's pickler makes of it.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.errors import error
from ucpformat.tensor_files.byte_source import contiguous_strides
from ucpformat.tensor_files.out_files import OutFile
from ucpformat.tensor_files.stand_ins import (
    TORCH_DTYPES,
    DefaultDict,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PathValue,
    TensorValue,
    TorchDevice,
    TorchDtype,
    TorchLayout,
    TorchSize,
)

__all__ = ["Call", "OutTensor", "archive_file", "later_file", "write_archive"]

Blocks = Callable[[], Iterable[npt.NDArray[np.uint8]]]

_ALIGNMENT: Final = 64
_TORCH_NAMES: Final = {zarr: (name, size) for name, (zarr, size) in TORCH_DTYPES.items()}
_STORAGES: Final = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex128": "ComplexDoubleStorage",
    "complex64": "ComplexFloatStorage",
}


# What is pickled as what it stands for.
_REVIVED: Final = (DefaultDict, NumpyArray, NumpyDtype, NumpyScalar, PathValue)


@dataclass(frozen=True, slots=True, eq=False)
class OutTensor:
    """A contiguous tensor to write: data type in Zarr's spelling, and its bytes, little-endian, in order.

    One object twice in a tree is one storage: tied tensors stay tied.
    """

    dtype: str
    shape: tuple[int, ...]
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        """The bytes of the storage."""
        return math.prod(self.shape) * _torch_type(self.dtype)[1]


@dataclass(frozen=True, slots=True)
class Call:
    """What a reader makes by calling a global: an object of a class that this software does not have."""

    module: str
    name: str
    arguments: tuple[Any, ...] = ()
    state: dict[str, Any] | None = None
    makes_instance: bool = False
    """Whether the global is a class of which an empty instance is made (NEWOBJ), which then gets its state."""


def archive_file(name: str, tree: object) -> OutFile:
    """Return a file that holds ``tree`` (`write_archive`).

    Raises:
        UcpError: ``UCP-E-DTYPE`` and ``UCP-E-OBJECT``, as `write_archive`, before anything is written.
    """
    pickler = _Pickler()
    pickler.dump(tree)
    nbytes = sum(tensor.nbytes for tensor in pickler.storages)
    return OutFile(name, nbytes, partial(write_archive, tree=tree, prefix=PurePosixPath(name).stem))


def later_file(name: str, make: Callable[[], object], nbytes: int) -> OutFile:
    """Return `archive_file` of a tree of about ``nbytes`` that is made when written: for one of many alike."""

    def write(stream: IO[bytes]) -> None:
        write_archive(stream, make(), PurePosixPath(name).stem)

    return OutFile(name, nbytes, write)


def write_archive(stream: IO[bytes], tree: object, prefix: str = "archive") -> None:
    """Write ``tree`` as ``torch.save`` would, from where the stream is.

    ``tree`` is of plain Python objects, stand-ins of `objects`, `OutTensor` and `Call`. One block of a tensor is held
    at a time.

    Raises:
        UcpError: ``UCP-E-DTYPE`` for a type that torch lacks, ``UCP-E-OBJECT`` for what cannot be pickled, and what
            reading a tensor raises.
    """
    pickler = _Pickler()
    data = pickler.dump(tree)
    within: Any = _Within(stream)
    with zipfile.ZipFile(within, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _record(archive, f"{prefix}/data.pkl", len(data), [data])
        _record(archive, f"{prefix}/byteorder", 6, [b"little"])
        for key, tensor in enumerate(pickler.storages):
            _record(archive, f"{prefix}/data/{key}", tensor.nbytes, tensor.blocks())
        _record(archive, f"{prefix}/version", 2, [b"3\n"])


class _Within:
    """A stream from where it is: offsets in an archive count from its first byte, wherever that lies in a file."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._start = stream.tell()
        self.write = stream.write
        self.flush = stream.flush

    def tell(self) -> int:
        """Return the offset, counted from the start."""
        return self._stream.tell() - self._start

    def seek(self, offset: int) -> int:
        """Go to an offset from the start."""
        return self._stream.seek(self._start + offset) - self._start


def _record(archive: zipfile.ZipFile, name: str, length: int, blocks: Iterable[Any]) -> None:
    info = zipfile.ZipInfo(name)  # the date of the epoch of zip: the same content gives the same file
    wide = length >= zipfile.ZIP64_LIMIT
    # As torch does, begin data at a multiple of 64 bytes, so that they can be mapped.
    header = archive.start_dir + 30 + len(name.encode()) + 4 + (20 if wide else 0)
    padding = -header % _ALIGNMENT
    info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    done = 0
    with archive.open(info, "w", force_zip64=wide) as record:
        for block in blocks:
            record.write(block)
            done += memoryview(block).nbytes
    if done != length:
        raise error("UCP-E-SHAPE", f"{done} bytes were read of a tensor of {length}", at=name)


def _torch_type(dtype: str) -> tuple[str, int]:
    found = _TORCH_NAMES.get(dtype)
    if found is None:
        raise error("UCP-E-DTYPE", f"torch has no data type for {dtype}")
    return found


class _Pickler:
    """Spells a tree in opcodes, and collects the storages it names."""

    def __init__(self) -> None:
        self.storages: list[OutTensor] = []
        self._keys: dict[int, int] = {}

    def dump(self, tree: object) -> bytes:
        return b"\x80\x02" + b"".join(self._spell(tree)) + b"."

    def _spell(self, obj: Any) -> Iterator[bytes]:
        if isinstance(obj, OutTensor):
            yield from self._tensor(obj)
        elif isinstance(obj, TensorValue):
            block = np.frombuffer(obj.data, np.uint8)
            yield from self._tensor(OutTensor(TORCH_DTYPES[obj.dtype][0], obj.shape, lambda: [block]))
        elif isinstance(obj, Call):
            yield from self._call(obj)
        elif isinstance(obj, TorchSize):
            yield from self._call(Call("torch", "Size", (tuple(obj),)))
        elif isinstance(obj, TorchDtype):
            yield _global("torch", obj.name)
        elif isinstance(obj, TorchLayout):
            yield from self._call(Call("torch.serialization", "_get_layout", (obj.name,)))
        elif isinstance(obj, TorchDevice):
            yield from self._call(Call("torch", "device", (obj.name,)))
        elif type(obj) is tuple:
            yield b"("
            for item in obj:
                yield from self._spell(item)
            yield b"t"
        elif type(obj) is list:
            yield b"]("
            for item in obj:
                yield from self._spell(item)
            yield b"e"
        elif type(obj) in (dict, OrderedDict):
            yield b"}(" if type(obj) is dict else _global("collections", "OrderedDict") + b")R("
            for key, item in obj.items():
                yield from self._spell(key)
                yield from self._spell(item)
            yield b"u"
        else:
            yield _plain(obj)

    def _call(self, call: Call) -> Iterator[bytes]:
        yield _global(call.module, call.name)
        yield from self._spell(call.arguments)
        yield b"\x81" if call.makes_instance else b"R"
        if call.state is not None:
            yield from self._spell(call.state)
            yield b"b"

    def _tensor(self, tensor: OutTensor) -> Iterator[bytes]:
        name, size = _torch_type(tensor.dtype)
        key = self._keys.get(id(tensor))
        if key is None:
            key = self._keys[id(tensor)] = len(self.storages)
            self.storages.append(tensor)
        storage = _STORAGES.get(name)
        rebuild = "_rebuild_tensor_v2" if storage else "_rebuild_tensor_v3"
        yield _global("torch._utils", rebuild) + b"((" + _plain("storage")
        yield _global("torch", storage) if storage else _global("torch.storage", "UntypedStorage")
        yield from self._spell(str(key))
        yield from self._spell("cpu")
        yield from self._spell(tensor.nbytes // size if storage else tensor.nbytes)
        yield b"tQ"
        strides = contiguous_strides(tensor.shape)
        parts: tuple[object, ...] = (0, tensor.shape, strides, False, OrderedDict())
        for part in parts:
            yield from self._spell(part)
        if not storage:
            yield _global("torch", name)
        yield b"tR"


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _plain(obj: object) -> bytes:
    """Return a leaf as Python's pickler has it, without its first and last opcodes."""
    if isinstance(obj, _REVIVED):
        from ucpformat.tensor_files.revive import revive

        obj = revive(obj, "")
    try:
        spelled = pickle.dumps(obj, 2)[2:-1]
    except (pickle.PicklingError, TypeError, AttributeError) as problem:
        raise error(
            "UCP-E-OBJECT", f"a {type(obj).__name__} cannot be written for torch: {problem}"
        ) from None
    if b"cucpformat." in spelled:
        # A file must not name classes that its reader need not have.
        raise error("UCP-E-OBJECT", f"a {type(obj).__name__} holds what cannot be written for torch")
    return spelled
