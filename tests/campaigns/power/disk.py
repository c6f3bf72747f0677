"""A disk that may lose power: what was asked of it, what it has to hold, and what it may hold.

A file holds for certain what it held at its last sync. Each sector that was written since may be as it was then, as
it is now, or zero; the length is that of then, that of now, or between. A directory has for certain the names that it
had at its last sync. Each change of its names since may be done or not, independently of all others: nothing is
promised about their order, nor is a new file's name durable because the file is. A rename is done or not as a whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.campaigns.power.recording import Record, What

__all__ = ["Disk", "State"]

SECTOR = 512
_EXCHANGE = 2  # RENAME_EXCHANGE

State = Mapping[str, bytes | None]
"""Files by path, and directories, which have None."""


@dataclass(eq=False)
class _Node:
    """A file or a directory, by whatever names."""

    is_directory: bool
    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    is_pending: bool = False
    """Whether a file was changed since it was synced."""
    written: set[int] = field(default_factory=set)
    """Sectors that were written since."""


@dataclass(eq=False)
class _Change:
    """A change of names. Each entry is (directory, name, what it names then); None names nothing."""

    what: str
    entries: tuple[tuple[_Node, str, _Node | None], ...]
    waits: set[int]
    """The directories, by identity, that were not synced since."""


_Names = dict[int, dict[str, _Node]]
"""What is in each directory, by the directory's identity."""


class Disk:
    """What was asked of a disk so far, below ``top``."""

    def __init__(self, top: str) -> None:
        self._top = top.rstrip("/")
        self.root = _Node(is_directory=True)
        self._now: _Names = {id(self.root): {}}
        self._certain: _Names = {id(self.root): {}}
        self._pending: list[_Change] = []
        self._inodes: dict[int, _Node] = {}
        self._kept: list[_Node] = [self.root]  # identities are not given anew

    # What is asked

    def settle(self) -> None:
        """Have everything on the disk: what follows is what may be lost."""
        for node in self._kept:
            self._sync_file(node)
        self._certain = {place: dict(names) for place, names in self._now.items()}
        self._pending = []

    def do(self, one: Record) -> None:
        """Do what a record says."""
        match one.what:
            case What.MARKED:
                pass
            case What.CREATED | What.MADE:
                node = self._made(is_directory=one.what is What.MADE)
                self._inodes[one.inode] = node
                self._change(f"{one.what.name} {one.source}", (*self._find(one.source), node))
            case What.WRITTEN | What.CUT | What.ALLOCATED:
                self._write(self._inodes[one.inode], one)
            case What.SYNCED:
                if (node := self._inodes.get(one.inode, self.root)).is_directory:
                    self._sync_names(node)
                else:
                    self._sync_file(node)
            case What.UNLINKED | What.REMOVED:
                self._change(f"unlink {one.source}", (*self._find(one.source), None))
            case What.LINKED:
                self._change(f"link {one.target}", (*self._find(one.target), self._at(one.source)))
            case What.RENAMED:
                node, other = self._at(one.source), None
                if one.start & _EXCHANGE:
                    other = self._at(one.target)
                entries = (*self._find(one.source), other), (*self._find(one.target), node)
                self._change(f"rename {one.source} {one.target}", *entries)

    def _made(self, *, is_directory: bool) -> _Node:
        node = _Node(is_directory)
        self._kept.append(node)
        if is_directory:
            self._now[id(node)], self._certain[id(node)] = {}, {}
        return node

    def _find(self, path: str) -> tuple[_Node, str]:
        if not path.startswith(f"{self._top}/"):
            raise AssertionError(f"{path} is not below {self._top}")
        *parents, name = [part for part in path[len(self._top) :].split("/") if part not in ("", ".")]
        here = self.root
        for part in parents:
            here = self._now[id(here)][part]
        return here, name

    def _at(self, path: str) -> _Node:
        directory, name = self._find(path)
        return self._now[id(directory)][name]

    def _change(self, what: str, *entries: tuple[_Node, str, _Node | None]) -> None:
        _apply(self._now, entries)
        self._pending.append(_Change(what, entries, {id(directory) for directory, _, _ in entries}))

    def _sync_names(self, directory: _Node) -> None:
        left = []
        for change in self._pending:
            change.waits.discard(id(directory))
            if change.waits:
                left.append(change)
            else:
                _apply(self._certain, change.entries)
        self._pending = left

    @staticmethod
    def _sync_file(node: _Node) -> None:
        node.synced, node.is_pending = bytes(node.now), False
        node.written.clear()

    @staticmethod
    def _write(node: _Node, one: Record) -> None:
        node.is_pending = True
        if one.what is What.WRITTEN:
            stop = one.start + len(one.data)
            node.now.extend(bytes(max(0, stop - len(node.now))))
            node.now[one.start : stop] = one.data
            node.written.update(range(one.start // SECTOR, -(-stop // SECTOR)))
        elif one.what is What.CUT:
            before = len(node.now)
            del node.now[one.length :]
            node.now.extend(bytes(one.length - len(node.now)))
            first, last = sorted((before, one.length))
            node.written.update(range(first // SECTOR, -(-last // SECTOR)))
        else:
            node.now.extend(bytes(max(0, one.start + one.length - len(node.now))))

    # What may be found

    @property
    def pending(self) -> list[str]:
        """The changes of names that may be lost."""
        return [change.what for change in self._pending]

    def as_asked(self) -> State:
        """What is there while there is power."""
        return dict(self._walk(self._now, lambda node: bytes(node.now)))

    def found(self, done: Callable[[int], bool], content: Callable[[_Node], bytes]) -> State:
        """What is there after a loss of power: pending changes by their number, and what each pending file holds."""
        names = {place: dict(entries) for place, entries in self._certain.items()}
        for number, change in enumerate(self._pending):
            if done(number):
                _apply(names, change.entries)
        return dict(self._walk(names, lambda node: content(node) if node.is_pending else bytes(node.now)))

    def extremes(self) -> Iterator[State]:
        """All is done, nothing is, all but one change, one change alone; with the data of now, of then, and zeros."""
        contents: tuple[Callable[[_Node], bytes], ...] = (
            lambda node: bytes(node.now),
            lambda node: node.synced,
            lambda node: bytes(len(node.now)),
            lambda node: bytes(node.now[: len(node.now) // 2]),
        )
        for content in contents:
            yield self.found(lambda _: True, content)
            yield self.found(lambda _: False, content)
        for content in contents:
            for chosen in range(len(self._pending)):
                yield self.found(lambda number, chosen=chosen: number == chosen, content)  # type: ignore[misc]
                yield self.found(lambda number, chosen=chosen: number != chosen, content)  # type: ignore[misc]
                yield self.found(lambda number, chosen=chosen: number <= chosen, content)  # type: ignore[misc]

    def drawn(self, chance: random.Random) -> State:
        """Any changes, and any of the sectors."""
        likely = chance.choice((0.1, 0.5, 0.9))
        return self.found(lambda _: chance.random() < likely, lambda node: _torn(node, chance))

    def _walk(self, names: _Names, content: Callable[[_Node], bytes]) -> Iterator[tuple[str, bytes | None]]:
        held: dict[int, bytes] = {}  # a file of two names is one file

        def below(directory: _Node, path: str, seen: frozenset[int]) -> Iterator[tuple[str, bytes | None]]:
            for name, node in names[id(directory)].items():
                here = f"{path}/{name}".lstrip("/")
                if not node.is_directory:
                    if id(node) not in held:
                        held[id(node)] = content(node)
                    yield here, held[id(node)]
                elif id(node) not in seen:
                    yield here, None
                    yield from below(node, here, seen | {id(node)})

        return below(self.root, "", frozenset({id(self.root)}))


def _apply(names: _Names, entries: tuple[tuple[_Node, str, _Node | None], ...]) -> None:
    for directory, name, node in entries:
        if node is None:
            names[id(directory)].pop(name, None)
        else:
            names[id(directory)][name] = node


def _torn(node: _Node, chance: random.Random) -> bytes:
    """A file whose sectors came to the disk or did not."""
    length = chance.choice(
        (len(node.synced), len(node.now), chance.randint(*sorted((len(node.synced), len(node.now)))))
    )
    found = bytearray(length)
    likely = chance.choice((0.0, 0.5, 0.9, 1.0))
    for sector in range(-(-length // SECTOR)):
        start, stop = sector * SECTOR, min(length, (sector + 1) * SECTOR)
        source: bytes | bytearray = node.now
        if sector in node.written and chance.random() >= likely:
            source = chance.choice((node.synced, b""))
        part = source[start:stop]
        found[start : start + len(part)] = part
    return bytes(found)
