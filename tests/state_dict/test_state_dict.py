"""`ucpformat.save` and `ucpformat.load` on nested states of numpy arrays and plain values."""

from __future__ import annotations

import datetime
import math
import pathlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any
from uuid import uuid4

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ucpformat
from tests.builders import GZIP, Forgery, Tensor, bits
from tests.builders import save as write
from tests.conversion.engine.jobs import run_job
from tests.geometry.strategies import shapes
from ucpformat.conversion.engine.rewriting import rewrite_job
from ucpformat.errors import UcpError
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.state_dict.keys.paths import NumberKey, build, path_from_json, path_to_json


def same(first: Any, second: Any) -> bool:
    """Equal in type and bit for bit; mappings count as plain dicts, as `load` says."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return (
            type(first) is type(second)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and first.tobytes() == second.tobytes()
        )
    if isinstance(first, dict) and isinstance(second, dict):
        keys = [(type(key), key) for key in first]
        return sorted(map(repr, keys)) == sorted(repr((type(key), key)) for key in second) and all(
            same(item, second[key]) for key, item in first.items()
        )
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float):
        return repr(first) == repr(second)
    return bool(first == second)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Every data type, contiguous, strided or reversed."""
    entry = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    data = bits(draw(st.integers(0, 2**32)), draw(shapes(max_elements=60)), entry)
    match draw(st.sampled_from(["plain", "transposed", "reversed", "frozen"])):
        case "transposed":
            data = data.T
        case "reversed":
            data = data[::-1] if data.ndim else data
        case "frozen":
            data = data.copy()
            data.flags.writeable = False
    return data


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**90), 2**90)
    | st.floats()
    | st.sampled_from([-0.0, math.nan, math.inf, 1e300])
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.dates()
    | st.timedeltas()
    | st.datetimes().map(lambda time: time.replace(fold=0))
    | st.sampled_from([bytearray(b"a"), range(3), pathlib.PurePosixPath("/a"), datetime.UTC, np.float32(1.5)])
)
hashables = st.none() | st.booleans() | st.integers() | st.text("ab$") | st.binary(max_size=3)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(hashables.filter(lambda key: not isinstance(key, bool)), max_size=3)
        | st.lists(st.tuples(st.text("ab"), inner), max_size=3).map(lambda items: (OrderedDict(items),))
        | st.dictionaries(hashables, inner, max_size=3).map(lambda items: (items,))
    ),
    max_leaves=6,
)
keys = st.text("ab01", min_size=1, max_size=3) | st.integers(0, 3)
states = st.dictionaries(
    keys,
    st.recursive(
        arrays() | plain,
        lambda inner: st.dictionaries(keys, inner, max_size=3) | st.lists(inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def names(state: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Dotted names of everything in the state, to leave out states whose names are not their own."""
    if isinstance(state, dict) and state:
        return [name for key, item in state.items() for name in names(item, (*path, str(key)))]
    if isinstance(state, list) and state:
        inner = [name for place, item in enumerate(state) for name in names(item, (*path, str(place)))]
        return [".".join(path), *inner]
    return [".".join(path)]


@given(states, st.sampled_from(["plain", "packed"]), st.sampled_from([None, GZIP]))
def test_any_state_comes_back(state: dict[Any, Any], storage: Storage, compressor: Any) -> None:
    assume(len(set(names(state))) == len(names(state)))
    path = f"memory://{uuid4().hex}"
    report = ucpformat.save(path, state, storage=storage, chunk_bytes=64, compressor=compressor, step=1)
    assert report.digest.startswith("sha256:")
    assert report.seconds == report.stalled > 0
    assert ucpformat.validate(path) == []
    loaded = ucpformat.load(path)
    assert same(loaded, state), (loaded, state)


def test_small_things_keep_their_types(tmp_path: Path) -> None:
    state = {
        "nothing": None,
        "empty": [{}, [], (), "", b""],
        "dict": {},
        "list": [],
        "tuple": (1, [2, (3,)], {"a": (True, 1, 1.0)}),
        "numbers": [True, 1, 1.0, -0.0, math.nan, 2**70, -(2**53)],
        "nested": {"deep": {1: {"x": [None, {"y": b"z"}]}}},
        "array_in_tuple": (np.arange(3),),
        "counter": (Counter("aab"),),
    }
    ucpformat.save(tmp_path / "s", state)
    assert same(ucpformat.load(tmp_path / "s"), state)
    ucpformat.save(tmp_path / "nothing", {})
    assert ucpformat.load(tmp_path / "nothing") == {}


def test_arrays_inside_lists_and_integer_keys(tmp_path: Path) -> None:
    state = {
        "a": [np.ones(2), {"b": np.zeros(1)}, 5, []],
        "b": {0: {"m": np.array(1.5)}, 10: {"m": np.array(2.5)}},
    }
    ucpformat.save(tmp_path / "s", state)
    assert same(ucpformat.load(tmp_path / "s"), state)
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert list(checkpoint) == ["a.0", "a.1.b", "b.0.m", "b.10.m"]


def test_eleven_arrays_in_a_list_keep_their_order(tmp_path: Path) -> None:
    state = {"a": [np.array(place) for place in range(11)]}
    ucpformat.save(tmp_path / "s", state)
    assert [int(item) for item in ucpformat.load(tmp_path / "s")["a"]] == list(range(11))


def test_big_endian_arrays_are_stored_little_endian(tmp_path: Path) -> None:
    """UCP-D-036."""
    ucpformat.save(tmp_path / "s", {"w": np.arange(3, dtype=">i4")})
    loaded = ucpformat.load(tmp_path / "s")["w"]
    assert loaded.dtype == np.dtype("<i4")
    assert loaded.tolist() == [0, 1, 2]


def test_the_same_memory_is_stored_once(tmp_path: Path) -> None:
    """Aliases are names of one atom (SPEC 11.1)."""
    w = np.arange(6.0).reshape(2, 3)
    state = {"model": {"a": w, "b": w[:], "flat": w.reshape(-1), "half": w[:1], "other": w.copy()}}
    ucpformat.save(tmp_path / "s", state)
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert list(checkpoint) == ["a", "flat", "half", "other"]
        assert checkpoint["a"].atom.aliases == ("b",)
        assert checkpoint["b"]["value"].read().tolist() == w.tolist()
        run_job(rewrite_job(checkpoint), tmp_path / "copy", storage="plain")
    assert same(ucpformat.load(tmp_path / "s"), state)
    assert same(ucpformat.load(tmp_path / "copy"), state)


def test_empty_arrays_are_not_tied(tmp_path: Path) -> None:
    w = np.empty((0, 3))
    ucpformat.save(tmp_path / "s", {"a": w, "b": w})
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert list(checkpoint) == ["a", "b"]


def test_a_tied_name_with_states_of_its_own_is_stored_apart(tmp_path: Path) -> None:
    w = np.ones(2)
    moments = {"a": {"m": np.zeros(2)}, "b": {"m": np.zeros(2)}}
    state = {"model": {"a": w, "b": w}, "optim": {"state": moments}}
    ucpformat.save(tmp_path / "s", state)
    with ucpformat.open(tmp_path / "s") as checkpoint:
        assert {name: sorted(view) for name, view in checkpoint.items()} == {
            "a": ["m", "value"],
            "b": ["m", "value"],
        }
    assert same(ucpformat.load(tmp_path / "s"), state)


def filled() -> dict[str, Any]:
    return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": {"c": np.array(5), "n": [1, 2]}, "k": "x"}


def test_loading_in_place(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "s", filled())
    base = np.zeros((2, 6), dtype=np.float32)
    state: dict[str, Any] = {"a": base[:, ::2], "b": {"c": np.array(0), "n": None}}
    inner, array = state["b"], state["a"]
    assert ucpformat.load(tmp_path / "s", state, verify=False) is state
    assert state["a"] is array
    assert state["b"] is inner
    assert base[:, ::2].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not base[:, 1::2].any()
    assert inner == {"c": np.array(5), "n": [1, 2]}
    assert "k" not in state


def test_everything_that_does_not_fit_is_named_and_nothing_touched(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "s", filled())
    state: dict[str, Any] = {
        "a": np.full((3, 2), 7, dtype=np.float32),
        "b": {"c": np.array(7, dtype=np.int32), "n": "kept", "more": np.zeros(1), "value": 1},
        "k": np.zeros(1),
    }
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "s", state)
    assert caught.value.code == "UCP-E-MISMATCH"
    assert caught.value.message.split("\n  ") == [
        "the state does not fit the checkpoint; nothing was changed:",
        "a: is float32[3, 2], the checkpoint has float32[2, 3]",
        "b.c: is int32[], the checkpoint has int64[]; cast=True converts",
        "k: is a tensor, the checkpoint has a value that is no tensor",
        "b.more: missing",
        "b.value: missing",
    ]
    assert (state["a"] == 7).all()
    assert state["b"]["n"] == "kept"
    many = {f"x{number}": np.zeros(1) for number in range(30)}
    with pytest.raises(UcpError, match="and 10 more"):
        ucpformat.load(tmp_path / "s", many)


@pytest.mark.parametrize("kind", ["frozen", "big-endian", "masked"])
def test_memory_that_cannot_be_written_is_refused_before_anything_is_touched(
    tmp_path: Path, kind: str
) -> None:
    ucpformat.save(tmp_path / "s", {"a": np.ones(2), "z": np.ones(2)})
    first = np.zeros(2)
    last: Any = np.zeros(2)
    match kind:
        case "frozen":
            last.flags.writeable = False
        case "big-endian":
            last = last.astype(">f8")
        case "masked":
            last = np.ma.masked_array(last, mask=[False, True])
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "s", {"a": first, "z": last})
    assert (caught.value.code, caught.value.at) == ("UCP-E-MISMATCH", "z")
    assert not first.any()


class Foreign:
    """Nothing that a tagged value expresses."""


def itself() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["s"] = state
    return state


def itself_in_a_list() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("leaf", "code"),
    [
        (Foreign(), "UCP-E-OBJECT"),
        (lambda: 0, "UCP-E-OBJECT"),
        ((1, [Foreign()]), "UCP-E-OBJECT"),
        ("\ud800", "UCP-E-OBJECT"),
        ({1.5: 2}, "UCP-E-OBJECT"),
        ({True: 2}, "UCP-E-OBJECT"),
        (itself(), "UCP-E-OBJECT"),
        (itself_in_a_list(), "UCP-E-OBJECT"),
        (np.array(["a"]), "UCP-E-DTYPE"),
        (np.array([None]), "UCP-E-DTYPE"),
        (np.zeros(1, dtype=[("a", "i4")]), "UCP-E-DTYPE"),
        (np.array(["2024-01-01"], dtype="M8[D]"), "UCP-E-DTYPE"),
        (np.longdouble(1).reshape(1), "UCP-E-DTYPE"),
        (np.ma.masked_array([1, 2], mask=[False, True]), "UCP-E-MISMATCH"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else type(value).__name__,
)
def test_what_cannot_be_stored_is_refused_by_name(tmp_path: Path, leaf: Any, code: str) -> None:
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "s", {"good": np.ones(3), "part": {"bad": leaf}})
    assert caught.value.code == code
    assert caught.value.at.startswith("part.bad")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "UCP-E-NAME"),
        ({"a": {1: 1, "1": 2}}, "UCP-E-NAME"),
        ({"": np.ones(1)}, "UCP-E-NAME"),
        ({"x\n": np.ones(1)}, "UCP-E-NAME"),
        ({"n" * 1025: np.ones(1)}, "UCP-E-NAME"),
    ],
)
def test_names_that_cannot_be_kept_are_refused(tmp_path: Path, state: dict[str, Any], code: str) -> None:
    """UCP-D-023, UCP-D-028."""
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "s", state)
    assert caught.value.code == code
    assert not (tmp_path / "s").exists()


def test_a_committed_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    """UCP-W-004."""
    ucpformat.save(tmp_path / "s", {"a": 1})
    with pytest.raises(UcpError) as caught:
        ucpformat.save(tmp_path / "s", {"a": 2})
    assert caught.value.code == "UCP-E-EXISTS"
    assert ucpformat.load(tmp_path / "s") == {"a": 1}


def test_a_checkpoint_of_others_has_the_usual_paths(tmp_path: Path) -> None:
    """Without annotations, atoms go where ``get_state_dict`` has them; tied names as well."""
    data = np.ones(2, np.float32)
    state = {("w", "value"): Tensor(data, "float32"), ("w", "m"): Tensor(data * 2, "float32")}
    write(tmp_path / "s", state)
    Forgery(tmp_path / "s").edit("index", lambda index: index["atoms"][0].update(aliases=["tied"])).sealed()
    loaded = ucpformat.load(tmp_path / "s")
    assert same(loaded, {"model": {"w": data, "tied": data}, "optim": {"state": {"w": {"m": data * 2}}}})


def test_aliases_without_a_value_name_nothing(tmp_path: Path) -> None:
    data = np.ones(2, np.float32)
    write(tmp_path / "s", {("w", "m"): Tensor(data, "float32")})
    Forgery(tmp_path / "s").edit("index", lambda index: index["atoms"][0].update(aliases=["tied"])).sealed()
    assert same(ucpformat.load(tmp_path / "s"), {"optim": {"state": {"w": {"m": data}}}})


SOURCE = "org.ucpformat.source"


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        5,
        {},
        {"path": None},
        {"path": []},
        {"path": [{}]},
        {"path": [-1]},
        {"path": [True]},
        {"path": [["x"]]},
        {"path": ["a"] * 200},
    ],
)
def test_strange_annotations_are_as_good_as_none(tmp_path: Path, annotation: Any) -> None:
    """UCP-R-031."""
    ucpformat.save(tmp_path / "s", {"model": {"w": np.ones(1)}, "epoch": 1})

    def strange(index: Any) -> None:
        atom = index["atoms"][0]
        atom["slots"]["value"]["annotations"] = {SOURCE: annotation}
        atom["annotations"] = {SOURCE: annotation}

    forgery = Forgery(tmp_path / "s").edit("index", strange)
    forgery.edit("state", lambda state: state["annotations"].update({SOURCE: annotation})).sealed()
    assert same(ucpformat.load(tmp_path / "s"), {"model": {"w": np.ones(1)}, "epoch": 1})


@pytest.mark.parametrize("path", [["epoch"], ["epoch", "w"], ["epoch", 0]])
def test_annotations_that_collide_are_refused(tmp_path: Path, path: Any) -> None:
    ucpformat.save(tmp_path / "s", {"model": {"w": np.ones(1), "v": np.zeros(1)}, "epoch": {"a": 1}})

    def collide(index: Any) -> None:
        for atom in index["atoms"]:
            atom["slots"]["value"]["annotations"] = {SOURCE: {"path": path}}

    Forgery(tmp_path / "s").edit("index", collide).sealed()
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "s")
    assert caught.value.code == "UCP-E-NAME"


def test_a_value_where_a_tensor_has_its_place_is_refused(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "s", {"w": np.ones(1), "v": {"a": 1, "b": 2}})

    def collide(index: Any) -> None:
        index["atoms"][0]["slots"]["value"]["annotations"] = {SOURCE: {"path": ["v"]}}

    Forgery(tmp_path / "s").edit("index", collide).sealed()
    with pytest.raises(UcpError) as caught:
        ucpformat.load(tmp_path / "s")
    assert caught.value.code == "UCP-E-NAME"


@pytest.mark.parametrize(
    "paths",
    [
        [("a",), ("a", "b")],
        [("a", "b"), ("a",)],
        [("a", 0), ("a", "b")],
        [("a", "b"), ("a", 0)],
        [("a", 0), ("a", 0, "b")],
        [("a", 0, "b"), ("a", 0)],
    ],
)
def test_a_leaf_inside_a_leaf_is_refused(paths: list[Any]) -> None:
    with pytest.raises(UcpError) as caught:
        build({path: {} for path in paths})
    assert caught.value.code == "UCP-E-NAME"


def test_places_of_a_list_with_gaps_stay_numbers() -> None:
    """A place far away does not ask for the memory of a list that long."""
    assert build({("a", 0): 1, ("a", 10**15): 2}) == {"a": {0: 1, 10**15: 2}}
    assert build({("a", 1): "y", ("a", 0): "x"}) == {"a": ["x", "y"]}
    assert build({("a", 0, 0): 1, ("a", 1, "b"): 2}) == {"a": [[1], {"b": 2}]}


@given(
    st.lists(st.text() | st.integers(0, 2**53) | st.integers(-5, 5).map(NumberKey), min_size=1, max_size=5)
)
def test_paths_survive_as_json(path: list[Any]) -> None:
    assert path_from_json(path_to_json(tuple(path))) == tuple(path)


def test_extension_types_come_as_ml_dtypes(tmp_path: Path) -> None:
    data = np.array([0.5, -2], dtype=ml_dtypes.bfloat16)
    ucpformat.save(tmp_path / "s", {"w": data})
    assert ucpformat.load(tmp_path / "s")["w"].dtype == data.dtype
