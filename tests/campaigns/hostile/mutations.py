"""Mutations that know what they mutate: JSON, pickles, archives of torch.save, safetensors, tables, and plain bytes."""

from __future__ import annotations

import io
import json
import pickletools
import random
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ["INTEGERS", "LONGEST", "SNIPPETS", "TEXTS", "mutated", "opcodes"]

LONGEST: Final = 48 << 10
"""Bytes of a mutated file: what takes more than its length allows shows in small ones, of which there can be more."""

INTEGERS: Final = (
    0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 65, 255, 256, 4095, 4096, 65535, 65536, 2**20, 2**24, 2**30, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**40, 2**52, 2**53 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -2, -128,
    -(2**31), -(2**53), -(2**63),
)  # fmt: skip
TEXTS: Final = (
    "", ".", "..", "../x", "../../outside/secret", "/etc/hostname", "/dev/zero", "a/b", "a\0b", "\n", "\x1b[2J",
    "\u202e", "\ud800", "ü", "a" * 300, "x" * 70000, "con", "C:\\x", "__proto__", "float32", "bool", "int4",
    "bfloat16", "0", "-1", "NaN",
)  # fmt: skip
_BRACKETS: Final = ((b"[", b"]"), (b'{"a":', b"}"))
SNIPPETS: Final = (
    b"cposix\nsystem\n", b"cbuiltins\neval\n", b"cos\nsystem\nX\x04\0\0\0true\x85R", b"ccollections\nOrderedDict\n)R",
    b"N", b")", b"]", b"}", b"(", b"t", b"l", b"d", b"0", b"2", b"\x85", b"\x86", b"\x87", b"R", b"b", b"Q", b"\x81",
    b"\x8f", b"\x90", b"\x91", b"\x92", b"\x93", b"\x94", b"h\0", b"h\1", b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff",
    b"q\0", b"J\xff\xff\xff\x7f", b"J\0\0\0\x80", b"\x8a\xff", b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\xff",
    b"\x8e" + b"\xff" * 8, b"\x96" + b"\xff" * 8, b"G\x7f\xf8\0\0\0\0\0\0", b"a", b"e", b"s", b"u", b"\x82\1", b"\x97",
    b"\x98", b"P0\n", b"I01\n", b"S'x'\n", b".", b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R",
)  # fmt: skip


def mutated(data: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """``data`` with one change, or a few; ``others`` are documents of the same kind to take parts of."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        ways = [_bytes, *_ways(data)]
        way = ways[-1] if draw.random() < 0.8 else ways[0]
        try:
            data = way(data, draw, others)
        except Exception:  # what is mutated may be broken already
            data = _bytes(data, draw, others)
        data = data[:LONGEST]
    return data


_Way = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


def _ways(data: bytes) -> list[_Way]:
    if data[:4] == b"PK\3\4":
        return [_archive]
    if data[:1] in (b"{", b"["):
        return [_json]
    if data[:8] == b"UCPTABLE":
        return [_words]
    if data[8:9] == b"{":
        return [_safetensors]
    if data[:1] == b"\x80":
        return [_pickle]
    return []


def _bytes(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    found = bytearray(data)
    place = (
        draw.randrange(len(found) + 1) if draw.random() < 0.6 else draw.randrange(min(len(found), 128) + 1)
    )
    match draw.randrange(9):
        case 0 if place < len(found):
            found[place] ^= 1 << draw.randrange(8)
        case 1 if place < len(found):
            found[place] = draw.randrange(256)
        case 2:
            del found[place:]
        case 3:
            del found[place : place + draw.choice((1, 2, 4, 8, 64))]
        case 4:
            found[place:place] = draw.randbytes(draw.choice((1, 2, 4, 8)))
        case 5:
            width = draw.choice((1, 2, 4, 8))
            value = draw.choice(INTEGERS) % (1 << 8 * width)
            found[place : place + width] = value.to_bytes(width, draw.choice(("little", "big")))
        case 6:
            stop = min(len(found), place + draw.choice((1, 8, 64, 512)))
            found[place:place] = found[place:stop] * draw.choice((1, 2, 8, 64))
        case 7 if others:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            found[place : place + draw.choice((0, 8, 64))] = other[
                start : start + draw.choice((1, 8, 64, 512))
            ]
        case _:
            found[place : place + 8] = draw.choice((b"\0", b"\xff", b"9", b'"', b"\x80")) * 8
    return bytes(found)


def _words(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """A word of a table, on its boundary."""
    found = bytearray(data)
    width = draw.choice((4, 8))
    place = draw.randrange(max(1, len(found) // width)) * width
    if draw.random() < 0.5:
        value = draw.choice(INTEGERS)
    else:
        value = int.from_bytes(found[place : place + width], "little") + draw.choice(
            (-64, -1, 1, 4, 64, 4096)
        )
    found[place : place + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(found)


def _places(value: Any, found: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append((value, key))
        _places(item, found)


def _json(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    if draw.random() < 0.1:
        return _json_text(data, draw)
    document = json.loads(data)
    places: list[tuple[Any, Any]] = []
    _places(document, places)
    if not places:
        return json.dumps(_leaf(draw)).encode("utf-8", "surrogatepass")
    holder, key = draw.choice(places)
    match draw.randrange(11):
        case 0 | 1 | 2:
            holder[key] = _leaf(draw)
        case 3 if isinstance(holder[key], int):
            holder[key] += draw.choice((-1, 1, 2, 64, -64))
        case 4:
            del holder[key]
        case 5:
            other, at = draw.choice(places)
            holder[key] = json.loads(json.dumps(other[at]))
        case 6 if isinstance(holder[key], list):
            holder[key] = (holder[key] or [0]) * draw.choice((2, 3, 33, 1000, 20000))
        case 7 if isinstance(holder[key], dict):
            for number in range(draw.choice((1, 3, 100, 5000))):
                holder[key][f"{draw.choice(TEXTS)[:40]}{number}"] = _leaf(draw)
        case 8:
            value = holder[key]
            for _ in range(draw.choice((1, 2, 40, 70, 500))):
                value = [value]
            holder[key] = value
        case 9 if isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder.pop(key)
        case _:
            other, at = draw.choice(places)
            holder[key], other[at] = other[at], holder[key]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _json_text(data: bytes, draw: random.Random) -> bytes:
    """What a tree of Python's cannot be: names that occur twice, deep nesting, numbers of any spelling."""
    place = data.find(draw.choice((b",", b":", b"[", b"{")), draw.randrange(len(data))) + 1
    if draw.random() < 0.5:
        opened, closed = draw.choice(_BRACKETS)
        depth = draw.choice((3, 64, 65, 1000, 100_000))
        return data[:place] + opened * depth + b"1" + closed * depth + data[place:]
    spelled = draw.choice(
        (
            b"1e999,",
            b"NaN,",
            b"-0,",
            b"1.0,",
            b"1e0,",
            b"9" * 5000 + b",",
            b'"\\ud800",',
            b'"a":1,"a":2,',
            b"\xff",
            b"-,",
            b"01,",
        )
    )
    return data[:place] + spelled + data[place:]


def _leaf(draw: random.Random) -> Any:
    match draw.randrange(6):
        case 0 | 1:
            return draw.choice(INTEGERS)
        case 2:
            return draw.choice(TEXTS)
        case 3:
            return draw.choice((None, True, False, [], {}, [[]], [0], {"": 0}))
        case 4:
            return draw.choice((0.5, -0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), 2.0**53, 1e22))
        case _:
            return [draw.choice(INTEGERS) for _ in range(draw.choice((1, 2, 4, 33)))]


def _safetensors(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + size], draw, ())
    size = draw.choice(INTEGERS) % 2**64 if draw.random() < 0.05 else len(header)
    return size.to_bytes(8, "little") + header + data[8 + int.from_bytes(data[:8], "little") :]


def opcodes(data: bytes) -> list[bytes]:
    """The opcodes of the first pickle and its rest, which is the last item."""
    found, start = [], 0
    stream = io.BytesIO(data)
    for opcode, _, _ in pickletools.genops(stream):
        stop = stream.tell()
        found.append(data[start:stop])
        start = stop
        if opcode.name == "STOP":
            break
    return [*found, data[start:]]


def _pickle(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    codes = opcodes(data)
    place = draw.randrange(1, len(codes))
    match draw.randrange(8):
        case 0:
            codes[place:place] = [draw.choice(SNIPPETS) for _ in range(draw.choice((1, 1, 2, 4)))]
        case 1:
            del codes[place]
        case 2:
            codes.insert(place, codes[place])
        case 3:
            other = draw.randrange(1, len(codes))
            codes[place], codes[other] = codes[other], codes[place]
        case 4:
            stop = min(len(codes), place + draw.choice((1, 4, 16)))
            codes[place:place] = codes[place:stop] * draw.choice((1, 2, 30, 1000))
        case 5:
            numbers = [at for at, code in enumerate(codes) if code[:1] in b"KMJ\x8a"]
            value = draw.choice(INTEGERS)
            raw = value.to_bytes(16, "little", signed=True)
            codes[draw.choice(numbers)] = b"\x8a\x10" + raw if abs(value) >= 2**31 else b"J" + raw[:4]
        case 6:
            texts = [at for at, code in enumerate(codes) if code[:1] in b"X\x8c"]
            text = draw.choice(TEXTS).encode("utf-8", "surrogatepass")
            codes[draw.choice(texts)] = b"X" + len(text).to_bytes(4, "little") + text
        case _:
            # A memo that doubles: 2^n of what is there, in 5 n bytes.
            double = b"".join(
                b"q%c0h%ch%c\x86" % (200, 200, 200) for _ in range(draw.choice((3, 20, 60, 2000)))
            )
            codes.insert(place, double)
    return b"".join(codes)


def _archive(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    if draw.random() < 0.25:
        return _bytes(data, draw, others)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = [(name, archive.read(name)) for name in archive.namelist()]
    pickles = [at for at, (name, _) in enumerate(records) if name.endswith(".pkl")]
    at = draw.choice(pickles) if pickles and draw.random() < 0.75 else draw.randrange(len(records))
    name, content = records[at]
    compression = zipfile.ZIP_STORED
    match draw.randrange(12):
        case 0:
            records.insert(draw.randrange(len(records)), records[at])
        case 1:
            del records[at]
        case 2:
            text = draw.choice(TEXTS).encode("utf-8", "replace").decode()[:60000].replace("\0", "0")
            records[at] = (text, content)
        case 3:
            compression = draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
        case _:
            changed = _pickle(content, draw, ()) if name.endswith(".pkl") else _bytes(content, draw, ())
            records[at] = (name, changed)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in records:
            if name not in archive.namelist() or draw.random() < 0.5:
                archive.writestr(name or "x", content)
    return out.getvalue()
