"""Headers that lie, files that are cut, indexes that disagree: refused, naming the file, never anything else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from tests.conversion.damage import damaged, outcome, replaced
from tests.conversion.jobs import whole
from ucpformat.conversion.convert import detect_format
from ucpformat.conversion.formats.safetensors.importer import detect, import_safetensors
from ucpformat.errors import UcpError

REAL = save(
    {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int8)}, {"format": "pt"}
)


def plan(path: Path, **settings: str) -> Any:
    return import_safetensors(path, settings=settings)


def refused(path: Path, **settings: str) -> UcpError:
    with pytest.raises(UcpError) as refusal:
        whole(plan(path, **settings))
    return refusal.value


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "UCP-E-SOURCE"),
    "short": (b"\x08\0\0", "UCP-E-SOURCE"),
    "no header": ((50).to_bytes(8, "little") + b"{}", "UCP-E-SOURCE"),
    "huge header": ((2**62).to_bytes(8, "little") + b"{}", "UCP-E-LIMIT"),
    "no JSON": (file_of(b"{nonsense"), "UCP-E-SOURCE"),
    "no object": (file_of([1]), "UCP-E-SOURCE"),
    "deep JSON": (file_of(b'{"a":' + b"[" * 100_000), "UCP-E-SOURCE"),
    "long number": (file_of(b'{"a":' + b"9" * 10_000 + b"}"), "UCP-E-SOURCE"),
    "a name twice": (
        file_of(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}', b"1"),
        "UCP-E-SOURCE",
    ),
    "metadata twice": (file_of(b'{"__metadata__":{"a":"1","a":"2"}}'), "UCP-E-SOURCE"),
    "metadata no text": (file_of({"__metadata__": {"a": 1}}), "UCP-E-SOURCE"),
    "overlap": (
        file_of({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"123456"),
        "UCP-E-SOURCE",
    ),
    "same bytes twice": (
        file_of({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, b"1234"),
        "UCP-E-SOURCE",
    ),
    "hole": (file_of({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, b"123456"), "UCP-E-SOURCE"),
    "hole beside an overlap": (
        file_of(
            {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6), "c": entry("U8", [2], 4, 6)}, b"123456"
        ),
        "UCP-E-SOURCE",
    ),
    "rest": (file_of({"a": entry("U8", [2], 0, 2)}, b"123456"), "UCP-E-SOURCE"),
    "beyond the end": (file_of({"a": entry("U8", [2**40], 0, 2**40)}, b"1"), "UCP-E-SOURCE"),
    "wrong size": (file_of({"a": entry("F32", [2], 0, 4)}, b"1234"), "UCP-E-SOURCE"),
    "half a byte": (file_of({"a": entry("F4", [3], 0, 2)}, b"12"), "UCP-E-SOURCE"),
    "negative": (file_of({"a": entry("U8", [-1], 0, -1)}), "UCP-E-SOURCE"),
    "backwards": (file_of({"a": entry("U8", [2], 4, 2)}, b"1234"), "UCP-E-SOURCE"),
    "a fraction": (file_of({"a": entry("U8", [1.5], 0, 1)}, b"1"), "UCP-E-SOURCE"),
    "true": (file_of({"a": entry("U8", [True], 0, 1)}, b"1"), "UCP-E-SOURCE"),
    "overflow": (file_of({"a": entry("U8", [2**40, 2**40, 0], 0, 0)}), "UCP-E-LIMIT"),
    "many dimensions": (file_of({"a": entry("U8", [1] * 100_000, 0, 1)}, b"1"), "UCP-E-LIMIT"),
    "unknown type": (file_of({"a": entry("Q7", [1], 0, 1)}, b"1"), "UCP-E-DTYPE"),
    "no type": (file_of({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"1"), "UCP-E-DTYPE"),
    "no entry": (file_of({"a": 3}), "UCP-E-SOURCE"),
    "DCP shard": (file_of({"__metadata__": {"DCP_SHARDING_INFO": "{}"}}), "UCP-E-SOURCE"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_headers_that_lie_are_refused_naming_the_file(tmp_path: Path, case: str) -> None:
    data, code = HOSTILE[case]
    (tmp_path / "x.safetensors").write_bytes(data)
    for path in (tmp_path, tmp_path / "x.safetensors"):
        found = outcome(lambda path=path: plan(path))  # type: ignore[misc]
        assert (found.code if found else "") == code
        assert found is None or found.at == "x.safetensors"


@given(st.data())
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "x.safetensors"
    path.write_bytes(data.draw(damaged(REAL)))
    found = outcome(lambda: plan(path))
    assert found is None or found.code in ("UCP-E-SOURCE", "UCP-E-LIMIT", "UCP-E-DTYPE", "UCP-E-OBJECT")
    detect(path)


def model(folder: Path) -> Path:
    """A directory of two files and an index."""
    folder.mkdir()
    files = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}
    for name, keys in files.items():
        save_file({key: np.full(3, ord(key), np.uint8) for key in keys}, folder / name)
    weight_map = {key: name for name, keys in files.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 9, "note": "kept"}, "weight_map": weight_map})
    )
    return folder


def test_a_model_in_several_files(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    assert detect_format(folder) == "safetensors"
    job = plan(folder)
    assert {atom: int(array[0]) for (atom, _), array in whole(job).items()} == {"a": 97, "b": 98, "c": 99}
    assert job.state.values["safetensors.index_metadata"] == {"note": "kept"}
    (folder / "model.safetensors.index.json").unlink()
    assert len(whole(plan(folder))) == 3


def _without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        document = json.loads(path.read_bytes())
        change(document)
        replaced(path, json.dumps(document).encode())

    return apply


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
DIRECTORIES: dict[str, tuple[list[Callable[[Path], object]], str]] = {
    "missing file": ([_without(SECOND)], SECOND),
    "missing file and index": ([_without(SECOND), _without("model.safetensors.index.json")], SECOND),
    "index without map": ([_index(lambda d: d.pop("weight_map"))], "model.safetensors.index.json"),
    "map of numbers": ([_index(lambda d: d["weight_map"].update(a=1))], "model.safetensors.index.json"),
    "a tensor more": ([_index(lambda d: d["weight_map"].update(x=FIRST))], "model.safetensors.index.json"),
    "a tensor less": ([_index(lambda d: d["weight_map"].pop("a"))], "model.safetensors.index.json"),
    "in another file": ([_index(lambda d: d["weight_map"].update(a=SECOND))], "model.safetensors.index.json"),
    "out of the directory": (
        [_index(lambda d: d["weight_map"].update(a="../m.safetensors"))],
        "../m.safetensors",
    ),
    "absolute": ([_index(lambda d: d["weight_map"].update(a="/etc/passwd"))], "/etc/passwd"),
    "two models": (
        [lambda f: shutil.copy(f / FIRST, f / "consolidated.safetensors")],
        "consolidated.safetensors",
    ),
    "two indexes": (
        [lambda f: shutil.copy(f / "model.safetensors.index.json", f / "other.safetensors.index.json")],
        "other.safetensors.index.json",
    ),
    "one tensor twice": (
        [
            lambda f: shutil.copy(f / FIRST, f / "x.safetensors"),
            lambda f: (f / "x.safetensors").replace(f / SECOND),
        ],
        SECOND,
    ),
    "a folder as a file": ([_without(FIRST), lambda f: (f / FIRST).mkdir()], FIRST),
    "a link out": ([_without(FIRST), lambda f: (f / FIRST).symlink_to("/etc/passwd")], FIRST),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_directories_that_disagree_are_refused_naming_the_file(tmp_path: Path, case: str) -> None:
    folder = model(tmp_path / "m")
    changes, at = DIRECTORIES[case]
    for change in changes:
        change(folder)
    assert refused(folder).at == at


def test_one_of_several_is_chosen(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    shutil.copy(folder / FIRST, folder / "other.safetensors")
    job = plan(folder, weights="other.safetensors")
    assert {atom for atom, _ in whole(job)} == {"a", "b"}
    assert sorted(lost.what for lost in job.dropped) == [
        f"files/{FIRST}",
        f"files/{SECOND}",
        "files/model.safetensors.index.json",
    ]
    assert len(whole(plan(folder, weights="model.safetensors.index.json"))) == 3
    assert refused(folder, weights="none.safetensors").code == "UCP-E-SOURCE"
    assert refused(tmp_path).code == "UCP-E-SOURCE"
