"""Atoms as a tree of modules, with what repeats folded: ``blocks.0..47`` stands for 48 modules that are alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["AtomForm", "Module", "SlotForm", "Sort", "module_tree", "rows_of_tree"]

Sort = Literal["size", "name"]
"""Modules beside one another: the largest first, or in the order of their names, numbers as numbers."""

_ROOT: Final = "all"
_DEEPEST: Final = 64
"""What is deeper is one name: names come from anybody."""


class SlotForm(NamedTuple):
    """A slot's data type, shape in elements, and logical bytes."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class AtomForm(NamedTuple):
    """An atom's name, and its slots by name."""

    name: str
    slots: Mapping[str, SlotForm]


@dataclass(frozen=True, slots=True)
class Module:
    """A module, or ``alike`` of them, with all that is below.

    ``nbytes`` and ``atoms`` count all of them; ``slots`` are those of the atom of just this name, if there is one.
    """

    name: str
    nbytes: int
    atoms: int
    slots: Mapping[str, SlotForm]
    below: tuple[Module, ...] = ()
    alike: int = 1


@dataclass(slots=True)
class _Node:
    slots: Mapping[str, SlotForm] = field(default_factory=dict)
    below: dict[str, _Node] = field(default_factory=dict)
    form: int = 0


def module_tree(atoms: Iterable[AtomForm]) -> Module:
    """Return the tree of atoms by the dots in their names.

    Neighbours with numbers for names that hold the same (names, data types, shapes) are one module, and so is a module
    that holds nothing but one other.

    >>> forms = {"value": SlotForm("float32", (4, 4), 64)}
    >>> tree = module_tree(AtomForm(f"blocks.{n}.w", forms) for n in range(48))
    >>> [(one.name, one.alike, one.nbytes) for one in tree.below]
    [('blocks.0..47.w', 48, 3072)]
    """
    top = _Node()
    for atom in atoms:
        node = top
        for part in atom.name.split(".", _DEEPEST):
            node = node.below.setdefault(part, _Node())
        node.slots = atom.slots
    _find_forms(top)
    below = tuple(_modules(top, 1))
    return Module(_ROOT, sum(one.nbytes for one in below), sum(one.atoms for one in below), {}, below)


def _find_forms(top: _Node) -> None:
    """Give each node a number that all have that hold the same."""
    numbers: dict[object, int] = {}
    order, waiting = [], [top]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += node.below.values()
    for node in reversed(order):
        held = tuple(sorted((name, *form) for name, form in node.slots.items()))
        key = held, tuple(sorted((name, one.form) for name, one in node.below.items()))
        node.form = numbers.setdefault(key, len(numbers))


def _modules(node: _Node, times: int) -> Iterator[Module]:
    """Yield the modules below a node that stands for ``times`` others."""
    numbered = sorted((int(name), name) for name in node.below if name.isascii() and name.isdecimal())
    runs = groupby(enumerate(numbered), lambda one: (one[1][0] - one[0], node.below[one[1][1]].form))
    for _, run in runs:
        names = [name for _, (_, name) in run]
        name = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        yield _module(name, node.below[names[0]], times, len(names))
    known = {name for _, name in numbered}
    for name in sorted(node.below.keys() - known):
        yield _module(name, node.below[name], times, 1)


def _module(name: str, node: _Node, times: int, alike: int) -> Module:
    while not node.slots and len(node.below) == 1:
        ((inner, node),) = node.below.items()
        name = f"{name}.{inner}"
    below = tuple(_modules(node, times * alike))
    if not node.slots and len(below) == 1:  # all below it is alike
        one = below[0]
        return Module(f"{name}.{one.name}", one.nbytes, one.atoms, one.slots, one.below, alike * one.alike)
    own = sum(slot.nbytes for slot in node.slots.values()) * times * alike
    atoms = bool(node.slots) * times * alike
    return Module(
        name,
        own + sum(one.nbytes for one in below),
        atoms + sum(one.atoms for one in below),
        node.slots,
        below,
        alike,
    )


def rows_of_tree(tree: Module, *, depth: int, sort: Sort, most: int) -> Iterator[tuple[int, Module]]:
    """Yield modules from above, each with its depth.

    Of more than ``most`` that are beside one another the rest is one, called ``and 7 others``.
    """
    waiting = [(0, tree)]
    while waiting:
        level, module = waiting.pop()
        yield level, module
        below = list(module.below) if level < depth else []
        if sort == "size":
            below.sort(key=lambda one: -one.nbytes)
        if len(below) > most:
            rest = below[most - 1 :]
            nbytes, atoms = sum(one.nbytes for one in rest), sum(one.atoms for one in rest)
            below[most - 1 :] = [Module(f"and {len(rest)} others", nbytes, atoms, {})]
        waiting += [(level + 1, one) for one in reversed(below)]
