"""Index parts as text are what their objects would be as JSON (SPEC 11.1)."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.model.test_atom import AT, parts
from ucpformat.declared import atom_text, slot_text
from ucpformat.errors import UcpError
from ucpformat.jsonio import dumps_canonical, loads
from ucpformat.model.atom import Atom
from ucpformat.model.index_part import IndexPart


def text_of(atom: Atom) -> str:
    slots = [
        slot_text(
            slot.name,
            slot.dtype,
            slot.shape,
            layout=slot.layout,
            place=slot.place,
            compressor=slot.compressor,
            content=slot.content,
            annotations=slot.annotations,
        )
        for slot in atom.slots
    ]
    return atom_text(atom.name, atom.key, slots, aliases=atom.aliases, annotations=atom.annotations)


@given(parts())
def test_the_text_is_that_of_the_objects(part: IndexPart) -> None:
    text = f'{{"atoms":[{",".join(map(text_of, part.atoms))}]}}'
    assert text.encode() == dumps_canonical(part.to_json())


@pytest.mark.parametrize("name", ['"', "\\", "\u2028", "é", "a\tb", "\x7f", "\U0001f600"])
def test_names_are_escaped(name: str) -> None:
    atom = Atom(name, "k", (), annotations={name: name})
    assert loads(text_of(atom).encode(), at=AT) == atom.to_json()


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(UcpError, match="UCP-E-JSON"):
        slot_text("value", "int8", (), annotations={"org.example": float("nan")})
