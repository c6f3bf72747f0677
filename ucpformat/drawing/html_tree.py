"""A tree of modules as HTML for notebooks: no scripts, nothing from elsewhere, and names as text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.drawing.module_tree import module_tree
from ucpformat.html_facts import WHOLE_STYLE, facts_in_html, text_in_html
from ucpformat.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ucpformat.drawing.module_tree import AtomForm, Module

__all__ = ["html_page"]

_BESIDE: Final = 50
"""Modules that are shown beside one another, the largest first."""
_DEEPEST: Final = 12
_OPEN: Final = 2
"""Levels that are unfolded at first."""
_STYLE: Final = (
    "display:inline-block;width:6.5em;text-align:right;margin-right:.6em;opacity:.75",
    "display:inline-block;width:6em;margin-right:.6em;background:rgba(128,128,128,.15)",
    "display:inline-block;height:.7em;background:#4c8bf5",
    "margin-left:1.2em",
)
_SIZE, _TRACK, _FILL, _BELOW = _STYLE


def html_page(facts: Mapping[str, str], atoms: Iterable[AtomForm]) -> str:
    """Return facts about atoms, by name, and below them the modules of these, which fold and unfold."""
    tree = module_tree(atoms)
    heading = facts_in_html(facts)
    rows = "".join(_rows([tree], tree.nbytes, 0))
    return f'<div style="{WHOLE_STYLE}">{heading}{rows}</div>'


def _rows(modules: Sequence[Module], whole: int, level: int) -> Iterator[str]:
    order = sorted(modules, key=lambda one: -one.nbytes)
    for module in order[:_BESIDE]:
        share = 100 * module.nbytes / whole if whole else 0.0
        line = (
            f'<span style="{_SIZE}">{human_bytes(module.nbytes)}</span><span style="{_TRACK}">'
            f'<span style="{_FILL};width:{share:.1f}%"></span></span>{text_in_html(module.name)} '
            f"<small>{text_in_html(_what(module))}</small>"
        )
        if module.below and level < _DEEPEST:
            unfolded = " open" if level < _OPEN else ""
            yield f"<details{unfolded}><summary>{line}</summary>" + f'<div style="{_BELOW}">'
            yield from _rows(module.below, whole, level + 1)
            yield "</div></details>"
        else:
            yield f"<div>{line}</div>"
    if len(order) > _BESIDE:
        rest = sum(one.nbytes for one in order[_BESIDE:])
        yield f'<div><span style="{_SIZE}">{human_bytes(rest)}</span>and {len(order) - _BESIDE} others</div>'


def _what(module: Module) -> str:
    slots = "; ".join(
        f"{name} {form.dtype} {'x'.join(map(str, form.shape)) or 'scalar'}"
        for name, form in module.slots.items()
    )
    alike = f"{module.alike:,} alike" if module.alike > 1 else ""
    atoms = f"{module.atoms:,} atoms" if module.below else ""
    return ", ".join(part for part in (alike, atoms, slots) if part)
