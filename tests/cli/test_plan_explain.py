"""``ucp plan --explain``: who holds what of an atom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ucp
from tests.cli.test_plan import PATTERNS, TP2, TP4, Write, model, write
from tests.geometry.test_transfer import mesh
from tests.planning.arrangements import Held
from ucpformat.geometry import Flatten, Layout, Mesh, Only, Pad, Permute, Shard, View

__all__ = ["write"]


def test_one_side(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    result = ucp("plan", "--from", "a.json", "--explain", "layers.1.wq")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:6] == [
        "layers.1.wq: exp_avg (float32), 64x64, in a.json",
        "  mesh: dp 2 x tp 4",
        "  at rank 0 (dp 0, tp 0) it begins as 64x64",
        "  1. dim 0 is split over the 4 positions of tp, in equal parts: 16x64",
        "  2. the tensor becomes one-dimensional, row by row: 1024",
        "  3. dim 0 is split over the 2 positions of dp, in parts of the quotient rounded up: 512",
    ]
    assert lines[lines.index("layers.1.wq: value (bfloat16), 64x64, in a.json") :] == [
        "layers.1.wq: value (bfloat16), 64x64, in a.json",
        "  mesh: dp 2 x tp 4",
        "  at rank 0 (dp 0, tp 0) it begins as 64x64",
        "  1. dim 0 is split over the 4 positions of tp, in equal parts: 16x64",
        "  ranks along dp hold the same",
        "  who holds what:",
        "    ranks 0 and 4: 16x64, [0:16, 0:64]",
        "    ranks 1 and 5: 16x64, [16:32, 0:64]",
        "    ranks 2 and 6: 16x64, [32:48, 0:64]",
        "    ranks 3 and 7: 16x64, [48:64, 0:64]",
        "      0",
        "     ┌─────┐",
        "   0 │ 0,4 │",
        "     ├─────┤",
        "  16 │ 1,5 │",
        "     ├─────┤",
        "  32 │ 2,6 │",
        "     ├─────┤",
        "  48 │ 3,7 │",
        "     └─────┘",
    ]


def test_both_sides_and_what_moves(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    write("b.json", model(TP2))
    arguments = ("plan", "--from", "a.json", "--to", "b.json", "--explain", "layers.1.wq", "--rank", 5)
    lines = ucp(*arguments).stdout.splitlines()
    assert [line for line in lines if line.startswith(("layers", "  at", "from"))] == [
        "layers.1.wq: exp_avg (float32), 64x64, in a.json",
        "  at rank 5 (dp 1, tp 1) it begins as 64x64",
        "layers.1.wq: value (bfloat16), 64x64, in a.json",
        "  at rank 5 (dp 1, tp 1) it begins as 64x64",
        "layers.1.wq: exp_avg (float32), 64x64, in b.json",
        "  at rank 5 (dp 2, tp 1) it begins as 64x64",
        "layers.1.wq: value (bfloat16), 64x64, in b.json",
        "  at rank 5 (dp 2, tp 1) it begins as 64x64",
        "from a.json to b.json, from rank to rank",
    ]
    assert "2 slots, 24.00 KiB, in 2 kinds" in lines
    report = json.loads(ucp(*arguments, "--format", "json").stdout)
    assert report["atom"] == "layers.1.wq"
    assert [entry["side"] for entry in report["sides"]] == ["a.json", "b.json"]
    moment = report["sides"][0]["explained"][0]
    assert moment["slots"] == {"exp_avg": "float32"}
    assert [step["shape"] for step in moment["steps"]] == [[16, 64], [1024], [512]]
    assert moment["regions"][4] == {
        "ranks": [4],
        "local_shape": [512],
        "boxes": [{"offset": [8, 0], "shape": [8, 64]}],
    }
    assert (moment["rank"], moment["coordinate"], moment["view"], moment["replicated"]) == (
        5,
        [1, 1],
        [64, 64],
        [],
    )


def test_slots_spread_alike_are_told_once_and_bare_ones_are_said(ucp: Ucp, write: Write) -> None:
    stage = Layout(mesh(pp=2, tp=2), (Only("pp", (1,)), Shard("tp", 0), Flatten(), Pad(0, multiple=4)))
    held = Held("float32", (3, 3), stage)
    write(
        "a.json",
        {("w", "m"): held, ("w", "v"): held, ("w", "step"): Held("int64", (), None)},
    )
    lines = ucp("plan", "--from", "a.json", "--explain", "w", "--rank", 0).stdout.splitlines()
    assert lines == [
        "w: m (float32), v (float32), 3x3, in a.json",
        "  mesh: pp 2 x tp 2",
        "  at rank 0 (pp 0, tp 0) it begins as 3x3",
        "  1. only position 1 of pp holds it: nothing",
        "  2. dim 0 is split over the 2 positions of tp, in parts of the quotient rounded up: nothing",
        "  3. the tensor becomes one-dimensional, row by row: nothing",
        "  4. dim 0 is padded at its end to a multiple of 4: nothing",
        "  who holds what:",
        "    rank 2: 8, [0:2, 0:3], and 2 elements of padding or of other tensors",
        "    rank 3: 4, [2:3, 0:3], and 1 elements of padding or of other tensors",
        "     0",
        "    ┌───┐",
        "  0 │ 2 │",
        "    ├───┤",
        "  2 │ 3 │",
        "    └───┘",
        "w: step (int64), scalar, in a.json",
        "  who holds it is not recorded",
    ]
    report = json.loads(ucp("plan", "--from", "a.json", "--explain", "w", "--format", "json").stdout)
    assert report["sides"][0]["explained"][1] == {"slots": {"step": "int64"}, "shape": []}


def test_views_many_parts_and_many_boxes(ucp: Ucp, write: Write) -> None:
    heads = Layout(mesh(tp=20), (View((6, 20, 2)), Permute((1, 0, 2)), Shard("tp", 0)))
    empty = Layout(mesh(tp=3), (Shard("tp", 0),))
    corners = Layout(mesh(tp=2), (View((5, 2)), Permute((1, 0)), Shard("tp", 0), Flatten(), Pad(0, to=5)))
    write(
        "a.json",
        {
            ("heads", "value"): Held("int8", (240,), heads),
            ("empty", "value"): Held("int8", (2, 2, 2), empty),
            ("one", "value"): Held("int8", (), Layout(Mesh(()))),
            ("corners", "value"): Held("int8", (10,), corners),
        },
    )
    lines = ucp("plan", "--from", "a.json", "--explain", "heads").stdout.splitlines()
    assert "  who holds what, seen as 6x20x2:" in lines
    assert "    and 4 more parts; --format json lists all" in lines
    assert "  scaled down: each cell shows who holds its first element" in lines
    lines = ucp("plan", "--from", "a.json", "--explain", "empty").stdout.splitlines()
    assert "    rank 2: 0x2x2, no element" in lines
    assert "  dims 0 and 1 are shown, at index 0 of the others" in lines
    lines = ucp("plan", "--from", "a.json", "--explain", "one").stdout.splitlines()
    assert lines[1:] == [
        "  mesh: one rank",
        "  at rank 0 it begins as scalar",
        "  who holds what:",
        "    rank 0: scalar, []",
    ]


def test_a_checkpoint_explains_itself(ucp: Ucp, checkpoint: Path) -> None:
    lines = ucp("plan", "--from", checkpoint, "--explain", "layer.[bold]w[/bold]").stdout.splitlines()
    assert "    rank 1: 32x64, [32:64, 0:64]" in lines
    # A name is a name here, and no glob: what moves is that of this atom alone.
    both = ucp("plan", "--from", checkpoint, "--to", checkpoint, "--explain", "layer.[bold]w[/bold]")
    assert "1 slots, 16.00 KiB, in 1 kinds" in both.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--from", "a.json", "--explain", "layers.1.w"),
            "UCP-E-MISMATCH: a.json has no atom 'layers.1.w'; did",
        ),
        (("--from", "a.json", "--explain", "zzz"), "has no atom 'zzz'\n"),
        (("--from", "p.json", "--explain", "w"), "UCP-E-MISMATCH at p.json"),
        (("--from", "a.json", "--explain", "layers.1.wq", "--rank", "99"), "UCP-E-LAYOUT at layers.1.wq/"),
    ],
)
def test_refusals(ucp: Ucp, write: Write, arguments: tuple[str, ...], words: str) -> None:
    write("a.json", model(TP4))
    Path("p.json").write_text(json.dumps(PATTERNS))
    result = ucp("plan", *arguments)
    assert result.exit_code == 1
    assert words in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "a.json"),
        ("--from", "a.json", "--explain", "layers.1.wq", "--set", "tp=2"),
        ("--from", "a.json", "--explain", "layers.1.wq", "--atoms", "layers.*"),
        ("--from", "a.json", "--to", "a.json", "--explain", "layers.1.wq", "--atoms", "layers.*"),
        ("--from", "a.json", "--explain", "layers.1.wq", "--via", "ranks"),
        (
            "--from",
            "a.json",
            "--to",
            "a.json",
            "--explain",
            "layers.1.wq",
            "--via",
            "ranks",
            "--format",
            "json",
        ),
    ],
)
def test_usage(ucp: Ucp, write: Write, arguments: tuple[str, ...]) -> None:
    write("a.json", model(TP4))
    assert ucp("plan", *arguments).exit_code == 2
