"""Tagged values to Python objects (SPEC section 15.1), refusing every encoding but the canonical one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import MAX_INTEGER, pointer
from ucpformat.model.values.content import (
    LONE_SURROGATE,
    MAX_DEPTH,
    TYPE_NAME,
    NamedValue,
    array_of,
    bytes_from,
    float_from,
    integer_from,
    tensor_from,
)
from ucpformat.model.values.keys import canonical_text, check_hashes, check_pairs, is_key
from ucpformat.model.values.registered import BY_NAME, ORDERED_DICT

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ucpformat.jsonio import JsonValue

__all__ = ["Restore", "decode"]

Restore: TypeAlias = Mapping[str, Callable[[Any], object]]

_OBJECT_MEMBERS: Final = frozenset({"type", "value"})


def decode(value: JsonValue, *, at: str, restore: Restore | None = None) -> object:
    """Decode the tagged value that lies at ``at``.

    ``restore`` maps names of types to functions from plain content to the object, ``$tensor`` to one from a
    `TensorValue`; such a function raises ValueError or TypeError for content that it does not take. Types
    without one come back as `NamedValue`, tensors as `TensorValue`, arrays as writable numpy arrays.

    Raises UCP-E-VALUE: an encoding that is malformed or not canonical. Raises UCP-E-LIMIT: nesting beyond 56
    levels.
    """
    return _Decoder(at, restore or {}).value(value, 0)


class _Decoder:
    """One run; ``depth`` counts the JSON arrays and objects around a value."""

    def __init__(self, at: str, restore: Restore) -> None:
        self._at = at
        self._restore = restore
        self._path: list[str | int] = []

    def value(self, value: JsonValue, depth: int) -> object:
        """Decode one value."""
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return self._string(value)  # type: ignore[arg-type]
        if kind is int:
            if abs(value) > MAX_INTEGER:  # type: ignore[arg-type]
                raise self._refusal("an integer beyond ±(2**53 - 1) must be a $int")
            return value
        if kind is float:
            if not math.isfinite(value) or value.is_integer():  # type: ignore[arg-type,union-attr]
                raise self._refusal("a float that is integral or not finite must be a $float")
            return value
        if kind is list:
            return self._items(value, depth)
        if kind is dict:
            return self._object(value, depth)  # type: ignore[arg-type]
        raise self._refusal(f"{kind.__name__} is not JSON")

    def _object(self, members: dict[str, JsonValue], depth: int) -> object:
        self._check_depth(depth + 1)
        if not any(name.startswith("$") for name in members):
            return {
                self._string(name): self._at_part(name, item, depth + 1) for name, item in members.items()
            }
        if len(members) != 1:
            raise self._refusal("an object with a member name that starts with $ has no other members")
        ((tag, body),) = members.items()
        handler = _TAGS.get(tag)
        if handler is None:
            raise self._refusal(f"{tag[:40]!r} is not a tag; a dictionary with such a key is a $dict")
        self._path.append(tag)
        try:
            result = handler(self, body, depth + 1)
        except ValueError as problem:
            raise self._refusal(str(problem)) from None
        except UcpError as problem:
            raise problem if problem.at else error(problem.code, problem.message, at=self._here()) from None
        self._path.pop()
        return result

    def _at_part(self, part: str | int, value: JsonValue, depth: int) -> object:
        self._path.append(part)
        result = self.value(value, depth)
        self._path.pop()
        return result

    def _string(self, text: str) -> str:
        if not text.isascii() and LONE_SURROGATE.search(text):
            raise self._refusal("a string holds a lone surrogate")
        return text

    def _items(self, items: JsonValue, depth: int) -> list[object]:
        self._check_depth(depth + 1)
        if type(items) is not list:
            raise self._refusal("an array is expected here")
        return [self._at_part(index, item, depth + 1) for index, item in enumerate(items)]

    def _tuple(self, body: JsonValue, depth: int) -> object:
        return tuple(self._items(body, depth))

    def _set(self, body: JsonValue, depth: int) -> object:
        return set(self._elements(body, depth))

    def _frozenset(self, body: JsonValue, depth: int) -> object:
        return frozenset(self._elements(body, depth))

    def _elements(self, body: JsonValue, depth: int) -> list[Hashable]:
        items = self._items(body, depth)
        keys = body if type(body) is list else []
        elements = [
            self._key(key, item, index) for index, (key, item) in enumerate(zip(keys, items, strict=True))
        ]
        if any(before >= after for before, after in pairwise(map(canonical_text, keys))):
            raise self._refusal("the elements are not in strictly ascending order of their canonical texts")
        check_hashes(elements)
        if len(set(elements)) != len(elements):
            raise self._refusal("two elements are equal")
        return elements

    def _key(self, key: JsonValue, item: object, *part: int) -> Hashable:
        if is_key(key):
            try:
                hash(item)
            except TypeError:
                pass
            else:
                return item
        self._path.extend(part)
        raise self._refusal("this cannot be a key or an element of a set")

    def _dict(self, body: JsonValue, depth: int) -> object:
        self._check_depth(depth + 1)
        if type(body) is not list:
            raise self._refusal("a $dict is an array of pairs")
        pairs: list[tuple[Hashable, object]] = []
        texts: set[bytes] = set()
        plain = True
        for index, pair in enumerate(body):
            if type(pair) is not list or len(pair) != 2:
                self._path.append(index)
                raise self._refusal("a pair of key and value is expected here")
            self._path.append(index)
            key, item = self._items(pair, depth + 1)
            self._path.pop()
            plain = plain and type(pair[0]) is str and not pair[0].startswith("$")
            pairs.append((self._key(pair[0], key, index, 0), item))
            texts.add(canonical_text(pair[0]))
        check_hashes(key for key, _ in pairs)
        members = dict(pairs)
        if plain:
            raise self._refusal(
                "a $dict has a key that is not a string or starts with $; else it is a plain object"
            )
        if not len(members) == len(texts) == len(body):
            raise self._refusal("two keys are equal")
        return members

    def _float(self, body: JsonValue, depth: int) -> object:
        return float_from({"$float": body})

    def _int(self, body: JsonValue, depth: int) -> object:
        return integer_from(body)

    def _bytes(self, body: JsonValue, depth: int) -> object:
        return bytes_from(body)

    def _complex(self, body: JsonValue, depth: int) -> object:
        self._check_depth(depth + 1)
        if type(body) is not list or len(body) != 2:
            raise ValueError("a $complex is an array of two floats")
        if any(type(part) is dict for part in body):
            self._check_depth(depth + 2)
        return complex(float_from(body[0]), float_from(body[1]))

    def _array(self, body: JsonValue, depth: int) -> object:
        self._check_depth(depth + 2)
        return array_of(tensor_from(body))

    def _tensor(self, body: JsonValue, depth: int) -> object:
        self._check_depth(depth + 2)
        return self._restored("$tensor", tensor_from(body))

    def _named(self, body: JsonValue, depth: int) -> object:
        self._check_depth(depth + 1)
        if type(body) is not dict or body.keys() != _OBJECT_MEMBERS:
            raise ValueError("an $object has exactly the members type and value")
        name = body["type"]
        if type(name) is not str or TYPE_NAME.fullmatch(name) is None:
            raise ValueError("the type of an $object is identifiers joined by dots, at most 200 characters")
        content = self._at_part("value", body["value"], depth + 1)
        if name in self._restore:
            return self._restored(name, content)
        known = BY_NAME.get(name)
        if name == ORDERED_DICT.name:
            check_pairs(body["value"])
        return NamedValue(name, content) if known is None else known.from_plain(content)

    def _restored(self, name: str, content: object) -> object:
        make = self._restore.get(name)
        if make is None:
            return content
        try:
            return make(content)
        except (ValueError, TypeError) as problem:
            raise self._refusal(f"{name} does not take this content: {problem}") from None

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise error(
                "UCP-E-LIMIT", f"the value nests more than {MAX_DEPTH} JSON levels deep", at=self._here()
            )

    def _here(self) -> str:
        return pointer(self._at, *self._path)

    def _refusal(self, why: str) -> UcpError:
        return error("UCP-E-VALUE", why, at=self._here())


_TAGS: Final[dict[str, Callable[[_Decoder, JsonValue, int], object]]] = {
    "$array": _Decoder._array,
    "$bytes": _Decoder._bytes,
    "$complex": _Decoder._complex,
    "$dict": _Decoder._dict,
    "$float": _Decoder._float,
    "$frozenset": _Decoder._frozenset,
    "$int": _Decoder._int,
    "$object": _Decoder._named,
    "$set": _Decoder._set,
    "$tensor": _Decoder._tensor,
    "$tuple": _Decoder._tuple,
}
