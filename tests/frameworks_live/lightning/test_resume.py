"""The example script: stopped and gone on with, with the losses of a whole run, bit by bit."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat as ucp
from tests.processes import ROOT
from ucpformat import UcpError, validate
from ucpformat.integrations.lightning import UcpCheckpointIO, named_states, numbered_states

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def example() -> Any:
    sys.path.insert(0, str(ROOT / "examples"))
    return importlib.import_module("lightning_module")


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, example: Any) -> None:
    whole = example.main(tmp_path / "whole", 4)
    first, second = example.main(tmp_path / "parts", 2), example.main(tmp_path / "parts", 4)
    assert min(second) == max(first) + 1
    assert {**first, **second} == whole
    for epoch in range(4):
        assert list(validate(tmp_path / "parts" / f"epoch={epoch}.ucp")) == []


def test_other_jobs_find_what_they_know(tmp_path: Path, example: Any) -> None:
    """A plain module and optimizer are filled: names are those of parameters."""
    example.main(tmp_path, 1)
    module = example.Module()
    optimizer = torch.optim.AdamW(module.parameters())
    # A schedule has left its mark in the groups: initial_lr.
    ucp.load(tmp_path / "epoch=0.ucp", {"model": module, "optim": optimizer}, strict=False)
    kept = UcpCheckpointIO().load_checkpoint(tmp_path / "epoch=0.ucp")
    assert kept["state_dict"].keys() == module.state_dict().keys()
    for name, value in module.state_dict().items():
        assert torch.equal(value, kept["state_dict"][name])
    states = kept["optimizer_states"][0]["state"]
    for number, parameter in enumerate(module.parameters()):
        assert torch.equal(states[number]["exp_avg"], optimizer.state[parameter]["exp_avg"])


def test_a_checkpoint_is_written_anew_and_removed(tmp_path: Path) -> None:
    io = UcpCheckpointIO()
    for value in (1.0, 2.0):
        io.save_checkpoint(
            {"state_dict": {"w": torch.tensor([value])}, "global_step": 3}, tmp_path / "last.ucp"
        )
    assert io.load_checkpoint(tmp_path / "last.ucp")["state_dict"]["w"].tolist() == [2.0]
    io.remove_checkpoint(tmp_path / "last.ucp")
    io.remove_checkpoint(tmp_path / "last.ucp")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UcpError, match="UCP-E-OBJECT"):
        io.save_checkpoint({"state_dict": {"w": torch.ones(1)}, "x": object()}, tmp_path / "bad.ucp")


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_last_one_stays_until_the_next_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    io = UcpCheckpointIO()
    path = tmp_path / "last.ucp"

    def save(value: float, **more: object) -> None:
        io.save_checkpoint({"state_dict": {"w": torch.tensor([value])}, "global_step": 3, **more}, path)

    if not exchanges:

        def refuse(*_: object) -> None:
            raise OSError(22, "Invalid argument")

        monkeypatch.setattr("ucpformat.manager.local_place.exchange_names", refuse)
    save(1.0)
    with pytest.raises(UcpError, match="UCP-E-OBJECT"):
        save(2.0, x=object())
    assert io.load_checkpoint(path)["state_dict"]["w"].tolist() == [1.0]
    save(3.0)
    assert io.load_checkpoint(path)["state_dict"]["w"].tolist() == [3.0]
    assert [one.name for one in tmp_path.iterdir()] == ["last.ucp"]


def test_a_checkpoint_behind_a_url_is_not_written_anew() -> None:
    io = UcpCheckpointIO()
    given = {"state_dict": {"w": torch.ones(1)}, "global_step": 3}
    io.save_checkpoint(given, "memory://lightning-last/last.ucp")
    with pytest.raises(UcpError, match="save under another name") as caught:
        io.save_checkpoint(given, "memory://lightning-last/last.ucp")
    assert caught.value.code == "UCP-E-EXISTS"


def test_a_members_own_name_is_left_alone(tmp_path: Path) -> None:
    io = UcpCheckpointIO()
    given = {"state_dict": {"w": torch.ones(1)}, "model": "mine", "optimizer_states": []}
    io.save_checkpoint(given, tmp_path / "a.ucp")
    found = io.load_checkpoint(tmp_path / "a.ucp")
    assert found["model"] == "mine"
    assert found["state_dict"]["w"].tolist() == [1.0]


def test_numbers_and_names_of_states() -> None:
    state = {
        "state": {1: {"m": 5}},
        "param_groups": [{"lr": 0.1, "params": [0]}, {"lr": 0.2, "params": [1, 2]}],
    }
    named = named_states(state, ["a", "b", "c"])
    assert named["state"] == {"b": {"m": 5}}
    assert [group["params"] for group in named["param_groups"]] == [["a"], ["b", "c"]]
    assert numbered_states(named) == state
    with pytest.raises(UcpError, match="in no group"):
        numbered_states({"state": {"z": {}}, "param_groups": []})
