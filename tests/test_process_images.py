"""Process images: attached, carried, extracted, and never executed (SPEC section 15.4)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import ucpformat as ucp
from ucpformat import process_images
from ucpformat.cli import main
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.image_files import SourceFile
from ucpformat.storage.stores.local import LocalStore

PRODUCER: Final = ("dmtcp", "3.0.0")


def image_on_disk(place: Path) -> Path:
    """Make a directory as software that saves processes writes it."""
    (place / "logs").mkdir(parents=True)
    (place / "ckpt.dmtcp").write_bytes(np.random.default_rng(0).bytes(5_000_000))
    (place / "restart.sh").write_text("#!/bin/sh\ntouch executed\n")
    (place / "restart.sh").chmod(0o755)
    (place / "logs" / "empty").touch()
    return place


def saved(path: Path, storage: Any = "packed") -> Path:
    ucp.save(path, {"w": np.arange(1, 1 << 16, dtype=np.float32), "epoch": 3}, storage=storage, step=7)
    return path


def source(tmp_path: Path, **options: Any) -> ucp.ImageSource:
    return ucp.image_source(image_on_disk(tmp_path / "image"), producer=PRODUCER, **options)


def same(one: Path, other: Path) -> bool:
    """Whether two directories have the same files."""

    def files(place: Path) -> dict[str, bytes]:
        return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}

    return files(one) == files(other)


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_an_image_comes_out_as_it_went_in(tmp_path: Path, storage: str) -> None:
    """UCP-R-036, UCP-S-006."""
    before = saved(tmp_path / "a", storage)
    ucp.attach(before, tmp_path / "b", {"trainer": source(tmp_path, rank=3, host={"gpu": "H200"})})
    assert ucp.validate(tmp_path / "b") == []
    with ucp.open(tmp_path / "b") as ckpt:
        image = ckpt.images["trainer"]
        assert (image.rank, image.host, image.is_required) == (3, {"gpu": "H200"}, False)
        assert [file.path for file in image.files] == ["ckpt.dmtcp", "logs/empty", "restart.sh"]
        assert ckpt.step == 7
        shared = ckpt.packs or ()
        assert all(pack.shared for pack in shared)
    np.testing.assert_array_equal(ucp.load(tmp_path / "b")["w"], ucp.load(before)["w"])
    assert ucp.extract(tmp_path / "b", "trainer", tmp_path / "out") == image.nbytes
    assert same(tmp_path / "image", tmp_path / "out")
    modes = {
        p.name: stat.S_IMODE(p.lstat().st_mode) for p in [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    }
    assert modes == {"out": 0o700, "logs": 0o700, "ckpt.dmtcp": 0o600, "restart.sh": 0o700, "empty": 0o600}
    assert not list(tmp_path.rglob("executed"))


def test_the_copy_shares_tensors_and_stands_alone(tmp_path: Path) -> None:
    before = saved(tmp_path / "a")
    ucp.attach(before, tmp_path / "b", {"trainer": source(tmp_path)})
    (pack,) = (before / "packs").iterdir()
    assert pack.samefile(tmp_path / "b" / "packs" / pack.name)
    for one in sorted(before.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    assert ucp.validate(tmp_path / "b") == []


def test_it_is_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "share", lambda *_: False)
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"trainer": source(tmp_path)})
    assert ucp.validate(tmp_path / "b") == []
    with ucp.open(tmp_path / "b") as ckpt:
        assert ckpt.root.envelope.read_features == ()


def test_it_goes_to_object_stores_and_back(tmp_path: Path) -> None:
    ucp.attach(saved(tmp_path / "a"), "memory://attached", {"trainer": source(tmp_path)})
    assert ucp.validate("memory://attached") == []
    ucp.extract("memory://attached", "trainer", tmp_path / "out")
    assert same(tmp_path / "image", tmp_path / "out")


def test_a_required_image_is_restored_before_anything_is_loaded(tmp_path: Path) -> None:
    """UCP-R-035."""
    target = tmp_path / "b"
    ucp.attach(saved(tmp_path / "a"), target, {"trainer": source(tmp_path, is_required=True)})
    assert ucp.validate(target) == []
    with ucp.open(target) as ckpt:
        assert "process-images" in ckpt.root.envelope.read_features
        assert ckpt["w"]["value"][:2].tolist() == [1, 2]  # looking is free
    state = {"w": np.zeros((1 << 16) - 1, np.float32), "epoch": 0}
    for into in (None, state):
        with pytest.raises(UcpError, match=r"UCP-E-MISMATCH.*restored=\['trainer'\]"):
            ucp.load(target, into)
    assert state["epoch"] == 0
    assert ucp.load(target, state, restored=["trainer"])["epoch"] == 3
    assert ucp.load(target, restored=["trainer"])["epoch"] == 3
    layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 3),)), (ucp.Shard("tp", 0),))
    with ucp.open(target) as ckpt, pytest.raises(UcpError, match="UCP-E-MISMATCH"):
        ckpt.read("w", layout=layout)
    with ucp.open(target, restored=["trainer"]) as ckpt:
        found = ckpt.read("w", layout=layout)
        assert found is not None
        assert found.size == (1 << 16) // 3


def test_naming_an_image_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    before = saved(tmp_path / "a")
    with pytest.raises(UcpError, match=r"UCP-E-MISMATCH.*no image 'trainr'; it has none"):
        ucp.load(before, restored=["trainr"])


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_copies_and_rewriting_keep_images(tmp_path: Path, storage: Any) -> None:
    """UCP-W-027, UCP-W-030."""
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"trainer": source(tmp_path, is_required=True)})
    copy_checkpoint(tmp_path / "b", tmp_path / "c")
    ucp.convert(tmp_path / "c", tmp_path / "d", destination_format="ucp", storage=storage)
    assert not list(ucp.diff(tmp_path / "b", tmp_path / "d").differences)
    ucp.extract(tmp_path / "d", "trainer", tmp_path / "out")
    assert same(tmp_path / "image", tmp_path / "out")


def test_other_formats_have_no_room_for_images(tmp_path: Path) -> None:
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"trainer": source(tmp_path)})
    with pytest.raises(UcpError, match=r"images/trainer.*--drop"):
        ucp.convert(tmp_path / "b", tmp_path / "c.pt", destination_format="torch-save")
    assert not (tmp_path / "c.pt").exists()
    ucp.convert(tmp_path / "b", tmp_path / "c.pt", destination_format="torch-save", drop=["images/*"])


@pytest.mark.parametrize("way", ["flip", "shorter", "gone"])
def test_damage_is_found_named_and_repaired(tmp_path: Path, way: str) -> None:
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"trainer": source(tmp_path)})
    copy_checkpoint(tmp_path / "b", tmp_path / "good")
    with ucp.open(tmp_path / "b") as ckpt:
        file = tmp_path / "b" / ckpt.images["trainer"].files[0].object.key
    data = bytearray(file.read_bytes())
    data[4_000_000] ^= 1
    if way == "gone":
        file.unlink()
    else:
        file.write_bytes(data if way == "flip" else data[:-1])
    code = {"flip": "UCP-E-DIGEST", "shorter": "UCP-E-LENGTH", "gone": "UCP-E-MISSING"}[way]
    assert [problem.code for problem in ucp.validate(tmp_path / "b")] == [code]
    survey = ucp.examine(tmp_path / "b").survey
    assert survey is not None
    assert survey.blobs == ("image trainer: ckpt.dmtcp",)
    with pytest.raises(UcpError, match=code):
        ucp.extract(tmp_path / "b", "trainer", tmp_path / "out")
    with pytest.raises(UcpError, match=code):
        ucp.attach(
            tmp_path / "b", tmp_path / "c", {"other": ucp.image_source(tmp_path / "image", producer=PRODUCER)}
        )
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "good", "image"]
    ucp.repair(tmp_path / "b", [tmp_path / "good"])
    assert ucp.validate(tmp_path / "b") == []
    ucp.extract(tmp_path / "b", "trainer", tmp_path / "out")


def _files(*names: str) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        place.mkdir()
        for name in names:
            (place / name).touch()

    return make


def _link_within(place: Path) -> None:
    place.mkdir()
    (place / "x").symlink_to("/etc/passwd")


WRONG: Final[dict[str, tuple[Callable[[Path], None], str]]] = {
    "nothing there": (lambda _: None, "UCP-E-NOT-FOUND"),
    "no files": (_files(), "UCP-E-SOURCE"),
    "a link": (lambda place: place.symlink_to("/etc/passwd"), "UCP-E-SOURCE"),
    "a link within": (_link_within, "UCP-E-SOURCE"),
    "a pipe": (os.mkfifo, "UCP-E-SOURCE"),
    "a name of two lines": (_files("a\nb"), "UCP-E-KEY"),
    "a hidden name": (_files(".a"), "UCP-E-KEY"),
    "names in other case": (_files("A", "a"), "UCP-E-KEY"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_image_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    make, code = WRONG[name]
    make(tmp_path / "image")
    before = saved(tmp_path / "a")
    with pytest.raises(UcpError, match=code):
        ucp.attach(before, tmp_path / "b", {"i": ucp.image_source(tmp_path / "image", producer=PRODUCER)})
    assert not (tmp_path / "b").exists()


def test_a_second_image_needs_another_name(tmp_path: Path) -> None:
    image = source(tmp_path)
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"one": image})
    with pytest.raises(UcpError, match="UCP-E-NAME"):
        ucp.attach(tmp_path / "b", tmp_path / "c", {"one": image})
    ucp.attach(tmp_path / "b", tmp_path / "c", {"two": image})
    with ucp.open(tmp_path / "c") as ckpt:
        assert sorted(ckpt.images) == ["one", "two"]
    assert ucp.validate(tmp_path / "c") == []


@pytest.mark.parametrize("knows_exclusive_renames", [True, False])
def test_an_extraction_that_cannot_be_put_in_place_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_exclusive_renames: bool
) -> None:
    """What is left would be in the way of the next attempt."""
    with ucp.CheckpointWriter(tmp_path / "b", []) as writer:
        writer.add_image("trainer", ucp.image_source(image_on_disk(tmp_path / "a"), producer=PRODUCER))

    def fails(*_: object) -> None:
        raise OSError(errno.EIO if knows_exclusive_renames else errno.EINVAL, "injected")

    def fails_too(*_: object) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as broken:
        broken.setattr(process_images, "rename_exclusively", fails)
        broken.setattr(Path, "rename", fails_too)
        with pytest.raises(UcpError, match="UCP-E-STORE"):
            ucp.extract(tmp_path / "b", "trainer", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    with monkeypatch.context() as broken:
        if not knows_exclusive_renames:
            broken.setattr(process_images, "rename_exclusively", fails)
        ucp.extract(tmp_path / "b", "trainer", tmp_path / "out")
    assert (tmp_path / "out" / "ckpt.dmtcp").stat().st_size == 5_000_000


def test_extracting_replaces_nothing(tmp_path: Path) -> None:
    """UCP-R-037."""
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"trainer": source(tmp_path)})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("file", "link", "image"):
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            ucp.extract(tmp_path / "b", "trainer", tmp_path / name)
    with pytest.raises(UcpError, match=r"UCP-E-NOT-FOUND.*it has trainer"):
        ucp.extract(tmp_path / "b", "trainr", tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()


components = st.text("ab./-_~ \0A\\é", min_size=0, max_size=6)


@given(st.lists(st.lists(components, min_size=1, max_size=3).map("/".join), min_size=1, max_size=4))
def test_no_path_leads_out_of_the_directory(paths: list[str]) -> None:
    """UCP-D-148, UCP-D-149: whatever is taken can be extracted beside the others, and stays below the directory."""
    image = ucp.ImageSource("", PRODUCER, [SourceFile(path, lambda: iter(())) for path in paths])
    from ucpformat.model.references import DocumentRef

    codes = []
    try:
        image.written("i", lambda _: DocumentRef.to("blobs/0", b""))
    except UcpError as refusal:
        codes.append(refusal.code)
    if codes:
        assert codes == ["UCP-E-KEY"]
        return
    folded = {path.lower() for path in paths}
    assert len(folded) == len(paths)
    for path in folded:
        assert os.path.normpath(path) == path
        assert not path.startswith(("/", "."))
        assert ".." not in path.split("/")
        assert not any(other.startswith(f"{path}/") for other in folded)


BIG: Final = """
import resource, sys
import ucpformat as ucp
source = ucp.image_source(sys.argv[2], producer=("test", "1"))
first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ucp.attach(sys.argv[1], sys.argv[3], {"big": source})
ucp.extract(sys.argv[3], "big", sys.argv[4])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first)
"""


def test_files_larger_than_memory_are_streamed(tmp_path: Path) -> None:
    """400 MiB go in and out with less than 150 MiB more than imports take."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(400 << 20)
    arguments = [str(saved(tmp_path / "a")), *(str(tmp_path / name) for name in ("big", "b", "out"))]
    done = subprocess.run([sys.executable, "-c", BIG, *arguments], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150 << 10


def test_the_command_line_attaches_and_extracts(tmp_path: Path) -> None:
    before, image = saved(tmp_path / "a"), image_on_disk(tmp_path / "image")

    def ucp_(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(main, [*map(str, arguments)])
        return done.exit_code, done.output

    options = ["--name", "trainer", "--producer", *PRODUCER, "--host", "gpu=H200", "--rank", 0, "--required"]
    code, text = ucp_("attach", before, image, "-o", tmp_path / "b", *options)
    assert (code, "with trainer, 3 files, verified" in text) == (0, True)
    assert "process image trainer" in ucp_("inspect", tmp_path / "b")[1]
    found = json.loads(ucp_("inspect", tmp_path / "b", "--format", "json")[1])
    assert found["images"]["trainer"]["host"] == {"gpu": "H200"}
    code, text = ucp_("extract", tmp_path / "b", "trainer", "-o", tmp_path / "out", "--format", "json")
    assert (code, json.loads(text)["bytes"]) == (
        0,
        sum(p.stat().st_size for p in image.rglob("*") if p.is_file()),
    )
    assert ucp_("extract", tmp_path / "b", "trainer", "-o", tmp_path / "out")[0] == 1
    assert ucp_("attach", before, image, "-o", tmp_path / "c", *options, "--host", "gpu=B200")[0] == 2
    assert ucp_("attach", before, image, "-o", tmp_path / "c", "--name", "x")[0] == 2


@pytest.mark.skipif(shutil.which("gcore") is None, reason="gcore, of gdb, is not installed")
def test_the_image_of_a_real_process(tmp_path: Path) -> None:
    """A core of a process that runs: its memory goes in and out, holes and all."""
    program = "import sys; held = bytes(range(256)) * 4096; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        done = subprocess.run(
            ["gcore", "-o", str(tmp_path / "core"), str(process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        process.kill()
    if done.returncode:
        pytest.skip(f"gcore cannot attach here: {done.stderr[-200:]}")
    (core,) = tmp_path.glob("core.*")
    image = ucp.image_source(
        core, producer=("gcore", "gdb"), media_type="application/x-coredump", is_required=True
    )
    ucp.attach(saved(tmp_path / "a"), tmp_path / "b", {"trainer": image})
    ucp.extract(tmp_path / "b", "trainer", tmp_path / "out")
    found = (tmp_path / "out" / core.name).read_bytes()
    assert found == core.read_bytes()
    assert found[:4] == b"\x7fELF"
    assert bytes(range(256)) * 4096 in found


KILLED: Final = """
import os, sys
import ucpformat as ucp
count = 0
def counted(event, arguments):
    global count
    if event in ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir"):
        count += 1
        if count == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
source = ucp.image_source("image", producer=("test", "1"))
if sys.argv[1] == "attach":
    sys.addaudithook(counted)
    ucp.attach("a", "b", {"trainer": source})
else:
    sys.addaudithook(counted)
    ucp.extract("b", "trainer", "out")
print("done")
"""


@pytest.mark.parametrize("what", ["attach", "extract"])
def test_killed_anywhere_nothing_half_made_is_visible(tmp_path: Path, what: str) -> None:
    """UCP-R-036: after `kill -9` the result is complete or not there, and doing it again works."""
    image_on_disk(tmp_path / "image")
    before = saved(tmp_path / "a")
    result = tmp_path / {"attach": "b", "extract": "out"}[what]
    if what == "extract":
        ucp.attach(
            before, tmp_path / "b", {"trainer": ucp.image_source(tmp_path / "image", producer=PRODUCER)}
        )
    for number in (1, 5, 12, 20, 28, 36, 44, 10_000):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, what, str(number)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, -9), done.stderr
        if what == "extract" and result.is_dir() and any(result.iterdir()):
            assert same(tmp_path / "image", result)
        elif what == "attach" and (result / "ucp.json").exists():
            assert ucp.validate(result) == []
        if done.returncode == 0:
            break
        if (what == "extract" and result.exists()) or (result / "ucp.json").exists():
            shutil.rmtree(result)
    assert done.stdout == "done\n"
    assert ucp.validate(before) == []


def test_a_file_that_is_gone_when_it_is_read_is_told_of_as_the_source(tmp_path: Path) -> None:
    ucp.save(tmp_path / "run.ucp", {"w": np.ones(4, np.float32)})
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "core.img").write_bytes(b"memory")
    image = ucp.image_source(tmp_path / "image", producer=("criu", "4.0"))
    (tmp_path / "image" / "core.img").unlink()
    with pytest.raises(UcpError, match=r"UCP-E-SOURCE.*core\.img"):
        ucp.attach(tmp_path / "run.ucp", tmp_path / "new.ucp", {"trainer": image})
    assert not (tmp_path / "new.ucp").exists()
