"""What a ``ShardedTensor`` may look like in a hostile file: read or refused, and never anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from ucpformat.conversion.formats.torch_save.sharded import Sharded, joined
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.stand_ins import TorchDtype
from ucpformat.tensor_files.torch_file import TorchFile

SHAPE = (5, 3)


def file_of(folder: Path) -> TorchFile:
    """Rows 0 to 2 and 3 to 4 of a tensor."""
    whole = torch.arange(15.0).reshape(SHAPE)
    torch.save({"a": whole[:3].clone(), "b": whole[3:].clone()}, folder / "x.pt")
    return TorchFile(SourceFiles(folder), "x.pt")


def described(offset: object, sizes: object, rank: object = 0) -> Instance:
    members = {
        "shard_offsets": offset,
        "shard_sizes": sizes,
        "placement": Instance("_remote_device", {"_rank": rank}),
    }
    return Instance("ShardMetadata", (None, members))


def sharded_tensor(shards: Any, boxes: Any, size: object = SHAPE, kind: object = None) -> Instance:
    properties = Instance("TensorProperties", (kind or TorchDtype("float32"), None, False, 0, False))
    metadata = {"shards_metadata": boxes, "size": size, "tensor_properties": properties}
    return Instance(
        "ShardedTensor",
        (
            [Instance("Shard", (None, {"tensor": t, "metadata": box})) for t, box in shards],
            Instance("ShardedTensorMetadata", metadata),
            Instance("ProcessGroupState", {"global_world_size": 2}),
        ),
    )


def test_shards_are_put_together(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    tree: Any = file.tree
    boxes = [described([0, 0], [3, 3]), described([3, 0], [2, 3], 1)]
    one = Sharded.read(sharded_tensor([(tree["a"], boxes[0])], boxes), "w", "x.pt")
    two = Sharded.read(sharded_tensor([(tree["b"], boxes[1])], boxes), "w", "x.pt")
    assert (one.dtype, one.shape, one.world) == ("float32", SHAPE, 2)
    out = np.zeros((3, 2), np.float32)
    joined("w", [(file, one), (file, two)])(Box((1, 1), (3, 2)), out)
    assert out.tolist() == [[4, 5], [7, 8], [10, 11]]
    with pytest.raises(UcpError, match=r"at \[3, 0\] is in no file: copy the file of rank 1"):
        joined("w", [(file, one)])
    other = Sharded.read(sharded_tensor([], boxes, (6, 3)), "w", "x.pt")
    with pytest.raises(UcpError, match="two saves"):
        joined("w", [(file, one), (file, other)])


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (([0, 0], [3, 3]), ([2, 0], [2, 3]), "overlap"),
        (([0, 0], [3, 3]), ([4, 0], [2, 3]), "leaves the shape"),
        (([0], [3]), ([3, 0], [2, 3]), "not a ShardedTensor"),
    ],
)
def test_shards_that_do_not_tile_are_refused(tmp_path: Path, first: Any, second: Any, text: str) -> None:
    file = file_of(tmp_path)
    tree: Any = file.tree
    boxes = [described(*first), described(*second)]
    tensor = sharded_tensor([(tree["a"], boxes[0]), (tree["b"], boxes[1])], boxes)
    with pytest.raises(UcpError, match=text) as refusal:
        joined("w", [(file, Sharded.read(tensor, "w", "x.pt"))])
    assert refusal.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize("kind", [TorchDtype("quint4x2"), TorchDtype("float64"), 5])
def test_types_that_do_not_fit_are_refused(tmp_path: Path, kind: object) -> None:
    file = file_of(tmp_path)
    tree: Any = file.tree
    box = described([0, 0], [3, 3])
    with pytest.raises(UcpError, match="'w'"):
        Sharded.read(sharded_tensor([(tree["a"], box)], [box], kind=kind), "w", "x.pt")


odd = st.recursive(
    st.one_of(st.none(), st.integers(-2, 9), st.text(max_size=3), st.just(TorchDtype("float32"))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(
            st.sampled_from(["shard_offsets", "shard_sizes", "placement", "tensor", "size"]), inner
        ),
        st.builds(Instance, st.just("odd"), inner),
    ),
    max_leaves=8,
)


@given(state=odd, size=odd, box=odd, shards=st.lists(st.tuples(odd, odd), max_size=2), whole=st.booleans())
def test_anything_else_is_refused(state: Any, size: Any, box: Any, shards: Any, whole: bool) -> None:
    """A tree whose parts are of other kinds: nothing but an error of ours, or a tensor without shards."""
    odd_tensor = Instance("ShardedTensor", state) if whole else sharded_tensor(shards, [box], size)
    code = ""
    try:
        assert Sharded.read(odd_tensor, "w", "x.pt").held == ()
    except UcpError as refusal:
        code = refusal.code
    assert code in ("", "UCP-E-SOURCE", "UCP-E-DTYPE", "UCP-E-LAYOUT")
