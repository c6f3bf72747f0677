"""Typed access to what a pickle held: anything unexpected is refused, naming the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["integer", "items", "mapping", "member", "refused", "shape_of", "tensor", "tensors"]


def refused(message: str, at: str) -> UcpError:
    """Return the refusal of a file that is not as DeepSpeed writes it."""
    return error("UCP-E-SOURCE", message, at=at)


def mapping(value: object, what: str, at: str) -> Mapping[Any, Any]:
    """Return ``value`` as a dict."""
    if not isinstance(value, dict):
        raise refused(f"{what} is a {type(value).__name__}, not a dict", at)
    return value


def items(value: object, what: str, at: str) -> Sequence[Any]:
    """Return ``value`` as a list."""
    if not isinstance(value, list | tuple):
        raise refused(f"{what} is a {type(value).__name__}, not a list", at)
    return value


def member(value: Mapping[Any, Any], name: str, at: str) -> Any:
    """Return a member that must be there."""
    if name not in value:
        raise refused(f"{name!r} is missing: not as DeepSpeed writes it", at)
    return value[name]


def integer(value: object, what: str, at: str) -> int:
    """Return ``value`` as an integer >= 0."""
    if type(value) is not int or value < 0:
        raise refused(f"{what} is {value!r:.100}, not an integer >= 0", at)
    return value


def tensor(value: object, what: str, at: str) -> StoredTensor:
    """Return ``value`` as a tensor."""
    if not isinstance(value, StoredTensor):
        raise refused(f"{what} is a {type(value).__name__}, not a tensor", at)
    return value


def tensors(value: object, what: str, at: str) -> dict[str, StoredTensor]:
    """Return ``value`` as tensors by name."""
    found = mapping(value, what, at)
    if not all(type(name) is str for name in found):
        raise refused(f"a name in {what} is not a string", at)
    return {name: tensor(item, f"{what}[{name!r}]", at) for name, item in found.items()}


def shape_of(value: object, what: str, at: str) -> tuple[int, ...]:
    """Return ``value`` as extents."""
    return tuple(integer(extent, what, at) for extent in items(value, what, at))
