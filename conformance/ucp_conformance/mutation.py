"""Files as a vector keeps them: by what they are, or by how they differ from the parent's file of the same key.

An entry is one of:

* ``null``: the parent's file is missing here;
* ``{"json": VALUE}``: a document as `drafting.dump` writes it;
* ``{"set": {POINTER: VALUE}, "drop": [POINTER]}``: the parent's document with these members set and dropped;
* ``{"splice": [{"at": OFFSET, "cut": LENGTH, "text" or "hex": BYTES}]}``: the parent's bytes, changed from the end;
* ``{"text": STRING}``: UTF-8; ``{"hex": [LINE]}``: bytes, a line ``HEX*COUNT`` said that many times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from ucp_conformance.drafting import dump

__all__ = ["entry_of", "file_of"]

Entry = dict[str, Any]

_LINE: Final = 32
"""Bytes in a line of hexadecimal."""

_NEAR: Final = 8
"""Changes with fewer equal bytes between them are one."""


def file_of(entry: Entry, parent: bytes | None) -> bytes:
    """Return the bytes that ``entry`` stands for.

    Args:
        entry: what the vector keeps, which is not ``null``.
        parent: the parent's file of the same key, ``None`` where there is none.

    Raises:
        ValueError: for a change of a file that the parent lacks, or an entry of no known form.
    """
    match entry:
        case {"json": value}:
            return dump(value)
        case {"text": str(text)}:
            return text.encode()
        case {"hex": list(lines)}:
            return b"".join(map(_line_of, lines))
    if parent is None:
        raise ValueError(f"no file to change by {sorted(entry)}")
    match entry:
        case {"set": dict(members)}:
            return dump(_changed(json.loads(parent), members, entry.get("drop", [])))
        case {"splice": list(changes)}:
            data = bytearray(parent)
            for change in reversed(changes):
                put = change["text"].encode() if "text" in change else bytes.fromhex(change["hex"])
                data[change["at"] : change["at"] + change["cut"]] = put
            return bytes(data)
    raise ValueError(f"an entry of no known form: {sorted(entry)}")


def entry_of(data: bytes, parent: bytes | None) -> Entry:
    """Return the entry for ``data`` that says most plainly how it differs from ``parent``, its parent's file."""
    value = _document(data)
    if parent is not None:
        before = _document(parent)
        if isinstance(value, dict) and isinstance(before, dict):
            members: dict[str, Any] = {}
            dropped: list[str] = []
            _compare(before, value, "", members, dropped)
            entry: Entry = {"set": members} | ({"drop": dropped} if dropped else {})
            # A member at another place of the text, or 1 in place of 1.0, is no change of a value.
            if file_of(entry, parent) == data:
                return entry
        changes = list(_splices(parent, data))
        if 2 * sum(len(change.get("text", change.get("hex", ""))) for change in changes) < len(data):
            return {"splice": changes}
    if value is not None:
        return {"json": value}
    text = _text(data)
    return {"text": text} if text is not None else {"hex": list(_lines(data))}


def _document(data: bytes) -> Any:
    """Return the value of a document that `dump` would write just so; None for any other."""
    try:
        value = json.loads(data)
        json.dumps(value, allow_nan=False)
        return value if dump(value) == data else None
    except (ValueError, RecursionError):
        return None


def _text(data: bytes) -> str | None:
    """Return what can be read as text, as long as it is bytes of text."""
    try:
        text = data.decode()
    except ValueError:
        return None
    return text if all(character.isprintable() or character in "\n\t\r" for character in text) else None


def _compare(before: Any, after: Any, at: str, members: dict[str, Any], dropped: list[str]) -> None:
    if isinstance(before, dict) and isinstance(after, dict):
        dropped += [_below(at, key) for key in before if key not in after]
        for key, value in after.items():
            if key in before:
                _compare(before[key], value, _below(at, key), members, dropped)
            else:
                members[_below(at, key)] = value
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            _compare(one, other, f"{at}/{number}", members, dropped)
    elif dump(before) != dump(after):
        members[at] = after


def _below(at: str, key: str) -> str:
    return f"{at}/{key.replace('~', '~0').replace('/', '~1')}"


def _changed(value: Any, members: dict[str, Any], dropped: list[str]) -> Any:
    if "" in members:
        return members[""]
    for pointer in dropped:
        holder, key = _holder(value, pointer)
        del holder[key]
    for pointer, member in members.items():
        holder, key = _holder(value, pointer)
        holder[key] = member
    return value


def _holder(value: Any, pointer: str) -> tuple[Any, str | int]:
    """Return the object or array that holds the place, and the name or number of the place in it."""
    words = [word.replace("~1", "/").replace("~0", "~") for word in pointer.split("/")[1:]]
    for word in words[:-1]:
        value = value[int(word) if isinstance(value, list) else word]
    return value, int(words[-1]) if isinstance(value, list) else words[-1]


def _splices(before: bytes, after: bytes) -> Iterator[dict[str, Any]]:
    """Yield the changes that make ``after`` of ``before``, in order of their offsets."""
    if len(before) == len(after):
        places = [number for number in range(len(after)) if before[number] != after[number]]
        start = 0
        for number in range(1, len(places) + 1):
            if number == len(places) or places[number] - places[number - 1] > _NEAR:
                begin, end = places[start], places[number - 1] + 1
                yield _splice(begin, end - begin, after[begin:end])
                start = number
        return
    short = min(len(before), len(after))
    head = next((number for number in range(short) if before[number] != after[number]), short)
    rest = short - head
    tail = next((number for number in range(rest) if before[-1 - number] != after[-1 - number]), rest)
    yield _splice(head, len(before) - tail - head, after[head : len(after) - tail])


def _splice(at: int, cut: int, put: bytes) -> dict[str, Any]:
    text = _text(put)
    return {"at": at, "cut": cut} | ({"text": text} if text is not None else {"hex": put.hex()})


def _lines(data: bytes) -> Iterator[str]:
    for line, same in groupby(data[place : place + _LINE] for place in range(0, len(data), _LINE)):
        count = sum(1 for _ in same)
        yield line.hex() if count == 1 else f"{line.hex()}*{count}"


def _line_of(line: str) -> bytes:
    digits, _, count = line.partition("*")
    return bytes.fromhex(digits) * int(count or 1)
