"""What is said of places where a checkpoint was looked for and is not."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import fsspec
import numpy as np
import pytest

import ucpformat
from ucpformat.errors import UcpError


def said(url: str | Path) -> str:
    with pytest.raises(UcpError) as caught:
        ucpformat.open(url)
    assert caught.value.code == "UCP-E-NOT-FOUND"
    assert str(url) in str(caught.value)
    (problem,) = ucpformat.validate(url)
    assert (problem.code, problem.message) == (caught.value.code, caught.value.message)
    return caught.value.message


def make(directory: Path, *names: str) -> Path:
    for name in names:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return directory


def test_a_run_directory_names_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (9, 20):
        ucpformat.save(tmp_path / f"step-{step}.ucp", {"w": np.ones(1)})
    make(tmp_path, "step-30.ucp/packs/a.pack")
    assert said(tmp_path) == (
        f"this is a run directory with 2 checkpoints; name one, such as {tmp_path}/step-20.ucp"
    )
    make(tmp_path / "other", "step-1.ucp/packs/a.pack")
    assert said(tmp_path / "other") == "this is a run directory, and no checkpoint in it was committed"


def test_a_run_directory_in_an_object_store() -> None:
    url = f"memory://{uuid4().hex}"
    for step in (9, 10):
        ucpformat.save(f"{url}/step-{step}.ucp", {"w": np.ones(1)})
    assert said(url) == f"this is a run directory with 2 checkpoints; name one, such as {url}/step-10.ucp"
    assert said(f"{url}/none") == "nothing lies there; check the URL"
    fsspec.filesystem("memory").rm(url, recursive=True)


def test_a_directory_of_checkpoints_with_other_names(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "best", {"w": np.ones(1)})
    assert said(tmp_path) == (
        f"this is a directory with checkpoints in it; name one, such as {tmp_path}/best"
    )


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ((".metadata", "__0_0.distcp"), "a directory of torch.distributed.checkpoint"),
        (("latest", "global_step1/mp_rank_00_model_states.pt"), "a directory of DeepSpeed"),
        (("common.pt", "metadata.json", ".metadata"), "a directory of Megatron"),
        (("latest_checkpointed_iteration.txt",), "a directory of Megatron"),
        (("_CHECKPOINT_METADATA", "_METADATA"), "a directory of Orbax"),
        (("config.json", "model.safetensors"), "a directory of safetensors files"),
        (("pytorch_model.bin", "config.json"), "a directory of files of torch.save"),
    ],
)
def test_foreign_directories_are_to_be_converted(tmp_path: Path, names: tuple[str, ...], kind: str) -> None:
    make(tmp_path, *names)
    assert said(tmp_path) == (
        f"this looks like {kind}; `ucp convert {tmp_path} NAME.ucp` makes a checkpoint of it"
    )


def test_files(tmp_path: Path) -> None:
    make(tmp_path, "model.pt", "model.safetensors", "notes.txt")
    assert said(tmp_path / "model.pt") == (
        f"this is a file of torch.save; `ucp convert {tmp_path}/model.pt {tmp_path}/model.ucp` "
        "makes a checkpoint of it"
    )
    assert said(tmp_path / "model.safetensors").startswith("this is a safetensors file; `ucp convert ")
    assert said(tmp_path / "notes.txt") == "this is a file, and a checkpoint is a directory; check the path"
    ucpformat.save(tmp_path / "c", {"w": np.ones(1)})
    assert said(tmp_path / "c" / "ucp.json") == (
        "this is the root document of a checkpoint; name the directory that it lies in"
    )


def test_nothing_and_something_like_it(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "step-20.ucp", {"w": np.ones(1)})
    assert said(tmp_path / "step-2.ucp") == (f"nothing lies there; did you mean {tmp_path}/step-20.ucp?")
    assert said(tmp_path / "other") == "nothing lies there; check the path"
    assert said(tmp_path / "no" / "where") == "there is no such directory; check the path"
    assert said(make(tmp_path / "packed", "packs/a.pack")).startswith(
        "there is no ucp.json: a save into this directory was interrupted"
    )
    (tmp_path / "empty").mkdir()
    assert said(tmp_path / "empty") == "the directory is empty; check the path"
    assert said(make(tmp_path / "odd", "notes.txt")).startswith("there is no ucp.json: ")
