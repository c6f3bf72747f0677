"""What is declared is refused as the index that it becomes would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.declared import AtomSpec, Declared, SlotSpec, slot_place
from ucpformat.errors import UcpError
from ucpformat.model.atom import Atom, Slot
from ucpformat.model.index_part import IndexPart

TEXTS = st.sampled_from(["a", "b", "A", "x/y", "é", "a\n", "", "zarr.json", "c" * 70, "con"]) | st.text(
    max_size=5
)
SPECS = st.builds(
    SlotSpec,
    st.sampled_from(["float32", "bfloat16", "float31"]),
    st.lists(st.integers(-1, 2**53), max_size=3).map(tuple) | st.just((1,) * 33),
)


@given(
    st.lists(
        st.builds(
            AtomSpec,
            TEXTS,
            st.dictionaries(TEXTS, SPECS, min_size=1, max_size=3),
            st.lists(TEXTS, max_size=2).map(tuple),
        ),
        max_size=4,
    )
)
def test_atoms_are_refused_when_and_only_when_their_index_would_be(specs: list[AtomSpec]) -> None:
    try:
        declared = Declared(specs)
        declared.places(1 << 20)
    except UcpError:
        declared = None
    if declared is None:
        return
    atoms = [
        declared.atom(spec, [Slot(name, slot.dtype, slot.shape) for name, slot in spec.slots.items()])
        for spec in declared.specs
    ]
    assert list(IndexPart(tuple(atoms)).problems(at="")) == []


@given(TEXTS, TEXTS, st.dictionaries(TEXTS, SPECS, min_size=1, max_size=3), st.lists(TEXTS, max_size=2))
def test_an_atom_that_is_sound_has_no_problems(
    name: str, key: str, slots: dict[str, SlotSpec], aliases: list[str]
) -> None:
    found = tuple(Slot(each, slot.dtype, slot.shape) for each, slot in slots.items())
    atom = Atom(name, key, found, tuple(aliases))
    if atom.is_sound():
        assert list(atom.problems()) == []
    elif not aliases and name.isascii():
        assert list(atom.problems()) != []


@pytest.mark.parametrize("extent", [np.int64(4), True, 4.0])
def test_what_equals_an_integer_and_is_none_is_refused(extent: object) -> None:
    slot_place("k", "w", "value", SlotSpec("float32", (4,)), 1 << 20)  # now in the cache
    slot_place("k", "w", "value", SlotSpec("float32", (1,)), 1 << 20)
    with pytest.raises(UcpError, match="UCP-E-SHAPE") as caught:
        slot_place("k", "w", "value", SlotSpec("float32", (extent,)), 1 << 20)  # type: ignore[arg-type]
    assert caught.value.at == "w/value"
