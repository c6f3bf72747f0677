"""The metadata that torch wrote, with something else in them; whole directories are in `test_directory`."""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import io
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from tests.conversion.formats.dcp.cases import DcpCase
from ucpformat.conversion.dcp_files.items import check_covers
from ucpformat.conversion.dcp_files.metadata import read_metadata
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed


def laughing(levels: int = 60) -> Any:
    """A tuple of two of a tuple of two ...: whoever spells or counts it never ends, and its pickle is small."""
    found: Any = ()
    for _ in range(levels):
        found = (found, found)
    return found


# Drawn by number: hypothesis would hash them, and show them.
REPLACEMENTS: tuple[Any, ...] = (
    *(None, True, 0, -1, 3, 1 << 70, 0.5, "", "odd", b"odd", [], [None], (), {}, {"odd": 1}, {1: {}}, {()}),
    *(torch.Size([]), torch.Size([2, 3]), torch.Size([1] * 100), torch.Size([2**62, 2**62])),
    *(torch.float32, torch.complex32, torch.qint8, torch.strided, laughing()),
)


def parts(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Everything in the metadata that can be replaced: members of dicts and lists, attributes of torch's objects."""
    if depth > 6 or isinstance(value, type | torch.dtype | torch.layout | torch.memory_format):
        return []
    names: list[tuple[Any, Any]]
    inner: list[Any]
    if isinstance(value, dict):
        names = [(value, key) for key in value]
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        names = [(value, place) for place in range(len(value))]
        inner = value
    elif dataclasses.is_dataclass(value):
        names = [(value, field.name) for field in dataclasses.fields(value)]
        names = [(value, name) for _, name in names if name != "memory_format"]  # torch would not write it
        inner = [getattr(value, name) for _, name in names]
    else:
        return []
    return names + [found for item in inner for found in parts(item, depth + 1)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["fsdp_2_model", "odd"]))
def test_metadata_with_another_value_are_refused_or_read(
    dcp_case: DcpCase, data: st.DataObject, name: str
) -> None:
    """One value of what torch wrote is another, anywhere; whatever comes of it, it is registered and says where."""
    path = dcp_case(name).path
    metadata = pickle.loads((path / ".metadata").read_bytes())
    places = parts(metadata)
    container, key = places[data.draw(st.integers(0, len(places) - 1))]
    value = REPLACEMENTS[data.draw(st.integers(0, len(REPLACEMENTS) - 1))]
    if isinstance(container, dict) and isinstance(value, str | int | bytes) and data.draw(st.booleans()):
        container[value] = container.pop(key)
    elif isinstance(container, dict | list):
        container[key] = value
    else:
        object.__setattr__(container, key, value)
    try:
        catalogue = read_metadata(pickle.dumps(metadata), ".metadata")
        check_covers(catalogue.tensors, ".metadata")
    except UcpError as problem:
        assert problem.code in ("UCP-E-SOURCE", "UCP-E-PICKLE", "UCP-E-LIMIT", "UCP-E-DTYPE")  # noqa: PT017
        assert problem.at == ".metadata"  # noqa: PT017
        assert len(problem.message) < 1000  # noqa: PT017


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["fsdp_2_model", "odd"]))
def test_metadata_with_other_bytes_are_refused_or_read(
    dcp_case: DcpCase, data: st.DataObject, name: str
) -> None:
    content = bytearray((dcp_case(name).path / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] = data.draw(st.integers(0, 255))
        else:  # good opcodes in another place
            part = content[place : place + data.draw(st.integers(1, 60))]
            into = data.draw(st.integers(0, len(content)))
            content[into:into] = part
    try:
        check_covers(read_metadata(bytes(content), ".metadata").tensors, ".metadata")
    except UcpError as problem:
        assert problem.code in ("UCP-E-SOURCE", "UCP-E-PICKLE", "UCP-E-LIMIT", "UCP-E-DTYPE")  # noqa: PT017
        assert problem.at == ".metadata"  # noqa: PT017


def test_a_version_that_never_ends_is_not_spelled(dcp_case: DcpCase) -> None:
    metadata = pickle.loads((dcp_case("fsdp_2_model").path / ".metadata").read_bytes())
    metadata.version = laughing()
    with pytest.raises(UcpError) as caught:
        read_metadata(pickle.dumps(metadata), ".metadata")
    assert (caught.value.code, caught.value.at) == ("UCP-E-PICKLE", ".metadata")


CLASSES = (
    Metadata,
    TensorStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    _StorageInfo,
    TensorProperties,
)


def pickled_members(value: Any) -> dict[str, Any]:
    """The members of one of torch's objects by name; those of `TensorProperties` as it pickles them."""
    if isinstance(value, TensorProperties):
        names = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory", "strides")
        state: Any = value
        return dict(zip(names, state.__getstate__(), strict=False))
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def repickled(metadata: Any, reduce: Callable[[Any], Any]) -> bytes:
    """The metadata, its objects pickled as ``reduce`` has them: as by a torch of another day."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 2)
    pickler.dispatch_table = copyreg.dispatch_table | dict.fromkeys(CLASSES, reduce)
    pickler.dump(metadata)
    return out.getvalue()


def new(value: Any, state: Any) -> Any:
    return copyreg.__newobj__, (type(value),), state  # type: ignore[attr-defined]


def changed(value: Any, **members: Any) -> Any:
    """Only the properties are changed, and pickled by name."""
    return new(value, pickled_members(value) | (members if isinstance(value, TensorProperties) else {}))


FORMS: dict[str, Callable[[Any], Any]] = {
    "members by name, and more": lambda value: new(
        value, {"new": [1], **pickled_members(value), "other": None}
    ),
    "a class with slots": lambda value: new(value, (None, pickled_members(value))),
    "slots below a plain class": lambda value: new(value, ({"new": 1}, pickled_members(value))),
    "members in order, and more": lambda value: new(value, [*pickled_members(value).values(), "new", (2, 1)]),
    "a named tuple": lambda value: (
        copyreg.__newobj__,  # type: ignore[attr-defined]
        (type(value), *pickled_members(value).values()),
    ),
    "properties in another order": lambda value: (
        new(value, (5, *reversed(pickled_members(value).values())))
        if isinstance(value, TensorProperties)
        else new(value, pickled_members(value))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_classes_may_gain_members_and_pickle_them_otherwise(dcp_case: DcpCase, form: str) -> None:
    content = (dcp_case("odd").path / ".metadata").read_bytes()
    again = repickled(pickle.loads(content), FORMS[form])
    assert again != content
    assert read_metadata(again, ".metadata") == read_metadata(content, ".metadata")


def test_a_piece_has_as_many_offsets_as_extents(dcp_case: DcpCase) -> None:
    metadata = pickle.loads((dcp_case("fsdp_2_model").path / ".metadata").read_bytes())
    stored = next(
        one for one in metadata.state_dict_metadata.values() if isinstance(one, TensorStorageMetadata)
    )
    object.__setattr__(stored.chunks[0], "sizes", torch.Size(()))
    with pytest.raises(UcpError, match="an offset and a size of different lengths") as caught:
        read_metadata(pickle.dumps(metadata), ".metadata")
    assert (caught.value.code, caught.value.at) == ("UCP-E-PICKLE", ".metadata")


@pytest.mark.parametrize(
    ("members", "code", "text"),
    [
        ({"dtype": None}, "UCP-E-PICKLE", "has no data type"),
        ({"second": torch.int8}, "UCP-E-PICKLE", "has no data type"),
        ({"dtype": torch.complex32}, "UCP-E-DTYPE", "complex32 is not supported"),
        ({"layout": torch.sparse_coo}, "UCP-E-DTYPE", r"torch.sparse_coo; save it dense \(to_dense\(\)\)"),
        (
            {"new": io.StringIO},
            "UCP-E-PICKLE",
            "_io.StringIO, which is not on the allow-list; nothing was run",
        ),
        ({"new": datetime.tzinfo}, "UCP-E-PICKLE", "datetime.tzinfo, which is not on the allow-list"),
    ],
)
def test_what_a_member_must_not_be(dcp_case: DcpCase, members: dict[str, Any], code: str, text: str) -> None:
    metadata = pickle.loads((dcp_case("odd").path / ".metadata").read_bytes())
    with pytest.raises(UcpError, match=text) as caught:
        read_metadata(repickled(metadata, lambda value: changed(value, **members)), ".metadata")
    assert (caught.value.code, caught.value.at) == (code, ".metadata")
