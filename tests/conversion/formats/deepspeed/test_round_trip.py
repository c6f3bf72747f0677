"""To DeepSpeed's files and back, without DeepSpeed; the real one loads and writes them in tests/frameworks_live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ucpformat
from tests.conversion.formats.deepspeed.made import GROUPS, SHAPES, make_checkpoint
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.deepspeed.zero.layouts import round_robin_order
from ucpformat.errors import UcpError
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile


def to_deepspeed(source: Path, out: Path, format_name: str = "deepspeed", **chosen: str) -> Path:
    convert_checkpoint(source, out, source_format="ucp", destination_format=format_name, settings=chosen)
    return out


def back(source: Path, out: Path) -> Path:
    convert_checkpoint(source, out, source_format=detect_format(source), destination_format="ucp")
    return out


def assert_equal(one: Path, other: Path) -> None:
    assert ucpformat.validate(other) == []
    with ucpformat.open(one) as first, ucpformat.open(other) as second:
        assert set(first) == set(second)
        for name, atom in first.items():
            assert set(atom) == set(second[name]), name
            assert atom.atom.aliases == second[name].atom.aliases
            assert atom.atom.annotations == second[name].atom.annotations
            for slot, view in atom.items():
                found = second[name][slot]
                assert (view.dtype, view.shape) == (found.dtype, found.shape)
                assert view.read().tobytes() == found.read().tobytes(), (name, slot)
        assert first.state.optimizers == second.state.optimizers
        assert first.root.progress == second.root.progress
        for key in first.state.values:
            assert first.objects[key] == second.objects[key]


@pytest.mark.parametrize("stage", ["1", "2", "3"])
@pytest.mark.parametrize("degree", ["1", "2", "3", "7"])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_native_files_come_back(tmp_path: Path, stage: str, degree: str, kind: str) -> None:
    source = make_checkpoint(tmp_path / "a.ucp", kind=kind)
    middle = to_deepspeed(source, tmp_path / "ds", stage=stage, world_size=degree)
    assert detect_format(middle) == "deepspeed"
    names = sorted(os.listdir(middle / "global_step5"))
    assert sum("optim_states" in name for name in names) == int(degree)
    assert all(name.startswith("bf16_") == (kind == "bfloat16") for name in names if "optim" in name)
    assert_equal(source, back(middle, tmp_path / "b.ucp"))


def test_of_masters_no_padding_of_the_tail_is_written(tmp_path: Path) -> None:
    """As stock DeepSpeed writes them, which refuses others: 68 and 10 elements over three ranks."""
    source = make_checkpoint(tmp_path / "a.ucp")
    folder = to_deepspeed(source, tmp_path / "ds", stage="1", world_size="3") / "global_step5"
    sizes = []
    for rank in range(3):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        tree: Any = TorchFile(SourceFiles(folder), name).tree
        masters = tree["optimizer_state_dict"]["single_partition_of_fp32_groups"]
        sizes.append([master.shape[0] for master in masters])
    assert sizes == [[24, 4], [24, 4], [20, 2]]


def plain(path: Path, kind: str, **more: Any) -> Path:
    """Parameters of shapes of their own: without ZeRO, these and the order tell which state is whose."""
    shapes = {"embed.weight": (11, 3), "up.weight": (5, 7), "norm": (4,), "up.bias": (5,)}
    return make_checkpoint(
        path,
        shapes=shapes,
        groups=[list(shapes)[:2], list(shapes)[2:]],
        kind=kind,
        steps={"norm": 7.0, "up.bias": 5.0},
        **more,
    )


SCALER = {"dynamic_loss_scale": True, "cur_scale": 64.0, "cur_iter": 9, "last_overflow_iter": 3}
"""As optimizers without ZeRO keep it."""


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
def test_files_without_zero_come_back(tmp_path: Path, kind: str) -> None:
    """Parameters of one group may have other numbers of steps there."""
    scaler = {**SCALER, "scale_factor": 2.0, "scale_window": 5}
    values = {"zero_optimizer": scaler} if kind == "float16" else {}
    source = plain(tmp_path / "a.ucp", kind, values=values)
    middle = to_deepspeed(source, tmp_path / "ds", stage="0")
    assert os.listdir(middle / "global_step5") == ["mp_rank_00_model_states.pt"]
    tree = torch.load(middle / "global_step5" / "mp_rank_00_model_states.pt", weights_only=True)
    assert tree["param_shapes"] is tree["shared_params"] is None
    assert ("fp32_groups" in tree["optimizer"]) == (kind != "float32")
    if kind == "float16":
        assert scaler.items() <= tree["optimizer"].items()
    assert_equal(source, back(middle, tmp_path / "b.ucp"))


def test_a_loss_scale_changes_its_form_with_the_stage(tmp_path: Path) -> None:
    """ZeRO keeps an object, optimizers without it members; min_scale and hysteresis are of the configuration."""
    values = {
        "zero_optimizer": {**SCALER, "scale_factor": 2.0, "scale_window": 5},
        "ds_config": {"fp16": {"hysteresis": 4, "min_loss_scale": 2}},
    }
    shapes = {"up.weight": (5, 7)}
    source = make_checkpoint(
        tmp_path / "a.ucp", shapes=shapes, groups=[list(shapes)], kind="float16", aliases={}, values=values
    )
    zero = back(to_deepspeed(source, tmp_path / "z1", stage="1"), tmp_path / "z1.ucp")
    with ucpformat.open(zero) as checkpoint:
        held: Any = checkpoint.objects["zero_optimizer"]
        scaler = held["loss_scaler"]
        assert scaler["class"] == "DynamicLossScaler"
        assert {
            **{key: value for key, value in SCALER.items() if key != "dynamic_loss_scale"},
            "min_scale": 2,
            "delayed_shift": 4,
            "scale_window": 5,
        }.items() <= scaler["state"].items()
    again = back(to_deepspeed(zero, tmp_path / "z0", stage="0"), tmp_path / "z0.ucp")
    with ucpformat.open(again) as checkpoint:
        assert checkpoint.objects["zero_optimizer"] == values["zero_optimizer"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 6), max_size=3).map(tuple), min_size=1, max_size=7),
    degree=st.integers(1, 5),
    stage=st.integers(1, 3),
    sub_group=st.integers(1, 60),
    cut=st.integers(0, 6),
)
def test_any_shapes_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[int, ...]],
    degree: int,
    stage: int,
    sub_group: int,
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    named = {"embed.weight": (2, 2), **{f"p{number}": shape for number, shape in enumerate(shapes)}}
    names = list(named)
    cut = min(cut, len(names) - 1)
    groups = [names[: cut + 1], names[cut + 1 :]] if names[cut + 1 :] else [names]
    source = make_checkpoint(folder / "a.ucp", shapes=named, groups=groups)
    chosen = {"stage": str(stage), "world_size": str(degree), "sub_group_size": str(sub_group)}
    middle = to_deepspeed(source, folder / "ds", **chosen)
    assert_equal(source, back(middle, folder / "b.ucp"))


def test_reordered_groups_come_back_in_the_order_of_the_optimizer(tmp_path: Path) -> None:
    values = {"ds_config": {"zero_optimization": {"stage": 1, "round_robin_gradients": True}}}
    source = make_checkpoint(tmp_path / "a.ucp", values=values)
    middle = to_deepspeed(source, tmp_path / "ds", world_size="2", round_robin="true")
    tree = torch.load(middle / "global_step5" / "mp_rank_00_model_states.pt", weights_only=True)
    listed = [list(group) for group in tree["param_shapes"]]
    assert listed == [[group[k] for k in round_robin_order(len(group), 2)] for group in GROUPS]
    assert_equal(source, back(middle, tmp_path / "b.ucp"))


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_universal_files_come_back(tmp_path: Path, kind: str) -> None:
    source = make_checkpoint(tmp_path / "a.ucp", kind=kind)
    middle = to_deepspeed(source, tmp_path / "ds", format_name="ds-universal")
    assert detect_format(middle) == detect_format(middle / "universal") == "ds-universal"
    assert_equal(source, back(middle, tmp_path / "b.ucp"))


def test_an_optimizer_without_states_comes_back(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "a.ucp", states=())
    assert_equal(source, back(to_deepspeed(source, tmp_path / "ds"), tmp_path / "b.ucp"))
    out = to_deepspeed(source, tmp_path / "uni", format_name="ds-universal")
    assert_equal(source, back(out, tmp_path / "c.ucp"))


def test_torch_reads_what_is_written(tmp_path: Path) -> None:
    """Files without DeepSpeed's own classes load under torch's own allow-list, tied tensors tied."""
    source = make_checkpoint(
        tmp_path / "a.ucp", values={"rng": np.arange(5, dtype=np.uint8), "when": (1, 2.5, None)}
    )
    middle = to_deepspeed(source, tmp_path / "ds", stage="2")
    tree: Any = torch.load(middle / "global_step5" / "mp_rank_00_model_states.pt", weights_only=False)
    module = tree["module"]
    assert module["head.weight"].data_ptr() == module["embed.weight"].data_ptr()
    with ucpformat.open(source) as checkpoint:
        for name in SHAPES:
            value = module[name].contiguous().view(torch.int16).numpy()
            assert value.tobytes() == checkpoint[name]["value"].read().tobytes()
    assert tree["when"] == (1, 2.5, None)
    assert tree["frozen_param_shapes"] == {"fixed": torch.Size([3, 5])}
    assert (tree["note"], tree["dp_world_size"], tree["skipped_steps"]) == ("kept", 1, 0)
    assert tree["buffer_names"] == ["count", "table"]


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"stage": "4"}, "from 0 to 3"),
        ({"stage": "x"}, "from 0 to 3"),
        ({"world_size": "0"}, "world_size"),
        ({"nothing": "1"}, "no setting 'nothing'"),
        ({"tag": "../up"}, "no name of a directory"),
    ],
)
def test_settings_are_checked(tmp_path: Path, chosen: dict[str, str], text: str) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    with pytest.raises(UcpError, match=text) as refusal:
        to_deepspeed(source, tmp_path / "ds", **chosen)
    assert refusal.value.code == "UCP-E-MISMATCH"
    assert not (tmp_path / "ds").exists()


def test_what_zero_cannot_hold_is_refused(tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "steps.ucp", steps={"up.bias": 4.0})
    with pytest.raises(UcpError, match="ZeRO keeps one number"):
        to_deepspeed(other, tmp_path / "ds")
    # Nothing is left behind, and what is there is not overwritten.
    assert not (tmp_path / "ds").exists()
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "mine").touch()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        to_deepspeed(make_checkpoint(tmp_path / "a.ucp"), tmp_path / "ds")
    unknown = make_checkpoint(tmp_path / "roles.ucp", roles=False)
    with pytest.raises(UcpError, match="buffer or a frozen parameter"):
        to_deepspeed(unknown, tmp_path / "z3", stage="3")
    to_deepspeed(unknown, tmp_path / "z3", stage="3", buffers="table,count")
    tree = torch.load(
        tmp_path / "z3" / "global_step5" / "zero_pp_rank_0_mp_rank_00_model_states.pt", weights_only=True
    )
    assert list(tree["frozen_param_shapes"]) == ["fixed"]
    with pytest.raises(UcpError, match="no setting 'stage'"):
        to_deepspeed(unknown, tmp_path / "uni", format_name="ds-universal", stage="1")


def test_objects_that_torch_lacks_are_refused(tmp_path: Path) -> None:
    from ucpformat.model.values import NamedValue

    source = make_checkpoint(tmp_path / "a.ucp", values={"odd": NamedValue("elsewhere.Thing", 1)})
    with pytest.raises(UcpError, match=r"elsewhere\.Thing"):
        to_deepspeed(source, tmp_path / "ds")
