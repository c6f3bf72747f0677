"""The moment of the commit: exclusive, and looked up in the store rather than remembered (SPEC 8.1, 8.2)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.builders import STORAGES, declare
from tests.test_commit import STATE, is_whole_or_absent, write
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage
from ucpformat.storage.stores.local import LocalStore
from ucpformat.storage.stores.local_io import rename_exclusively
from ucpformat.validation import validate
from ucpformat.writer import CheckpointWriter


@contextmanager
def no_links(number: int = errno.EPERM) -> Iterator[None]:
    """A medium without hard links, as exFAT and some network file systems are."""
    with (
        patch("os.link", side_effect=OSError(number, "no hard links here")),
        patch.dict("ucpformat.storage.stores.draft._exclusive_by", clear=True),
    ):
        yield


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_medium_without_hard_links_is_renamed_to(tmp_path: Path, number: int) -> None:
    """UCP-W-004: by a rename that replaces nothing."""
    with no_links(number):
        write(tmp_path / "c", "plain")
        assert validate(tmp_path / "c") == []
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            write(tmp_path / "c", "plain")
    assert validate(tmp_path / "c") == []


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("storage", STORAGES)
def test_of_two_that_publish_at_the_same_moment_one_fails(
    tmp_path: Path, storage: Storage, links: bool
) -> None:
    """UCP-W-004: nothing lies between a look and the rename."""
    first, second = LocalStore(tmp_path / "c"), LocalStore(tmp_path / "c")
    with contextmanager(lambda: iter([None]))() if links else no_links():
        first.prepare(storage)
        with patch("fcntl.flock"):  # as a medium grants it that has locks of each host's own
            second.resume(storage)
        # A network file system may show the second nothing of the first.
        (tmp_path / "c" / str(first._claim.draft)).touch()
        second.publish(b"{}")
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            first.publish(b"{1}")
        first.close()
        second.close()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["ucp.json"]
    assert (tmp_path / "c" / "ucp.json").read_bytes() == b"{}"


def test_a_medium_with_neither_links_nor_exclusive_renames_is_refused_at_once(tmp_path: Path) -> None:
    """UCP-W-008: before anything is written."""
    unknown = patch(
        "ucpformat.storage.stores.draft.rename_exclusively", side_effect=OSError(errno.EINVAL, "no")
    )
    with no_links(), unknown, pytest.raises(UcpError, match=r"UCP-E-STORE.*neither hard links"):
        CheckpointWriter(tmp_path / "c", declare(STATE))
    assert list(tmp_path.iterdir()) == []


LOST = (errno.EIO, errno.ESTALE, errno.EEXIST, errno.ETIMEDOUT, errno.EPERM, errno.ENOENT)


@pytest.mark.parametrize("number", LOST, ids=[errno.errorcode[number] for number in LOST])
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_commit_whose_answer_was_lost_is_one(
    tmp_path: Path, storage: Storage, links: bool, number: int
) -> None:
    """UCP-W-009: a network file system has done what was asked for, and tells an error, whichever."""
    with contextmanager(lambda: iter([None]))() if links else no_links(), lost_answer(number, links=links):
        write(tmp_path / "c", storage)
    assert validate(tmp_path / "c") == []


@contextmanager
def lost_answer(failure: int | BaseException, *, links: bool) -> Iterator[None]:
    """The root document appears, and whoever made it hears of a failure."""
    name = "os.link" if links else "ucpformat.storage.stores.draft.rename_exclusively"
    real = os.link if links else rename_exclusively

    def act(source: str, target: str, *args: Any, **options: Any) -> None:
        real(source, target, *args, **options)
        if target == "ucp.json":
            raise OSError(failure, os.strerror(failure)) if isinstance(failure, int) else failure

    with patch(name, act):
        yield


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("storage", STORAGES)
def test_whoever_is_stopped_behind_the_commit_removes_nothing(
    tmp_path: Path, storage: Storage, links: bool, stop: BaseException
) -> None:
    """UCP-W-009: what is published is looked up, not remembered."""
    with (
        contextmanager(lambda: iter([None]))() if links else no_links(),
        lost_answer(stop, links=links),
        pytest.raises(type(stop)),
    ):
        write(tmp_path / "c", storage)
    assert is_whole_or_absent(tmp_path / "c")


def test_what_cannot_be_looked_up_is_left_alone(tmp_path: Path) -> None:
    """UCP-W-009: neither the link nor the look at it is answered."""
    with (
        lost_answer(errno.EIO, links=True),
        patch(
            "ucpformat.storage.stores.draft.Draft.is_published", side_effect=OSError(errno.EIO, "no answer")
        ),
        pytest.raises(UcpError, match="UCP-E-STORE"),
    ):
        write(tmp_path / "c", "packed")
    assert is_whole_or_absent(tmp_path / "c")


def test_an_error_of_closing_behind_the_commit_is_none(tmp_path: Path) -> None:
    real = os.close

    def close(descriptor: int) -> None:
        is_directory = os.path.isdir(f"/proc/self/fd/{descriptor}")
        real(descriptor)
        if is_directory:
            raise OSError(errno.EIO, "at close")

    with patch("os.close", close), patch("ucpformat.storage.stores.local_io.sync"):
        write(tmp_path / "c", "packed")
    assert is_whole_or_absent(tmp_path / "c")
