from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError

import ucpformat
from tests.cli.conftest import Make, Ucp
from ucpformat.cli.heading import brief_layout
from ucpformat.geometry import Blocks, Flatten, Join, Layout, Mesh, MeshAxis, Only, Shard
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.text import human_bytes
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def test_the_page(ucp: Ucp, checkpoint: Path) -> None:
    """Names are not taken for markup, and nothing speaks to the terminal."""
    result = ucp("inspect", checkpoint)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("universal checkpoint, step 7, by ucpformat ")
    assert lines[1].startswith("2 atoms, 3 slots, 16.00 KiB; ")
    with open_checkpoint(checkpoint) as opened:
        assert lines[2] == f"digest {opened.root.digest}"
    assert lines[3:6] == [
        "saved by 2 ranks: tp=2", "layouts: tp/0 (1 slot)", "  tp/0: dimension 0 is split over the axis tp"
    ]  # fmt: skip
    assert lines[6] == "optim, group 0 of 1: 1 atom; lr=0.1, betas=(0.9, 0.95)"
    assert lines[7] == ""
    assert [line.split()[-1] for line in lines[8:11]] == ["atoms", "slots", "0x2"]
    assert "layer.[bold]w[/bold]  float32 64x64, 2 slots" in lines[9]
    assert lines[12] == "value epoch = 3"
    assert lines[13].startswith("value long = 'yyy")
    assert len(lines[13]) == 100
    assert lines[14:] == [r"blob extra: application/\x1b[31mred, 1 B"]
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("option", ["--slots", "--all"])
def test_the_table(ucp: Ucp, checkpoint: Path, option: str) -> None:
    """Names come out as they are, uncut; one that is too long for a column has a line of its own."""
    result = ucp("inspect", checkpoint, option)
    lines = result.stdout.splitlines()
    lines = lines[lines.index("") + 1 :]
    assert [line.split() for line in lines[:5]] == [
        ["atom", "slot", "dtype", "shape", "layout", "size", "chunks"],
        ["layer.[bold]w[/bold]", "step", "float32", "scalar", "4", "B", "1"],
        ["value", "float32", "64x64", "tp/0", "16.00", "KiB", "4"],
        ["x" * 150],
        ["value", "int8", "0x2", "0", "B", "0"],
    ]
    assert max(map(len, [*lines[:3], lines[4]])) <= 100
    assert lines[1].index("step") == lines[2].index("value") == lines[0].index("slot")
    assert (f"value long = '{'y' * 200}'" in lines) == (option == "--all")


def test_layouts_are_told_in_words(ucp: Ucp, tmp_path: Path) -> None:
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2), MeshAxis("dim0", 2)))
    layouts = {
        "a": (Shard("tp", 1, "even"),),
        "b": (Blocks(0, (2, 2)), Shard("tp", 0, "even"), Join(0)),
        "c": (Flatten(), Shard("dp", 0, "even")),
        "d": (Only("tp", (1,)),),
        "e": (Shard("dim0", 0, "even"),),
    }
    atoms = [
        AtomSpec(name, {"value": SlotSpec("int8", (4, 4), Layout(mesh, steps))})
        for name, steps in layouts.items()
    ]
    with CheckpointWriter(tmp_path / "a", atoms) as writer:
        for name in layouts:
            writer.write(name, "value", np.ones((4, 4), np.int8))
    lines = ucp("inspect", tmp_path / "a").stdout.splitlines()
    assert lines[3 : lines.index("")] == [
        "saved by 8 ranks: dp=2 x tp=2 x dim0=2",
        "layouts: tp/1 (1 slot), blocks/0 tp/0 join/0 (1 slot), flatten dp/0 (1 slot), tp=1 (1 slot), dim0:2",
        "  (1 slot)",
        "  tp/1: dimension 1 is split over the axis tp",
        "  blocks/0: dimension 0 is blocks, each of which is split by itself",
        "  join/0: the blocks are one again",
        "  flatten: what a rank has is seen in one dimension from here on",
        "  tp=1: only ranks at 1 of the axis tp have it",
        "  dim0:2: dimension 0 was in 2 parts; nothing says by which ranks",
    ]


def test_what_groups_of_options_have_alike_is_told_once(ucp: Ucp, tmp_path: Path) -> None:
    atoms = [AtomSpec(f"w{n}", {"value": SlotSpec("int8", (1,))}) for n in range(10)]
    with CheckpointWriter(tmp_path / "a", atoms) as writer:
        for atom in atoms:
            writer.write(atom.name, "value", np.ones(1, np.int8))
        writer.set_optimizer(
            "optim", [([f"w{n}"], {"lr": 3e-4 * 0.9**n, "betas": (0.9, 0.95)}) for n in range(10)]
        )
    lines = ucp("inspect", tmp_path / "a").stdout.splitlines()
    assert lines[3:6] == [
        "optim, 10 groups; all have betas=(0.9, 0.95)",
        "  group 0: 1 atom; lr=0.0003",
        "  group 1: 1 atom; lr=0.00027",
    ]
    assert lines[10:12] == ["  group 6: 1 atom; lr=0.000159432", "  and 3 other groups, which --all shows"]
    uncut = ucp("inspect", tmp_path / "a", "--all").stdout.splitlines()
    assert uncut[13] == f"  group 9: 1 atom; lr={3e-4 * 0.9**9!r}"


def test_the_page_is_no_longer_than_a_screen(ucp: Ucp, tmp_path: Path) -> None:
    names = [f"{a}.{b}" for a in "abcdefgh" for b in "xy"]
    atoms = [AtomSpec(name, {"value": SlotSpec("int8", (ord(name[0]), 1))}) for name in names]
    with CheckpointWriter(tmp_path / "a", atoms) as writer:
        for atom in atoms:
            writer.write(atom.name, "value", np.ones(atom.slots["value"].shape, np.int8))
        writer.set_optimizer("optim", [([name], {"lr": number}) for number, name in enumerate(names)])
        for number in range(9):
            writer.set_value(f"v{number}", number)
    lines = ucp("inspect", tmp_path / "a").stdout.splitlines()
    assert len(lines) <= 38
    assert not any(" x  int8" in line for line in lines)
    assert any(
        " x  int8" in line for line in ucp("inspect", tmp_path / "a", "--depth", 2).stdout.splitlines()
    )


def test_depth_and_order(ucp: Ucp, tmp_path: Path) -> None:
    ucpformat.save(
        tmp_path / "a", {"a.x": np.ones(2), "a.y": np.ones(9), "b": np.ones(50), "10.w": np.ones(3)}
    )

    def names(*options: object) -> list[str]:
        lines = ucp("inspect", tmp_path / "a", *options).stdout.splitlines()
        return [line.split("  ")[-2].split()[-1] for line in lines[lines.index("") + 1 :]]

    assert names() == ["all", "b", "a", "y", "x", "10.w"]
    assert names("--depth", 1, "--sort", "name") == ["all", "10.w", "a", "b"]
    assert names("--depth", 0) == ["all"]


def test_many_modules_beside_one_another_are_cut(ucp: Ucp, tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "a", {f"w{n}": np.ones(n + 1) for n in range(40)})
    shown = ucp("inspect", tmp_path / "a").stdout
    assert "and 21 others  21 atoms" in shown
    assert len(shown.splitlines()) < 30


def test_many_values_are_cut(ucp: Ucp, tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "a", {"w": np.ones(2), **{f"v{n}": n for n in range(20)}})
    assert "and 13 other values, which --all shows" in ucp("inspect", tmp_path / "a").stdout
    assert "value v19 = 19" in ucp("inspect", tmp_path / "a", "--all").stdout


def test_a_terminal_without_blocks_gets_other_bars(
    ucp: Ucp, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucpformat.cli.inspect._has_blocks", lambda: False)
    assert "100%  #####" in ucp("inspect", checkpoint).stdout


def test_aliases_are_shown(ucp: Ucp, make: Make) -> None:
    assert "layer.[bold]w[/bold] is also a, b" in ucp("inspect", make("m", aliases=("a", "b"))).stdout


def test_many_aliases_are_cut(ucp: Ucp, tmp_path: Path) -> None:
    atoms = [AtomSpec(f"w{n}", {"value": SlotSpec("int8", (0,))}, (f"a{n}",)) for n in range(20)]
    with CheckpointWriter(tmp_path / "a", atoms):
        pass
    assert "and 13 other notes, which --all shows" in ucp("inspect", tmp_path / "a").stdout
    assert "w19 is also a19" in ucp("inspect", tmp_path / "a", "--all").stdout


def test_a_choice_of_atoms(ucp: Ucp, checkpoint: Path) -> None:
    assert (
        ucp("inspect", checkpoint, "--atoms", "xxx*")
        .stdout.splitlines()[1]
        .startswith("1 atom, 1 slot, 0 B;")
    )
    refused = ucp("inspect", checkpoint, "--atoms", "none")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "none of the 2 atoms matches 'none'" in refused.stderr


def test_annotations_are_shown(ucp: Ucp, tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "a", {"w": np.ones(2)}, annotations={"org.example": {"run": 7}})
    with open_checkpoint(tmp_path / "a") as opened:
        assert opened.annotations == {"org.example": {"run": 7}}
        assert (opened.step, opened.digest, opened.path) == (None, opened.root.digest, str(tmp_path / "a"))
        assert opened.producer == f"ucpformat {ucpformat.__version__}"
        assert (opened["w"].name, opened["w"].aliases, opened["w"].annotations) == ("w", (), {})
        assert isinstance(opened["w"]["value"].annotations, dict)
    assert 'annotation org.example = {"run": 7}' in ucp("inspect", tmp_path / "a").stdout.splitlines()
    report = json.loads(ucp("inspect", tmp_path / "a", "--format", "json").stdout)
    assert report["annotations"] == {"org.example": {"run": 7}}


def test_annotations_of_atoms_and_slots_are_shown(ucp: Ucp, tmp_path: Path) -> None:
    slot = SlotSpec("int8", (1,), annotations={"org.example": "of the slot"})
    atom = AtomSpec("w", {"value": slot}, annotations={"org.example": "of the atom"})
    with CheckpointWriter(tmp_path / "a", [atom]) as writer:
        writer.write("w", "value", np.ones(1, np.int8))
    with open_checkpoint(tmp_path / "a") as opened:
        assert opened["w"].annotations == {"org.example": "of the atom"}
        assert opened["w"]["value"].annotations == {"org.example": "of the slot"}
    (found,) = json.loads(ucp("inspect", tmp_path / "a", "--format", "json").stdout)["atoms"]
    assert found["annotations"] == {"org.example": "of the atom"}
    assert found["slots"]["value"]["annotations"] == {"org.example": "of the slot"}


def test_json(ucp: Ucp, checkpoint: Path) -> None:
    result = ucp("inspect", "--format", "json", checkpoint)
    report = json.loads(result.stdout)
    assert (report["format_version"], report["storage"], report["step"]) == (0, "packed", 7)
    assert report["producer"]["name"] == "ucpformat"
    atom = report["atoms"][0]
    assert (atom["name"], atom["aliases"], sorted(atom["slots"])) == (
        "layer.[bold]w[/bold]",
        [],
        ["step", "value"],
    )
    value = atom["slots"]["value"]
    assert value.pop("content").startswith("crc32c-tree:")
    assert value == {
        "dtype": "float32",
        "shape": [64, 64],
        "nbytes": 16384,
        "chunk_shape": [16, 64],
        "chunks": 4,
        "layout": 0,
        "place": None,
        "annotations": {},
    }
    assert report["meshes"] == [{"axes": [{"name": "tp", "size": 2}]}]
    assert report["layouts"] == [
        {"mesh": 0, "steps": [{"kind": "shard", "axis": "tp", "dim": 0, "rule": "even"}]}
    ]
    assert report["nbytes"] == 16388
    assert [(pack["shared"], pack["length"] > 12000) for pack in report["packs"]] == [(False, True)]
    assert report["values"] == {"epoch": 3, "long": "y" * 200}
    assert report["optimizers"]["optim"]["groups"][0]["options"]["lr"] == 0.1
    assert report["blobs"]["extra"]["object"]["length"] == 1


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_json_meets_its_schema(ucp: Ucp, checkpoint: Path, tmp_path: Path, storage: Storage) -> None:
    schema = json.loads((Path(ucpformat.__file__).parent / "inspection/description.schema.json").read_bytes())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    ucpformat.save(tmp_path / "a", {"w": np.ones(2), "epoch": 3}, storage=storage, step=7)
    for path in (checkpoint, tmp_path / "a"):
        validator.validate(json.loads(ucp("inspect", "--format", "json", path).stdout))
    with pytest.raises(ValidationError):
        validator.validate({})


MESH = Mesh((MeshAxis("dp", 4), MeshAxis("tp", 2), MeshAxis("dim1", 3)))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((), "replicated"),
        ((Shard("tp", 1, "ceil"),), "tp/1"),
        ((Shard("dim1", 1, "ceil"), Shard("tp", 0, "ceil")), "dim1:3 tp/0"),
        ((Shard("dim1", 0, "ceil"),), "dim1/0"),
        ((Blocks(0, (2, 4)), Shard("tp", 0, "ceil"), Join(0)), "blocks/0 tp/0 join/0"),
        ((Only("tp", (0, 1)), Flatten(), Shard("dp", 0, "ceil")), "tp=0,1 flatten dp/0"),
    ],
)
def test_layouts_in_brief(steps: tuple[Shard, ...], text: str) -> None:
    assert brief_layout(Layout(MESH, steps)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB"), (1 << 70, "1048576.00 PiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text
