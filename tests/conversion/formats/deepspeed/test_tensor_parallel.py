"""Files of two tensor-parallel ranks become one checkpoint, by affine maps; AutoTP's own in tests/frameworks_live."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.autotp import split_steps
from tests.conversion.formats.deepspeed.made import make_checkpoint, saved_as
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.formats.deepspeed.tensor_parallel.affine import affine_description
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, lower

WIDTHS = (3, 2)
COLUMNS = (1, 4)
TP = Mesh((MeshAxis("tp", 2),))


def shards_of(rank: int) -> dict[str, tuple[int, ...]]:
    return {"embed.weight": (4, 2), "rows": (WIDTHS[rank], 3), "columns": (3, COLUMNS[rank]), "norm": (4,)}


def described() -> dict[str, Any]:
    rows = affine_description(lower(Layout(TP, split_steps("tp", 0, WIDTHS)), (5, 3)))
    columns = affine_description(lower(Layout(TP, split_steps("tp", 1, COLUMNS)), (3, 5)))
    norm = affine_description(lower(Layout(TP), (4,)))
    return {"version": 1, "params": {"^rows$": rows, "^columns$": columns, "^norm$": norm}}


def saved(folder: Path, *, differing: str = "", stage: str = "1", **changes: Any) -> Path:
    """Two ranks' files side by side, each written as a job of its own and then given its place."""
    out = folder / "ds" / "tag"
    out.mkdir(parents=True)
    groups = [["rows", "norm"], ["embed.weight", "columns"]]
    for rank in range(2):
        salts = {"rows": rank, "columns": rank, differing: rank}
        source = make_checkpoint(folder / f"{rank}.ucp", shapes=shards_of(rank), groups=groups, salts=salts)
        settings = {"world_size": "2", "stage": stage}
        convert_checkpoint(
            source,
            folder / f"{rank}.ds",
            source_format="ucp",
            destination_format="deepspeed",
            settings=settings,
        )
        for file in (folder / f"{rank}.ds" / "global_step5").iterdir():
            place = out / file.name.replace("mp_rank_00", f"mp_rank_{rank:02d}")
            saved_as(file, place)
            if "model_states" in file.name:
                tree = torch.load(place, weights_only=True)
                tree["mp_world_size"] = 2
                tree["checkpoint_parallel_dimensions"] = {"pp_degree": 1, "tp_degree": 2}
                tree["universal_checkpoint_info"] = {"affine_map": described()}
                tree["rank"] = rank
                if stage == "3" and (rank or "pp_rank_1" in place.name):
                    tree["shared_params"] = {}  # DeepSpeed writes them on global rank 0 alone
                torch.save({**tree, **changes}, place)
    return out.parent / "tag"


def converted(source: Path, out: Path) -> Path:
    convert_checkpoint(source, out, source_format="deepspeed", destination_format="ucp")
    return out


@pytest.mark.parametrize("stage", ["1", "3"])
def test_shards_are_joined(tmp_path: Path, stage: str) -> None:
    path = converted(saved(tmp_path, stage=stage), tmp_path / "out.ucp")
    assert ucpformat.validate(path) == []
    with (
        ucpformat.open(path) as found,
        ucpformat.open(tmp_path / "0.ucp") as first,
        ucpformat.open(tmp_path / "1.ucp") as second,
    ):
        for slot in ("value", "master", "exp_avg", "exp_avg_sq"):
            for name, axis in (("rows", 0), ("columns", 1)):
                whole = np.concatenate([first[name][slot].read(), second[name][slot].read()], axis=axis)
                assert found[name][slot].read().tobytes() == whole.tobytes(), (name, slot)
            for name in ("embed.weight", "norm"):
                assert found[name][slot].read().tobytes() == first[name][slot].read().tobytes()
        assert found["rows"]["step"].read() == 5
        assert (found.objects["rank"], found.objects["mp_rank/1/rank"]) == (0, 1)
        assert found["embed.weight"].atom.aliases == ("head.weight",)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"universal_checkpoint_info": {}}, "no affine map"),
        ({"universal_checkpoint_info": {"affine_map": {"version": 2, "params": {}}}}, "version 2"),
        (
            {"universal_checkpoint_info": {"affine_map": {**described(), "params": {"^odd$": {}}}}},
            "no parameter here",
        ),
        ({"checkpoint_parallel_dimensions": {"pp_degree": 2, "tp_degree": 1}}, "2 pipeline stages"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UcpError, match=text) as refusal:
        converted(saved(tmp_path, **changes), tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert refusal.value.at == "mp_rank_00_model_states.pt"


def test_maps_of_other_widths_and_scaled_ones_are_refused(tmp_path: Path) -> None:
    other = affine_description(lower(Layout(TP, split_steps("tp", 0, (2, 3))), (5, 3)))
    scaled = affine_description(lower(Layout(TP), (4,)))
    for value in scaled["ranks"].values():
        for piece in value["pieces"]:
            piece["scale"] = 0.5
    for number, (name, entry, text) in enumerate(
        (("rows", other, "have shapes"), ("norm", scaled, "scaled"))
    ):
        maps = described()
        maps["params"][f"^{name}$"] = entry
        source = saved(tmp_path / str(number), universal_checkpoint_info={"affine_map": maps})
        with pytest.raises(UcpError, match=text):
            converted(source, tmp_path / "out.ucp")


@pytest.mark.parametrize("name", ["norm", "embed.weight"])
def test_replicas_that_differ_are_refused(tmp_path: Path, name: str) -> None:
    """Of these, an affine map describes the first alone."""
    with pytest.raises(UcpError, match=rf"'{name}/\w+' differ"):
        converted(saved(tmp_path, differing=name), tmp_path / "out.ucp")


def test_a_missing_rank_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    (source / "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt").unlink()
    with pytest.raises(UcpError, match="zero_pp_rank_1_mp_rank_01_optim_states"):
        converted(source, tmp_path / "out.ucp")


def rules(folder: Path, *entries: tuple[list[str], list[dict[str, Any]] | None]) -> str:
    members = ("read_features", "write_features")
    document = {
        "format": "ucp",
        "format_version": 0,
        **{name: [] for name in members},
        "extensions": {},
        "annotations": {},
        "kind": "patterns",
        "parameters": [{"name": "tp"}, {"name": "width", "default": 0}],
        "meshes": [{"axes": [{"name": "tp", "size": "=tp"}]}],
        "rules": [
            {"match": match, "layout": None if steps is None else {"mesh": 0, "steps": steps}}
            for match, steps in entries
        ],
    }
    path = folder / "rules.json"
    path.write_text(json.dumps(document))
    return str(path)


def split(dim: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    return {"kind": "shard", "axis": "tp", "dim": dim, "sizes": list(sizes)}


def with_patterns(source: Path, out: Path, patterns: str, parameters: str = "") -> Path:
    convert_checkpoint(
        source,
        out,
        source_format="deepspeed",
        destination_format="ucp",
        source_settings={"patterns": patterns, "pattern_parameters": parameters},
    )
    return out


def test_patterns_stand_in_for_maps(tmp_path: Path) -> None:
    source = saved(tmp_path, universal_checkpoint_info={})
    patterns = rules(
        tmp_path,
        (["rows"], [split(0, WIDTHS)]),
        (["columns"], [split(1, COLUMNS)]),
        (["embed.*"], None),
        (["**"], []),
    )
    whole = with_patterns(source, tmp_path / "out.ucp", patterns, "width=3")
    shutil.rmtree(tmp_path / "ds")
    for rank in range(2):
        for name in (f"{rank}.ucp", f"{rank}.ds"):
            shutil.rmtree(tmp_path / name)
    maps = converted(saved(tmp_path), tmp_path / "maps.ucp")
    with ucpformat.open(whole) as one, ucpformat.open(maps) as other:
        for name, view in one.items():
            for slot, item in view.items():
                assert item.read().tobytes() == other[name][slot].read().tobytes(), (name, slot)


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([(["**"], [])], "UCP-E-SOURCE"),
        ([(["rows"], [])], "UCP-E-SOURCE"),
        ([(["columns"], [])], "UCP-E-UNMATCHED"),
        ([(["**"], [split(0, (1, 1, 1))])], "UCP-E-LAYOUT"),
    ],
)
def test_patterns_that_do_not_fit(
    tmp_path: Path, entries: list[tuple[list[str], list[dict[str, Any]]]], code: str
) -> None:
    source = saved(tmp_path, universal_checkpoint_info={})
    with pytest.raises(UcpError) as refusal:
        with_patterns(source, tmp_path / "out.ucp", rules(tmp_path, *entries))
    assert refusal.value.code == code


@pytest.mark.parametrize(("patterns", "parameters"), [("none.json", ""), ("none", ""), ("llama", "heads=x")])
def test_patterns_that_are_not_there(tmp_path: Path, patterns: str, parameters: str) -> None:
    source = saved(tmp_path, universal_checkpoint_info={})
    with pytest.raises(UcpError) as refusal:
        with_patterns(source, tmp_path / "out.ucp", patterns, parameters)
    assert refusal.value.code == "UCP-E-PATTERN"
