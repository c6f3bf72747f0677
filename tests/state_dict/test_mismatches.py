"""What a user reads where a state does not fit: all of it, each entry with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat
from ucpformat import UcpError


def w(*shape: int) -> Any:
    return np.ones(shape or (2,), np.float32)


STORED: dict[str, Any] = {
    "model": {"decoder.fc1.weight": w(), "decoder.fc2.weight": w(), "head.weight": w(3)},
    "optim": {
        "state": {"decoder.fc1.weight": {"exp_avg": w()}},
        "param_groups": [{"lr": 0.5, "params": ["decoder.fc1.weight"]}],
    },
    "epoch": 3,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mismatches") / "s.ucp"
    ucpformat.save(path, STORED)
    return path


def refused(path: Path, state: dict[str, Any], **options: Any) -> str:
    with pytest.raises(UcpError) as caught:
        ucpformat.load(path, state, **options)
    assert caught.value.code == "UCP-E-MISMATCH"
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "meant", "remedy"),
    [
        ("model.module.decoder.fc1.weight", "model.decoder.fc1.weight", {"model.module": "model"}),
        ("decoder.fc1.weight", "model.decoder.fc1.weight", {"decoder": "model.decoder"}),
        ("net.decoder.fc1.weight", "model.decoder.fc1.weight", {"net": "model"}),
        (
            "model.decoder.fc1.wieght",
            "model.decoder.fc1.weight",
            {"model.decoder.fc1.wieght": "model.decoder.fc1.weight"},
        ),
    ],
    ids=["one component more", "one less", "another at the front", "mistyped"],
)
def test_the_name_that_was_meant_is_said(path: Path, name: str, meant: str, remedy: dict[str, str]) -> None:
    top, rest = name.split(".", 1)
    state: dict[str, Any] = {"model": {"head.weight": w(3)}}
    state.setdefault(top, {})[rest] = np.zeros(2, np.float32)
    message = refused(path, state)
    assert f"{name}: missing; the checkpoint has {meant!r}: rename={remedy} takes it" in message
    ucpformat.load(path, state, rename=remedy, strict=False)
    assert state[top][rest].tolist() == [1, 1]


def test_an_unlike_name_has_no_suggestion(path: Path) -> None:
    assert refused(path, {"model": {"encoder": w()}}).endswith("model.encoder: missing")


def test_a_rename_is_not_proposed_for_something_of_another_kind(path: Path, tmp_path: Path) -> None:
    """A dict where there is one value, one value where there is a dict, a value where there is a tensor."""
    ucpformat.save(tmp_path / "t", {"cfg": {"lr": 0.1, "x": {"y": 1}}, "b": {"a": w()}, "n": 5})
    assert refused(tmp_path / "t", {"cfg": None}).endswith(
        "cfg: missing; the checkpoint has a dict here, with 'cfg.lr': give one with the same keys"
    )
    assert refused(tmp_path / "t", {"n": {"lr": 1}}).endswith(
        "n.lr: missing; the checkpoint has no dict but one value here, 'n'"
    )
    assert refused(tmp_path / "t", {"b": {"x": 1}}).endswith("b.x: missing")
    assert refused(path, {"cfg": {"lr": 1}}).endswith("cfg.lr: missing")


def test_numbered_parameters_are_explained(path: Path) -> None:
    message = refused(path, {"optim": {"state": {0: {"exp_avg": w()}}}})
    assert "optim.state.0.exp_avg: missing; the state numbers the parameters" in message
    assert "get_state_dict" in message


def test_tensors_and_values_in_each_others_place(path: Path) -> None:
    assert refused(path, {"epoch": w()}).endswith(
        "epoch: is a tensor, the checkpoint has a value that is no tensor"
    )
    assert refused(path, {"model": {"head.weight": 1}}).endswith(
        "model.head.weight: is no tensor, the checkpoint has a tensor float32[3]"
    )


def test_all_that_is_unexpected_is_listed(path: Path) -> None:
    message = refused(path, {"model": {"head.weight": w(3)}})
    head, *rest = message.splitlines()
    assert head.startswith("the state lacks what the checkpoint has")
    assert "only=" in head
    assert rest == [
        "  model.decoder.fc1.weight: unexpected",
        "  model.decoder.fc2.weight: unexpected",
    ]
