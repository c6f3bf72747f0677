"""Conversions on a local dask cluster of several workers, of which one is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conversion.engine.jobs import BATCH, assert_same, make
from tests.conversion.engine.test_exporting import content
from tests.conversion.formats.deepspeed.made import make_checkpoint
from ucpformat.cli import main
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions

pytestmark = [pytest.mark.distributed, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.ucp"
    make(path)
    return path


def workers(cluster: Any) -> dict[str, int]:
    from distributed import Client

    with Client(cluster) as client:
        client.wait_for_workers(3, timeout=60)
        found: dict[str, int] = client.run(os.getpid)
        return found


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_one_of_the_workers_is_killed(cluster: Any, source: Path, tmp_path: Path, storage: Any) -> None:
    before = workers(cluster)
    assert len(before) == 3
    victim = min(before.values())
    done: list[int] = []

    def progress(nbytes: int) -> None:
        if nbytes:
            done.append(nbytes)
            if len(done) == 2:
                os.kill(victim, signal.SIGKILL)

    report = convert_checkpoint(
        source,
        tmp_path / "c",
        source_format="ucp",
        destination_format="ucp",
        storage=storage,
        engine=EngineOptions(dask=cluster.scheduler_address, batch_bytes=BATCH),
        progress=progress,
    )
    assert len(done) > 6
    assert sum(done) == report.nbytes
    assert_same(source, tmp_path / "c")
    assert victim not in workers(cluster).values()  # another one was started in its place


def test_the_command_line(cluster: Any, source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main,
        ["convert", str(source), str(tmp_path / "c"), "--to", "ucp", "--dask", cluster.scheduler_address],
    )
    assert result.exit_code == 0, result.output
    assert_same(source, tmp_path / "c")


def test_what_a_worker_refuses_is_raised_here(cluster: Any, source: Path, tmp_path: Path) -> None:
    from ucpformat.errors import UcpError

    damaged = tmp_path / "damaged.ucp"
    make(damaged)
    (pack, *_) = (damaged / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with pytest.raises(UcpError, match="UCP-E-CHECKSUM"):
        convert_checkpoint(
            damaged,
            tmp_path / "c",
            source_format="ucp",
            destination_format="ucp",
            engine=EngineOptions(dask=cluster.scheduler_address, batch_bytes=BATCH),
        )
    assert not (tmp_path / "c").exists()


def test_no_scheduler_there(source: Path, tmp_path: Path) -> None:
    import dask

    from ucpformat.errors import UcpError

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(UcpError, match="answers"),
    ):
        convert_checkpoint(
            source,
            tmp_path / "c",
            source_format="ucp",
            destination_format="ucp",
            engine=EngineOptions(dask="tcp://127.0.0.1:9"),
        )


def test_files_of_an_export_while_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    state = make_checkpoint(tmp_path / "state.ucp")
    convert_checkpoint(state, tmp_path / "alone", source_format="ucp", destination_format="ds-universal")
    victim = min(workers(cluster).values())
    done: list[int] = []

    def progress(nbytes: int) -> None:
        if nbytes:
            done.append(nbytes)
            if len(done) == 2:
                os.kill(victim, signal.SIGKILL)

    convert_checkpoint(
        state,
        tmp_path / "c",
        source_format="ucp",
        destination_format="ds-universal",
        engine=EngineOptions(dask=cluster.scheduler_address, batch_bytes=1),
        progress=progress,
    )
    assert len(done) > 6
    assert content(tmp_path / "c") == content(tmp_path / "alone")
    assert victim not in workers(cluster).values()
