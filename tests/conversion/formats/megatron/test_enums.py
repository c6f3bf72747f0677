"""Members of enumerations are written and read by name, whether or not their classes are installed."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest
import torch

from ucpformat.conversion.formats.megatron.enums import EnumMember, NamingPickle
from ucpformat.conversion.formats.megatron.torch_dist import COMMON_GLOBALS
from ucpformat.errors import UcpError
from ucpformat.model.values import NamedValue
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile

BACKEND = "megatron.core.transformer.enums.AttnBackend"


def written(folder: Path, tree: object) -> TorchFile:
    torch.save(tree, folder / "file.pt", pickle_module=NamingPickle)
    return TorchFile(SourceFiles(folder), "file.pt", COMMON_GLOBALS)


def test_members_come_back_as_they_were(tmp_path: Path) -> None:
    member = EnumMember(BACKEND, 2)
    file = written(tmp_path, {"one": member, "same": member, "signal": signal.SIGTERM, "x": torch.ones(2)})
    found = file.plain({key: file.tree[key] for key in ("one", "same", "signal")})  # type: ignore[index]
    backend = NamedValue(BACKEND, {"value": 2})
    assert found == {"one": backend, "same": backend, "signal": NamedValue("signal.Signals", {"value": 15})}
    assert EnumMember.of_state(backend.type, backend.value) == member


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("os.system", {"value": 2}),
        (BACKEND, {}),
        (BACKEND, {"value": True}),
        (BACKEND, {"value": []}),
        (BACKEND, 5),
    ],
)
def test_what_is_no_member(kind: str, state: object) -> None:
    assert EnumMember.of_state(kind, state) is None


@pytest.mark.parametrize("kind", ["os.system", "megatron.core.transformer.enums.Other"])
def test_other_classes_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UcpError) as refusal:
        written(tmp_path, {"one": EnumMember(kind, 2)})
    assert refusal.value.code == "UCP-E-PICKLE"


def test_a_member_takes_a_number_or_a_string(tmp_path: Path) -> None:
    """Signals of anything else, which a pickle may ask for."""

    class Odd:
        def __reduce__(self) -> tuple[object, ...]:
            return (signal.Signals, ([1],))

    torch.save({"odd": Odd()}, tmp_path / "file.pt", pickle_module=pickle)
    with pytest.raises(UcpError) as refusal:
        TorchFile(SourceFiles(tmp_path), "file.pt", COMMON_GLOBALS)
    assert refusal.value.code == "UCP-E-PICKLE"
