"""Universal checkpoints that were changed by hand: what is missing, or contradicts itself, is named and refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.made import SHAPES, make_checkpoint
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

NAME = "up.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is changed; bfloat16, with masters."""
    folder = tmp_path_factory.mktemp("universal")
    source = make_checkpoint(folder / "a.ucp")
    convert_checkpoint(source, folder / "ds", source_format="ucp", destination_format="ds-universal")
    return folder / "ds"


def rewritten(path: Path, change: Callable[[Any], object]) -> None:
    torch.save(change(torch.load(path, weights_only=True)), path)


def no_folder(zero: Path) -> None:
    shutil.rmtree(zero / NAME)


def no_weights(zero: Path) -> None:
    (zero / NAME / "fp32.pt").unlink()


def without(state: str, names: str = NAME) -> Callable[[Path], None]:
    def act(zero: Path) -> None:
        for path in list(zero.glob(f"{names}/{state}.pt")):
            path.unlink()

    return act


def moments_exchanged(zero: Path) -> None:
    one, other = zero / NAME / "exp_avg.pt", zero / NAME / "exp_avg_sq.pt"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def stranger(zero: Path) -> None:
    shutil.copytree(zero / NAME, zero / "stranger")


def no_tensor(zero: Path) -> None:
    rewritten(zero / NAME / "fp32.pt", lambda tree: {"parameter": tree["param"]})


def text(zero: Path) -> None:
    rewritten(zero / NAME / "fp32.pt", lambda tree: "weights")


def short(zero: Path) -> None:
    rewritten(zero / NAME / "exp_avg.pt", lambda tree: tree["param"].flatten()[:-1].clone())


def spoken_step(zero: Path) -> None:
    rewritten(zero / NAME / "step.pt", lambda tree: "five")


def logical_step(zero: Path) -> None:
    rewritten(zero / NAME / "step.pt", lambda tree: True)


def other_weights(zero: Path) -> None:
    rewritten(zero / NAME / "fp32.pt", lambda tree: {**tree, "param": tree["param"] + 1})


def unknown_group(zero: Path) -> None:
    torch.save({"param_groups": [{"params": [0]}, {"params": [7]}]}, zero / "optimizer_state.pt")


def lost_group(zero: Path) -> None:
    torch.save({"param_groups": [{"params": [0]}]}, zero / "optimizer_state.pt")


def test_a_step_that_is_kept_once_is_that_of_all(whole: Path, tmp_path: Path) -> None:
    """As the converter leaves it of ZeRO-3: no file of a parameter has it, and that of the optimizer has."""
    shutil.copytree(whole, tmp_path / "ds")
    (zero,) = (tmp_path / "ds").rglob("zero")
    without("step", "*")(zero)
    groups = [{"params": [0]}, {"params": [1]}]
    state = {"state": {0: {"step": torch.tensor(6.0)}}}
    torch.save({"param_groups": groups, "optimizer_state_dict": state}, zero / "optimizer_state.pt")
    convert_checkpoint(
        tmp_path / "ds", tmp_path / "b.ucp", source_format="ds-universal", destination_format="ucp"
    )
    with ucpformat.open(tmp_path / "b.ucp") as checkpoint:
        assert {name: float(checkpoint[name]["step"].read()) for name in SHAPES} == dict.fromkeys(SHAPES, 6.0)


@pytest.mark.parametrize(
    ("change", "said", "place"),
    [
        (no_folder, "the states of 'up.weight' are missing", f"zero/{NAME}/fp32.pt"),
        (no_weights, "the file is missing", f"zero/{NAME}/fp32.pt"),
        (without("exp_avg"), "the file is missing", f"zero/{NAME}/exp_avg.pt"),
        (without("exp_avg_sq"), "the file is missing", f"zero/{NAME}/exp_avg_sq.pt"),
        (without("step"), "the file is missing", f"zero/{NAME}/step.pt"),
        (without("exp_avg_sq", "*"), "the file is missing", "exp_avg_sq.pt"),
        (moments_exchanged, "it was saved as exp_avg_sq", f"zero/{NAME}/exp_avg.pt"),
        (stranger, "neither the model nor the optimizer has this parameter", "zero/stranger"),
        (no_tensor, "no tensor 'param'", f"zero/{NAME}/fp32.pt"),
        (text, "it holds a str, not a tensor", f"zero/{NAME}/fp32.pt"),
        (short, r"a flat tensor of \[34\] elements", f"zero/{NAME}/exp_avg.pt"),
        (spoken_step, "the step is a str", f"zero/{NAME}/step.pt"),
        (logical_step, "the step is a bool", f"zero/{NAME}/step.pt"),
        (other_weights, NAME, f"zero/{NAME}/fp32.pt"),
        (unknown_group, "group 7 of parameters is not in all stages", "model_states.pt"),
        (lost_group, "group 1 of parameters is not in all stages", "model_states.pt"),
    ],
)
def test_changed_by_hand(
    whole: Path, tmp_path: Path, change: Callable[[Path], None], said: str, place: str
) -> None:
    shutil.copytree(whole, tmp_path / "ds")
    change(tmp_path / "ds" / "universal" / "zero")
    with pytest.raises(UcpError, match=said) as refusal:
        convert_checkpoint(
            tmp_path / "ds", tmp_path / "b.ucp", source_format="ds-universal", destination_format="ucp"
        )
    assert refusal.value.code == "UCP-E-SOURCE"
    assert place in (refusal.value.at or "")
    assert not (tmp_path / "b.ucp" / "ucp.json").exists()


def test_bare_tensors_get_the_shapes_that_the_model_files_list(whole: Path, tmp_path: Path) -> None:
    """As DeepSpeed's converter leaves what it found under ZeRO-3."""
    shutil.copytree(whole, tmp_path / "ds")
    for name in SHAPES:
        for path in (tmp_path / "ds" / "universal" / "zero" / name).glob("[!s]*.pt"):
            rewritten(path, lambda tree: tree["param"].flatten().clone())
    paths = [tmp_path / "bare.ucp", tmp_path / "whole.ucp"]
    for source, out in zip([tmp_path / "ds", whole], paths, strict=True):
        convert_checkpoint(source, out, source_format="ds-universal", destination_format="ucp")
    with ucpformat.open(paths[0]) as bare, ucpformat.open(paths[1]) as other:
        assert set(bare) == set(other)
        for name, atom in other.items():
            for slot, view in atom.items():
                assert bare[name][slot].shape == view.shape
                assert bare[name][slot].read().tobytes() == view.read().tobytes()
