"""``ucp plan``: arrangements, checkpoints and patterns, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Make, Ucp
from tests.geometry.test_transfer import mesh
from tests.patterns.documents import ENVELOPE, TP
from tests.planning.arrangements import Held, arranged, side
from ucpformat.cli.plan_json import detail_json
from ucpformat.geometry import Blocks, Flatten, Layout, Mesh, MeshAxis, Partial, Scale, Shard
from ucpformat.planning import pair, rank_detail

Write = Callable[[str, dict[tuple[str, str], Held]], Path]

TP4 = mesh(dp=2, tp=4)
TP2 = mesh(dp=4, tp=2)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def arrangement(name: str, slots: dict[tuple[str, str], Held]) -> Path:
        path = Path(name)
        path.write_text(json.dumps(arranged(slots).to_json()))
        return path

    return arrangement


def model(grid: Mesh, layers: int = 2) -> dict[tuple[str, str], Held]:
    rows = (Shard("tp", 0, "even"),)
    value, moment = Layout(grid, rows), Layout(grid, (*rows, Flatten(), Shard("dp", 0)))
    return {
        (f"layers.{layer}.wq", slot): Held(dtype, (64, 64), layout)
        for layer in range(layers)
        for slot, dtype, layout in (("value", "bfloat16", value), ("exp_avg", "float32", moment))
    }


def test_a_table_of_all_ranks(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    write("b.json", model(TP2))
    result = ucp("plan", "--from", "a.json", "--to", "b.json")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "from a.json to b.json, from rank to rank",
        "4 slots, 48.00 KiB, in 2 kinds",
        "kept in place 24.00 KiB",
        "lower bound of what must be sent 72.00 KiB, sent 72.00 KiB, 1.00 times as much",
        "sent by 8 of 8 ranks: most 12.00 KiB by rank 1, 1.33 times the mean; least 4.00 KiB by rank 0",
        "received by 8 of 8 ranks: most 12.00 KiB by rank 1, 1.33 times the mean; least 4.00 KiB by rank 0",
        "rank      kept       sent  messages  ranges   received  messages  ranges    written",
        "   0  8.00 KiB   4.00 KiB         2       2   4.00 KiB         2       2  12.00 KiB",
        "   1       0 B  12.00 KiB         6       6  12.00 KiB         6       6  12.00 KiB",
        "   2       0 B  12.00 KiB         6       6  12.00 KiB         6       6  12.00 KiB",
        "   3  4.00 KiB   8.00 KiB         4       4   8.00 KiB         4       4  12.00 KiB",
        "   4  4.00 KiB   8.00 KiB         4       4   8.00 KiB         4       4  12.00 KiB",
        "   5       0 B  12.00 KiB         6       6  12.00 KiB         6       6  12.00 KiB",
        "   6       0 B  12.00 KiB         6       6  12.00 KiB         6       6  12.00 KiB",
        "   7  8.00 KiB   4.00 KiB         2       2   4.00 KiB         2       2  12.00 KiB",
    ]


def test_json_says_it_all(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    write("b.json", {**model(TP2, 1), ("other", "value"): Held("int8", (), Layout(TP2))})
    report = json.loads(ucp("plan", "--from", "a.json", "--to", "b.json", "--format", "json").stdout)
    ranks = report.pop("ranks")
    assert report == {
        "from": "a.json",
        "to": "b.json",
        "route": "ranks",
        "slots": 2,
        "bytes": 24576,
        "kinds": 2,
        "unplanned": [
            {"atom": "layers.1.wq", "slot": "exp_avg", "why": "not in the target"},
            {"atom": "layers.1.wq", "slot": "value", "why": "not in the target"},
            {"atom": "other", "slot": "value", "why": "not in the source"},
        ],
        "lower_bound": 36864,
    }
    assert [entry["rank"] for entry in ranks] == list(range(8))
    assert ranks[3] == {
        "rank": 3,
        "kept": {"bytes": 2048, "messages": 1, "ranges": 1},
        "sent": {"bytes": 4096, "messages": 2, "ranges": 2},
        "received": {"bytes": 4096, "messages": 2, "ranges": 2},
        "read": {"bytes": 0, "messages": 0, "ranges": 0},
        "fetched": 0,
        "written": 6144,
    }


def test_all_that_one_rank_does(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    write("b.json", model(TP2))
    chosen = ("plan", "--from", "a.json", "--to", "b.json", "--atoms", "*.0.*", "--rank", 3)
    assert ucp(*chosen).stdout.splitlines() == [
        "from a.json to b.json, from rank to rank",
        "2 slots, 24.00 KiB, in 2 kinds",
        "rank 3: keeps 2.00 KiB, receives 4.00 KiB, sends 4.00 KiB",
        "slot                 what                bytes  ranges",
        "layers.0.wq/exp_avg  receives from 6  2.00 KiB       1",
        "layers.0.wq/exp_avg  sends to 5       2.00 KiB       1",
        "layers.0.wq/value    keeps            2.00 KiB       1",
        "layers.0.wq/value    receives from 6  2.00 KiB       1",
        "layers.0.wq/value    sends to 1       2.00 KiB       1",
    ]
    report = json.loads(ucp(*chosen, "--format", "json").stdout)
    assert (report["rank"], len(report["parts"])) == (3, 2)
    assert report["parts"][1] == {
        "atom": "layers.0.wq",
        "slot": "value",
        "keeps": [
            {
                "bytes": 2048,
                "source": {"first": 0, "length": 2048},
                "target": {"first": 2048, "length": 2048},
            }
        ],
        "receives": [
            {
                "peer": 6,
                "bytes": 2048,
                "source": {"first": 0, "length": 2048},
                "target": {"first": 0, "length": 2048},
            }
        ],
        "sends": [
            {
                "peer": 1,
                "bytes": 2048,
                "source": {"first": 0, "length": 2048},
                "target": {"first": 2048, "length": 2048},
            }
        ],
        "reads": [],
    }
    nothing = ucp("plan", "--from", "a.json", "--to", "b.json", "--rank", 99).stdout.splitlines()
    assert nothing[-1] == "rank 99 does nothing"
    report = json.loads(
        ucp("plan", "--from", "a.json", "--to", "b.json", "--rank", 99, "--format", "json").stdout
    )
    assert report["parts"] == []


def test_strides_factors_and_contributions_are_told() -> None:
    columns = Layout(mesh(sp=2, tp=2), (Partial("sp", "sum"), Scale(Fraction(1, 2)), Shard("tp", 1)))
    source = side("a", {("w", "value"): Held("int16", (4, 4), columns)})
    target = side("b", {("w", "value"): Held("int16", (4, 4), Layout(Mesh((MeshAxis("r", 1),), (9,))))})
    report = json.loads("".join(detail_json(rank_detail(pair(source, target, "ranks"), 9))))
    received = report["parts"][0]["receives"]
    assert [entry.get("contribution", 0) for entry in received] == [0, 0, 1, 1]
    assert {entry["factor"] for entry in received} == {"2"}
    assert received[1]["target"] == {"first": 4, "length": 4, "loops": [[4, 8]]}


def test_copies_that_continue_each_other_are_one_range(ucp: Ucp, write: Write) -> None:
    whole = Layout(Mesh((MeshAxis("r", 1),), (5,)))
    write(
        "a.json",
        {("w", "value"): Held("int8", (8, 3), Layout(mesh(tp=2), (Blocks(0, (4, 4)), Shard("tp", 0))))},
    )
    write("b.json", {("w", "value"): Held("int8", (8, 3), whole)})
    rows = ucp("plan", "--from", "a.json", "--to", "b.json", "--rank", 5).stdout.splitlines()[-2:]
    assert [row.split()[-1] for row in rows] == ["2", "2"]
    rows = ucp("plan", "--from", "a.json", "--to", "b.json", "--rank", 0).stdout.splitlines()[-1:]
    assert [row.split()[-1] for row in rows] == ["1"]
    write("c.json", {("w", "value"): Held("int8", (8, 3), Layout(mesh(tp=2), (Shard("tp", 1, (1, 2)),)))})
    rows = ucp("plan", "--from", "b.json", "--to", "c.json", "--rank", 5).stdout.splitlines()[-2:]
    assert [row.split()[-1] for row in rows] == ["8", "8"]


def test_many_ranks_are_cut_to_those_that_move_most(ucp: Ucp, write: Write) -> None:
    write("a.json", {("w", "value"): Held("int8", (40,), Layout(mesh(dp=20), (Shard("dp", 0),)))})
    write("b.json", {("w", "value"): Held("int8", (40,), Layout(mesh(dp=20)))})
    lines = ucp("plan", "--from", "a.json", "--to", "b.json").stdout.splitlines()
    assert lines[-1] == "and 4 ranks that move no more each; --format json lists all"
    assert len(lines) == 6 + 1 + 16 + 1
    assert "nothing" not in lines[2]
    same = ucp("plan", "--from", "a.json", "--to", "a.json").stdout.splitlines()
    assert same[3] == "lower bound of what must be sent 0 B, sent 0 B"
    assert same[4].startswith("rank")


def test_a_checkpoint_is_read_out_of_storage_or_as_its_layouts_say(
    ucp: Ucp, write: Write, checkpoint: Path
) -> None:
    name = "layer.[bold]w[/bold]"
    write("b.json", {(name, "value"): Held("float32", (64, 64), Layout(mesh(dp=4), (Shard("dp", 0),)))})
    lines = ucp("plan", "--from", checkpoint, "--to", "b.json").stdout.splitlines()
    assert lines[0].endswith("out of the checkpoint")
    assert lines[1:] == [
        "1 slots, 16.00 KiB, in 1 kinds",
        f"2 slots are left out, not in the target: {name}/step, {'x' * 150}/value",
        "read 16.00 KiB of the checkpoint, 16.00 KiB with whole checksum blocks",
        "read by 4 of 4 ranks: most 4.00 KiB by rank 0, 1.00 times the mean; least 4.00 KiB by rank 0",
        "rank      read  reads   fetched   written",
        *[f"   {rank}  4.00 KiB      1  4.00 KiB  4.00 KiB" for rank in range(4)],
    ]
    rows = ucp("plan", "--from", checkpoint, "--to", "b.json", "--rank", 1).stdout.splitlines()
    assert rows[-1].split()[:2] == [f"{name}/value", "reads"]
    report = json.loads(
        ucp("plan", "--from", checkpoint, "--to", "b.json", "--rank", 1, "--format", "json").stdout
    )
    (read,) = report["parts"][0]["reads"]
    assert read["key"].startswith("packs/")
    assert (read["chunk"], read["stop"] - read["start"], read["needed"]) == (1, 4096, 4096)
    by_ranks = ucp("plan", "--from", checkpoint, "--to", "b.json", "--via", "ranks").stdout.splitlines()
    assert by_ranks[0].endswith("from rank to rank")
    assert by_ranks[3:5] == [
        "kept in place 4.00 KiB",
        "lower bound of what must be sent 12.00 KiB, sent 12.00 KiB, 1.00 times as much",
    ]
    # Rank 9 of another job has no part in it.
    assert "does nothing" in ucp("plan", "--from", checkpoint, "--to", "b.json", "--rank", 9).stdout


PATTERNS: dict[str, Any] = {
    **ENVELOPE,
    "kind": "patterns",
    "parameters": [{"name": "tp"}, {"name": "stages", "type": "integers", "default": [0]}],
    "meshes": [TP],
    "rules": [
        {"match": "**", "slots": "step", "layout": None},
        {
            "match": "**",
            "layout": {"mesh": 0, "steps": [{"kind": "shard", "axis": "tp", "dim": 0, "rule": "ceil"}]},
        },
    ],
}


def test_patterns_spread_the_slots_of_the_other_side(ucp: Ucp, write: Write, checkpoint: Path) -> None:
    Path("p.json").write_text(json.dumps(PATTERNS))
    lines = ucp("plan", "--from", checkpoint, "--to", "p.json", "--set", "tp=8").stdout.splitlines()
    assert lines[1:3] == [
        "2 slots, 16.00 KiB, in 2 kinds",
        "1 slots are left out, no layout in the target: layer.[bold]w[/bold]/step",
    ]
    assert lines[5].startswith("rank")
    assert len(lines) == 6 + 8
    both = ucp("plan", "--from", "p.json", "--to", checkpoint, "--set", "tp=4", "--set", "stages=0,1")
    assert both.stdout.splitlines()[0].endswith("from rank to rank")


def test_ready_made_patterns_go_by_name(ucp: Ucp, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from ucpformat.cli import sides
    from ucpformat.patterns import Patterns

    monkeypatch.setattr(sides, "pattern_names", lambda: ("mine",))
    monkeypatch.setattr(sides, "load_patterns", lambda name: Patterns.from_json(PATTERNS, at=name))
    write("a.json", model(TP4))
    result = ucp("plan", "--from", "a.json", "--to", "mine", "--set", "tp=2")
    assert result.stdout.splitlines()[1] == "4 slots, 48.00 KiB, in 2 kinds"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--from", "p.json", "--to", "p.json"), "UCP-E-MISMATCH"),
        (("--from", "a.json", "--to", "none.json"), "UCP-E-NOT-FOUND"),
        (("--from", "a.json", "--to", "a.json", "--via", "storage"), "UCP-E-MISMATCH"),
        (("--from", "a.json", "--to", "other.json"), "UCP-E-SCHEMA"),
        (("--from", "a.json", "--to", "broken.json"), "UCP-E-JSON"),
    ],
)
def test_refusals(ucp: Ucp, write: Write, arguments: tuple[str, ...], code: str) -> None:
    write("a.json", model(TP4))
    Path("p.json").write_text(json.dumps(PATTERNS))
    Path("other.json").write_text(json.dumps({**PATTERNS, "kind": "recipe"}))
    Path("broken.json").write_text("{")
    result = ucp("plan", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error {code}")


@pytest.mark.parametrize("text", ["tp", "tp=x", "=4", "tp=1,"])
def test_settings_have_one_form(ucp: Ucp, write: Write, text: str) -> None:
    write("a.json", model(TP4))
    result = ucp("plan", "--from", "a.json", "--to", "a.json", "--set", text)
    assert result.exit_code == 2


def test_settings_need_patterns(ucp: Ucp, write: Write) -> None:
    write("a.json", model(TP4))
    assert ucp("plan", "--from", "a.json", "--to", "a.json", "--set", "tp=2").exit_code == 2


def test_what_cannot_be_read_is_said_with_the_slot(ucp: Ucp, write: Write, make: Make) -> None:
    write("b.json", {("x" * 150, "value"): Held("int8", (0, 3), Layout(mesh(dp=2)))})
    result = ucp("plan", "--from", make("m"), "--to", "b.json")
    assert result.stderr.startswith(f"error UCP-E-MISMATCH at {'x' * 150}/value")
