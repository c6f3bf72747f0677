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
    ("name", "meant"),
    [
        ("model.module.decoder.fc1.weight", "model.decoder.fc1.weight"),
        ("decoder.fc1.weight", "model.decoder.fc1.weight"),
        ("net.decoder.fc1.weight", "model.decoder.fc1.weight"),
        ("model.decoder.fc1.wieght", "model.decoder.fc1.weight"),
    ],
    ids=["one component more", "one less", "another at the front", "mistyped"],
)
def test_the_name_that_was_meant_is_said(path: Path, name: str, meant: str) -> None:
    top, rest = name.split(".", 1)
    state: dict[str, Any] = {"model": {"head.weight": w(3)}}
    state.setdefault(top, {})[rest] = np.zeros(2, np.float32)
    message = refused(path, state)
    assert f"{name}: missing; the checkpoint has {meant!r}, which rename= would take" in message
    ucpformat.load(path, state, rename={name: meant}, strict=False)
    assert state[top][rest].tolist() == [1, 1]


def test_an_unlike_name_has_no_suggestion(path: Path) -> None:
    assert refused(path, {"model": {"encoder": w()}}).endswith("model.encoder: missing")


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
