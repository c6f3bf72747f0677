"""The short form of the campaigns of hostile input; `make campaigns` runs the long one."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import result_or_refusal
from tests.campaigns.hostile.malicious import cases_of
from tests.campaigns.hostile.seeds import SUFFIXES, Document, seeds_of, written
from tests.campaigns.hostile.targets import PARSERS, changed, convert_and_validate, target_of
from tests.conversion.engine.jobs import carry_out
from tests.conversion.jobs import job_of
from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.contract.job import stored_bytes
from ucpformat.conversion.formats.orbax.arrays import array_spec
from ucpformat.conversion.formats.orbax.documents import read_tree
from ucpformat.conversion.formats.orbax.exporter import export_orbax
from ucpformat.conversion.formats.orbax.importer import import_orbax
from ucpformat.errors import UcpError
from ucpformat.tensor_files.source_files import SourceFiles, is_component

FORMATS = ("dcp", "deepspeed", "safetensors", "torch-save", "ucp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@settings(max_examples=25)
@given(format_name=st.sampled_from(FORMATS), number=st.integers(0, 2**32))
def test_a_malicious_source_is_refused_by_code_or_converted_and_sound(
    folder: Path, format_name: str, number: int
) -> None:
    """UCP-S-001, UCP-S-002, UCP-S-004."""
    (case,) = cases_of(format_name, seeds_of(format_name, folder / "seeds"), random.Random(number), 1)
    for name in ("in", "outside", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "in").mkdir()
    source = folder / "in" / f"source{SUFFIXES.get(format_name, '')}"
    try:
        case.make(source)
    except (OSError, ValueError):
        return  # this file system does not store such a name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result_or_refusal(lambda: convert_and_validate(format_name, source, folder / "out"))


@given(name=st.sampled_from(PARSERS), number=st.integers(0, 2**32))
def test_a_parser_takes_a_mutated_document_or_refuses_it(folder: Path, name: str, number: int) -> None:
    draw = random.Random(number)
    target = target_of(name, folder / "seeds", folder)
    document: Document = draw.choice(target.seeds)
    for _ in range(3):
        document = changed(document, draw, target.seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result_or_refusal(lambda: target.run(document))


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_the_campaign_begins_with_is_converted(folder: Path, format_name: str) -> None:
    for number, seed in enumerate(seeds_of(format_name, folder / "seeds")):
        source = written(seed, folder / f"whole-{format_name}-{number}{SUFFIXES.get(format_name, '')}")
        convert_and_validate(format_name, source, folder / "out")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "x" * 256, "\ud800", "\u00fc" * 128])
def test_what_is_no_name_of_a_file(tmp_path: Path, name: str) -> None:
    """A tag of 300 bytes ended with what the system said of it."""
    assert not is_component(name)
    if name not in (".", "a/b", "a\\b"):
        with pytest.raises(UcpError, match="UCP-E-KEY"):
            SourceFiles(tmp_path).size(name)
    assert not SourceFiles(tmp_path).has(name or "x")


def test_names_of_a_folder_elsewhere_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "source" / "link").symlink_to(tmp_path / "outside")
    for folder, code in (("../outside", "UCP-E-KEY"), ("link", "UCP-E-LINK")):
        with pytest.raises(UcpError, match=code):
            SourceFiles(tmp_path / "source").names(folder)


def test_a_link_to_itself_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(UcpError, match=r"UCP-E-SOURCE .*symbolic links"):
        SourceFiles(tmp_path / "a").names()
    with pytest.raises(UcpError, match=r"UCP-E-SOURCE .*symbolic links"):
        SourceFiles(tmp_path).hand_over("a")


@pytest.mark.parametrize("pointer", ["latest", "latest_universal"])
def test_a_tag_that_no_system_keeps_is_refused(folder: Path, tmp_path: Path, pointer: str) -> None:
    format_name = "deepspeed" if pointer == "latest" else "ds-universal"
    source = written(seeds_of(format_name, folder / "seeds")[0], tmp_path / "source")
    (source / pointer).write_text("x" * 300)
    refusal = result_or_refusal(lambda: convert_and_validate(format_name, source, tmp_path / "out"))
    assert isinstance(refusal, UcpError)
    assert refusal.code in {"UCP-E-KEY", "UCP-E-LIMIT"}


def test_a_hole_is_no_stored_byte_and_not_handed_over(tmp_path: Path) -> None:
    """TensorStore takes memory by a file's length, and ends the process where there is none."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_bytes(b"x" * 5000)
    files = SourceFiles(tmp_path)
    assert files.hand_over("d") == tmp_path / "d"
    os.truncate(tmp_path / "d" / "file", 1 << 40)
    if (tmp_path / "d" / "file").stat().st_blocks > 1 << 20:
        pytest.skip("this file system keeps no holes")
    with pytest.raises(UcpError, match=r"UCP-E-LIMIT at d/file: .* hole"):
        files.hand_over("d")
    assert stored_bytes(str(tmp_path)) < 1 << 20


@pytest.mark.parametrize("ocdbt", ["true", "false"])
def test_metadata_that_nest_without_end_do_not_reach_tensorstore(tmp_path: Path, ocdbt: str) -> None:
    """100,000 brackets in a .zarray ended the process by a signal."""
    tensorstore = pytest.importorskip("tensorstore")
    arrays = {"w": {"value": np.arange(6, dtype=np.float32)}}
    carry_out(
        export_orbax(Content(job_of(arrays)), tmp_path / "a", settings={"ocdbt": ocdbt, "zarr": "2"}),
        tmp_path,
    )
    name = next(iter(read_tree(SourceFiles(tmp_path / "a"), "").leaves)).name
    store = array_spec(tmp_path / "a", name, use_ocdbt=ocdbt == "true", use_zarr3=False)["kvstore"]
    deep = b"[" * 100_000 + b"]" * 100_000
    tensorstore.KvStore.open(store).result().write(".zarray", deep).result()
    with pytest.raises(UcpError, match=r"UCP-E-LIMIT .*nests"):
        import_orbax(tmp_path / "a", settings={})


@pytest.mark.parametrize("zarr", ["2", "3"])
def test_chunks_that_claim_their_own_size_do_not_reach_tensorstore(tmp_path: Path, zarr: str) -> None:
    """A chunk of 20 bytes, whose header of Blosc claims 939 MB, ended the process where there was less."""
    pytest.importorskip("tensorstore")
    arrays = {"w": {"value": np.arange(6, dtype=np.float32)}}
    settings = {"ocdbt": "false", "zarr": zarr}
    carry_out(export_orbax(Content(job_of(arrays)), tmp_path / "a", settings=settings), tmp_path)
    place = tmp_path / "a" / "model.w" / (".zarray" if zarr == "2" else "zarr.json")
    document = json.loads(place.read_bytes())
    blosc: dict[str, object] = {"configuration": {"cname": "lz4", "clevel": 5, "typesize": 4}}
    if zarr == "2":
        assert document["compressor"]["id"] == "zstd"
        document["compressor"] = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0}
    else:
        sharded = {"chunk_shape": [6], "codecs": [*document["codecs"], blosc], "index_codecs": ["bytes"]}
        document["codecs"] = [{"name": "sharding_indexed", "configuration": sharded}]
    names: tuple[object, ...] = ("blosc", ["zstd"], {})
    for name in names:
        if zarr == "2":
            document["compressor"]["id"] = name
        else:
            blosc["name"] = name
        place.write_text(json.dumps(document))
        with pytest.raises(UcpError, match=r"UCP-E-SOURCE at model\.w: its chunks are encoded by") as refusal:
            import_orbax(tmp_path / "a", settings={})
        assert repr(name) in refusal.value.message
