from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ucpformat
from tests.cli.conftest import Make, Ucp
from ucpformat.cli.inspect import brief_layout
from ucpformat.cli.report import human_bytes
from ucpformat.geometry import Blocks, Flatten, Join, Layout, Mesh, MeshAxis, Only, Shard
from ucpformat.reader import open_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def test_the_table(ucp: Ucp, checkpoint: Path) -> None:
    """Names come out as they are, neither cut nor taken for markup; nothing speaks to the terminal."""
    result = ucp("inspect", checkpoint)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("universal checkpoint, version 0, packed, step 7, by ucpformat ")
    with open_checkpoint(checkpoint) as opened:
        assert lines[1] == f"digest {opened.root.digest}"
    assert lines[2] == "2 atoms, 3 slots, 16.00 KiB"
    rows = [line.split() for line in lines[3:7]]
    assert rows == [
        ["atom", "slot", "dtype", "shape", "layout", "size", "chunks"],
        ["layer.[bold]w[/bold]", "step", "float32", "scalar", "4", "B", "1"],
        ["value", "float32", "64x64", "tp/0", "16.00", "KiB", "4"],
        ["x" * 150, "value", "int8", "0x2", "0", "B", "0"],
    ]
    assert lines[4].index("step") == lines[5].index("value") == lines[3].index("slot")
    assert lines[7:] == [
        'optimizer optim, group 0: 1 atoms; lr=0.1, betas={"$tuple": [0.9, 0.95]}',
        "value epoch = 3",
        f'value long = "{"y" * 96}...',
        r"blob extra: application/\x1b[31mred, 1 B",
    ]
    assert "\x1b" not in result.stdout


def test_aliases_are_shown(ucp: Ucp, make: Make) -> None:
    assert "layer.[bold]w[/bold] is also a, b" in ucp("inspect", make("m", aliases=("a", "b"))).stdout


def test_a_choice_of_atoms(ucp: Ucp, checkpoint: Path) -> None:
    assert ucp("inspect", checkpoint, "--atoms", "xxx*").stdout.splitlines()[2] == "1 atoms, 1 slots, 0 B"
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
    shown = ucp("inspect", tmp_path / "a").stdout
    assert "1 atoms and 1 slots have annotations, which --format json shows" in shown
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
    assert report["values"] == {"epoch": 3, "long": "y" * 200}
    assert report["optimizers"]["optim"]["groups"][0]["options"]["lr"] == 0.1
    assert report["blobs"]["extra"]["object"]["length"] == 1


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
