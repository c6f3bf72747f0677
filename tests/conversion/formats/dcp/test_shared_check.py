"""Checks that threads share: all of it is done, once; damage is met by everybody, and nobody goes on after it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conversion.formats.dcp.test_torch_zip import saved
from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.byte_source import ByteSource, MemoryRange, element_view
from ucpformat.tensor_files.shared_check import (
    PIECE_BYTES,
    SharedCheck,
    SharedChecks,
    Step,
    record_steps,
)
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor, TorchArchive
from ucpformat.tensor_files.zip_records import record_start, zip_records

PATIENCE = 120.0
"""Seconds after which a test that would hang fails; no test that passes waits for them."""


def by_threads(threads: int, action: Callable[[], object]) -> list[BaseException | None]:
    """What ``action`` raises in each of so many threads, which all begin before any ends."""
    begun = threading.Barrier(threads)

    def run() -> None:
        begun.wait(PATIENCE)
        action()

    with ThreadPoolExecutor(threads) as executor:
        return [future.exception(PATIENCE) for future in [executor.submit(run) for _ in range(threads)]]


def archive_of(records: dict[str, bytes]) -> bytes:
    stream = BytesIO()
    with ZipFile(stream, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return stream.getvalue()


def opener(data: bytes) -> Callable[[], Any]:
    @contextmanager
    def opened() -> Iterator[ByteSource]:
        yield MemoryRange(data, "the file")

    return opened


@given(
    records=st.lists(st.binary(max_size=300), min_size=1, max_size=3),
    piece=st.integers(1, 64),
    threads=st.integers(1, 4),
    damage=st.none() | st.integers(0),
    bit=st.integers(0, 7),
)
def test_damage_of_any_byte_is_found_by_all(
    records: list[bytes], piece: int, threads: int, damage: int | None, bit: int
) -> None:
    data = bytearray(archive_of({f"r{number}": content for number, content in enumerate(records)}))
    known = list(zip_records(MemoryRange(bytes(data), "the file")).values())
    places = [
        (record.name, record_start(MemoryRange(bytes(data), "the file"), record) + offset)
        for record in known
        for offset in range(record.length)
    ]
    expected = None
    if damage is not None and places:
        expected, place = places[damage % len(places)]
        data[place] ^= 1 << bit
    check = SharedCheck(record_steps(opener(bytes(data)), known, piece))
    for _ in range(2):  # whoever comes later is told the same
        for found in by_threads(threads, check.run):
            if expected is None:
                assert found is None
            else:
                assert isinstance(found, UcpError)
                assert (found.code, found.at) == ("UCP-E-SOURCE", "the file")
                assert f"record {expected!r} do not match their checksum" in found.message


@pytest.mark.parametrize("crc", [0, 1, 2**32 - 1])
def test_a_record_of_no_bytes_has_a_checksum_too(crc: int) -> None:
    data = bytearray(archive_of({"empty": b""}))
    place = data.rindex(b"PK\x01\x02") + 16
    data[place : place + 4] = crc.to_bytes(4, "little")
    (record,) = zip_records(MemoryRange(bytes(data), "the file")).values()
    found = by_threads(2, SharedCheck(record_steps(opener(bytes(data)), [record])).run)
    assert [getattr(one, "code", one) for one in found] == ["UCP-E-SOURCE" if crc else None] * 2


@given(
    parents=st.lists(st.integers(0), max_size=20),
    threads=st.integers(1, 4),
)
def test_every_step_is_done_once(parents: list[int], threads: int) -> None:
    """Step 0 is given; each other one is returned by one before it."""
    done: Counter[int] = Counter()
    lock = threading.Lock()

    def step(number: int) -> Iterable[Step]:
        with lock:
            done[number] += 1
        return [partial(step, child) for child, parent in enumerate(parents, 1) if parent % child == number]

    assert by_threads(threads, SharedCheck([partial(step, 0)]).run) == [None] * threads
    assert done == Counter(range(len(parents) + 1))


def test_threads_work_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def step() -> Iterable[Step]:
        together.wait(PATIENCE)  # passed only if three threads are at three steps
        return ()

    assert by_threads(3, SharedCheck([step] * 3).run) == [None] * 3


def test_who_finds_nothing_left_waits_for_the_others() -> None:
    """Nobody returns before the last piece is done, and a failure of that reaches those who wait."""
    entered, released = threading.Event(), threading.Event()

    def last() -> Iterable[Step]:
        entered.set()
        assert released.wait(PATIENCE)
        raise error("UCP-E-SOURCE", "damaged", at="here")

    check = SharedCheck([last])
    with ThreadPoolExecutor(3) as executor:
        first = executor.submit(check.run)
        assert entered.wait(PATIENCE)
        others = [executor.submit(check.run) for _ in range(2)]
        assert not any(other.done() for other in others)
        released.set()
        failures = [future.exception(PATIENCE) for future in (first, *others)]
    assert [str(failure) for failure in failures] == [str(failures[0])] * 3
    assert len({id(failure) for failure in failures}) == 3  # tracebacks of one's own


def test_no_step_begins_after_a_refusal() -> None:
    begun: list[str] = []

    def refuse() -> Iterable[Step]:
        begun.append("refuse")
        raise error("UCP-E-SOURCE", "damaged", at="here")

    def other() -> Iterable[Step]:
        begun.append("other")
        return ()

    check = SharedCheck([refuse, other, other])
    for _ in range(3):
        with pytest.raises(UcpError, match="damaged"):
            check.run()
    assert begun == ["refuse"]


@pytest.mark.parametrize("failure", [OSError("disk"), MemoryError(), KeyboardInterrupt()])
def test_what_is_no_refusal_leaves_the_step_to_others(failure: BaseException) -> None:
    failures = [failure]

    def step() -> Iterable[Step]:
        if failures:
            raise failures.pop()
        return ()

    check = SharedCheck([step])
    with pytest.raises(type(failure)):
        check.run()
    check.run()
    assert not failures


def test_checks_by_key_are_made_once_and_forgotten() -> None:
    made: list[str] = []

    def steps_of(key: str) -> list[Step]:
        made.append(key)
        return [lambda: ()]

    checks = SharedChecks(steps_of)
    for key in "aba":
        checks.run(key)
    assert made == ["a", "b"]
    assert not checks._checks


@pytest.fixture(scope="module")
def large() -> bytes:
    """What torch saved, with a record of several pieces."""
    return saved({"large": torch.arange(PIECE_BYTES // 4 * 3 + 5, dtype=torch.int32), "small": torch.ones(3)})


def test_archives_are_checked_whole_in_pieces(large: bytes) -> None:
    opened = 0

    @contextmanager
    def reopened() -> Iterator[ByteSource]:
        nonlocal opened
        opened += 1
        yield MemoryRange(large, "the file")

    SharedCheck(TorchArchive(MemoryRange(large, "the file")).check_steps(reopened)).run()
    assert opened > 3
    for name in ("data/0", "data/1", "version"):
        start, length = place_of(large, name)
        damaged = bytearray(large)
        damaged[start + length // 2] ^= 4
        source = MemoryRange(bytes(damaged), "the file")
        with pytest.raises(UcpError, match=f"{name}' do not match"):
            SharedCheck(TorchArchive(source).check_steps(opener(bytes(damaged)))).run()


def place_of(data: bytes, name: str) -> tuple[int, int]:
    """Start and length of the record whose name ends so."""
    source = MemoryRange(data, "the file")
    (record,) = (record for record in zip_records(source).values() if record.name.endswith(f"/{name}"))
    return record_start(source, record), record.length


@pytest.mark.parametrize("byte", [None, 0, PIECE_BYTES + 1, 3 * PIECE_BYTES + 19])
def test_no_thread_gets_elements_of_a_damaged_storage(tmp_path: Path, large: bytes, byte: int | None) -> None:
    """The last thread to come, and those whose own elements are sound, are refused as well."""
    data = bytearray(large)
    if byte is not None:
        data[place_of(large, "data/0")[0] + byte] ^= 1
    (tmp_path / "f.pt").write_bytes(data)
    file = TorchFile(SourceFiles(tmp_path), "f.pt")
    assert isinstance(file.tree, dict)
    stored = file.tree["large"]
    assert isinstance(stored, StoredTensor)
    got: list[int] = []

    def read() -> None:
        out = np.zeros(4, np.uint8)
        file.read(stored, PIECE_BYTES // 2, (1,), element_view(out, 4, (1,)))
        got.append(int(out.view("<i4")[0]))

    for _ in range(2):
        failures = by_threads(4, read)
        if byte is None:
            assert failures == [None] * 4
        else:
            assert [getattr(failure, "code", failure) for failure in failures] == ["UCP-E-SOURCE"] * 4
            assert all("data/0' do not match" in str(failure) for failure in failures)
    assert got == ([PIECE_BYTES // 2] * 8 if byte is None else [])
