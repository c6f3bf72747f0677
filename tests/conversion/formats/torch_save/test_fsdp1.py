"""FSDP1's sharded state dicts of three ranks, in Accelerate's folders and in files of torch.save, as whole ones are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat
from tests.conversion.jobs import whole
from tests.documentation.markdown import run_by
from tests.documentation.running import Reader
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.torch_save.directories import import_directory
from ucpformat.conversion.formats.torch_save.rank_files import import_rank_files
from ucpformat.conversion.formats.torch_save.sharded import RANK_GLOBALS
from ucpformat.errors import UcpError
from ucpformat.tensor_files.allowed_globals import OBJECT_GLOBALS
from ucpformat.tensor_files.unpickle import Constructor, unpickle

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("processes")]

RANKS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp1")
    (folder / "state").mkdir()
    launch("tests.conversion.formats.torch_save.fsdp1_worker", [str(folder)], RANKS)
    return folder


def check(found: dict[tuple[str, str], Any], wanted: dict[str, Any]) -> None:
    for name, tensor in wanted["model"].items():
        assert found[name, "value"].tobytes() == tensor.numpy().tobytes(), name
        assert {slot for atom, slot in found if atom == name} == {"value", *wanted["optimizer"].get(name, ())}
        for slot, state in wanted["optimizer"].get(name, {}).items():
            assert found[name, slot].tobytes() == state.numpy().tobytes(), (name, slot)


def test_shards_are_joined(made: Path) -> None:
    assert detect_format(made / "state") == "accelerate"
    job = import_directory(made / "state")
    wanted = torch.load(made / "whole.pt", weights_only=True)
    check(whole(job), wanted)
    groups = job.state.optimizers["optimizer"].groups
    assert [list(group.atoms) for group in groups] == [group["params"] for group in wanted["groups"]]
    assert {f"random_states_{rank}.step" for rank in range(RANKS)} <= job.state.values.keys()


def test_the_commands_of_the_page(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").symlink_to(made / "state")
    (tmp_path / "ranks").symlink_to(made / "one")
    (block,) = run_by("tests/conversion/formats/torch_save/test_fsdp1.py", "docs/frameworks/torch_save.md")
    Reader(tmp_path).run(block)
    assert {path.name for path in tmp_path.iterdir()} == {"state", "ranks", "state.ucp", "ranks.ucp"}


@pytest.mark.parametrize("name", ["one", "two"])
def test_files_of_ranks_are_joined(made: Path, name: str, tmp_path: Path) -> None:
    """In one file of each rank, and in two."""
    assert detect_format(made / name) == "torch-ranks"
    convert_checkpoint(
        made / name, tmp_path / "out.ucp", source_format="torch-ranks", destination_format="ucp"
    )
    assert ucpformat.validate(tmp_path / "out.ucp") == []
    wanted = torch.load(made / "whole.pt", weights_only=True)
    with ucpformat.open(tmp_path / "out.ucp") as checkpoint:
        found = {
            (atom, slot): item.read() for atom, view in checkpoint.items() for slot, item in view.items()
        }
        check({place: array for place, array in found.items() if place[0] != "scale"}, wanted)
        groups = checkpoint.state.optimizers["optimizer"].groups
        assert [list(group.atoms) for group in groups] == [group["params"] for group in wanted["groups"]]
        if name == "two":
            assert checkpoint.objects["optimizer.seed"].entries == (10, 11, 12)  # type: ignore[attr-defined]
            return
        assert found["scale", "value"] == 2.0
        assert checkpoint.objects["step"] == 1
        assert checkpoint.objects["same"] == [1, None]
        seeds: Any = checkpoint.objects["seed"]
        assert (seeds.entries, seeds.axis, seeds.on_resize) == ((10, 11, 12), "rank", "refuse")
        numbers: Any = checkpoint.objects["rng"]
        assert [list(memoryview(entry.data).cast("q")) for entry in numbers.entries] == [
            [1, 2, rank] for rank in range(RANKS)
        ]


def test_a_copy_that_differs_is_refused_unless_the_first_counts(made: Path, tmp_path: Path) -> None:
    def convert(out: str, **settings: str) -> None:
        convert_checkpoint(
            made / "unequal",
            tmp_path / out,
            source_format="torch-ranks",
            destination_format="ucp",
            source_settings=settings,
        )

    with pytest.raises(UcpError, match="table") as refusal:
        convert("no.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
    convert("first.ucp", replicas="first")
    with ucpformat.open(tmp_path / "first.ucp") as checkpoint:
        assert checkpoint["table"]["value"].read().tolist() == list(range(6))
    with pytest.raises(UcpError, match="equal or first") as refusal:
        convert("odd.ucp", replicas="last")
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_flat_parameters_do_not_say_what_they_hold(made: Path) -> None:
    assert detect_format(made / "local") == "torch-ranks"
    with pytest.raises(UcpError, match="SHARDED_STATE_DICT") as refusal:
        import_rank_files(made / "local")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert refusal.value.at == "model_rank0.pt"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {os.environ['UCP_EVIL']}",))


def add_evil(path: Path) -> None:
    torch.save({"model": {}, "extra": Evil()}, path)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    end = data.find(b"/data/0FB") + len(b"/data/0FB")
    data[end + 2 + int.from_bytes(data[end : end + 2], "little")] ^= 1
    path.write_bytes(data)


def of_another_save(path: Path) -> None:
    torch.save({"model": {"0.weight": torch.ones(2)}}, path)


@pytest.mark.parametrize(
    ("victim", "harm", "code", "text"),
    [
        (0, Path.unlink, "UCP-E-SOURCE", "state-rank0.pt: it is missing, beside state-rank2.pt"),
        (2, Path.unlink, "UCP-E-SOURCE", "3 ranks saved"),
        (1, truncate, "UCP-E-SOURCE", "state-rank1"),
        (1, flip, "UCP-E-SOURCE", "state-rank1"),
        (1, add_evil, "UCP-E-PICKLE", "state-rank1"),
        (1, of_another_save, "UCP-E-SOURCE", "two saves"),
    ],
)
def test_harm_is_found(
    made: Path,
    victim: int,
    harm: Any,
    code: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCP_EVIL", str(tmp_path / "evil"))
    shutil.copytree(made / "one", tmp_path / "copy")
    harm(tmp_path / "copy" / f"state-rank{victim}.pt")
    with pytest.raises(UcpError, match=text) as refusal:
        convert_checkpoint(
            tmp_path / "copy", tmp_path / "out.ucp", source_format="torch-ranks", destination_format="ucp"
        )
    assert refusal.value.code == code
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (b"torch.distributed._shard.sharded_tensor.api\nShardedTensor", b"gather"),
        (b"torch\nSize", b"ProcessGroupState"),
    ],
)
def test_getattr_is_no_door(owner: bytes, name: bytes) -> None:
    """The pickle of a ShardedTensor asks by ``getattr`` for a class within a class, and may ask for nothing else."""
    data = b"\x80\x02c__builtin__\ngetattr\nc" + owner + b"\nX" + len(name).to_bytes(4, "little") + name
    with pytest.raises(UcpError) as refusal:
        unpickle(data + b"\x86R.", {**OBJECT_GLOBALS, **RANK_GLOBALS}, at="here")
    assert refusal.value.code == "UCP-E-PICKLE"
    fine = data.replace(owner, b"torch.distributed._shard.sharded_tensor.api\nShardedTensor")
    fine = fine[: -len(name) - 4] + (17).to_bytes(4, "little") + b"ProcessGroupState"
    assert isinstance(unpickle(fine + b"\x86R.", {**OBJECT_GLOBALS, **RANK_GLOBALS}, at="here"), Constructor)


def test_what_is_no_file_of_a_rank(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UcpError, match="no files of ranks") as refusal:
        import_rank_files(tmp_path)
    assert refusal.value.code == "UCP-E-SOURCE"
    torch.save({"w": torch.ones(2)}, tmp_path / "model_rank0.pt")
    with pytest.raises(UcpError, match="no tensor in it says"):
        import_rank_files(tmp_path)
    torch.save([1], tmp_path / "model_rank0.pt")
    with pytest.raises(UcpError, match="no state dict"):
        import_rank_files(tmp_path)
    shutil.copytree(made / "two", tmp_path / "more")
    (tmp_path / "more" / "notes.txt").write_text("mine")
    assert [lost.what for lost in import_rank_files(tmp_path / "more").dropped] == ["files/notes.txt"]
