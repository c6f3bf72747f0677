"""Store keys for arbitrary names."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.model.names import (
    MAX_NAME_BYTES,
    RESERVED_COMPONENTS,
    assign_keys,
    check_component,
    check_key,
    check_name,
)


def _is_name(text: str) -> bool:
    try:
        check_name(text, "#/atoms/0/name")
    except UcpError as problem:
        return (problem.code, problem.at) != ("UCP-E-NAME", "#/atoms/0/name")
    return True


NAMES = st.one_of(
    st.text(max_size=300).filter(_is_name),
    # Few letters, so that names fold together, need replacing, and look like suffixed keys.
    st.text(alphabet="aAbB._-/ 0é", min_size=1, max_size=4),
    st.sampled_from(
        ["zarr.json", "Zarr.JSON", "con", "aux.weight", "AUX.weight/1", "__x", ".", "..", "nul ", "%2f"]
    ),
)


@given(st.sets(NAMES, max_size=12))
@example({"a/", "a-" + "0" * 12, "a-a68b412c4282"})
@example({"x" * 200, "x" * 201, "X" * 200, "y" * 1024})
def test_keys_are_safe_unique_and_the_same_for_the_same_names(names: set[str]) -> None:
    keys = assign_keys(names)
    assert list(keys) == sorted(names, key=lambda name: name.encode())
    for key in keys.values():
        check_component(key, "key")
        assert key.lower() not in RESERVED_COMPONENTS
        assert key.lower().split(".")[0] not in {"con", "aux", "nul"}
    assert len({key.lower() for key in keys.values()}) == len(names)
    assert assign_keys(sorted(names, reverse=True)) == keys


@given(st.sets(st.from_regex(r"[a-z][a-z0-9_]*(\.[a-z0-9_]*[a-z0-9_])*", fullmatch=True), max_size=8))
def test_a_safe_name_that_clashes_with_none_is_its_own_key(names: set[str]) -> None:
    safe = {
        name for name in names if len(name) <= 200 and name.split(".")[0] not in {"con", "aux", "nul", "prn"}
    }
    keys = assign_keys(safe)
    assert all(keys[name] == name for name in safe)


def test_a_literal_name_that_looks_like_a_suffixed_key_still_gets_its_own() -> None:
    suffixed = assign_keys(["a/b"])["a/b"]
    keys = assign_keys(["a/b", suffixed, suffixed.upper()])
    assert len({key.lower() for key in keys.values()}) == 3


def test_every_part_of_a_readable_key() -> None:
    assert assign_keys(["blocks[0].weight"])["blocks[0].weight"].startswith("blocks-0-.weight-")
    assert assign_keys(["A", "a"]).keys() == {"A", "a"}
    assert assign_keys(["重み"])["重み"].startswith("atom-")


@pytest.mark.parametrize("text", ["a", "a.b", "_a", "-", "A" * 200, "a..b", "zarr.json", "c", "a__b"])
def test_components(text: str) -> None:
    check_component(text, "key")
    check_key(f"{text}/{text}", "key")


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", ".a", "a.", "__a", "__", "A" * 201, "a b", "a\n", "é", "a%", "a\\b", "a:b", "\ud800"],
)
def test_what_is_no_component(text: str) -> None:
    for check, whole in ((check_component, text), (check_component, "a/b"), (check_key, f"a/{text}")):
        with pytest.raises(UcpError) as caught:
            check(whole, "some#/key")
        assert (caught.value.code, caught.value.at) == ("UCP-E-KEY", "some#/key")


@pytest.mark.parametrize("text", ["", "a/", "/a", "a//b", "a/../b"])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(UcpError, match="UCP-E-KEY"):
        check_key(text, "k")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "a\n",
        "\x7f",
        "\x85",
        "\ud800",
        "a" * (MAX_NAME_BYTES + 1),
        "é" * (MAX_NAME_BYTES // 2 + 1),
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert not _is_name(text)


def test_longest_name_and_repeated_names() -> None:
    assert _is_name("é" * (MAX_NAME_BYTES // 2))
    with pytest.raises(UcpError, match="UCP-E-NAME"):
        assign_keys(["a", "b", "a"])
