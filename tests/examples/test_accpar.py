"""Uneven partitions: what the planner chooses is what its cost model says, and its layouts are layouts like others."""

from __future__ import annotations

import itertools
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import accpar
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import get_args_parser

import ucpformat as ucp
from tests.distributed.test_redistribution import Side, is_held, sides, whole_of
from tests.distributed.thread_group import ThreadGroup, run_threads
from tests.documentation.markdown import run_by
from tests.documentation.running import commands_of
from tests.processes import Ranks, launch_in_turn
from tests.searches import fewer

WORLD = 6
EXTENTS = st.sampled_from([1, 2, 3, 7, 8, 12])
TYPES = st.sampled_from(accpar.TYPES)


@st.composite
def networks(draw: st.DrawFn) -> list[accpar.Layer]:
    layers = [
        accpar.Layer("", draw(EXTENTS), draw(EXTENTS), draw(EXTENTS), *draw(st.sampled_from([(), (3, 4, 4)])))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return [replace(layer, name=f"l{number}") for number, layer in enumerate(layers)]


@st.composite
def groups(draw: st.DrawFn) -> list[accpar.Group]:
    """Two groups of `WORLD` devices, up to a billion times as fast as one another."""
    first = draw(st.integers(1, WORLD - 1))
    rates = st.sampled_from([1.0, 1.5, 4.0, 1e3, 1e9])
    return [accpar.Group(width, draw(rates), draw(rates)) for width in (first, WORLD - first)]


@st.composite
def partitions(draw: st.DrawFn, layer: accpar.Layer) -> accpar.Partition:
    """Of any types, with any ratio."""
    between = draw(TYPES)
    first = draw(st.integers(0, layer.extent(between)))
    return accpar.Partition(between, (first, layer.extent(between) - first), draw(TYPES))


Layouts = dict[str, ucp.TensorLayout]


@st.composite
def uneven(draw: st.DrawFn, network: list[accpar.Layer]) -> Layouts:
    """Layouts of a network, of what the planner chooses or of what is drawn."""
    devices = draw(groups())
    drawn = [draw(partitions(layer)) for layer in network]
    chosen = drawn if draw(st.booleans()) else accpar.plan(network, devices)
    return accpar.layouts_of(network, chosen, accpar.mesh_of(devices))


@st.composite
def journeys(draw: st.DrawFn) -> list[Layouts]:
    """Layouts of one network to be held in one after the other: uneven ones, and any others between them."""
    network = draw(networks())
    found = []
    for _ in range(draw(st.integers(1, 2))):
        first = draw(uneven(network))
        shapes = {path: held.shape for path, held in first.items()}
        others = {
            path: draw(sides(shape, WORLD, "view pad concat", f"g{number}"))
            for number, (path, shape) in enumerate(shapes.items())
        }
        found += [
            first,
            {path: side.held if is_held(side) else first[path] for path, side in others.items()},
            draw(uneven(network)),
        ]
    return found


def held_by(rank: int, layouts: Layouts, *, filled: bool) -> dict[str, Any]:
    """What a rank holds of tensors of small integers; zeros in padding, and everywhere where not ``filled``."""
    numbers = {path: number for number, path in enumerate(layouts)}

    def local(path: str) -> Any:
        held = layouts[path]
        found = Side(held).local(rank, whole_of(numbers[path], held.shape), 0.0)
        return found if found is None or filled else np.zeros_like(found)

    return accpar.state_of(layouts, local)


def own(state: dict[str, Any], layouts: Layouts) -> Layouts:
    """The layouts of what a rank has."""
    return {f"{tree}.{name}": layouts[f"{tree}.{name}"] for tree, held in state.items() for name in held}


@given(journeys())
@fewer(4)  # of six ranks and up to five redistributions each
def test_any_ratio_goes_through_every_other_layout(journey: list[Layouts]) -> None:
    """Saved by threads under one, loaded under the next, redistributed to the one behind that, and so on."""
    with tempfile.TemporaryDirectory() as folder:

        def work(group: ThreadGroup) -> None:
            held = held_by(group.rank, journey[0], filled=True)
            for number, (before, after) in enumerate(itertools.pairwise(journey)):
                if number % 2:
                    held = ucp.redistribute(
                        held, layouts=own(held, before), target_layouts=after, group=group
                    )
                else:
                    path = Path(folder) / f"{number}.ucp"
                    ucp.save(path, held, layouts=own(held, before), group=group)
                    held = held_by(group.rank, after, filled=False)
                    ucp.load(path, held, layouts=own(held, after), group=group)
                expected = held_by(group.rank, after, filled=True)
                assert {tree: set(tensors) for tree, tensors in held.items()} == {
                    tree: set(tensors) for tree, tensors in expected.items()
                }
                for tree, tensors in expected.items():
                    for name, tensor in tensors.items():
                        assert np.array_equal(held[tree][name], tensor), (number, tree, name)

        for outcome in run_threads(WORLD, work):
            if outcome is not None:
                raise outcome


@given(networks(), groups())
def test_the_plan_is_the_best_of_all(network: list[accpar.Layer], devices: list[accpar.Group]) -> None:
    """The types between the groups cost as little as any; every row is given to one group."""

    def cost(kinds: Sequence[accpar.Type]) -> float:
        befores = [None, *kinds[:-1]]
        return sum(
            accpar.shared(layer, kind, before, devices)[1]
            for layer, kind, before in zip(network, kinds, befores, strict=True)
        )

    chosen = accpar.plan(network, devices)
    for layer, partition in zip(network, chosen, strict=True):
        assert min(partition.rows) >= 0
        assert sum(partition.rows) == layer.extent(partition.between)
    least = min(map(cost, itertools.product(accpar.TYPES, repeat=len(network))))
    assert cost([partition.between for partition in chosen]) == pytest.approx(least)


def test_shares_follow_speed() -> None:
    """Where nothing has to be sent to speak of, three times as fast is three times as much."""
    layer = accpar.Layer("fc", 400, 400, 400)
    devices = [accpar.Group(1, 3e9, 1e18), accpar.Group(1, 1e9, 1e18)]
    for kind in accpar.TYPES:
        assert accpar.shared(layer, kind, None, devices)[0] == (300, 100)
    assert accpar.shared(layer, "III", None, [devices[0], accpar.Group(1, 1.0, 1e18)])[0] == (400, 0)


@pytest.mark.parametrize(
    ("before", "kind", "fetched"),
    [
        ("I", "I", 0), ("I", "II", 150), ("I", "III", 100),
        ("II", "I", 100), ("II", "II", 100), ("II", "III", 0),
        ("III", "I", 150), ("III", "II", 0), ("III", "III", 100),
    ],
)  # fmt: skip
def test_between_layers_as_in_the_paper(before: accpar.Type, kind: accpar.Type, fetched: int) -> None:
    """Of 10 x 10 features and as many errors, by a device with a share of 3/4."""
    layer = accpar.Layer("fc", 10, 10, 10)
    assert accpar.moved(layer, before, kind, np.array(0.75)) == fetched


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_the_script_goes_on_with_other_devices(tmp_path: Path) -> None:
    """As the page has it: three processes, then five, then again as one device slows down."""
    (block,) = run_by("tests/examples/test_accpar.py", "docs/plan.md")
    jobs = []
    for command in commands_of(block.text):
        chosen = get_args_parser().parse_args(shlex.split(command, comments=True)[1:])
        script = Path(chosen.training_script).name
        jobs.append(Ranks([str(tmp_path), script, *chosen.training_script_args], int(chosen.nproc_per_node)))
    launch_in_turn("tests.examples.script_worker", jobs)
    run = ucp.CheckpointManager(tmp_path / "out" / "accpar")
    assert run.steps() == [1, 2, 3]
    first = ucp.load(run.path(1))
    random = np.random.default_rng(0)
    for layer in accpar.small_network():
        for part in ("weight", "bias"):
            for tree in ("model", "moments"):
                saved = first[tree][f"{layer.name}.{part}"]
                assert np.array_equal(saved, random.standard_normal(saved.shape, dtype=np.float32))
    for step in run.steps():
        assert list(ucp.validate(run.path(step))) == []
        assert ucp.diff(run.path(1), run.path(step)).is_equal
