"""What DeepSpeed's pickles may name: tensors with attributes come in as their data, and nothing is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ucpformat.errors import UcpError
from ucpformat.tensor_files.deepspeed_globals import DEEPSPEED_GLOBALS
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor
from ucpformat.tensor_files.unpickle import Constructor


def tree_of(folder: Path, value: object) -> Any:
    torch.save(value, folder / "file.pt")
    return TorchFile(SourceFiles(folder), "file.pt").tree


def test_attributes_are_no_part_of_a_tensor(tmp_path: Path) -> None:
    """DeepSpeed hangs attributes on parameters (``ds_id``, ``hp_mapping`` and more), and torch saves them."""
    tensor, parameter = torch.arange(6.0).reshape(2, 3), torch.nn.Parameter(torch.ones(4))
    for held in (tensor, parameter):
        vars(held)["ds_id"] = 7
    found = tree_of(tmp_path, {"tensor": tensor, "parameter": parameter})
    assert all(isinstance(stored, StoredTensor) for stored in found.values())
    assert (found["tensor"].shape, found["parameter"].shape) == ((2, 3), (4,))


class Reduced:
    """Pickled as a call of ``_rebuild_from_type_v2`` with arguments of anybody's choice."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._tensor._rebuild_from_type_v2, self.arguments


REBUILD = torch._utils._rebuild_tensor_v2


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.Tensor, torch.Tensor, (), None),
        (REBUILD, REBUILD, (), None),
        (REBUILD, torch.Tensor, 3, None),
        (REBUILD, torch.Tensor, (1,), None),
        (print, torch.Tensor, (), None),
        (REBUILD, torch.Tensor),
    ],
)
def test_nothing_else_is_rebuilt(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    with pytest.raises(UcpError) as refusal:
        tree_of(tmp_path, Reduced(*arguments))
    assert refusal.value.code in ("UCP-E-PICKLE", "UCP-E-SOURCE")


def constructor(module: str, name: str) -> Constructor:
    found = DEEPSPEED_GLOBALS[module, name]
    assert isinstance(found, Constructor)
    return found


def test_classes_of_deepspeed_are_data() -> None:
    stage = constructor("deepspeed.runtime.zero.config", "ZeroStageEnum")
    assert stage.call((2,)) == 2
    with pytest.raises(ValueError, match="a number or a string"):
        stage.call((2.0,))
    scaler = constructor("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
    with pytest.raises(ValueError, match="takes no arguments"):
        scaler.call((1,))
    with pytest.raises(ValueError, match="not called"):
        constructor("torch", "Tensor").call(())
