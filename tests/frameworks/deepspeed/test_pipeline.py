"""Pipelines written and read again, without DeepSpeed; its own are in tests/frameworks_live."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ucpformat
from tests.frameworks.deepspeed.made import make_checkpoint
from ucpformat.errors import UcpError
from ucpformat.frameworks.kinds.conversion import convert_checkpoint

SHAPES = {
    "tied_modules.embed.weight": (7, 3),
    "1.up.weight": (5, 3),
    "1.up.bias": (5,),
    "2.down.weight": (3, 5),
    "4.norm": (3,),
}
GROUPS = (("tied_modules.embed.weight", "1.up.weight", "2.down.weight"), ("1.up.bias", "4.norm"))


def source(folder: Path) -> Path:
    aliases = {"tied_modules.embed.weight": "0.weight"}
    return make_checkpoint(folder / "in.ucp", shapes=SHAPES, groups=GROUPS, aliases=aliases, prefix="2.")


def written(folder: Path, **settings: str) -> Path:
    path = source(folder)
    settings = {"stage": "1", "world_size": "2", "ties": "embed:0,1", **settings}
    convert_checkpoint(
        path, folder / "ds", source_kind="ucp", destination_kind="deepspeed", settings=settings
    )
    return folder / "ds" / "global_step5"


def read(folder: Path, out: Path) -> Path:
    convert_checkpoint(folder, out, source_kind="deepspeed", destination_kind="ucp")
    assert ucpformat.validate(out) == []
    return out


def same(one: Path, other: Path) -> None:
    with ucpformat.open(one) as first, ucpformat.open(other) as second:
        assert set(first) == set(second)
        for name, view in first.items():
            assert {slot: item.read().tobytes() for slot, item in view.items()} == {
                slot: item.read().tobytes() for slot, item in second[name].items()
            }, name
            assert view.atom.aliases == second[name].atom.aliases
        found = [first.state.optimizers["optim"].groups, second.state.optimizers["optim"].groups]
        assert [group.atoms for group in found[0]] == [group.atoms for group in found[1]]


@pytest.mark.parametrize(
    ("pipeline", "ties"), [("0", ""), ("0,2", "embed:0,1"), ("0,2,4", "embed:0,2"), ("0,2", "embed:0")]
)
def test_there_and_back(tmp_path: Path, pipeline: str, ties: str) -> None:
    folder = written(tmp_path, pipeline=pipeline, ties=ties)
    assert (folder / "layer_00-model_states.pt").is_file()
    assert len(list(folder.glob("mp_rank_*_model_states.pt"))) == pipeline.count(",") + 1
    out = read(folder, tmp_path / "out.ucp")
    same(tmp_path / "in.ucp", out)
    # As it was saved, and with another division.
    for number, settings in enumerate(({}, {"pipeline": "0,4"}, {"pipeline": ""})):
        if ties == "embed:0" and settings.get("pipeline") == "0,4":
            continue
        convert_checkpoint(
            out, tmp_path / str(number), source_kind="ucp", destination_kind="deepspeed", settings=settings
        )
        if settings.get("pipeline") != "":
            same(out, read(tmp_path / str(number), tmp_path / f"{number}.ucp"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"pipeline": "1,2"}, "ascending"),
        ({"pipeline": "0,0"}, "ascending"),
        ({"pipeline": "0,a"}, "joined by commas"),
        ({"pipeline": "0,2", "stage": "3"}, "ZeRO-1"),
        ({"pipeline": "0,2", "ties": "embed:5"}, "stages from 0 to 1"),
        ({"pipeline": "0,2", "ties": ""}, "is not known"),
        ({"pipeline": "0,9", "ties": "embed:0"}, "train nothing"),
    ],
)
def test_divisions_that_cannot_be(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    with pytest.raises(UcpError, match=text) as refusal:
        written(tmp_path, **settings)
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_a_plain_module_is_no_pipeline(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "plain.ucp")
    with pytest.raises(UcpError, match="of no layer"):
        convert_checkpoint(
            path,
            tmp_path / "ds",
            source_kind="ucp",
            destination_kind="deepspeed",
            settings={"pipeline": "0,1"},
        )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 2}}, "model-parallel ranks"),
        ({"global_steps": 6}, "two saves"),
        ({"param_shapes": None}, "named nowhere"),
        ({"buffer_names": ["9.table"]}, "no layer file"),
        ({"buffer_names": ["1.table"]}, "of another stage"),
        ({"buffer_names": ["odd"]}, "is of no layer"),
        ({"buffer_names": [{}]}, "not a string"),
    ],
)
def test_stages_that_do_not_fit(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    folder = written(tmp_path, pipeline="0,2")
    stages = (0, 1) if "checkpoint_parallel_dimensions" in changes else (1,)
    for stage in stages:
        path = folder / f"mp_rank_{stage:02d}_model_states.pt"
        torch.save({**torch.load(path, weights_only=True), **changes}, path)
    with pytest.raises(UcpError, match=text) as refusal:
        read(folder, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


def test_weights_of_two_ties_are_not_told_apart(tmp_path: Path) -> None:
    """Two ties of the same keys, shapes and values: which one a layer's file holds cannot be seen."""
    folder = written(tmp_path, pipeline="0,2")
    weight = torch.load(folder / "layer_00-model_states.pt", weights_only=True)
    torch.save(weight, folder / "layer_05-model_states.pt")
    out = read(folder, tmp_path / "out.ucp")
    with ucpformat.open(out) as found:
        assert found["tied_modules.embed.weight"].atom.aliases == ("0.weight", "5.weight")
    torch.save({"weight": weight["weight"] + 1}, folder / "layer_05-model_states.pt")
    with ucpformat.open(read(folder, tmp_path / "other.ucp")) as found:
        assert found["5.weight"]["value"].shape == (7, 3)
