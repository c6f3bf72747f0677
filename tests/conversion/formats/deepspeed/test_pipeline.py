"""Pipelines written and read again, without DeepSpeed; its own are in tests/frameworks_live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

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
        path, folder / "ds", source_format="ucp", destination_format="deepspeed", settings=settings
    )
    return folder / "ds" / "global_step5"


def read(folder: Path, out: Path, **settings: str) -> Path:
    convert_checkpoint(
        folder, out, source_format="deepspeed", destination_format="ucp", source_settings=settings
    )
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
            out,
            tmp_path / str(number),
            source_format="ucp",
            destination_format="deepspeed",
            settings=settings,
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
            source_format="ucp",
            destination_format="deepspeed",
            settings={"pipeline": "0,1"},
        )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 2}},
            r"tp_degree says 2 .*layer_00-model_01",
        ),
        ({"global_steps": 6}, "two saves"),
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


def without_zero(
    folder: Path, kind: str = "float32", down: tuple[int, int] = (3, 6), **settings: str
) -> Path:
    """As `source`, with shapes that tell the frozen parameter of layer 2 from the trained one."""
    aliases = {"tied_modules.embed.weight": "0.weight"}
    shapes = {**SHAPES, "2.down.weight": down}
    path = make_checkpoint(
        folder / "in.ucp", shapes=shapes, groups=GROUPS, aliases=aliases, prefix="2.", kind=kind
    )
    settings = {"stage": "0", "ties": "embed:0,1", **settings}
    convert_checkpoint(
        path, folder / "ds", source_format="ucp", destination_format="deepspeed", settings=settings
    )
    return folder / "ds" / "global_step5"


TIED = {"tied_layers": "embed:0,5"}


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("pipeline", ["0,2", "0,4"])
def test_without_zero_layers_are_divided_as_the_shapes_allow(
    tmp_path: Path, kind: str, pipeline: str
) -> None:
    folder = without_zero(tmp_path, kind, pipeline=pipeline)
    assert not list(folder.glob("*optim_states*"))
    same(tmp_path / "in.ucp", read(folder, tmp_path / "out.ucp", **TIED))
    same(tmp_path / "in.ucp", read(folder, tmp_path / "said.ucp", **TIED, pipeline=pipeline))


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({}, "UCP-E-SOURCE", "tied_layers=NAME"),
        ({"tied_layers": "embed:3"}, "UCP-E-SOURCE", "no layer file holds"),
        ({"tied_layers": "embed"}, "UCP-E-MISMATCH", "NAME:0,7"),
        ({**TIED, "pipeline": "0,1"}, "UCP-E-SOURCE", "are not those"),
        ({**TIED, "pipeline": "0"}, "UCP-E-MISMATCH", "there are 2"),
        ({**TIED, "pipeline": "0,0"}, "UCP-E-MISMATCH", "ascending"),
    ],
)
def test_without_zero_what_is_said_has_to_fit(
    tmp_path: Path, settings: dict[str, str], code: str, text: str
) -> None:
    folder = without_zero(tmp_path, pipeline="0,2")
    with pytest.raises(UcpError, match=text) as refusal:
        read(folder, tmp_path / "out.ucp", **settings)
    assert refusal.value.code == code


def test_without_zero_a_division_may_have_to_be_said(tmp_path: Path) -> None:
    """Two layers of equal shapes, one of them frozen: if one stage had both, either may have been trained."""
    folder = without_zero(tmp_path, pipeline="0,3")
    layer = torch.load(folder / "layer_01-model_states.pt", weights_only=True)
    torch.save(layer, folder / "layer_03-model_states.pt")
    with pytest.raises(UcpError, match="in several ways") as refusal:
        read(folder, tmp_path / "out.ucp", **TIED)
    assert refusal.value.code == "UCP-E-SOURCE"
    out = read(folder, tmp_path / "out.ucp", **TIED, pipeline="0,3")
    with ucpformat.open(out) as found:
        assert "exp_avg" in found["1.up.weight"]
        assert set(found["3.up.weight"]) == {"value"}


def test_without_zero_what_is_frozen_may_have_to_be_said(tmp_path: Path) -> None:
    """Two parameters of one layer and shape, of which one is trained."""
    folder = without_zero(tmp_path, pipeline="0,3", down=(3, 5))
    with pytest.raises(UcpError, match=r"frozen=2\.\*"):
        read(folder, tmp_path / "out.ucp", **TIED)
    same(tmp_path / "in.ucp", read(folder, tmp_path / "out.ucp", **TIED, frozen="2.fix*"))


def test_flat_groups_without_shapes_are_named_by_their_slices(tmp_path: Path) -> None:
    """`BF16_Optimizer` without ZeRO."""
    folder = written(tmp_path, pipeline="0,2")
    for stage in (0, 1):
        path = folder / f"mp_rank_{stage:02d}_model_states.pt"
        torch.save({**torch.load(path, weights_only=True), "param_shapes": None}, path)
    same(tmp_path / "in.ucp", read(folder, tmp_path / "out.ucp"))


OWN = "tied_modules.embed.positions@stage1"


def positions(folder: Path, kind: str = "bfloat16", **more: Any) -> Path:
    """A tied layer of which one weight is tied: the stages that have it train the other apart."""
    shapes = {**SHAPES, "2.down.weight": (3, 6), "tied_modules.embed.positions": (4, 3), OWN: (4, 3)}
    tied = ("tied_modules.embed.weight", "tied_modules.embed.positions", OWN)
    groups = more.pop("groups", ((*tied, *GROUPS[0][1:]), GROUPS[1]))
    aliases: dict[str, Any] = {
        name: f"0.{name.rpartition('.')[2]}" for name in shapes if name.startswith("tied") and name != OWN
    }
    aliases |= more.pop("also", {})
    return make_checkpoint(
        folder / "in.ucp", shapes=shapes, groups=groups, aliases=aliases, prefix="2.", kind=kind, **more
    )


@pytest.fixture
def with_positions(tmp_path: Path) -> Path:
    return positions(tmp_path)


def test_an_untied_weight_of_a_tied_layer_is_of_each_stage(with_positions: Path, tmp_path: Path) -> None:
    settings = {"stage": "1", "world_size": "2", "ties": "embed:0,1", "pipeline": "0,2"}
    convert_checkpoint(
        with_positions,
        tmp_path / "ds",
        source_format="ucp",
        destination_format="deepspeed",
        settings=settings,
    )
    folder = tmp_path / "ds" / "global_step5"
    for stage in range(2):
        tree = torch.load(folder / f"mp_rank_{stage:02d}_model_states.pt", weights_only=True)
        assert "tied_modules.embed.positions" in tree["param_shapes"][0]
        assert OWN not in tree["param_shapes"][0]
    out = read(folder, tmp_path / "out.ucp")
    with ucpformat.open(with_positions) as one, ucpformat.open(out) as other:
        assert set(one) == set(other)
        for name, atom in one.items():
            assert other[name].atom.aliases == atom.atom.aliases
            for slot, view in atom.items():
                assert other[name][slot].read().tobytes() == view.read().tobytes(), (name, slot)
    # As it was saved, once more; one stage has no place for what another trained.
    convert_checkpoint(out, tmp_path / "again", source_format="ucp", destination_format="deepspeed")
    same(out, read(tmp_path / "again", tmp_path / "again.ucp"))
    with pytest.raises(
        UcpError, match=r"trained apart on stage 1, and 1 stages are to be written"
    ) as refusal:
        convert_checkpoint(
            out,
            tmp_path / "no",
            source_format="ucp",
            destination_format="deepspeed",
            settings={"pipeline": "0"},
        )
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_a_tied_layer_of_which_nothing_is_equal_is_of_two_saves(with_positions: Path, tmp_path: Path) -> None:
    settings = {"stage": "1", "ties": "embed:0,1", "pipeline": "0,2"}
    convert_checkpoint(
        with_positions,
        tmp_path / "ds",
        source_format="ucp",
        destination_format="deepspeed",
        settings=settings,
    )
    path = tmp_path / "ds" / "global_step5" / "layer_00-model_states.pt"
    torch.save({name: item + 1 for name, item in torch.load(path, weights_only=True).items()}, path)
    with pytest.raises(UcpError, match="no layer file holds 'tied_modules") as refusal:
        read(path.parent, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


def test_a_stage_that_does_not_hold_the_tie_has_no_part_of_it(with_positions: Path, tmp_path: Path) -> None:
    settings = {"stage": "1", "ties": "embed:0,2", "pipeline": "0,2,4"}
    with pytest.raises(
        UcpError, match=r"stage 1, and 3 stages are to be written, 'embed' on 0, 2"
    ) as refusal:
        convert_checkpoint(
            with_positions,
            tmp_path / "ds",
            source_format="ucp",
            destination_format="deepspeed",
            settings=settings,
        )
    assert refusal.value.code == "UCP-E-MISMATCH"


FILES = {OWN: "5.positions", "tied_modules.embed.weight": ("0.weight", "5.weight")}
"""The second layer is called without a function, and has a file."""
UNPARTITIONED = {"stage": "0", "ties": "embed:0,1", "pipeline": "0,2"}


def unpartitioned(folder: Path, kind: str, **more: Any) -> Path:
    source = positions(folder, kind, **more)
    convert_checkpoint(
        source, folder / "ds", source_format="ucp", destination_format="deepspeed", settings=UNPARTITIONED
    )
    return folder / "ds" / "global_step5"


@pytest.mark.parametrize(("kind", "also"), [("float16", {}), ("float16", FILES), ("float32", FILES)])
def test_without_zero_an_untied_weight_is_of_each_stage(
    tmp_path: Path, kind: str, also: dict[str, Any]
) -> None:
    """The optimizer's copies, or files of both layers, have them."""
    folder = unpartitioned(tmp_path, kind, also=also)
    out = read(folder, tmp_path / "out.ucp", **TIED)
    with ucpformat.open(tmp_path / "in.ucp") as one, ucpformat.open(out) as other:
        assert set(one) == set(other)
        for name, view in one.items():
            assert other[name].atom.aliases == view.atom.aliases, name
            for slot, item in view.items():
                assert other[name][slot].read().tobytes() == item.read().tobytes(), (name, slot)
    convert_checkpoint(out, tmp_path / "again", source_format="ucp", destination_format="deepspeed")
    same(out, read(tmp_path / "again", tmp_path / "again.ucp", **TIED))


def test_without_zero_an_untied_weight_that_no_file_holds_is_reported(tmp_path: Path) -> None:
    """DeepSpeed writes no file of a layer that is called through a function, and float32 has no second copy."""
    folder = unpartitioned(tmp_path, "float32", also=FILES)
    (folder / "layer_05-model_states.pt").unlink()
    with pytest.raises(
        UcpError, match=r"positions@stage1 .*apart.*layer_05-model_states\.pt.*use ZeRO-1"
    ) as refusal:
        read(folder, tmp_path / "no.ucp", **TIED)
    assert refusal.value.code == "UCP-E-MISMATCH"
    out = tmp_path / "out.ucp"
    report = convert_checkpoint(
        folder,
        out,
        source_format="deepspeed",
        destination_format="ucp",
        source_settings=TIED,
        drop=[OWN],
    )
    assert OWN in [loss.what for loss in report.dropped]
    with ucpformat.open(out) as found, ucpformat.open(tmp_path / "in.ucp") as whole:
        assert set(found) == set(whole) - {OWN}
        assert OWN not in found.state.optimizers["optim"].groups[0].atoms
        view = found["tied_modules.embed.positions"]["value"]
        assert view.read().tobytes() == whole["tied_modules.embed.positions"]["value"].read().tobytes()


def test_without_zero_float32_of_one_stage_is_not_written_where_no_file_would_hold_it(tmp_path: Path) -> None:
    with pytest.raises(
        UcpError, match=r"no file would hold 'tied_modules\.embed\.positions@stage1'"
    ) as refusal:
        unpartitioned(tmp_path, "float32")
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_without_zero_and_states_nothing_tells_what_is_tied(tmp_path: Path) -> None:
    names = ("tied_modules.embed.weight", "tied_modules.embed.positions", OWN, *list(SHAPES)[1:])
    folder = unpartitioned(tmp_path, "float32", also=FILES, states=(), groups=(names,))
    settings = {**TIED, "pipeline": "0,2", "frozen": "2.fix*"}
    out = read(folder, tmp_path / "out.ucp", **settings)  # the files of both layers do
    with ucpformat.open(out) as found, ucpformat.open(tmp_path / "in.ucp") as whole:
        assert found[OWN]["value"].read().tobytes() == whole[OWN]["value"].read().tobytes()
    (folder / "layer_05-model_states.pt").unlink()
    with pytest.raises(UcpError, match=r"nothing tells whether .*, or trained apart by stage 1") as refusal:
        read(folder, tmp_path / "no.ucp", **settings)
    assert refusal.value.code == "UCP-E-SOURCE"


def test_without_zero_the_stage_of_a_tied_layer_may_have_to_be_said(tmp_path: Path) -> None:
    """Of the first layer of a stage nothing says that it is not the last one of the stage before."""
    shapes = {name.replace("2.", "3."): shape for name, shape in SHAPES.items()}
    shapes |= {"3.down.weight": (3, 6), "tied_modules.embed.positions": (4, 3), OWN: (4, 3)}
    weights = (
        "tied_modules.embed.weight",
        "tied_modules.embed.positions",
        OWN,
        "1.up.weight",
        "3.down.weight",
    )
    aliases: dict[str, str | tuple[str, ...]] = {
        "tied_modules.embed.weight": ("0.weight", "2.weight"),
        "tied_modules.embed.positions": "0.positions",
        OWN: "2.positions",
    }
    source = make_checkpoint(
        tmp_path / "in.ucp",
        shapes=shapes,
        groups=(weights, GROUPS[1]),
        aliases=aliases,
        prefix="3.",
        kind="float32",
    )
    convert_checkpoint(
        source, tmp_path / "ds", source_format="ucp", destination_format="deepspeed", settings=UNPARTITIONED
    )
    folder = tmp_path / "ds" / "global_step5"
    with pytest.raises(
        UcpError, match=r"layer 2, tied as 'embed', may be of stage 0 or 1.*pipeline=0,4"
    ) as refusal:
        read(folder, tmp_path / "no.ucp", tied_layers="embed:0,2")
    assert refusal.value.code == "UCP-E-SOURCE"
    out = read(folder, tmp_path / "out.ucp", tied_layers="embed:0,2", pipeline="0,2")
    with ucpformat.open(source) as one, ucpformat.open(out) as other:
        assert set(one) == set(other)
        for name, view in one.items():
            assert other[name]["value"].read().tobytes() == view["value"].read().tobytes(), name
