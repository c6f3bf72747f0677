"""Ways to break a good checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from generate.cases import Case, bad_case
from generate.parents import PARENTS
from ucp_conformance.drafting import Draft
from ucp_conformance.oracle.bytes_of import block_checksums

STATE = "index/a1-state.json"
INDEX = "index/a1-0.json"
PACKS = "index/a1-packs.json"
TABLE = "index/a1-0.bin"
PACK = "packs/a1-0-0.pack"
CHUNK = "atoms/alpha/value/c/0/0"
EDGE = "atoms/alpha/value/c/2/0"
Files = dict[str, bytes]


def case(
    path: str, title: str, requirements: Sequence[str], codes: str | Sequence[str], mutate: Callable[[Draft], object],
    parent: str = "packed", **options: Any,
) -> Case:  # fmt: skip
    """Return a mutation of a parent."""
    return bad_case(path, title, requirements, codes, PARENTS[parent](), mutate, parent=parent, **options)


def bent(name: str, change: Callable[[bytes], bytes]) -> Callable[[Draft], object]:
    """Bend the bytes of a document before it is digested."""

    def mutate(draft: Draft) -> None:
        draft.bytes_of[name] = change

    return mutate


def put(*path: str | int, to: Any) -> Callable[[Draft], object]:
    """Set a member: ``path`` begins with ``root``, ``state``, ``packs`` or ``index0``."""

    def mutate(draft: Draft) -> None:
        value: Any = target(draft, str(path[0]))
        for part in path[1:-1]:
            value = value[part]
        value[path[-1]] = to

    return mutate


def drop(*path: str | int) -> Callable[[Draft], object]:
    """Remove a member."""

    def mutate(draft: Draft) -> None:
        value: Any = target(draft, str(path[0]))
        for part in path[1:-1]:
            value = value[part]
        del value[path[-1]]

    return mutate


def target(draft: Draft, name: str) -> Any:
    """Return the document of that name."""
    if name.startswith("index"):
        return draft.parts[int(name[5:])].index
    if name.startswith("entry"):
        return draft.parts[int(name[5:])].entry
    return getattr(draft, name)


def inserted(text: bytes) -> Callable[[bytes], bytes]:
    """Return the mutation that inserts a member at the front of a document."""
    return lambda data: b"{" + text + b"," + data[1:]


def override(name: str, **members: Any) -> Callable[[Draft], object]:
    """Return other members of a reference than follow from the document."""

    def mutate(draft: Draft) -> None:
        draft.overrides[name] = members

    return mutate


def after(change: Callable[[Files], object]) -> Callable[[Draft], object]:
    """Change the finished files."""

    def mutate(draft: Draft) -> None:
        draft.after.append(change)

    return mutate


def without(key: str) -> Callable[[Draft], object]:
    """Return the mutation that removes an object."""
    return after(lambda files: files.pop(key))


def longer(key: str) -> Callable[[Draft], object]:
    """Return the mutation that adds a byte."""
    return after(lambda files: files.update({key: files[key] + b"\0"}))


def shorter(key: str) -> Callable[[Draft], object]:
    """Return the mutation that removes a byte."""
    return after(lambda files: files.update({key: files[key][:-1]}))


def flipped(key: str, place: int) -> Callable[[Draft], object]:
    """Return the mutation that flips one bit of an object."""

    def change(files: Files) -> None:
        data = bytearray(files[key])
        data[place] ^= 1
        files[key] = bytes(data)

    return after(change)


def table(change: Callable[[Any], object]) -> Callable[[Draft], object]:
    """Change the first table."""
    return lambda draft: change(draft.parts[0].table) and None


def field(**values: Any) -> Callable[[Draft], object]:
    """Change fields of the header."""
    return table(lambda found: found.header.update(values))


def cell(row: int, column: int, value: int) -> Callable[[Draft], object]:
    """Change a cell of a row."""

    def mutate(draft: Draft) -> None:
        draft.parts[0].table.rows[row][column] = value

    return mutate


def resum(draft: Draft, row: int) -> None:
    """Compute the checksum of a segment that was moved or cut, from the bytes that are there."""
    found = draft.parts[0].table
    container, _, offset, length, _ = found.rows[row]
    sums = block_checksums(bytes(draft.pack_data[container][offset : offset + length]))
    found.checksums[row : row + 1] = sums or [0]


def several(*changes: Callable[[Draft], object]) -> Callable[[Draft], object]:
    """Return several changes that together are one mutation."""

    def mutate(draft: Draft) -> None:
        for change in changes:
            change(draft)

    return mutate
