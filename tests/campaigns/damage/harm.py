"""Damage that is drawn, done to a checkpoint on a medium."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.damage.media import Directory, Medium

__all__ = ["KINDS", "Harm", "do_harm"]

SECTOR, PAGE = 512, 4096


@dataclass(frozen=True)
class Harm:
    """What was done: its kind, the keys whose bytes are others now, and those of objects that there were not."""

    kind: str
    changed: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()

    @property
    def has_effect(self) -> bool:
        """Whether anything is not as it was."""
        return bool(self.changed or self.added)

    @property
    def is_in_data(self) -> bool:
        """Whether packs or chunks have changed."""
        return any(key.startswith("packs/") or re.search(r"/c(/\d+)*$", key) for key in self.changed)

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(sorted(self.changed | self.added))}"


@dataclass(frozen=True)
class _Work:
    """A checkpoint that is about to be damaged; ``older`` is another version of it, saved at the same place."""

    chance: random.Random
    medium: Medium
    good: Mapping[str, bytes]
    older: Mapping[str, bytes]
    scratch: Path

    def key(self) -> str:
        """A key, data as likely as documents."""
        keys = sorted(self.good)
        data = [key for key in keys if key.startswith(("packs/", "atoms/", "blobs/"))]
        return self.chance.choice(data if data and self.chance.random() < 0.5 else keys)

    def change(self, kind: str, key: str, data: bytes) -> Harm:
        """Put other bytes into an object."""
        if data == self.good[key]:
            return Harm(kind)
        self.medium.put(key, data)
        return Harm(kind, frozenset({key}))


def _flip_bit(work: _Work) -> Harm:
    key = work.key()
    data = bytearray(work.good[key])
    if data:
        data[work.chance.randrange(len(data))] ^= 1 << work.chance.randrange(8)
    return work.change("flip a bit of", key, bytes(data))


def _set_byte(work: _Work) -> Harm:
    key = work.key()
    data = bytearray(work.good[key])
    if data:
        data[work.chance.randrange(len(data))] = work.chance.randrange(256)
    return work.change("set a byte of", key, bytes(data))


def _truncate(work: _Work) -> Harm:
    key = work.key()
    data = work.good[key]
    stop = work.chance.choice((0, len(data) - 1, work.chance.randint(0, len(data)), len(data) // PAGE * PAGE))
    return work.change("truncate", key, data[: max(0, stop)])


def _extend(work: _Work) -> Harm:
    key = work.key()
    tail = work.chance.choice((b"\0", b"\n", b" ", bytes(PAGE), work.chance.randbytes(64), work.good[key]))
    return work.change("extend", key, work.good[key] + tail)


def _zero(work: _Work) -> Harm:
    key = work.key()
    data = bytearray(work.good[key])
    size = work.chance.choice((SECTOR, PAGE))
    start = work.chance.randrange(-(-len(data) // size) or 1) * size
    data[start : start + size] = bytes(len(data[start : start + size]))
    return work.change(f"zero {size} bytes of", key, bytes(data))


def _swap_blocks(work: _Work) -> Harm:
    key = work.key()
    data = bytearray(work.good[key])
    size = work.chance.choice((16, 64, SECTOR, PAGE))
    count = len(data) // size
    if count > 1:
        one, other = (place * size for place in work.chance.sample(range(count), 2))
        data[one : one + size], data[other : other + size] = (
            data[other : other + size],
            data[one : one + size],
        )
    return work.change(f"swap blocks of {size} bytes in", key, bytes(data))


def _misdirect(work: _Work) -> Harm:
    """A block of another object, written here."""
    key, other = work.key(), work.key()
    data, foreign = bytearray(work.good[key]), work.good[other]
    size = work.chance.choice((SECTOR, PAGE))
    start = work.chance.randrange(-(-len(data) // size) or 1) * size
    part = foreign[start : start + size][: len(data) - start]
    data[start : start + len(part)] = part
    return work.change("misdirect a write to", key, bytes(data))


def _exchange(work: _Work) -> Harm:
    one = work.key()
    # Those of its kind are what could be taken for it.
    alike = [key for key in work.good if key != one and key.split("/")[0] == one.split("/")[0]]
    same = [key for key in alike if len(work.good[key]) == len(work.good[one])]
    others = work.chance.choice((same, alike)) or [key for key in work.good if key != one]
    other = work.chance.choice(sorted(others))
    if work.good[one] == work.good[other]:
        return Harm("exchange equal objects")
    work.medium.put(one, work.good[other])
    work.medium.put(other, work.good[one])
    return Harm("exchange", frozenset({one, other}))


def _role(key: str) -> str:
    """A key without the name of its attempt, which differs from version to version."""
    return re.sub(r"/[0-9a-f]{8,}", "/", key)


def _replay(work: _Work) -> Harm:
    key = work.key()
    before = [old for old in work.older if _role(old) == _role(key)]
    if not before:
        return Harm("replay nothing")
    return work.change("replay an older version of", key, work.older[work.chance.choice(sorted(before))])


def _replay_as_it_was(work: _Work) -> Harm:
    """All data objects of one kind are those of an older version: a restore that was incomplete."""
    room = work.chance.choice(("packs", "atoms", "index", "blobs"))
    changed = set()
    for key in sorted(work.good):
        before = [old for old in work.older if _role(old) == _role(key) and old.split("/")[0] == room]
        if before and work.older[before[0]] != work.good[key]:
            work.medium.put(key, work.older[before[0]])
            changed.add(key)
    return Harm(f"replay older {room}:", frozenset(changed))


def _delete(work: _Work) -> Harm:
    key = work.key()
    work.medium.remove(key)
    return Harm("delete", frozenset({key}))


def _add(work: _Work) -> Harm:
    """A copy under another name: in other case, or as what a listing would take for one of ours."""
    key = work.key()
    folder, _, name = key.rpartition("/")
    other = work.chance.choice((name.upper(), f"{name}.1", f"0{name}", name.swapcase()))
    added = f"{folder}/{other}".lstrip("/")
    if added in work.good:
        return Harm("add nothing")
    work.medium.put(added, work.good[key])
    return Harm("add a copy as", added=frozenset({added}))


def _add_chunk(work: _Work) -> Harm:
    """An object where the table says that a chunk is zero, or that there is none."""
    keys = [key for key in work.good if re.search(r"/c/\d", key)]
    if not keys:
        return Harm("add nothing")
    key = work.chance.choice(sorted(keys))
    folder, _, last = key.rpartition("/")
    added = f"{folder}/{int(last) + work.chance.randint(1, 3)}"
    if added in work.good:
        return Harm("add nothing")
    work.medium.put(added, work.good[key])
    return Harm("add a chunk", added=frozenset({added}))


def _repeat_member(work: _Work) -> Harm:
    """The first member of a JSON document twice: which one holds is up to the parser."""
    keys = [key for key, data in work.good.items() if data.startswith(b'{"')]
    key = work.chance.choice(sorted(keys))
    data = work.good[key]
    name = data[1 : data.index(b'"', 2) + 1]
    return work.change("repeat a member of", key, b"{" + name + b":0," + data[1:])


def _link(work: _Work) -> Harm:
    if not isinstance(work.medium, Directory):
        return _delete(work)
    key = work.key()
    if work.chance.random() < 0.3 and "/" in key:
        work.medium.replace_folder_by_link(key, work.scratch / f"folder-{work.chance.getrandbits(60):x}")
    else:
        work.medium.replace_by_link(key, work.scratch / f"file-{work.chance.getrandbits(60):x}")
    return Harm("replace by a link", frozenset({key}))


KINDS: Mapping[str, Callable[[_Work], Harm]] = {
    "flip a bit": _flip_bit,
    "set a byte": _set_byte,
    "truncate": _truncate,
    "extend": _extend,
    "zero a page or sector": _zero,
    "swap blocks": _swap_blocks,
    "misdirect a write": _misdirect,
    "exchange objects": _exchange,
    "replay an object": _replay,
    "replay a room": _replay_as_it_was,
    "delete": _delete,
    "add a copy": _add,
    "add a chunk": _add_chunk,
    "repeat a member": _repeat_member,
    "replace by a link": _link,
}


def do_harm(
    chance: random.Random,
    medium: Medium,
    good: Mapping[str, bytes],
    older: Mapping[str, bytes],
    scratch: Path,
) -> Harm:
    """Draw some damage, and do it."""
    name = chance.choice(tuple(KINDS))
    return KINDS[name](_Work(chance, medium, good, older, scratch))
