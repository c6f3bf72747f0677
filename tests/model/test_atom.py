"""Index parts: places of refusals, names, keys, data types, shapes (SPEC 11.1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat import jsonio
from ucpformat.errors import UcpError
from ucpformat.geometry import BufferPlace
from ucpformat.jsonio import JsonValue
from ucpformat.model.atom import Atom, Slot
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES
from ucpformat.model.index_part import IndexPart

AT = "index/x-0.json"
names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
entries = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)
places = st.builds(BufferPlace, entries, entries, st.lists(st.sampled_from("abc"), max_size=2).map(tuple))


@st.composite
def slots(draw: st.DrawFn) -> tuple[Slot, ...]:
    found = draw(
        st.lists(
            st.sampled_from(["exp_avg", "exp_avg_sq", "master", "step", "value"]), unique=True, min_size=1
        )
    )
    return tuple(
        Slot(
            name,
            draw(st.sampled_from(sorted(DTYPES))),
            draw(shapes),
            draw(st.none() | st.integers(0, 3)),
            draw(st.none() | st.just(Compressor("gzip", {"level": 1}))),
            draw(st.none() | st.just("crc32c-tree:" + "0" * 64)),
            draw(st.just({}) | st.just({"org.example": [1, None]})),
            draw(st.none() | places),
        )
        for name in sorted(found)
    )  # fmt: skip


@st.composite
def parts(draw: st.DrawFn) -> IndexPart:
    found = draw(st.lists(names, min_size=2, max_size=8, unique=True))
    split = draw(st.integers(1, len(found)))
    owners, aliases = sorted(found[:split]), found[split:]
    return IndexPart(
        tuple(
            Atom(name, f"key-{index}", draw(slots()), tuple(aliases) if index == 0 else ())
            for index, name in enumerate(owners)
        )
    )


@given(parts())
def test_a_part_survives_the_way_through_json(part: IndexPart) -> None:
    value = jsonio.loads(jsonio.dumps_canonical(part.to_json()), at=AT)
    assert IndexPart.from_json(value, at=AT) == part


@given(parts())
def test_order_is_that_of_utf8_bytes(part: IndexPart) -> None:
    """UCP-D-024."""
    encoded = [atom.name.encode() for atom in part.atoms]
    assert encoded == sorted(encoded)
    if len(part.atoms) > 1:
        problems = list(IndexPart(part.atoms[::-1]).problems(at=AT))
        assert "UCP-E-NAME" in {problem.code for problem in problems}


def atom(**changes: Any) -> dict[str, Any]:
    value = {"dtype": "float32", "shape": [2]}
    return {"name": "w", "key": "w", "slots": {"exp_avg": value, "value": value}, **changes}


def refusal(*atoms: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(UcpError) as caught:
        IndexPart.from_json({"atoms": list(atoms)}, at=AT)
    assert caught.value.at.startswith(f"{AT}#")
    return caught.value.code, caught.value.at.removeprefix(f"{AT}#/atoms")


def slot(**changes: Any) -> dict[str, Any]:
    return {"slots": {"value": {"dtype": "float32", "shape": [2], **changes}}}


@pytest.mark.parametrize(
    ("changes", "code", "at"),
    [
        (slot(dtype=3), "UCP-E-SCHEMA", "/slots/value/dtype"),
        (slot(shape=[2, -1]), "UCP-E-SCHEMA", "/slots/value/shape/1"),
        (slot(x=1), "UCP-E-SCHEMA", "/slots/value/x"),
        (slot(compressor={"name": "gzip", "configuration": {"level": 10}}), "UCP-E-SCHEMA",
         "/slots/value/compressor/configuration/level"),
        ({"slots": {"a/b~": []}}, "UCP-E-SCHEMA", "/slots/a~1b~0"),
        ({"slots": {}}, "UCP-E-SCHEMA", "/slots"),
        ({"aliases": ["a", 1]}, "UCP-E-SCHEMA", "/aliases/1"),
        ({"name": ""}, "UCP-E-NAME", "/name"),
        ({"name": "\x00"}, "UCP-E-NAME", "/name"),
        ({"name": "é" * 513}, "UCP-E-NAME", "/name"),
        ({"aliases": ["a\n"]}, "UCP-E-NAME", "/aliases/0"),
        ({"aliases": ["w"]}, "UCP-E-NAME", "/aliases/0"),
        ({"aliases": ["a", "a"]}, "UCP-E-NAME", "/aliases/1"),
        ({"key": "a/b"}, "UCP-E-KEY", "/key"),
        ({"key": ".."}, "UCP-E-KEY", "/key"),
        ({"key": "zarr.json"}, "UCP-E-KEY", "/key"),
        ({"key": "ZARR.json"}, "UCP-E-KEY", "/key"),
        ({"slots": {"zarr.json": {"dtype": "int8", "shape": []}}}, "UCP-E-KEY", "/slots/zarr.json"),
        ({"key": "__a"}, "UCP-E-KEY", "/key"),
        ({"key": "w\n"}, "UCP-E-KEY", "/key"),
        ({"key": "k" * 201}, "UCP-E-KEY", "/key"),
        ({"slots": {"s" * 65: {"dtype": "int8", "shape": []}}}, "UCP-E-KEY", "/slots/" + "s" * 65),
        ({"slots": {"a b": {"dtype": "int8", "shape": []}}}, "UCP-E-KEY", "/slots/a b"),
        ({"slots": {"A": {"dtype": "int8", "shape": []}, "a": {"dtype": "int8", "shape": []}}}, "UCP-E-KEY",
         "/slots/a"),
        (slot(dtype="float31"), "UCP-E-DTYPE", "/slots/value/dtype"),
        (slot(shape=[1] * 33), "UCP-E-SHAPE", "/slots/value/shape"),
        (slot(shape=[2**51]), "UCP-E-SHAPE", "/slots/value/shape"),
        (slot(shape=[0, 2**51]), "UCP-E-SHAPE", "/slots/value/shape"),
    ],
)  # fmt: skip
def test_an_atom_is_refused_at_its_place(changes: dict[str, Any], code: str, at: str) -> None:
    """UCP-D-010, UCP-D-015, UCP-D-016, UCP-D-023, UCP-D-028 to UCP-D-031, UCP-D-033 to UCP-D-035,
    UCP-R-015, UCP-R-016.
    """
    other = atom(name="a-first", key="other")
    assert refusal(other, atom(**changes)) == (code, f"/1{at}")


@pytest.mark.parametrize(
    ("first", "second", "code", "at"),
    [
        ({"name": "b"}, {"name": "b", "key": "v"}, "UCP-E-NAME", "/1/name"),
        ({"name": "b"}, {"name": "a", "key": "v"}, "UCP-E-NAME", "/1/name"),
        ({"name": "a", "aliases": ["b"]}, {"name": "b", "key": "v"}, "UCP-E-NAME", "/1/name"),
        ({"name": "a"}, {"name": "b", "key": "W"}, "UCP-E-KEY", "/1/key"),
    ],
)
def test_two_atoms_that_clash_are_refused(
    first: dict[str, Any], second: dict[str, Any], code: str, at: str
) -> None:
    """UCP-D-017, UCP-D-024, UCP-D-028."""
    assert refusal(atom(**first), atom(**second)) == (code, at)


def test_structure_takes_precedence_over_content_that_comes_before() -> None:
    assert refusal(atom(key="a/b"), atom(name=3)) == ("UCP-E-SCHEMA", "/1/name")
    assert refusal(atom(**slot(dtype="x")), atom(name="x", key="..")) == ("UCP-E-KEY", "/1/key")


def test_the_largest_slot_is_not_refused() -> None:
    largest = Slot("value", "int8", (2**53 - 1, 0))
    assert largest.problems() == ()


def test_layouts_are_checked_against_the_root() -> None:
    """UCP-D-032."""
    part = IndexPart.from_json({"atoms": [atom(**slot(layout=2))]}, at=AT)
    assert list(part.reference_problems(3, at=AT)) == []
    (problem,) = part.reference_problems(2, at=AT)
    assert (problem.code, problem.at) == ("UCP-E-REFERENCE", f"{AT}#/atoms/0/slots/value/layout")


def test_slots_are_found_by_name() -> None:
    found = Atom.from_json(atom(), at=AT)
    assert found.slot("value").name == "value"
    with pytest.raises(KeyError):
        found.slot("master")


def test_slots_are_in_order_of_name_whatever_the_document_says() -> None:
    """UCP-D-029."""
    slots: JsonValue = {name: {"dtype": "int8", "shape": []} for name in ("b", "10", "9", "a")}
    value: JsonValue = {"name": "w", "key": "w", "slots": slots}
    assert [slot.name for slot in Atom.from_json(value, at="x").slots] == ["10", "9", "a", "b"]


def test_a_part_has_an_atom() -> None:
    """UCP-D-025."""
    with pytest.raises(UcpError) as caught:
        IndexPart.from_json({"atoms": []}, at=AT)
    assert (caught.value.code, caught.value.at) == ("UCP-E-SCHEMA", f"{AT}#/atoms")
