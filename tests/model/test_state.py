"""The state document and the pack list (SPEC 15, 16.4)."""

from __future__ import annotations

from typing import Any

import pytest

from ucpformat.errors import UcpError
from ucpformat.model.references import DocumentRef, Pack, PackList
from ucpformat.model.state import Blob, Optimizer, ParameterGroup, StateDocument

STATE = StateDocument(
    {"epoch": 3},
    {"optim": Optimizer((ParameterGroup(("a", "b"), {"lr": 0.1}), ParameterGroup((), {})))},
    {"extra/1": Blob("text/plain", DocumentRef.to("blobs/t-0", b"x"))},
)


def test_a_state_document_survives_the_way_through_json() -> None:
    assert StateDocument.from_json(STATE.to_json(), at="s") == STATE


def test_tagged_values_are_listed_with_their_places() -> None:
    assert list(STATE.tagged_values(at="s")) == [
        ("s#/values/epoch", 3),
        ("s#/optimizers/optim/groups/0/options/lr", 0.1),
    ]


@pytest.mark.parametrize("name", ["values", "optimizers", "blobs"])
def test_no_member_may_be_missing(name: str) -> None:
    """UCP-D-085."""
    value = STATE.to_json()
    del value[name]
    with pytest.raises(UcpError, match=name) as caught:
        StateDocument.from_json(value, at="s")
    assert caught.value.code == "UCP-E-SCHEMA"


def test_an_atom_belongs_to_one_group_of_an_optimizer() -> None:
    """UCP-D-087."""
    value: Any = STATE.to_json()
    value["optimizers"]["other"] = value["optimizers"]["optim"]
    StateDocument.from_json(value, at="s")
    value["optimizers"]["optim"] = {
        "groups": [{"atoms": ["a", "b"], "options": {}}, {"atoms": ["b"], "options": {}}]
    }
    with pytest.raises(UcpError) as caught:
        StateDocument.from_json(value, at="s")
    assert (caught.value.code, caught.value.at) == ("UCP-E-NAME", "s#/optimizers/optim/groups/1/atoms/0")


@pytest.mark.parametrize("key", ["blobs/", "blobs/a/../b", "index/t-0", "/blobs/t-0", "blobs/a\n"])
def test_keys_of_blobs_stay_in_their_room(key: str) -> None:
    """UCP-D-014, UCP-R-010."""
    value: Any = STATE.to_json()
    value["blobs"]["extra/1"]["object"]["key"] = key
    with pytest.raises(UcpError) as caught:
        StateDocument.from_json(value, at="s")
    assert (caught.value.code, caught.value.at) == ("UCP-E-KEY", "s#/blobs/extra~11/object/key")


def test_a_pack_list_survives_the_way_through_json() -> None:
    packs = PackList((Pack("packs/t-0-0.pack", 64), Pack("packs/t-1-0.pack", 0)))
    assert PackList.from_json(packs.to_json(), at="p") == packs


@pytest.mark.parametrize("key", ["packs/A", "packs/a", "index/b", "packs/%41"])
def test_keys_of_packs_are_safe_and_unique(key: str) -> None:
    """UCP-D-010, UCP-D-011 and UCP-D-014."""
    packs = PackList((Pack("packs/a", 64), Pack(key, 64)))
    with pytest.raises(UcpError) as caught:
        PackList.from_json(packs.to_json(), at="p")
    assert (caught.value.code, caught.value.at) == ("UCP-E-KEY", "p#/packs/1/key")
