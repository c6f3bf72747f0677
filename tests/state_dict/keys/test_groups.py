"""Parameter groups: gathered where that loses nothing, kept as plain values where it would."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import ucpformat
from ucpformat.model.state import Optimizer, ParameterGroup
from ucpformat.state_dict.keys.groups import GroupOrigin, expand_groups, gather_groups
from ucpformat.state_dict.keys.names import recognise

MODEL = {name: np.full(2, place) for place, name in enumerate("abc")}
OPTIONS = st.dictionaries(
    st.sampled_from(["lr", "betas", "foreach", "params.x"]),
    st.sampled_from([0.1, 1.0, 1, True, None, (0.9, 0.95), [1, 2], {"x": 1}, {}, -0.0, 0.0]),
    max_size=3,
)
PARAMS = st.lists(st.sampled_from(["a", "b", "c", "gone"]), max_size=3) | st.sampled_from(
    [None, (), [0], "a"]
)


def round_trip(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Optimizer]]:
    url = f"memory://{uuid4().hex}"
    ucpformat.save(url, state)
    assert ucpformat.validate(url) == []
    with ucpformat.open(url) as checkpoint:
        return ucpformat.load(url), dict(checkpoint.state.optimizers)


def named(groups: list[dict[str, Any]]) -> list[str]:
    return [name for group in groups for name in group["params"]]


@given(st.lists(st.tuples(OPTIONS, PARAMS), max_size=3), st.booleans())
def test_any_nested_groups_come_back(drawn: list[tuple[dict[str, Any], Any]], states: bool) -> None:
    """UCP-D-086, UCP-D-087: only what names atoms, each once, becomes groups; the rest stays values."""
    groups = [{**options, "params": params} for options, params in drawn]
    optim: dict[str, Any] = {"param_groups": groups}
    if states:
        optim["state"] = {"a": {"m": np.zeros(2)}}
    loaded, optimizers = round_trip({"model": MODEL, "optim": optim})
    assert repr(loaded["optim"]["param_groups"]) == repr(groups) or sorted_options(
        loaded["optim"]["param_groups"]
    ) == sorted_options(groups)
    if optimizers:
        (optimizer,) = optimizers.values()
        assert [list(group.atoms) for group in optimizer.groups] == [group["params"] for group in groups]
        assert len(set(named(groups))) == len(named(groups))
        assert set(named(groups)) <= MODEL.keys()


def sorted_options(groups: Any) -> list[str]:
    return [repr(sorted(group.items(), key=lambda item: item[0])) for group in groups]


@given(
    st.dictionaries(
        st.sampled_from("abc"), OPTIONS.filter(lambda options: {} not in options.values()), max_size=3
    )
)
def test_any_flattened_groups_come_back(drawn: dict[str, dict[str, Any]]) -> None:
    optim: dict[str, Any] = {"state.a.m": np.zeros(2)}
    optim.update(
        {
            f"param_groups.{name}.{key}": value
            for name, options in drawn.items()
            for key, value in options.items()
        }
    )
    loaded, optimizers = round_trip({"model": MODEL, "optim": optim})
    assert loaded["optim"].keys() == optim.keys()
    for key, value in optim.items():
        if isinstance(value, np.ndarray):
            assert loaded["optim"][key].tolist() == value.tolist()
        else:
            assert repr(loaded["optim"][key]) == repr(value)
    if optimizers:
        (optimizer,) = optimizers.values()
        texts = [repr(sorted(group.options.items())) for group in optimizer.groups]
        assert len(set(texts)) == len(texts)  # equal options share a group


@pytest.mark.parametrize(
    ("groups", "gathered"),
    [
        ([{"params": ["a", "b"], "lr": 0.1}, {"params": ["c"], "lr": 0.2}], True),
        ([{"params": [], "lr": 0.1}], True),
        ([{"params": ["a", "gone"]}], False),
        ([{"params": ["a"]}, {"params": ["a"]}], False),
        ([{"params": ["a", "a"]}], False),
        ([{"params": [0, 1], "lr": 0.1}], False),
        ([{"params": ("a",)}], False),
        ([{"lr": 0.1}], False),
    ],
)
def test_when_groups_are_gathered(groups: list[dict[str, Any]], gathered: bool) -> None:
    state = {"model": MODEL, "optim": {"state": {"a": {"m": np.zeros(2)}}, "param_groups": groups}}
    loaded, optimizers = round_trip(state)
    assert loaded["optim"]["param_groups"] == groups
    assert bool(optimizers) == gathered


def test_options_that_are_not_values_keep_the_groups_apart() -> None:
    """An option that is carried as bytes has no place in a group."""
    tensors: dict[str, Any] = {"model.a": ("model", "a"), "optim.state.a.m": ("optim", "state", "a", "m")}
    keys = {key: ("optim", "param_groups", 0, key) for key in ("lr", "params")}
    objects: dict[str, Any] = {f"optim.param_groups.0.{key}": path for key, path in keys.items()}
    (found,) = recognise(tensors, objects).optimizers
    encoded: dict[str, Any] = {"optim.param_groups.0.lr": 0.5, "optim.param_groups.0.params": ["a"]}
    assert gather_groups(found, encoded, objects, frozenset("a")) == Optimizer(
        (ParameterGroup(("a",), {"lr": 0.5}),)
    )
    del encoded["optim.param_groups.0.lr"]
    assert gather_groups(found, encoded, objects, frozenset("a")) is None
    encoded["optim.param_groups.0.lr"] = 0.5
    assert gather_groups(found, encoded, objects, frozenset()) is None
    # Another path for the same key would not come back.
    other = {**objects, "optim.param_groups.0.lr": ("optim", "param_groups.0.lr")}
    assert gather_groups(found, encoded, other, frozenset("a")) is None


def test_expanded_as_they_were_held() -> None:
    optimizer = Optimizer((ParameterGroup(("a", "b"), {"lr": 0.5}), ParameterGroup((), {"lr": 0.25})))
    assert expand_groups(optimizer, GroupOrigin(("o",), "nested")) == {
        "o.param_groups.0.lr": (("o", "param_groups", 0, "lr"), 0.5),
        "o.param_groups.0.params": (("o", "param_groups", 0, "params"), ["a", "b"]),
        "o.param_groups.1.lr": (("o", "param_groups", 1, "lr"), 0.25),
        "o.param_groups.1.params": (("o", "param_groups", 1, "params"), []),
    }
    assert expand_groups(optimizer, GroupOrigin(("o",), "flattened")) == {
        f"o.param_groups.{name}.lr": (("o", f"param_groups.{name}.lr"), 0.5) for name in "ab"
    }
