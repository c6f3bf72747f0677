"""The allow-lists: which globals a DCP pickle may name, and the plain value each one becomes."""

from __future__ import annotations

import datetime
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final

from ucpformat.tensor_files.numpy_values import (
    NumpyArrayDraft,
    integers,
    numpy_array,
    numpy_dtype_draft,
    numpy_item_size,
)
from ucpformat.tensor_files.object_tree import Instance, check_hashable
from ucpformat.tensor_files.stand_ins import (
    DefaultDict,
    NumpyDtype,
    NumpyScalar,
    PathValue,
    TorchDevice,
    TorchDtype,
    TorchLayout,
    TorchSize,
)
from ucpformat.tensor_files.unpickle import Constructor, Globals

__all__ = ["METADATA_GLOBALS", "OBJECT_GLOBALS", "STREAM_GLOBALS", "StorageKind", "stream_content"]

_TORCH_DTYPES: Final = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn_x2", "qint8", "quint8", "qint32", "quint4x2", "quint2x4"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
)
_STORAGES: Final = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
_METADATA_CLASSES: Final = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "MetadataIndex",
        "TensorProperties",
        "StorageMeta",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    # The plans of the ranks, which Megatron-core keeps in the metadata; nothing is read from them.
    "torch.distributed.checkpoint.planner": ("SavePlan", "WriteItem", "TensorWriteData", "BytesIOWriteData"),
}
_BUILTIN_TYPES: Final = ("bool", "bytes", "complex", "dict", "float", "int", "list", "set", "str", "tuple")


class StorageKind(str):
    """The class of a torch storage as the torch data type of its elements; empty where it has none."""

    __slots__ = ()


def _items(value: object) -> list[object]:
    if not isinstance(value, list | tuple):
        raise ValueError("expected a list")
    for item in value:
        check_hashable(item, "")
    return list(value)


def _set(arguments: tuple[Any, ...]) -> object:
    return set(_items(*arguments)) if arguments else set()


def _frozenset(arguments: tuple[Any, ...]) -> object:
    return frozenset(_items(*arguments)) if arguments else frozenset()


def _complex(arguments: tuple[Any, ...]) -> object:
    real, imaginary = arguments
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("expected two floats")
    # Not real + imaginary * 1j: that turns an infinite or negative-zero part into something else.
    return complex(real, imaginary)


def _encode(arguments: tuple[Any, ...]) -> object:
    text, encoding = arguments
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise ValueError("only bytes written as latin1 text are read")
    return text.encode("latin1")


def _bytes(arguments: tuple[Any, ...]) -> object:
    if arguments:
        raise ValueError("expected no arguments")
    return b""


def _bytearray(arguments: tuple[Any, ...]) -> object:
    (data,) = arguments or (b"",)
    if type(data) is not bytes:
        raise ValueError("expected bytes")
    return bytearray(data)


def _range(arguments: tuple[Any, ...]) -> object:
    if not all(type(item) is int for item in arguments):
        raise ValueError("expected integers")
    return range(*arguments)


def _ordered_dict(arguments: tuple[Any, ...]) -> object:
    if arguments:  # its members come as items; Python 2 alone wrote them here
        raise ValueError("expected no arguments")
    return OrderedDict()


def _counter(arguments: tuple[Any, ...]) -> object:
    (counts,) = arguments or ({},)
    if type(counts) is not dict or not all(type(count) is int for count in counts.values()):
        raise ValueError("expected a dict of integers")
    return Counter(counts)


def _default_dict(arguments: tuple[Any, ...]) -> object:
    (factory,) = arguments or (None,)
    if factory is None:
        return DefaultDict(None)
    if not isinstance(factory, Constructor) or factory.name not in _BUILTIN_TYPES:
        raise ValueError("expected a builtin type")
    return DefaultDict(factory.name)


def _no_call(arguments: tuple[Any, ...]) -> object:
    raise ValueError("this type may be named but not called")


def _size(arguments: tuple[Any, ...]) -> object:
    (extents,) = arguments or ((),)
    return TorchSize(integers(extents))


def _device(arguments: tuple[Any, ...]) -> object:
    kind, *index = arguments
    if type(kind) is not str or len(index) > 1 or not all(type(item) is int for item in index):
        raise ValueError("expected a device type and an index")
    return TorchDevice(":".join([kind, *map(str, index)]))


def _layout(arguments: tuple[Any, ...]) -> object:
    (name,) = arguments
    if type(name) is not str:
        raise ValueError("expected a name")
    return TorchLayout(name)


def _path(kind: str) -> Constructor:
    separator = "\\" if "Windows" in kind else "/"

    def call(arguments: tuple[Any, ...]) -> object:
        if not all(type(part) is str for part in arguments):
            raise ValueError("expected path components")
        head, *rest = arguments or (".",)
        root = head if head.endswith(separator) or not rest else head + separator
        return PathValue(kind, root + separator.join(rest))

    return Constructor(kind, call)


def _numpy_dtype(arguments: tuple[Any, ...]) -> object:
    return numpy_dtype_draft(arguments[0])


def _numpy_reconstruct(arguments: tuple[Any, ...]) -> object:
    kind, shape, code = arguments
    if (
        not isinstance(kind, Constructor)
        or kind.name != "ndarray"
        or shape != (0,)
        or code not in (b"b", "b")
    ):
        raise ValueError("a numpy array of an unknown kind")
    return NumpyArrayDraft()


def _numpy_scalar(arguments: tuple[Any, ...]) -> object:
    dtype, data = arguments
    if type(dtype) is not NumpyDtype or type(data) is not bytes or len(data) != numpy_item_size(dtype):
        raise ValueError("a numpy scalar of an unknown kind")
    return NumpyScalar(dtype.name, data)


def _numpy_from_buffer(arguments: tuple[Any, ...]) -> object:
    data, dtype, shape, order = arguments
    return numpy_array(data, dtype, shape, order)


def _date(arguments: tuple[Any, ...]) -> object:
    (state,) = arguments
    if type(state) is not bytes or len(state) != 4:
        raise ValueError("a date of an unknown kind")
    return datetime.date(int.from_bytes(state[:2], "big"), state[2], state[3])


def _zone(arguments: tuple[Any, ...]) -> datetime.timezone | None:
    if not arguments:
        return None
    (zone,) = arguments
    if type(zone) is not datetime.timezone:
        raise ValueError("a time zone of an unknown kind")
    return zone


def _time(arguments: tuple[Any, ...]) -> object:
    state, *zone = arguments
    if type(state) is not bytes or len(state) != 6:
        raise ValueError("a time of an unknown kind")
    fold, hour = divmod(state[0], 128)
    microsecond = int.from_bytes(state[3:6], "big")
    return datetime.time(hour, state[1], state[2], microsecond, _zone(tuple(zone)), fold=fold)


def _datetime(arguments: tuple[Any, ...]) -> object:
    state, *zone = arguments
    if type(state) is not bytes or len(state) != 10:
        raise ValueError("a date and time of an unknown kind")
    fold, month = divmod(state[2], 128)
    day = datetime.date(int.from_bytes(state[:2], "big"), month, state[3])
    clock = datetime.time(state[4], state[5], state[6], int.from_bytes(state[7:10], "big"), fold=fold)
    return datetime.datetime.combine(day, clock, _zone(tuple(zone)))


def _timedelta(arguments: tuple[Any, ...]) -> object:
    days, seconds, microseconds = arguments
    if not all(type(part) is int for part in arguments):
        raise ValueError("a time span of an unknown kind")
    return datetime.timedelta(days, seconds, microseconds)


def _timezone(arguments: tuple[Any, ...]) -> object:
    offset, *name = arguments
    if type(offset) is not datetime.timedelta or len(name) > 1 or not all(type(item) is str for item in name):
        raise ValueError("a time zone of an unknown kind")
    return datetime.timezone(offset, *name)


def _instance(kind: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        return Instance(kind, arguments or None)  # a class that is made of its members, as named tuples are

    return Constructor(kind, call)


def _enum(kind: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        (code,) = arguments
        if type(code) is not int:
            raise ValueError(f"{kind} is a number")
        return code

    return Constructor(kind, call)


def _python_globals() -> dict[tuple[str, str], object]:
    calls: dict[str, Callable[[tuple[Any, ...]], object]] = dict.fromkeys(_BUILTIN_TYPES, _no_call)
    calls |= {
        "set": _set,
        "frozenset": _frozenset,
        "complex": _complex,
        "bytes": _bytes,
        "bytearray": _bytearray,
    }
    calls |= {"range": _range}
    table: dict[tuple[str, str], object] = {}
    for name, call in calls.items():
        table[("builtins", name)] = table[("__builtin__", name)] = Constructor(name, call)
    # Protocol 2 writes the names of Python 2.
    table[("__builtin__", "long")] = table[("builtins", "int")]
    table[("__builtin__", "unicode")] = table[("builtins", "str")]
    table[("__builtin__", "xrange")] = table[("builtins", "range")]
    table[("_codecs", "encode")] = Constructor("encode", _encode)
    table[("collections", "OrderedDict")] = Constructor("OrderedDict", _ordered_dict)
    table[("collections", "Counter")] = Constructor("Counter", _counter)
    table[("collections", "defaultdict")] = Constructor("defaultdict", _default_dict)
    for name, call in {"date": _date, "time": _time, "datetime": _datetime}.items():
        table[("datetime", name)] = Constructor(name, call)
    table[("datetime", "timedelta")] = Constructor("timedelta", _timedelta)
    table[("datetime", "timezone")] = Constructor("timezone", _timezone)
    for kind in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
        table[("pathlib", kind)] = table[("pathlib._local", kind)] = _path(kind)
    return table


def _numpy_globals() -> dict[tuple[str, str], object]:
    table: dict[tuple[str, str], object] = {
        ("numpy", "dtype"): Constructor("dtype", _numpy_dtype),
        ("numpy", "ndarray"): Constructor("ndarray", _no_call),
    }
    for core in ("numpy.core", "numpy._core"):
        table[(f"{core}.multiarray", "_reconstruct")] = Constructor("_reconstruct", _numpy_reconstruct)
        table[(f"{core}.multiarray", "scalar")] = Constructor("scalar", _numpy_scalar)
        table[(f"{core}.numeric", "_frombuffer")] = Constructor("_frombuffer", _numpy_from_buffer)
    return table


def _torch_globals() -> dict[tuple[str, str], object]:
    table: dict[tuple[str, str], object] = {("torch", name): TorchDtype(name) for name in _TORCH_DTYPES}
    table[("torch", "Size")] = Constructor("Size", _size)
    table[("torch", "device")] = Constructor("device", _device)
    table[("torch.serialization", "_get_layout")] = Constructor("_get_layout", _layout)
    return table


def _storage_globals() -> dict[tuple[str, str], object]:
    table: dict[tuple[str, str], object] = {
        ("torch", name): StorageKind(dtype) for name, dtype in _STORAGES.items()
    }
    table[("torch.storage", "UntypedStorage")] = StorageKind("")
    return table


def _metadata_globals() -> dict[tuple[str, str], object]:
    table: dict[tuple[str, str], object] = {
        (module, name): _instance(name) for module, names in _METADATA_CLASSES.items() for name in names
    }
    # Megatron-core 0.13 to 0.15 adds a member to the metadata and the plans, under classes of its own.
    table["megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"] = _instance("Metadata")
    table["megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan"] = _instance("SavePlan")
    for module, name in (("metadata", "_MEM_FORMAT_ENCODING"), ("planner", "WriteItemType")):
        table[f"torch.distributed.checkpoint.{module}", name] = _enum(name)
    return table


#: What ``.metadata`` may name.
METADATA_GLOBALS: Final[Globals] = _python_globals() | _torch_globals() | _metadata_globals()

#: What the ``data.pkl`` of an item may name; `torch_zip` adds the functions that rebuild tensors.
OBJECT_GLOBALS: Final[Globals] = _python_globals() | _numpy_globals() | _torch_globals() | _storage_globals()


_STREAM: Final = "io.BytesIO"


def _stream(arguments: tuple[Any, ...]) -> object:
    if arguments and not (len(arguments) == 1 and type(arguments[0]) is bytes):
        raise ValueError("a stream takes bytes")
    return Instance(_STREAM)


STREAM_GLOBALS: Final[Globals] = {("_io", "BytesIO"): Constructor(_STREAM, _stream)}
"""What a pickle may name where streams of bytes are carried."""


def stream_content(found: object) -> bytes | None:
    """Return the bytes of an object that is a stream and nothing else; None for any other, and for one with members."""
    if not isinstance(found, Instance) or found.kind != _STREAM or type(found.state) is not tuple:
        return None
    match found.state:
        case (bytes() as data, int(), None | {}) if not found.state[2]:  # bytes, position, members
            return data
    return None
