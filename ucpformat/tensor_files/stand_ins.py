"""Stand-ins for what PyTorch and numpy put into pickles: plain data, no framework imported.

Everything that `unpickle` returns is built from ``None``, ``bool``, ``int``, ``float``, ``complex``, ``str``,
``bytes``, ``bytearray``, ``tuple``, ``list``, ``dict``, ``set``, ``frozenset``, ``range``,
``collections.OrderedDict``, ``collections.Counter``, the value types of ``datetime``, and the classes below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "CONFIGURATIONS",
    "INERT",
    "TORCH_DTYPES",
    "ConfigurationDraft",
    "DefaultDict",
    "NumpyArray",
    "NumpyDtype",
    "NumpyScalar",
    "PathValue",
    "TensorValue",
    "TorchDevice",
    "TorchDtype",
    "TorchLayout",
    "TorchSize",
    "item_size",
]

# torch's name -> (the name in Zarr and TensorStore, bytes of an element). Types that pack several elements
# into a byte, and quantised ones, are absent: their shapes do not count elements.
TORCH_DTYPES: Final[dict[str, tuple[str, int]]] = {
    "bool": ("bool", 1),
    "uint8": ("uint8", 1),
    "uint16": ("uint16", 2),
    "uint32": ("uint32", 4),
    "uint64": ("uint64", 8),
    "int8": ("int8", 1),
    "int16": ("int16", 2),
    "int32": ("int32", 4),
    "int64": ("int64", 8),
    "float16": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "complex64": ("complex64", 8),
    "complex128": ("complex128", 16),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e8m0fnu": ("float8_e8m0fnu", 1),
}


def item_size(dtype: str) -> int:
    """Return bytes of one element of ``dtype`` (a name that stands in `TORCH_DTYPES`)."""
    return TORCH_DTYPES[dtype][1]


class TorchSize(tuple[int, ...]):
    """``torch.Size``: a tuple of integers that was not a plain tuple."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TorchSize({tuple.__repr__(self)})"


@dataclass(frozen=True, slots=True)
class TorchDtype:
    """``torch.dtype`` under torch's own name, such as ``float32``."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """``torch.device`` as its string, such as ``cuda:0``."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchLayout:
    """``torch.layout`` as its string, such as ``torch.strided``."""

    name: str


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A small tensor inside an object: little-endian elements in C order.

    ``dtype`` is a name of `TORCH_DTYPES`. Whether it was a parameter or wanted gradients is not kept.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class NumpyDtype:
    """``numpy.dtype`` as its array-protocol string with byte order, such as ``<f4``."""

    name: str


@dataclass(frozen=True, slots=True)
class NumpyArray:
    """``numpy.ndarray`` in C order; ``dtype`` is an array-protocol string such as ``<i8``."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class NumpyScalar:
    """A numpy scalar; ``dtype`` is an array-protocol string such as ``<f8``."""

    dtype: str
    data: bytes


@dataclass(frozen=True, slots=True)
class PathValue:
    """A ``pathlib`` path: the class's name (``PosixPath``, ``PureWindowsPath``, ...) and the path's text."""

    kind: str
    text: str


class DefaultDict(dict[Any, Any]):
    """``collections.defaultdict``: ``factory`` is the name of a builtin type, or None."""

    __slots__ = ("factory",)

    def __init__(self, factory: str | None = None) -> None:
        super().__init__()
        self.factory = factory

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultDict) and self.factory == other.factory and dict.__eq__(self, other)

    __hash__ = None

    def __repr__(self) -> str:
        return f"DefaultDict({self.factory!r}, {dict.__repr__(self)})"


# OmegaConf's configurations, as Lightning keeps hyper-parameters, come in as dicts, lists and values (omegaconf 2.3,
# `basecontainer.py`, `nodes.py`): a container has `_content`, a value `_val`, and each its parent, which refers back.
# Interpolations (`${lr}`) stay the text that they are; types, flags and parents are left out.
_NODES: Final = ("Any", "String", "Integer", "Float", "Boolean", "Bytes", "Path", "Enum")

CONFIGURATIONS: Final[Mapping[tuple[str, str], str]] = {
    ("omegaconf.dictconfig", "DictConfig"): "_content",
    ("omegaconf.listconfig", "ListConfig"): "_content",
    ("omegaconf.base", "UnionNode"): "_content",
    **{("omegaconf.nodes", f"{name}Node"): "_val" for name in _NODES},
}
"""The classes, and the member of the state that is what they hold."""

INERT: Final = (("omegaconf.base", "ContainerMetadata"), ("omegaconf.base", "Metadata"))
"""What a state holds beside: it is read, and left out."""


@dataclass(slots=True, eq=False)
class ConfigurationDraft:
    """An instance before its state arrives, and then what it holds; what refers to it before that refers back."""

    member: str
    value: Any = None
    is_finished: bool = False

    def finish(self, state: object) -> object:
        """Return what the state of BUILD holds. Raises ValueError."""
        if self.is_finished or not isinstance(state, dict) or self.member not in state:
            raise ValueError("a configuration of an unknown kind")
        self.value, self.is_finished = state[self.member], True
        return self.value
