"""Python objects to tagged values (SPEC section 15.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import pointer
from ucpformat.model.dtype import dtype_of
from ucpformat.model.values.content import (
    LONE_SURROGATE,
    MAX_DEPTH,
    TYPE_NAME,
    NamedValue,
    TensorValue,
    bytes_to,
    element_bytes,
    float_to,
    integer_to,
    tensor_to,
)
from ucpformat.model.values.keys import canonical_text, check_pairs, is_key
from ucpformat.model.values.registered import BY_NAME, ORDERED_DICT, is_spelled_otherwise, registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue

__all__ = ["Extend", "encode"]

Extend: TypeAlias = Callable[[object], NamedValue | TensorValue | None]

# Shared references are written out, so that a few lists inside one another can ask for 2**56 values.
_MAX_VALUES: Final = 1 << 24


def encode(obj: object, *, at: str, extend: Extend | None = None) -> JsonValue:
    """Encode ``obj``, which lies at ``at``, as a tagged value.

    ``extend`` is asked about objects of types that this module does not know; it answers with a named value or
    a tensor, or None. Instances of subclasses are of another type than their base: they are never flattened.

    Raises UCP-E-OBJECT, with the place and the type: an object of an unknown type, one that contains itself,
    nesting beyond 56 levels, an integer of more than 4096 digits, a lone surrogate, equal NaNs in a set.
    """
    if obj is None or obj is True or obj is False:  # as most options of optimizers are
        return obj
    return _Encoder(at, extend).value(obj, 0)


class _Encoder:
    """One run; ``depth`` counts the JSON arrays and objects around a value."""

    def __init__(self, at: str, extend: Extend | None) -> None:
        self._at = at
        self._extend = extend
        self._path: list[str | int] = []
        self._open: set[int] = set()
        self._values = 0

    def value(self, obj: object, depth: int) -> JsonValue:
        """Encode one object."""
        self._values += 1
        if self._values > _MAX_VALUES:
            raise self._refusal(obj, f"more than {_MAX_VALUES} values; store large data as a tensor or array")
        if obj is None or obj is True or obj is False:
            return obj
        leaf = _LEAVES.get(type(obj))
        if leaf is not None:
            return self._leaf(obj, leaf, depth)
        # Anything further may contain itself.
        if id(obj) in self._open:
            raise self._refusal(obj, "it contains itself")
        self._open.add(id(obj))
        try:
            return self._container(obj, depth)
        finally:
            self._open.discard(id(obj))

    def _container(self, obj: object, depth: int) -> JsonValue:
        kind = type(obj)
        if kind is list:
            return self._items(obj, depth)  # type: ignore[arg-type]
        if kind is dict:
            return self._dict(obj, depth)  # type: ignore[arg-type]
        if kind is tuple:
            return {"$tuple": self._items(obj, depth + 1)}  # type: ignore[arg-type]
        if kind is set:
            return {"$set": self._keys(obj, depth + 1)}  # type: ignore[arg-type]
        if kind is frozenset:
            return {"$frozenset": self._keys(obj, depth + 1)}  # type: ignore[arg-type]
        known = registered(obj)
        if known is not None:
            try:
                plain = known.to_plain(obj)
            except ValueError as problem:
                raise self._refusal(obj, str(problem)) from None
            value = self._named(known.name, plain, depth)
            if known is ORDERED_DICT:
                self._check_pairs(obj, value)
            return value
        return self._extended(obj, depth)

    def _asked(self, obj: object) -> object:
        if isinstance(obj, NamedValue | TensorValue) or self._extend is None:
            return obj
        try:
            return self._extend(obj)
        except UcpError as refusal:
            # What `extend` refuses does not know its place.
            at = refusal.at or pointer(self._at, *self._path)
            raise error(refusal.code, refusal.message, at=at) from None

    def _extended(self, obj: object, depth: int) -> JsonValue:
        made = self._asked(obj)
        if isinstance(made, TensorValue):
            return self._leaf(made, _tensor, depth)
        if not isinstance(made, NamedValue):
            raise self._refusal(obj, "the type is not one that a tagged value can express")
        if TYPE_NAME.fullmatch(made.type) is None:
            raise self._refusal(obj, f"{made.type[:80]!r} is not the name of a type")
        if made.type in BY_NAME and not is_spelled_otherwise(made):
            raise self._refusal(obj, f"{made.type} is a defined type: give the object itself")
        return self._named(made.type, made.value, depth)

    def _named(self, name: str, value: object, depth: int) -> JsonValue:
        self._check_depth(value, depth + 2)
        return {"$object": {"type": name, "value": self.value(value, depth + 2)}}

    def _check_pairs(self, obj: object, value: JsonValue) -> None:
        content = value["$object"]["value"]  # type: ignore[index,call-overload]  # as `_named` has made it
        try:
            check_pairs(content)
        except ValueError as problem:
            raise self._refusal(obj, str(problem)) from None

    def _leaf(self, obj: object, encode_leaf: Callable[[Any], JsonValue], depth: int) -> JsonValue:
        try:
            value = encode_leaf(obj)
        except ValueError as problem:
            raise self._refusal(obj, str(problem)) from None
        except UcpError as problem:
            raise self._refusal(obj, problem.message) from None
        self._check_depth(obj, depth + _levels(value))
        return value

    def _items(self, items: Sequence[object], depth: int) -> JsonValue:
        self._check_depth(items, depth + 1)
        values: list[JsonValue] = []
        for index, item in enumerate(items):
            self._path.append(index)
            values.append(self.value(item, depth + 1))
            self._path.pop()
        return values

    def _dict(self, members: dict[object, object], depth: int) -> JsonValue:
        if not all(type(name) is str and not name.startswith("$") for name in members):
            return {"$dict": self._pairs(members, depth + 1)}
        self._check_depth(members, depth + 1)
        values: dict[str, JsonValue] = {}
        for name, item in members.items():
            text = str(self.value(name, depth + 1))
            self._path.append(text)
            values[text] = self.value(item, depth + 1)
            self._path.pop()
        return values

    def _pairs(self, members: dict[object, object], depth: int) -> JsonValue:
        self._check_depth(members, depth + 2)
        pairs: list[JsonValue] = []
        texts: set[bytes] = set()
        for key, item in members.items():
            self._path.append(_label(key))
            encoded = self._key(key, depth + 2)
            texts.add(canonical_text(encoded))
            pairs.append([encoded, self.value(item, depth + 2)])
            self._path.pop()
        if len(texts) < len(pairs):
            raise self._refusal(members, "two of its keys have the same encoding")
        return pairs

    def _keys(self, items: Iterable[object], depth: int) -> JsonValue:
        self._check_depth(items, depth + 1)
        keyed = [(canonical_text(value), value) for value in (self._key(item, depth + 1) for item in items)]
        if len({text for text, _ in keyed}) < len(keyed):
            raise self._refusal(items, "two of its elements have the same encoding")
        return [value for _, value in sorted(keyed, key=lambda pair: pair[0])]

    def _key(self, key: object, depth: int) -> JsonValue:
        value = self.value(key, depth)
        if not is_key(value):
            raise self._refusal(key, "it cannot be a key or an element of a set")
        return value

    def _check_depth(self, obj: object, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._refusal(obj, f"it nests more than {MAX_DEPTH} JSON levels deep")

    def _refusal(self, obj: object, why: str) -> UcpError:
        kind = type(obj)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return error("UCP-E-OBJECT", f"cannot encode this {name}: {why}", at=pointer(self._at, *self._path))


def _label(key: object) -> str:
    """Name a key in a place, without calling code of the key or spelling out a huge integer."""
    if type(key) is str:
        return key[:40]
    return repr(key) if type(key) in {int, float} and abs(key) < 1e40 else type(key).__name__  # type: ignore[arg-type]


def _levels(leaf: JsonValue) -> int:
    if isinstance(leaf, dict):
        return 1 + max(map(_levels, leaf.values()), default=0)
    if isinstance(leaf, list):
        return 1 + max(map(_levels, leaf), default=0)
    return 0


def _string(text: str) -> JsonValue:
    if not text.isascii() and LONE_SURROGATE.search(text):
        raise ValueError("it holds a lone surrogate, which is not Unicode text")
    return text


def _bytes(data: bytes) -> JsonValue:
    return {"$bytes": bytes_to(data)}


def _complex(number: complex) -> JsonValue:
    return {"$complex": [float_to(number.real), float_to(number.imag)]}


def _array(array: NDArray[Any]) -> JsonValue:
    entry = dtype_of(array.dtype)
    return {"$array": tensor_to(TensorValue(entry.name, array.shape, element_bytes(array, entry)))}


def _tensor(tensor: TensorValue) -> JsonValue:
    return {"$tensor": tensor_to(tensor)}


_LEAVES: Final[dict[type, Callable[[Any], JsonValue]]] = {
    str: _string,
    int: integer_to,
    float: float_to,
    bytes: _bytes,
    complex: _complex,
    np.ndarray: _array,
}
