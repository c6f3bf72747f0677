"""Files that a local store keeps open are all closed, whatever comes between."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from types import FrameType

import pytest

from ucpformat.storage.stores.local_objects import KeptFiles, OpenFile


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="a pipe tells of its closed end by SIGIO")
def test_a_signal_that_comes_with_a_close_leaves_no_other_file_open() -> None:
    """An increment reads several packs, of which the first was closed and the others were not."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    listening, told = os.pipe()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    before = signal.signal(signal.SIGIO, stop)
    try:
        fcntl.fcntl(listening, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(listening, fcntl.F_SETFL, os.O_ASYNC)
        files = KeptFiles(8)
        for key, descriptor in enumerate((told, *others)):
            files.offer(str(key), OpenFile(descriptor))
        with pytest.raises(KeyboardInterrupt):
            files.close()
        assert not any(map(is_open, (told, *others)))
    finally:
        signal.signal(signal.SIGIO, before)
        os.close(listening)


def test_a_file_that_cannot_be_closed_does_not_keep_the_others_open() -> None:
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    files = KeptFiles(8)
    for key, descriptor in enumerate(descriptors):
        files.offer(str(key), OpenFile(descriptor))
    os.close(descriptors[1])
    files.close()
    assert not any(map(is_open, descriptors))
