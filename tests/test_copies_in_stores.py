"""Copies within an object store: the store copies the objects, and of two copies at one URL none harms the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

import ucpformat as ucp
from tests.builders import result_or_refusal
from tests.test_increments import FORMS, big, check, save
from tests.test_increments_in_stores import before_each_copy, objects, requests
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.storage.stores.remote.store import RemoteStore

CHUNK = 4096


@pytest.fixture
def url() -> Iterator[str]:
    yield f"memory://{uuid4().hex}"
    MemoryFileSystem.store.clear()


def digest(url: str) -> str:
    with ucp.open(url) as checkpoint:
        return checkpoint.digest


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_sent_but_the_root_document(url: str, form: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)
    with requests() as counts:
        copied = copy_checkpoint(f"{url}/1", f"{url}/2")
    assert objects(f"{url}/2") == objects(f"{url}/1")
    assert (counts["copies"], copied.objects) == (len(objects(f"{url}/1")) - 1, len(objects(f"{url}/1")))
    assert counts["sent"] < 4000, "the root document, and a claim"
    assert copied.nbytes == sum(
        len(MemoryFileSystem().cat_file(f"{url}/1/{key}")) for key in objects(f"{url}/1")
    )
    MemoryFileSystem().rm(f"{url}/1", recursive=True)
    assert digest(f"{url}/2") == copied.digest
    check(f"{url}/2", arrays)


def test_an_image_is_all_that_is_sent_to_attach_it(url: str, tmp_path: Path) -> None:
    arrays = big()
    save(f"{url}/1", arrays, chunk_bytes=CHUNK)
    (tmp_path / "trainer.dmtcp").write_bytes(bytes(10_000))
    image = ucp.image_source(tmp_path / "trainer.dmtcp", producer=("dmtcp", "3.0.0"))
    with requests() as counts:
        ucp.attach(f"{url}/1", f"{url}/2", {"trainer": image})
    assert counts["sent"] < 10_000 + 4000
    assert counts["copies"] == 3, "a pack, an index part and its table"
    MemoryFileSystem().rm(f"{url}/1", recursive=True)
    check(f"{url}/2", arrays)
    assert ucp.extract(f"{url}/2", "trainer", tmp_path / "out") == 10_000


class RefusedError(OSError):
    """As a server answers whom it lets read, and not copy."""

    status_code = 403


@pytest.mark.parametrize("form", FORMS)
def test_where_a_store_refuses_copies_they_are_sent(url: str, form: str) -> None:
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)
    asked: list[str] = []

    def refuse(source: str) -> None:
        asked.append(source)
        raise RefusedError("no")

    with before_each_copy(refuse):
        copied = copy_checkpoint(f"{url}/1", f"{url}/2")
    assert len(asked) <= 4, "it is asked until it has refused"
    assert digest(f"{url}/2") == copied.digest
    check(f"{url}/2", arrays)


@pytest.mark.parametrize("form", FORMS)
def test_a_store_without_copies_and_another_store(url: str, form: str, tmp_path: Path) -> None:
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)
    with mock.patch.object(MemoryFileSystem, "cp_file", AbstractFileSystem.cp_file):
        copy_checkpoint(f"{url}/1", f"{url}/2")
    with requests() as counts:
        copy_checkpoint(f"{url}/1", tmp_path / "3")
        copy_checkpoint(tmp_path / "3", f"{url}/4")
    assert counts["copies"] == 0
    for path in (f"{url}/2", f"{tmp_path}/3", f"{url}/4"):
        assert digest(path) == digest(f"{url}/1")
        check(path, arrays)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["removed", "replaced", "replaced by the same length"])
def test_a_source_that_changes_meanwhile(url: str, form: str, how: str) -> None:
    save(f"{url}/1", big(), form=form, chunk_bytes=CHUNK)

    def harm(source: str) -> None:
        memory = MemoryFileSystem()
        if how == "removed":
            memory.store.pop(source, None)
        elif source in memory.store:
            memory.pipe_file(source, bytes(memory.size(source) if "length" in how else 7))

    with before_each_copy(harm), pytest.raises(UcpError, match=r"UCP-E-NOT-FOUND.*copy again"):
        copy_checkpoint(f"{url}/1", f"{url}/2")
    assert objects(f"{url}/2") == set()


def test_what_the_store_makes_of_a_copy_is_read_back(url: str) -> None:
    save(f"{url}/1", big(), chunk_bytes=CHUNK)
    real = MemoryFileSystem.cp_file

    def cp_file(self: Any, source: str, target: str, **options: Any) -> None:
        real(self, source, target, **options)
        if "/packs/" in target:
            self.pipe_file(target, bytes(self.size(target)))

    with (
        mock.patch.object(MemoryFileSystem, "cp_file", cp_file),
        pytest.raises(UcpError, match="so the copy does not verify, and was given up"),
    ):
        copy_checkpoint(f"{url}/1", f"{url}/2")
    assert objects(f"{url}/2") == set()


def test_a_copy_that_is_not_answered_leaves_its_claim(url: str) -> None:
    """It may come later: nobody else is to have its key then."""
    save(f"{url}/1", big(), chunk_bytes=CHUNK)

    def fail(source: str) -> None:
        raise ConnectionError("no answer")

    with before_each_copy(fail), pytest.raises(UcpError, match=r"UCP-E-STORE.*no answer"):
        copy_checkpoint(f"{url}/1", f"{url}/2")
    assert objects(f"{url}/2") == {"index/claim"}
    with pytest.raises(UcpError, match=r"UCP-E-EXISTS.*and a copy, need a place"):
        copy_checkpoint(f"{url}/1", f"{url}/2")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", ["prepare", "copy", "flush", "publish"])
@pytest.mark.parametrize("fails", [False, True])
def test_two_copies_at_one_url(url: str, form: str, call: str, fails: bool) -> None:
    """UCP-W-006: their keys are the same, and what one commits is not taken away by the other, which fails."""
    arrays = big()
    save(f"{url}/1", arrays, form=form, chunk_bytes=CHUNK)
    real = getattr(RemoteStore, call)
    outcomes: list[str] = []
    is_inside = False

    def once(self: RemoteStore, *args: Any) -> Any:
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            refusal = result_or_refusal(lambda: copy_checkpoint(f"{url}/1", f"{url}/2"))
            outcomes.append("exists" if isinstance(refusal, UcpError) else "copied")
            assert not isinstance(refusal, UcpError) or refusal.code == "UCP-E-EXISTS"
            if fails:
                raise ConnectionError("no answer")
        return real(self, *args)

    with mock.patch.object(RemoteStore, call, once):
        try:
            copy_checkpoint(f"{url}/1", f"{url}/2")
            outcomes.append("copied")
        except (UcpError, ConnectionError):
            pass
    assert outcomes.count("copied") == (0 if fails and call != "prepare" else 1)
    if "copied" in outcomes:
        check(f"{url}/2", arrays)
    else:
        copy_checkpoint(f"{url}/1", f"{url}/2")
