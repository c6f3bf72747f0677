"""Objects of a DCP checkpoint as tagged values; whatever a stranger writes there is refused, never a crash."""

from __future__ import annotations

import collections
import datetime
import pathlib
import sys
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.builders import result_or_refusal
from tests.conversion.formats.dcp.make import odd_objects
from tests.conversion.formats.dcp.stand_ins import spelled, stand_in
from ucpformat.errors import UcpError
from ucpformat.jsonio import JsonValue
from ucpformat.model import values
from ucpformat.state_dict import objects as live_objects
from ucpformat.tensor_files.revive import revive
from ucpformat.tensor_files.tagged import RESTORE, decode, encode

NAMES = sorted(RESTORE.keys() - {"$tensor"})
INEXPRESSIBLE = ("text", "numpy", "time")


@pytest.mark.parametrize("name", [name for name in odd_objects() if name not in INEXPRESSIBLE])
def test_there_and_back(name: str) -> None:
    plain = stand_in(odd_objects()[name])
    back = decode(encode(plain, at=name), at=name)
    assert spelled(stand_in(revive(back, name))) == spelled(plain)


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_has_no_tag_is_refused_by_name(name: str) -> None:
    with pytest.raises(UcpError) as caught:
        encode(stand_in(odd_objects()[name]), at=name)
    assert caught.value.code == "UCP-E-OBJECT"
    assert caught.value.at.startswith(name)


def test_a_time_zone_with_a_name_of_its_own_is_not_made_anonymous() -> None:
    hour = datetime.timedelta(hours=1)
    for zone in (datetime.UTC, datetime.timezone(hour), datetime.timezone(-hour)):
        assert repr(decode(encode(zone, at="z"), at="z")) == repr(zone)
    with pytest.raises(UcpError) as caught:
        encode([datetime.timezone(hour, "CET")], at="z")
    assert (caught.value.code, caught.value.at) == ("UCP-E-OBJECT", "z#/0")


contents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.sampled_from(["float32", "torch.strided", "cpu", "cuda:x", "<f4", "list", "", "O", "exec"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
        | st.lists(inner, max_size=3).map(lambda items: {"$tuple": items})
    ),
    max_leaves=5,
)


@given(st.sampled_from(NAMES), contents)
def test_any_content_is_taken_or_refused(name: str, content: Any) -> None:
    """UCP-S-002, UCP-S-004: a number is not a length to allocate, a name is not a thing to import."""
    value: JsonValue = {"$object": {"type": name, "value": content}}
    found = result_or_refusal(lambda: revive(decode(value, at="x"), "x"))
    if isinstance(found, UcpError):
        assert found.code in ("UCP-E-VALUE", "UCP-E-OBJECT")
    else:
        assert type(found).__name__ != "NamedValue"
    for restore in (live_objects.WITH_TORCH, live_objects.WITHOUT_TORCH):
        again = result_or_refusal(partial(values.decode, value, at="x", restore=restore))
        if isinstance(found, UcpError) and isinstance(again, UcpError):
            assert again.code == "UCP-E-VALUE"
        else:
            assert restore is live_objects.WITHOUT_TORCH or type(again) is type(found)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("builtins.bytearray", 10**15),
        ("builtins.range", [1, 2, 0]),
        ("builtins.range", "ab"),
        ("collections.Counter", [["a", 1]]),
        ("collections.defaultdict", ["eval", {}]),
        ("collections.defaultdict", ["list", []]),
        ("collections.defaultdict", []),
        ("datetime.timezone", "UTC"),
        ("numpy.dtype", "float32"),
        ("numpy.dtype", "nonsense"),
        ("numpy.dtype", {"names": ["a"]}),
        ("torch.Size", [1, "2"]),
        ("torch.device", "cuda:x"),
        ("torch.dtype", "nn"),
        ("torch.dtype", ["float32"]),
        ("torch.layout", "torch.load"),
        ("torch_dcp.PosixPath", 5),
    ],
)
def test_wrong_content_is_refused(name: str, content: Any) -> None:
    value: JsonValue = {"$object": {"type": name, "value": content}}
    with pytest.raises(UcpError) as caught:
        revive(decode(value, at="x"), "x")
    assert caught.value.code in ("UCP-E-VALUE", "UCP-E-OBJECT")
    with pytest.raises(UcpError) as caught:
        values.decode(value, at="x", restore=live_objects.WITH_TORCH)
    assert caught.value.code == "UCP-E-VALUE"


@pytest.mark.parametrize("dtype", ["int4", "float8_e3m4"])
def test_tensors_of_types_that_torch_lacks_are_refused(dtype: str) -> None:
    value: JsonValue = {"$tensor": {"dtype": dtype, "shape": [1], "data": "AA=="}}
    with pytest.raises(UcpError) as caught:
        revive(decode(value, at="x"), "x")
    assert caught.value.code == "UCP-E-OBJECT"
    with pytest.raises(UcpError) as caught:
        values.decode(value, at="x", restore=live_objects.WITH_TORCH)
    assert caught.value.code == "UCP-E-DTYPE"
    array: Any = values.decode(value, at="x", restore=live_objects.WITHOUT_TORCH)
    assert (array.dtype.name, array.shape) == (dtype, (1,))


def live(obj: object) -> object:
    """Encoded and decoded as `save` and `load` do it."""
    encoded = values.encode(obj, at="x", extend=live_objects.extend)
    return values.decode(encoded, at="x", restore=live_objects.WITH_TORCH)


LIVE = [
    bytearray(b"xy"),
    range(1, 9, 2),
    (collections.Counter("aab"), collections.defaultdict(list, a=[1]), collections.defaultdict(None, {1: 2})),
    datetime.UTC,
    np.dtype("<i4"),
    (torch.Size([1, 2]), torch.bfloat16, torch.device("cuda:1"), torch.strided),
    (torch.arange(6).reshape(2, 3).t(), torch.tensor(2.5, dtype=torch.bfloat16), torch.empty(0, 3)),
    pathlib.PurePosixPath("/a"),
    {"nested": [collections.defaultdict(int, {"a": 1})]},
]


@pytest.mark.parametrize("obj", LIVE, ids=lambda obj: type(obj).__name__)
def test_live_objects_come_back(obj: object) -> None:
    assert spelled(stand_in(live(obj))) == spelled(stand_in(obj))


@pytest.mark.parametrize("obj", LIVE, ids=lambda obj: type(obj).__name__)
def test_live_objects_and_imported_ones_are_written_alike(obj: object) -> None:
    assert values.encode(obj, at="x", extend=live_objects.extend) == encode(stand_in(obj), at="x")


def test_without_torch_its_objects_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert live_objects.extend(object()) is None


class Tally(collections.Counter[str]):
    """A subclass is another type."""


@pytest.mark.parametrize(
    "obj",
    [
        Tally("ab"),
        collections.defaultdict(lambda: 0),
        collections.defaultdict(collections.Counter),
        datetime.timezone(datetime.timedelta(hours=1), "CET"),
        np.dtype([("a", "i4")]),
        torch.nn.Linear(1, 1),
        lambda: 0,
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_live_objects_that_cannot_be_told_in_full_are_refused(obj: object) -> None:
    with pytest.raises(UcpError) as caught:
        values.encode([obj], at="x", extend=live_objects.extend)
    assert (caught.value.code, caught.value.at) == ("UCP-E-OBJECT", "x#/0")
