"""Every DeepSpeed checkpoint becomes a universal one whose tensors are those that DeepSpeed's own API gathers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import ucpformat
from tests.frameworks_live.deepspeed.cases import CASES
from tests.frameworks_live.deepspeed.conftest import Library, Saved
from tests.frameworks_live.deepspeed.model import Net, groups_of
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.model.values import decode
from ucpformat.state_dict.objects import WITH_TORCH

pytestmark = pytest.mark.distributed


def converted(saved: Saved, folder: Path) -> Path:
    path = folder / "out.ucp"
    assert detect_format(saved.path) == "deepspeed"
    # Without ZeRO nothing names the states, and parameters of equal shape, of which one is frozen, are not told apart.
    case = CASES[saved.name]
    settings = {"frozen": "fixed.*"} if case.stage == 0 and case.frozen else {}
    convert_checkpoint(
        saved.path, path, source_format="deepspeed", destination_format="ucp", source_settings=settings
    )
    return path


def test_without_zero_what_is_frozen_has_to_be_said(library: Library, tmp_path: Path) -> None:
    saved = library.get("z0-fp32-frozen", 2)
    convert_checkpoint(saved.path, tmp_path / "o.ucp", source_format="deepspeed", destination_format="ucp")
    with ucpformat.open(tmp_path / "o.ucp") as checkpoint:
        unnamed = [atom for atom in checkpoint if atom.startswith("optimizer.state.")]
        assert len(unnamed) == 1
        assert set(checkpoint["down.bias"]) == set(checkpoint["fixed.bias"]) == {"value"}


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def test_every_tensor_is_what_deepspeed_gathers(saved: Saved, tmp_path: Path) -> None:
    case, reference = CASES[saved.name], saved.reference
    tensors = reference["tensors"]
    if case.round_robin:
        # DeepSpeed's own gathering is wrong here, and so is its converter: its states are those of the plain order.
        plain = Saved(
            "z1-plain-order", saved.degree, saved.folder.with_name(f"z1-plain-order-dp{saved.degree}")
        )
        tensors = plain.reference["tensors"]
        assert any(
            not torch.equal(held["exp_avg"], tensors[name]["exp_avg"])
            for name, held in reference["tensors"].items()
            if "exp_avg" in held
        )
        for name, held in reference["tensors"].items():
            assert torch.equal(held["value"], tensors[name]["value"])
    path = converted(saved, tmp_path)
    assert ucpformat.validate(path) == []
    with ucpformat.open(path) as checkpoint:
        assert set(checkpoint) == set(tensors)
        for name, held in tensors.items():
            wanted = dict(held)
            if "master" in wanted and wanted["master"].dtype == wanted["value"].dtype:
                assert torch.equal(wanted.pop("master"), wanted["value"])
            slots = set(checkpoint[name]) - {"step"}
            assert slots == set(wanted), name
            for slot, tensor in wanted.items():
                found = checkpoint[name][slot].read()
                expected = array_of(tensor)
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                if case.dtype == "float16":
                    # DeepSpeed gathers by adding zeros, which takes the sign of -0.0.
                    found, expected = (
                        np.add(found, np.zeros_like(found)),
                        np.add(expected, np.zeros_like(found)),
                    )
                assert found.tobytes() == expected.tobytes(), (name, slot)
            if "exp_avg" in wanted:
                # Without ZeRO, DeepSpeed makes the states of bf16 and fp16 training by a step of their own.
                has_own = case.stage == 0 and case.dtype != "float32"
                assert checkpoint[name]["step"].read() == np.float32(4 if has_own else 3)


def test_names_groups_and_counters_are_kept(saved: Saved, tmp_path: Path) -> None:
    case, reference = CASES[saved.name], saved.reference
    net = Net(frozen=case.frozen)
    names = {id(item): name for name, item in net.named_parameters()}
    with ucpformat.open(converted(saved, tmp_path)) as checkpoint:
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == reference["global_steps"] == 3
        aliases = {alias: atom.atom.name for atom in checkpoint.values() for alias in atom.atom.aliases}
        assert aliases == reference["tied"]
        state = checkpoint.state
        found: dict[str, Any] = {
            name: decode(value, at=name, restore=WITH_TORCH) for name, value in state.values.items()
        }
        assert found["epoch"] == 3
        assert found["nested"] == {"a": [1, 2.5, None]}
        assert torch.equal(found["rng"], reference["rng"])
        assert found["lr_scheduler"] == reference["scheduler"]
        assert (found["global_steps"], found["skipped_steps"]) == (3, 0)
        assert found["global_samples"] == 12 * saved.degree
        assert found["ds_config"]["zero_optimization"]["stage"] == case.stage
        groups = state.optimizers["optim"].groups
        assert len(groups) == len(reference["options"]) == case.groups
        for group, options, members in zip(
            groups, reference["options"], groups_of(net, case.groups), strict=True
        ):
            kept = {key: decode(value, at=key) for key, value in group.options.items()}
            assert kept == (options if case.has_options else {})
            assert set(group.atoms) == {names[id(item)] for item in members["params"]}


@pytest.mark.parametrize("name", ["z1-bf16", "z3-bf16"])
def test_a_tag_alone_is_as_good_as_its_parent(library: Library, name: str, tmp_path: Path) -> None:
    saved = library.get(name, 2)
    (tag,) = (entry for entry in saved.path.iterdir() if entry.is_dir())
    assert detect_format(tag) == "deepspeed"
    for source, out in ((saved.path, "a.ucp"), (tag, "b.ucp")):
        convert_checkpoint(source, tmp_path / out, source_format="deepspeed", destination_format="ucp")
    with ucpformat.open(tmp_path / "a.ucp") as one, ucpformat.open(tmp_path / "b.ucp") as other:
        assert {n: set(a) for n, a in one.items()} == {n: set(a) for n, a in other.items()}
