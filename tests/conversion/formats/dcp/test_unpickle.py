from __future__ import annotations

import codecs
import datetime
import os
import pickle
import struct
import zlib
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.conversion.formats.dcp.stand_ins import spelled
from ucpformat.errors import UcpError
from ucpformat.tensor_files import object_tree
from ucpformat.tensor_files.allowed_globals import METADATA_GLOBALS, OBJECT_GLOBALS
from ucpformat.tensor_files.object_tree import Limits, check_tree
from ucpformat.tensor_files.unpickle import unpickle

LIMITS = Limits(pickle_bytes=1 << 20, nodes=1 << 16, depth=50)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.just(datetime.UTC) | st.none())
    | st.timedeltas()
    | st.dates()
    | st.times()
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
)
hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
        | st.sets(hashable)
        | st.dictionaries(hashable, st.integers()).map(Counter)
        | st.binary().map(bytearray)
    ),
    max_leaves=20,
)


def read(data: bytes, limits: Limits = LIMITS) -> Any:
    value = unpickle(data, OBJECT_GLOBALS, at="item", limits=limits)
    check_tree((value,), at="item", limits=limits)
    return value


@given(values, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    found = read(pickle.dumps(value, protocol))
    # Spelled: NaN equals itself, -0.0 does not equal 0.0, True is not 1.
    assert spelled(found) == spelled(pickle.loads(pickle.dumps(value, protocol)))
    assert type(found) is type(value)


@given(values, st.sampled_from([2, 4]), st.data())
def test_a_cut_or_changed_pickle_is_refused_or_read_but_never_more(
    value: object, protocol: int, data: st.DataObject
) -> None:
    whole = bytearray(pickle.dumps(value, protocol))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(UcpError) as caught:
        read(bytes(whole[:cut]))
    assert caught.value.code in ("UCP-E-PICKLE", "UCP-E-LIMIT")
    whole[cut] = data.draw(st.integers(0, 255))
    try:
        read(bytes(whole))
    except UcpError as problem:
        assert problem.code in ("UCP-E-PICKLE", "UCP-E-LIMIT")  # noqa: PT017


@given(st.binary(max_size=200))
def test_noise_is_refused_in_order(noise: bytes) -> None:
    for table in (OBJECT_GLOBALS, METADATA_GLOBALS):
        try:
            unpickle(b"\x80\x04" + noise + b".", table, at="item", limits=LIMITS)
        except UcpError as problem:
            assert problem.code in ("UCP-E-PICKLE", "UCP-E-LIMIT")  # noqa: PT017


class Attack:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("table", [OBJECT_GLOBALS, METADATA_GLOBALS])
def test_code_does_not_run(tmp_path: Path, protocol: int, table: Any) -> None:
    mark = tmp_path / "ran"
    attacks = [
        Attack(os.system, f"touch {mark}"),
        Attack(eval, f"open({str(mark)!r}, 'w')"),
        Attack(getattr, os, "mkdir") if False else Attack(os.mkdir, str(mark)),
        Attack(Path.touch, mark),
        Attack(zlib.compress, b"x"),
    ]
    for attack in attacks:
        with pytest.raises(UcpError) as caught:
            unpickle(pickle.dumps([attack], protocol), table, at="the file")
        assert caught.value.code == "UCP-E-PICKLE"
        assert caught.value.at == "the file"
        assert "allow-list" in caught.value.message
        assert not mark.exists()


def test_a_refusal_names_the_global() -> None:
    with pytest.raises(UcpError, match=r"posix\.system"):
        read(pickle.dumps(Attack(os.system, "true")))


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # protocol 0
        b"(S'true'\nios\nsystem\n.",  # INST
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02cbuiltins\neval\nq\x00X\x01\x00\x00\x001\x85R.",
        b"\x80\x02ctorch\nSize\n.",  # a constructor is not data
        b"\x80\x02cbuiltins\nint\nX\x01\x00\x00\x001\x85R.",  # may be named, not called
        b"\x80\x02ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00aK\x01sb.",  # state of a dict
        b"\x80\x02U\x01aQ.",  # a persistent id where there are none
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
        b"\x80\x02K\x01K\x02.",  # two values
        b"\x80\x02K\x01.x",  # something after the end
        b"\x80\x02}]K\x01s.",  # a list as a key
        b"\x80\x06N.",
        b"\x82\x01.",  # extension registry
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(UcpError) as caught:
        read(data)
    assert caught.value.code == "UCP-E-PICKLE"


def test_a_memo_index_allocates_nothing() -> None:
    assert read(b"\x80\x02Nr\xff\xff\xff\xff.") is None


def test_a_length_beyond_the_end_allocates_nothing() -> None:
    for opcode in (b"\x96", b"\x8e", b"\x8d"):
        with pytest.raises(UcpError, match="truncated"):
            read(b"\x80\x05" + opcode + struct.pack("<Q", 1 << 60) + b"x.")


def laughs(levels: int) -> bytes:
    """A tuple of two of a tuple of two ...: 2**levels parts from 5 bytes each."""
    return b"\x80\x02)" + b"q\x00h\x00\x86" * levels


@pytest.mark.parametrize(
    "data",
    [
        laughs(60) + b".",
        b"\x80\x02}" + laughs(60)[2:] + b"Ns.",  # hashed as a key
        b"\x80\x04\x8f(" + laughs(60)[2:] + b"\x90.",  # hashed in a set
        b"\x80\x02" + b"]" * 200 + b"a" * 199 + b".",
        b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"Ns.",  # a deep key
        b"\x80\x02\x8b\xff\xff\xff\x7f" + b"x" * 10 + b".",
        # A kilobyte of text, encoded ten thousand times.
        b"\x80\x02](c_codecs\nencode\nq\x00X\x00\x04\x00\x00"
        + b"x" * 1024
        + b"X\x06\x00\x00\x00latin1\x86q\x01R"
        + b"h\x00h\x01R" * 10_000
        + b"e.",
    ],
)
def test_limits(data: bytes) -> None:
    with pytest.raises(UcpError) as caught:
        read(data)
    assert caught.value.code == "UCP-E-LIMIT"


@pytest.mark.parametrize(
    "data",
    [
        laughs(60) + b"X\x01\x00\x00\x00a\x93.",  # the module of a global
        b"\x80\x04\x8c\x01a" + laughs(60)[2:] + b"\x93.",
        b"\x80\x02cnumpy\ndtype\nq\xff" + laughs(60)[2:] + b"\x85R.",
        b"\x80\x02ctorch.serialization\n_get_layout\nq\xff" + laughs(60)[2:] + b"\x85R.",
        b"\x80\x02cdatetime\ntimedelta\nq\xff" + laughs(60)[2:] + b"K\x01K\x01\x87R.",
        b"\x80\x02ccollections\nCounter\nq\xff" + laughs(60)[2:] + b"\x85R.",
    ],
)
def test_what_never_ends_is_not_shown(data: bytes) -> None:
    """A refusal that spelled such a value would take 2**60 steps."""
    with pytest.raises(UcpError) as caught:
        read(data)
    assert caught.value.code == "UCP-E-PICKLE"
    assert len(caught.value.message) < 300


def shuffled(value: Any) -> Any:
    """The same, its sets made the other way round."""
    if type(value) in (set, frozenset):
        return type(value)(shuffled(item) for item in reversed(list(value)))
    if type(value) in (tuple, list):
        return type(value)(map(shuffled, value))
    if type(value) in (dict, OrderedDict):
        return type(value)((shuffled(key), shuffled(item)) for key, item in value.items())
    return value


@given(values, values)
def test_spelling_tells_values_apart_and_not_the_order_of_sets(value: object, other: object) -> None:
    found = read(pickle.dumps(value, 4))
    assert object_tree.spelled(found) == object_tree.spelled(read(pickle.dumps(shuffled(value), 4)))
    if object_tree.spelled(found) == object_tree.spelled(read(pickle.dumps(other, 4))):
        assert spelled(value) == spelled(other)


class Call:
    """Pickled as a call of a global that this process need not have, with arguments that it would refuse."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


def numpy_reconstruct() -> Any:
    return np.zeros(1).__reduce__()[0]


FORGED = [
    Call(np.dtype, ("i3", False, True)),  # no such width
    Call(np.dtype, ("f1", False, True)),
    Call(np.dtype, ("S0x", False, True)),
    Call(np.dtype, ("V4", False, True)),
    Call(np.dtype, (7,)),
    Call(np.dtype, ()),
    Call(np.dtype, ("i4",), (3, "?", None, None, None, -1, -1, 0)),  # byte order
    Call(np.dtype, ("i4",), (3, "<", None, ("a",), {}, -1, -1, 0)),  # members
    Call(np.dtype, ("i4",), {}),
    Call(numpy_reconstruct(), (np.ndarray, (3,), b"b")),
    Call(numpy_reconstruct(), (dict, (0,), b"b")),
    Call(numpy_reconstruct(), (np.ndarray, (0,), b"b"), (1, (2,), np.dtype("<f8"), False, b"short")),
    Call(numpy_reconstruct(), (np.ndarray, (0,), b"b"), (1, (-1,), np.dtype("<f8"), False, b"")),
    Call(numpy_reconstruct(), (np.ndarray, (0,), b"b"), (1, (2**62,) * 40, np.dtype("<f8"), False, b"")),
    Call(numpy_reconstruct(), (np.ndarray, (0,), b"b"), (1, (2,), None, False, b"")),
    Call(numpy_reconstruct(), (np.ndarray, (0,), b"b"), (1, (2,))),
    Call(type(np.float32(1)).__reduce__(np.float32(1))[0], (np.dtype("<f8"), b"1234")),
    Call(datetime.date, (b"123",)),
    Call(datetime.date, (b"\0\0\0\0",)),  # year 0
    Call(datetime.time, (b"12345",)),
    Call(datetime.time, (b"\x7f\0\0\0\0\0",)),  # hour 127
    Call(datetime.datetime, (b"123456789",)),
    Call(datetime.datetime, (b"\x07\xe8\x01\x01\0\0\0\0\0\0", "UTC")),
    Call(datetime.timedelta, (10**10, 0, 0)),  # overflows
    Call(datetime.timedelta, (0.5, 0, 0)),
    Call(datetime.timezone, (3600,)),
    Call(datetime.timezone, (datetime.timedelta(days=2),)),
    Call(datetime.timezone, (datetime.timedelta(0), 5)),
    Call(complex, (1, 2)),
    Call(range, (0.5,)),
    Call(range, (0, 1, 0)),
    Call(range, ()),
    Call(bytearray, (10**12,)),  # would make room for as many bytes
    Call(bytes, (10**12,)),
    Call(set, (5,)),
    Call(frozenset, ([[]],)),
    Call(Counter, ({"a": "b"},)),
    Call(OrderedDict, ([("a", 1)],)),
    Call(defaultdict, (Counter,)),
    Call(codecs.encode, ("text", "rot13")),
    Call(codecs.encode, ("\u20ac", "latin1")),
    Call(PurePosixPath, (b"bytes",)),
    Call(torch.Size, ([-1],)),
    Call(torch.Size, (5,)),
    Call(torch.device, ("cpu", "first")),
    Call(torch.device, (5,)),
    Call(torch.serialization._get_layout, (5,)),
]


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
@pytest.mark.parametrize("protocol", [2, 4])
def test_arguments_that_a_constructor_never_gets(forged: Call, protocol: int) -> None:
    with pytest.raises(UcpError) as caught:
        read(pickle.dumps([forged], protocol))
    assert caught.value.code == "UCP-E-PICKLE"
    assert caught.value.at == "item"
    assert "allow-list" not in caught.value.message  # else it is not the argument that is refused


def test_the_pickle_itself_is_bounded() -> None:
    with pytest.raises(UcpError) as caught:
        read(pickle.dumps(b"x" * 2000), Limits(pickle_bytes=1000))
    assert caught.value.code == "UCP-E-LIMIT"


def test_shared_parts_are_counted_each_time() -> None:
    part = ["x"] * 1000
    assert read(pickle.dumps([part] * 50)) == [part] * 50
    with pytest.raises(UcpError):
        read(pickle.dumps([part] * 100))
