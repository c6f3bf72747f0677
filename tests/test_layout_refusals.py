"""Malformed meshes and layouts in sealed checkpoints: each broken rule is refused with its code and place (SPEC 12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.forgeries import make
from ucpformat.errors import UcpError
from ucpformat.reader import open_checkpoint
from ucpformat.validation import validate

AXES: list[Any] = [{"name": "dp", "size": 2}, {"name": "tp", "size": 3}]
SHARD: dict[str, Any] = {"kind": "shard", "axis": "tp", "dim": 0, "rule": "ceil"}
BLOCKS: dict[str, Any] = {"kind": "blocks", "dim": 0, "sizes": [1, 3]}

# Requirement, mesh, steps, code, place; the slot that refers to the layout has the shape (4, 6).
MESH = "ucp.json#/meshes/0"
STEPS = "ucp.json#/layouts/0/steps"
AT_ROOT: list[tuple[str, Any, Any, str, str]] = [
    ("UCP-D-039", {"axes": [AXES[0], AXES[0]]}, [], "UCP-E-LAYOUT", f"{MESH}/axes/1/name"),
    ("UCP-D-039", {"axes": [{"name": "", "size": 2}]}, [], "UCP-E-LAYOUT", f"{MESH}/axes/0/name"),
    ("UCP-D-040", {"axes": AXES, "ranks": [0, 1, 2, 3, 4]}, [], "UCP-E-LAYOUT", f"{MESH}/ranks"),
    ("UCP-D-040", {"axes": AXES, "ranks": [0, 1, 2, 3, 4, 4]}, [], "UCP-E-LAYOUT", f"{MESH}/ranks"),
    ("UCP-D-041", {"axes": [{"name": "a", "size": 2**20 + 1}]}, [], "UCP-E-LIMIT", f"{MESH}/axes"),
    ("UCP-D-045", {"axes": AXES}, [{**SHARD, "axis": "pp"}], "UCP-E-LAYOUT", f"{STEPS}/0/axis"),
    (
        "UCP-D-045",
        {"axes": AXES},
        [{"kind": "only", "axis": "dp", "coordinates": [2]}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/coordinates",
    ),
    ("UCP-D-046", {"axes": AXES}, [SHARD, {**SHARD, "dim": 1}], "UCP-E-LAYOUT", f"{STEPS}/1/axis"),
    (
        "UCP-D-046",
        {"axes": AXES},
        [{"kind": "only", "axis": "tp", "coordinates": [0]}, SHARD],
        "UCP-E-LAYOUT",
        f"{STEPS}/1/axis",
    ),
    ("UCP-D-057", {"axes": AXES}, [BLOCKS, BLOCKS], "UCP-E-LAYOUT", f"{STEPS}/1"),
    (
        "UCP-D-053",
        {"axes": AXES},
        [{**BLOCKS, "steps": [[], []]}, SHARD],
        "UCP-E-LAYOUT",
        f"{STEPS}/1",
    ),
    ("UCP-D-056", {"axes": AXES}, [{**BLOCKS, "steps": [None]}], "UCP-E-LAYOUT", f"{STEPS}/0/steps"),
    (
        "UCP-D-056",
        {"axes": AXES},
        [{**BLOCKS, "steps": [None, [{**SHARD, "dim": 1}]]}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/steps/1/0",
    ),
    ("UCP-D-058", {"axes": AXES}, [{"kind": "join", "dim": 0}], "UCP-E-LAYOUT", f"{STEPS}/0"),
    (
        "UCP-D-062",
        {"axes": AXES},
        [{"kind": "only", "axis": "tp", "coordinates": [1, 0]}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/coordinates",
    ),
    ("UCP-D-061", {"axes": AXES}, [{"kind": "flatten"}] * 2, "UCP-E-LAYOUT", f"{STEPS}/1"),
    # An axis used twice: by blocks and a shard of another dim, by a partial and a shard, by the steps of one block.
    (
        "UCP-D-046",
        {"axes": AXES},
        [{**BLOCKS, "steps": [[SHARD], None]}, {**SHARD, "dim": 1}],
        "UCP-E-LAYOUT",
        f"{STEPS}/1/axis",
    ),
    (
        "UCP-D-046",
        {"axes": AXES},
        [{"kind": "partial", "axis": "tp", "reduce": "sum"}, SHARD],
        "UCP-E-LAYOUT",
        f"{STEPS}/1/axis",
    ),
    (
        "UCP-D-046",
        {"axes": AXES},
        [{**BLOCKS, "steps": [[SHARD, SHARD], None]}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/steps/0/1/axis",
    ),
    # An unknown axis in the steps of a block, and in a partial.
    (
        "UCP-D-045",
        {"axes": AXES},
        [{**BLOCKS, "steps": [None, [{**SHARD, "axis": "pp"}]]}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/steps/1/0/axis",
    ),
    (
        "UCP-D-045",
        {"axes": AXES},
        [{"kind": "partial", "axis": "pp", "reduce": "sum"}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/axis",
    ),
    # As many sizes as positions; views and orders before splits, and orders that name every dim once.
    (
        "UCP-D-051",
        {"axes": AXES},
        [{"kind": "shard", "axis": "tp", "dim": 0, "sizes": [2, 2]}],
        "UCP-E-LAYOUT",
        f"{STEPS}/0/sizes",
    ),
    ("UCP-D-048", {"axes": AXES}, [SHARD, {"kind": "view", "shape": [24]}], "UCP-E-LAYOUT", f"{STEPS}/1"),
    ("UCP-D-049", {"axes": AXES}, [{"kind": "permute", "order": [0, 0]}], "UCP-E-LAYOUT", f"{STEPS}/0/order"),
]

# What only shows with the shape of a slot: the reader, which does not use the source layout, goes on.
WITH_SHAPE: list[tuple[str, Any, str]] = [
    ("UCP-D-045", [{**SHARD, "dim": 2}], "UCP-E-LAYOUT"),
    ("UCP-D-051", [{"kind": "shard", "axis": "tp", "dim": 0, "sizes": [1, 1, 1]}], "UCP-E-LAYOUT"),
    ("UCP-D-055", [{**BLOCKS, "sizes": [1, 2]}], "UCP-E-LAYOUT"),
    ("UCP-D-052", [{**SHARD, "rule": "even"}], "UCP-E-LAYOUT"),
    # Sizes that do not sum in each block; views of other sizes, and across dims that an order has parted; wide orders.
    (
        "UCP-D-051",
        [{**BLOCKS, "sizes": [2, 2]}, {"kind": "shard", "axis": "tp", "dim": 0, "sizes": [1, 1, 1]}],
        "UCP-E-LAYOUT",
    ),
    ("UCP-D-050", [{"kind": "view", "shape": [5, 5]}], "UCP-E-LAYOUT"),
    ("UCP-D-050", [{"kind": "permute", "order": [1, 0]}, {"kind": "view", "shape": [4, 6]}], "UCP-E-LAYOUT"),
    ("UCP-D-049", [{"kind": "permute", "order": [0, 1, 2]}], "UCP-E-LAYOUT"),
    ("UCP-D-060", [{"kind": "pad", "dim": 0, "to": 3}], "UCP-E-LAYOUT"),
]


def forge(path: Path, mesh: Any, steps: Any) -> Path:
    """A good checkpoint whose slot refers to this layout, sealed again."""
    forged = make(path, "packed")
    forged.edit("root", lambda root: root.update(meshes=[mesh], layouts=[{"mesh": 0, "steps": steps}]))
    forged.edit("index", lambda index: index["atoms"][0]["slots"]["value"].update(layout=0))
    return Path(forged.sealed())


def errors_of(path: Path) -> set[tuple[str, str]]:
    return {(problem.code, problem.at) for problem in validate(path, workers=1)}


@pytest.mark.parametrize(("requirement", "mesh", "steps", "code", "at"), AT_ROOT)
def test_a_malformed_layout_is_refused_when_opened(
    tmp_path: Path, requirement: str, mesh: Any, steps: Any, code: str, at: str
) -> None:
    """UCP-R-017."""
    path = forge(tmp_path / "c", mesh, steps)
    with pytest.raises(UcpError) as caught:
        open_checkpoint(path)
    assert (caught.value.code, caught.value.at) == (code, at)
    assert (code, at) in errors_of(path)


@pytest.mark.parametrize(("requirement", "steps", "code"), WITH_SHAPE)
def test_a_layout_that_does_not_fit_its_slot_is_reported(
    tmp_path: Path, requirement: str, steps: Any, code: str
) -> None:
    """UCP-R-017 for validators; a reader that takes no notice of the source layout reads on."""
    path = forge(tmp_path / "c", {"axes": AXES}, steps)
    found = errors_of(path)
    assert {problem for problem, _ in found} == {code}
    assert all(at.startswith("ucp.json#/layouts/0") for _, at in found)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint["a"]["value"].read().shape == (4, 6)


def test_only_needs_a_position(tmp_path: Path) -> None:
    """Steps can leave nothing out, since the one that could is refused by the schema."""
    path = forge(tmp_path / "c", {"axes": AXES}, [{"kind": "only", "axis": "dp", "coordinates": []}])
    assert errors_of(path) == {("UCP-E-SCHEMA", f"{STEPS}/0/coordinates")}


def test_a_mesh_index_points_at_a_mesh(tmp_path: Path) -> None:
    """UCP-D-044."""
    forged = make(tmp_path / "c", "packed")
    forged.edit("root", lambda root: root.update(meshes=[], layouts=[{"mesh": 0, "steps": []}]))
    path = Path(forged.sealed())
    with pytest.raises(UcpError) as caught:
        open_checkpoint(path)
    assert (caught.value.code, caught.value.at) == ("UCP-E-REFERENCE", "ucp.json#/layouts/0/mesh")


def test_a_ragged_axis_is_used_after_the_one_that_decides_its_size(tmp_path: Path) -> None:
    """The other way round, parts would leave gaps."""
    mesh = {"axes": [{"name": "pp", "size": 2}, {"name": "dp", "by": "pp", "sizes": [1, 2]}]}
    steps = [{**SHARD, "axis": "dp"}, {**SHARD, "axis": "pp"}]
    path = forge(tmp_path / "c", mesh, steps)
    assert errors_of(path) == {("UCP-E-LAYOUT", f"{STEPS}/1/axis")}
