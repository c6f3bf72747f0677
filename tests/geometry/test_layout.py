from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.geometry.strategies import layouts, shapes
from ucpformat.errors import LayoutError
from ucpformat.geometry import (
    BlockRule,
    Blocks,
    Concat,
    Flatten,
    Join,
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    RaggedAxis,
    Scale,
    Shard,
    Step,
    View,
)

MESH = Mesh((MeshAxis("a", 2), MeshAxis("b", 3)))
OWN = (Shard("a", 0),)
CUT = Blocks(0, (2, 2), (None, OWN))


@given(st.data(), shapes())
def test_layouts_are_values(data: st.DataObject, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(shape))
    twin = Layout(layout.mesh, layout.steps)
    assert twin == layout
    assert hash(twin) == hash(layout)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (Shard("a", 0), Shard("b", 0)),
        (Shard("a", 0, (0, 5)), Only("b", (0, 2))),
        (CUT, Shard("a", 0)),
        (CUT, Shard("b", 0), Shard("a", 0)),
        (CUT, Join(0), Shard("b", 0)),
        (CUT, Join(0), Blocks(0, (4,))),
        (CUT, Blocks(1, (4,)), Flatten(), Blocks(0, (16,))),
        (View((4, 4)), Permute((1, 0)), Pad(0, to=8), Pad(1, multiple=3), Flatten(), Concat("group")),
        (Partial("a", "mean"), Partial("b", "mean"), Scale(Fraction(1, 2))),
        (Blocks(0, BlockRule("ceil", 3), (None, OWN, ())), Shard("b", 0), Join(0), Pad(0, to=9)),
        (LocalOnly(),),
    ],
)
def test_sound_layouts(steps: tuple[Step, ...]) -> None:
    assert Layout(MESH, steps).steps == steps


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ((Shard("c", 0),), "/steps/0/axis"),
        ((Shard("a", -1),), "/steps/0/dim"),
        ((Shard("a", 0, (1, 2, 3)),), "/steps/0/sizes"),
        ((Shard("a", 0, (1, -1)),), "/steps/0/sizes"),
        ((Shard("a", 0, cast(Any, "floor")),), "/steps/0/rule"),
        ((Shard("a", 0), Shard("a", 1)), "/steps/1/axis"),
        ((Shard("a", 0), Only("a", (0,))), "/steps/1/axis"),
        ((Only("a", (0,)), Shard("a", 0)), "/steps/1/axis"),
        ((Only("a", ()),), "/steps/0/coordinates"),
        ((Only("a", (2,)),), "/steps/0/coordinates"),
        ((Only("a", (-1,)),), "/steps/0/coordinates"),
        ((Only("a", (1, 0)),), "/steps/0/coordinates"),
        ((Only("a", (1, 1)),), "/steps/0/coordinates"),
        ((Flatten(), Flatten()), "/steps/1"),
        ((Flatten(), Shard("a", 1)), "/steps/1/dim"),
        ((Blocks(0, ()),), "/steps/0/sizes"),
        ((Blocks(0, (-1,)),), "/steps/0/sizes"),
        ((Blocks(0, (2,), (None, None)),), "/steps/0/steps"),
        ((CUT, Blocks(0, (4,))), "/steps/1"),
        ((Blocks(0, (2,), ((Shard("a", 1),),)),), "/steps/0/steps/0/0"),
        ((Blocks(0, (2,), (cast(Any, (Flatten(),)),)),), "/steps/0/steps/0/0"),
        ((Blocks(0, (2,), ((Shard("a", 0), Shard("a", 0)),)),), "/steps/0/steps/0/1/axis"),
        ((Blocks(0, (2,), ((Shard("a", 0, (1,)),),)),), "/steps/0/steps/0/0/sizes"),
        ((Shard("a", 0), CUT), "/steps/1/steps/1/0/axis"),
        ((CUT, Blocks(1, (2,), ((Shard("a", 1),),))), "/steps/1/steps/0/0/axis"),
        ((CUT, Shard("a", 1)), "/steps/1/axis"),
        ((CUT, Only("a", (0,))), "/steps/1/axis"),
        ((CUT, Partial("a", "sum")), "/steps/1/axis"),
        ((CUT, Shard("a", 0), Shard("a", 0)), "/steps/2/axis"),
        ((CUT, Join(0), Shard("a", 0)), "/steps/2/axis"),
        ((CUT, Flatten(), Shard("a", 0)), "/steps/2/axis"),
        ((Blocks(0, (2, 2), (OWN, ())), Shard("b", 0)), "/steps/1"),
        ((Join(0),), "/steps/0"),
        ((CUT, Join(1)), "/steps/1"),
        ((Partial("a", cast(Any, "product")),), "/steps/0/reduce"),
        ((Partial("a", "sum"), Partial("b", "max")), "/steps/1/reduce"),
        ((Partial("a", "sum"), Shard("a", 0)), "/steps/1/axis"),
        ((View((-1,)),), "/steps/0/shape"),
        ((Shard("a", 0), View((4,))), "/steps/1"),
        ((Flatten(), Permute((0,))), "/steps/1"),
        ((Permute((0, 2)),), "/steps/0/order"),
        ((Permute((-1,)),), "/steps/0/order"),
        ((Pad(0),), "/steps/0"),
        ((Pad(0, to=1, multiple=1),), "/steps/0"),
        ((Pad(0, multiple=0),), "/steps/0"),
        ((Pad(0, to=-1),), "/steps/0"),
        ((Pad(-1, to=1),), "/steps/0/dim"),
        ((CUT, Pad(0, to=9)), "/steps/1"),
        ((Flatten(), Pad(1, to=9)), "/steps/1/dim"),
        ((Blocks(0, BlockRule("ceil", 0)),), "/steps/0/count"),
        ((Blocks(0, BlockRule(cast(Any, "floor"), 2)),), "/steps/0/rule"),
        ((Blocks(0, BlockRule("even", 2), (None,)),), "/steps/0/steps"),
        ((Concat("group"),), "/steps/0"),
        ((Flatten(), Concat("")), "/steps/1/group"),
        ((Flatten(), Concat("group"), Concat("group")), "/steps/2"),
        ((Flatten(), Blocks(0, (4,)), Concat("group")), "/steps/2"),
        ((Scale(Fraction(0)),), "/steps/0/factor"),
        ((Scale(cast(Any, 0.5)),), "/steps/0/factor"),
        ((Shard("a", 0), LocalOnly()), "/steps/1"),
        ((Scale(Fraction(2)), Scale(Fraction(2))), "/steps/1"),
        ((LocalOnly(cast(Any, "ask")),), "/steps/0/resize"),
        ((cast(Any, "shard"),), "/steps/0"),
    ],
)
def test_malformed_layouts_are_refused_with_their_place(steps: tuple[Step, ...], at: str) -> None:
    """UCP-D-045, UCP-D-046, UCP-D-057, UCP-D-061, UCP-D-048, UCP-D-049."""
    with pytest.raises(LayoutError) as caught:
        Layout(MESH, steps)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)


RAGGED = Mesh((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (3, 2))))


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ((Shard("dp", 0, (1, 1, 1)),), "/steps/0/sizes"),
        ((Only("dp", (2,)),), "/steps/0/coordinates"),
        ((Partial("dp", "sum"),), "/steps/0/axis"),
        ((Shard("dp", 0), Shard("pp", 0)), "/steps/1/axis"),
        ((Blocks(0, (4,), ((Shard("dp", 0), Shard("pp", 0)),)),), "/steps/0/steps/0/1/axis"),
    ],
)
def test_what_a_ragged_axis_cannot_do_is_refused(steps: tuple[Step, ...], at: str) -> None:
    """UCP-D-047, UCP-D-054, UCP-D-063."""
    with pytest.raises(LayoutError) as caught:
        Layout(RAGGED, steps)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)
    assert Layout(RAGGED, (Shard("pp", 0), Only("dp", (0, 1)))).mesh.size == 5


def test_ranks_that_hold_something() -> None:
    layout = Layout(RAGGED, (Only("pp", (1,)), Shard("dp", 0)))
    assert [layout.holds(rank) for rank in range(6)] == [False, False, False, True, True, False]
