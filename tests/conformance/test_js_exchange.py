"""Plans between layouts by the JavaScript package and by the page, against those of the library."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.builders import Tensor, save
from tests.conformance.suite import ROOT
from tests.geometry.strategies import placed_layouts, shapes
from ucpformat.geometry import Exchange, Flatten, Layout, Mesh, MeshAxis, Shard, lower
from ucpformat.model.layout_json import mesh_to_json, step_to_json
from ucpformat.planning import checkpoint_side, movements, pair

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")

Matrix = Counter[tuple[int, int]]
Drawn = tuple[tuple[int, ...], tuple[Layout, None], tuple[Layout, None]]
Ask = Callable[[Layout, Layout, tuple[int, ...], range], Matrix]

PROGRAM = """
import {createInterface} from 'node:readline';
import {Exchange, regionsOf} from '%s';
for await (const line of createInterface({input: process.stdin})) {
  const {source, target, shape, first, count} = JSON.parse(line);
  const moved = [];
  new Exchange(regionsOf(source, shape), regionsOf(target, shape)).count(first, count, (...one) => moved.push(one));
  console.log(JSON.stringify(moved));
}
"""


def _json(layout: Layout) -> dict[str, object]:
    return {"mesh": mesh_to_json(layout.mesh), "steps": [step_to_json(step) for step in layout.steps]}


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Plan by the package."""
    program = PROGRAM % (ROOT / "js" / "lib" / "exchange.mjs").as_uri()
    words = ["node", "--input-type=module", "-e", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        incoming, outgoing = process.stdin, process.stdout

        def plan(source: Layout, target: Layout, shape: tuple[int, ...], turns: range) -> Matrix:
            question: dict[str, object] = {"source": _json(source), "target": _json(target), "shape": shape}
            question |= {"first": turns.start, "count": len(turns)}
            incoming.write(json.dumps(question) + "\n")
            incoming.flush()
            moved: Matrix = Counter()
            for giver, taker, size in json.loads(outgoing.readline()):
                moved[giver, taker] += size
            return moved

        yield plan
        incoming.close()


def of_python(source: Layout, target: Layout, shape: tuple[int, ...], turns: range) -> Matrix:
    exchange = Exchange(lower(source, shape), lower(target, shape))
    moved: Matrix = Counter()
    for turn in turns:
        for copy in exchange.plan(turn=turn).copies:
            moved[copy.source_rank, copy.target_rank] += copy.size
    return moved


def sums(moved: Matrix) -> dict[int, tuple[int, int]]:
    """Return by rank what stays and what comes."""
    ranks = {rank for pair in moved for rank in pair}
    return {
        rank: (
            moved[rank, rank],
            sum(size for (giver, taker), size in moved.items() if taker == rank != giver),
        )
        for rank in ranks
        if any(size and taker == rank for (_, taker), size in moved.items())
    }


@given(
    shapes().flatmap(lambda shape: st.tuples(st.just(shape), *2 * [placed_layouts(shape, kinds="view pad")]))
)
def test_each_rank_keeps_and_gets_as_much(ask: Ask, drawn: Drawn) -> None:
    shape, (source, _), (target, _) = drawn
    found = ask(source, target, shape, range(1))
    assert sums(found) == sums(of_python(source, target, shape, range(1)))


SPLITS = [
    (),
    (Shard("tp", 0, "even"),),
    (Shard("tp", 1, "even"),),
    (Shard("dp", 0, "even"), Shard("tp", 1, "even")),
    (Flatten(), Shard("dp", 0, "ceil")),
    (Shard("tp", 0, "even"), Flatten(), Shard("dp", 0, "ceil")),
]


@given(
    st.sampled_from(SPLITS),
    st.sampled_from(SPLITS),
    st.tuples(*4 * [st.sampled_from([1, 2, 4])]),
    st.integers(0, 5),
    st.integers(1, 7),
)
def test_the_same_ranks_give(
    ask: Ask,
    before: tuple[Shard | Flatten, ...],
    after: tuple[Shard | Flatten, ...],
    sizes: tuple[int, int, int, int],
    first: int,
    count: int,
) -> None:
    """Of layouts without views, and over turns, also who gives what."""
    meshes = [Mesh((MeshAxis("dp", dp), MeshAxis("tp", tp))) for dp, tp in (sizes[:2], sizes[2:])]
    source, target = Layout(meshes[0], before), Layout(meshes[1], after)
    turns = range(first, first + count)
    found, wanted = (plan(source, target, (8, 16), turns) for plan in (ask, of_python))
    assert {key: size for key, size in found.items() if size} == dict(wanted)


WHOLE = """
import {DirectoryStore} from '%s';
import {Session} from '%s';
const [path, sizes, other] = process.argv.slice(1);
const [session, compared] = [path, other].map((one) => new Session(new DirectoryStore(one)));
console.log(JSON.stringify([session.wholePlan({sizes: JSON.parse(sizes)}), session.planTo(compared)]));
"""


@pytest.mark.parametrize("sizes", [(2, 2), (4, 2), (1, 3), (2, 8), (1, 1)])
def test_a_checkpoint_s_plan_to_other_sizes_is_that_of_ucp_plan(
    sizes: tuple[int, int], tmp_path: Path
) -> None:
    saved, other = (Mesh((MeshAxis("dp", dp), MeshAxis("tp", tp))) for dp, tp in ((2, 4), sizes))
    layouts = {"rows": SPLITS[1], "columns": SPLITS[2], "zero": SPLITS[5], "all": SPLITS[0]}
    fit = {name: steps for name, steps in layouts.items() if sizes[1] != 3 or name == "all"}

    def tensors(mesh: Mesh, kinds: dict[str, tuple[Shard | Flatten, ...]]) -> dict[tuple[str, str], Tensor]:
        return {
            (f"{name}.{number}", "value"): Tensor(np.zeros((8, 16)), "float64", layout=Layout(mesh, steps))
            for name, steps in kinds.items()
            for number in range(3)
        } | {("alone", "value"): Tensor(np.zeros(3), "float64")}

    save(tmp_path / "a.ucp", tensors(saved, layouts))
    save(tmp_path / "b.ucp", tensors(other, fit))
    with ucp.open(tmp_path / "a.ucp") as a, ucp.open(tmp_path / "b.ucp") as b:
        wanted = movements(pair(checkpoint_side("a", a), checkpoint_side("b", b), "ranks")).to_json()
    program = WHOLE % tuple((ROOT / "js" / name).as_uri() for name in ("node/store.mjs", "view/session.mjs"))
    words = ["node", "--input-type=module", "-e", program, str(tmp_path / "a.ucp"), json.dumps([sizes])]
    words.append(str(tmp_path / "b.ucp"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, to_other = json.loads(done.stdout)
    for plan in (found, to_other):
        assert plan["ranks"] == wanted["ranks"]
        assert sorted(cell for cell in plan["moved"] if cell[2]) == wanted["moved"]
        assert (plan["slots"], plan["bytes"]) == (wanted["slots"], wanted["bytes"])
    missing = 3 * (len(layouts) - len(fit))
    assert dict(to_other["left"]) == {"no layout": 1} | (
        {"not in the other checkpoint": missing} if missing else {}
    )
    left = dict(found["left"])
    assert left.pop("no layout") == 1
    assert sum(left.values()) == missing
    assert all("is not divisible by 3" in why for why in left)
