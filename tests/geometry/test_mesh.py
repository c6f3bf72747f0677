from __future__ import annotations

import pytest
from hypothesis import given

from tests.geometry.strategies import meshes
from ucpformat.errors import LayoutError, UcpError
from ucpformat.geometry import Mesh, MeshAxis, RaggedAxis


@given(meshes())
def test_coordinates_and_ranks_are_a_bijection(mesh: Mesh) -> None:
    coordinates = list(mesh.coordinates())
    assert len(coordinates) == mesh.size
    ranks = [mesh.rank_of(coordinate) for coordinate in coordinates]
    assert [mesh.coordinate_of(rank) for rank in ranks] == coordinates
    assert ranks == list(mesh.ranks or range(mesh.size))


def test_the_last_axis_is_fastest() -> None:
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 3)))
    assert mesh.shape == (2, 3)
    assert mesh.rank_of((1, 0)) == 3
    assert mesh.coordinate_of(5) == (1, 2)
    assert mesh.axis_index("tp") == 1
    assert mesh.axis_index("pp") is None


def test_a_mesh_without_axes_is_one_rank() -> None:
    assert list(Mesh(()).coordinates()) == [()]
    assert Mesh((), (7,)).rank_of(()) == 7
    assert Mesh((), (7,)).coordinate_of(7) == ()


@pytest.mark.parametrize(
    ("axes", "ranks", "at"),
    [
        ((MeshAxis("", 1),), None, "/axes/0/name"),
        ((MeshAxis("a", 1), MeshAxis("a", 1)), None, "/axes/1/name"),
        ((MeshAxis("a", 0),), None, "/axes/0/size"),
        ((MeshAxis("a", True),), None, "/axes/0/size"),
        ((MeshAxis("a", 2),), (0,), "/ranks"),
        ((MeshAxis("a", 2),), (1, 1), "/ranks"),
        ((MeshAxis("a", 2),), (0, -1), "/ranks"),
    ],
)
def test_malformed_meshes_are_refused(
    axes: tuple[MeshAxis, ...], ranks: tuple[int, ...] | None, at: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        Mesh(axes, ranks)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)


def test_places_off_the_mesh_are_refused() -> None:
    mesh = Mesh((MeshAxis("a", 2),))
    for coordinate in ((2,), (-1,), (), (0, 0), (False,)):
        with pytest.raises(LayoutError):
            mesh.rank_of(coordinate)
    for other, rank in ((mesh, 2), (mesh, -1), (Mesh(mesh.axes, (4, 5)), 0)):
        with pytest.raises(LayoutError):
            other.coordinate_of(rank)


def test_a_mesh_is_limited() -> None:
    """UCP-D-041."""
    assert Mesh((MeshAxis("a", 1 << 10), MeshAxis("b", 1 << 10))).size == 1 << 20
    with pytest.raises(UcpError) as caught:
        Mesh((MeshAxis("a", 1 << 10), MeshAxis("b", (1 << 10) + 1)))
    assert (caught.value.code, caught.value.at) == ("UCP-E-LIMIT", "/axes")


RAGGED = Mesh((MeshAxis("pp", 3), RaggedAxis("dp", "pp", (3, 1, 2)), MeshAxis("tp", 2)))


def test_stages_of_unequal_width() -> None:
    assert RAGGED.size == 12
    assert RAGGED.shape == (3, 3, 2)
    assert [RAGGED.size_at(1, (stage, 0, 0)) for stage in range(3)] == [3, 1, 2]
    assert RAGGED.size_at(2, (0, 0, 0)) == 2
    assert (RAGGED.governing_axis(1), RAGGED.governing_axis(2)) == (0, 2)
    assert RAGGED.rank_of((1, 0, 1)) == 7
    assert RAGGED.coordinate_of(8) == (2, 0, 0)
    assert RAGGED.find(12) is None
    with pytest.raises(LayoutError):
        RAGGED.rank_of((1, 1, 0))


@pytest.mark.parametrize(
    ("axes", "at"),
    [
        ((RaggedAxis("dp", "pp", (1,)), MeshAxis("pp", 1)), "/axes/0/by"),
        ((MeshAxis("pp", 1), RaggedAxis("a", "pp", (1,)), RaggedAxis("b", "a", (1,))), "/axes/2/by"),
        ((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (1,))), "/axes/1/sizes"),
        ((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (1, 0))), "/axes/1/sizes"),
        ((MeshAxis("pp", 2), RaggedAxis("dp", "pp", (1, True))), "/axes/1/sizes"),
    ],
)
def test_malformed_ragged_axes_are_refused(axes: tuple[MeshAxis | RaggedAxis, ...], at: str) -> None:
    """UCP-D-042, UCP-D-043."""
    with pytest.raises(LayoutError) as caught:
        Mesh(axes)
    assert (caught.value.code, caught.value.at) == ("UCP-E-LAYOUT", at)


def test_a_ragged_mesh_is_limited_by_the_grid_around_it() -> None:
    """UCP-D-041."""
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        Mesh((MeshAxis("pp", 1 << 10), RaggedAxis("dp", "pp", ((1 << 10) + 1, *(1,) * ((1 << 10) - 1)))))
