"""The hold of a writer on its directory: one at a time, and none that a forked process keeps or gives up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ucpformat.errors import UcpError
from ucpformat.storage.stores.directory_claim import DirectoryClaim


def test_one_writer_holds_a_directory_at_a_time(tmp_path: Path) -> None:
    first, second = DirectoryClaim(tmp_path), DirectoryClaim(tmp_path)
    first.hold()
    with pytest.raises(UcpError, match="another writer is at work here") as caught:
        second.hold()
    assert caught.value.code == "UCP-E-EXISTS"
    first.release()
    second.hold()
    second.release()


def test_a_lock_ends_with_its_holder_whatever_forked_processes_keep(tmp_path: Path) -> None:
    first, second = DirectoryClaim(tmp_path), DirectoryClaim(tmp_path)
    first.hold()
    assert first.directory is not None
    copy = os.dup(first.directory)  # what a process has that was forked meanwhile
    try:
        first.release()
        second.hold()
    finally:
        os.close(copy)
        second.release()


def test_a_forked_process_leaves_the_attempt_to_its_parent(tmp_path: Path) -> None:
    claim = DirectoryClaim(tmp_path / "c")
    claim.begin()
    forked = DirectoryClaim(tmp_path / "c")
    assert claim.directory is not None
    forked._held, forked._draft, forked._process = os.dup(claim.directory), claim._draft, -1
    assert not forked.withdraw()
    forked.release()
    assert claim.draft in os.listdir(tmp_path / "c")
    claim.publish(b"{}", is_durable=False)
    assert os.listdir(tmp_path / "c") == ["ucp.json"]
    claim.release()
