from __future__ import annotations

import json
from pathlib import Path

import pytest

import ucpformat
from tests.cli.conftest import Make, Ucp
from tests.conversion.formats.dcp.cases import DcpCase
from ucpformat.conversion.convert import detect_format
from ucpformat.conversion.formats.dcp import DcpDirectory
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed


def test_the_format_is_detected_and_the_other_one_written(
    ucp: Ucp, dcp_case: DcpCase, tmp_path: Path
) -> None:
    case = dcp_case("fsdp_2")
    source, middle, back = case.path, tmp_path / "ucp", tmp_path / "back.dcp"
    result = ucp("convert", source, middle)
    assert (result.exit_code, result.stderr) == (0, "")
    with ucpformat.open(middle) as checkpoint:
        size = "36.62 KiB"
        assert result.stdout == (
            f"{source} (dcp) -> {middle} (ucp): 32 tensors, {size}, 17 values\ndigest {checkpoint.root.digest}\n"
        )
        assert checkpoint.root.storage == "packed"
    result = ucp("convert", middle, back)
    assert result.exit_code == 0
    assert (
        result.stdout == f"{middle} (ucp) -> {back} (dcp): 32 tensors, {size}, {len(case.objects)} values\n"
    )
    assert detect_format(back) == "dcp"


def test_formats_that_are_given(ucp: Ucp, dcp_case: DcpCase, tmp_path: Path) -> None:
    source = dcp_case("fsdp_2").path
    assert ucp("convert", source, tmp_path / "a", "--from", "dcp", "--to", "ucp").exit_code == 0
    result = ucp("convert", tmp_path / "a", tmp_path / "b", "--to", "ucp", "--storage", "plain")
    assert result.exit_code == 0
    assert ucp("diff", tmp_path / "a", tmp_path / "b").exit_code == 0
    with ucpformat.open(tmp_path / "b") as checkpoint:
        assert checkpoint.root.storage == "plain"
    refused = ucp("convert", source, tmp_path / "c.dcp", "--from", "ucp")
    assert (refused.exit_code, refused.stderr.split()[1]) == (1, "UCP-E-NOT-FOUND")
    refused = ucp("convert", source, tmp_path / "c", "--to", "dpc")
    assert refused.exit_code == 2
    assert "'dpc' is none of ucp, accelerate, dcp" in refused.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("compressor", ["gzip", "zstd"])
def test_compressors(ucp: Ucp, dcp_case: DcpCase, tmp_path: Path, compressor: str) -> None:
    """UCP-D-009: what is used is declared."""
    assert ucp("convert", dcp_case("tp_2").path, tmp_path / "a", "--compressor", compressor).exit_code == 0
    with ucpformat.open(tmp_path / "a") as checkpoint:
        assert {stored.slot.compressor.name for stored in checkpoint.slots() if stored.slot.compressor} == {
            compressor
        }
        assert checkpoint.root.envelope.read_features == (("zstd",) if compressor == "zstd" else ())
    assert ucp("validate", tmp_path / "a").exit_code == 0


def test_foreign_objects(ucp: Ucp, dcp_case: DcpCase, tmp_path: Path) -> None:
    source = dcp_case("odd").path
    refused = ucp("convert", source, tmp_path / "a")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"error UCP-E-OBJECT at {source}#objects.")
    assert refused.stderr.count("\n") == 1
    assert ucp("convert", source, tmp_path / "a", "--foreign-objects", "opaque").exit_code == 0
    assert ucp("convert", tmp_path / "a", tmp_path / "b", "--to", "dcp").exit_code == 0
    first, second = DcpDirectory.open(source), DcpDirectory.open(tmp_path / "b")
    for key in ("objects.text", "objects.numpy", "objects.time"):
        assert first.read_object_bytes(key) == second.read_object_bytes(key)


def test_the_number_of_shards(ucp: Ucp, dcp_case: DcpCase, tmp_path: Path) -> None:
    source = dcp_case("hf_shards_4").path
    refused = ucp("convert", source, tmp_path / "a")
    assert (refused.exit_code, refused.stderr.split()[1]) == (1, "UCP-E-SOURCE")
    assert ucp("convert", source, tmp_path / "a", "--shards", 4).exit_code == 0
    assert ucp("convert", source, tmp_path / "b", "--shards", 0).exit_code == 2
    for other in (dcp_case("tp_2").path, tmp_path / "a"):
        refused = ucp("convert", other, tmp_path / "c.ucp", "--shards", 4)
        assert refused.exit_code == 1
        assert refused.stderr.startswith("error UCP-E-MISMATCH")
        assert "--shards (shard_count=) would be without effect" in refused.stderr


def test_destinations_that_exist(ucp: Ucp, dcp_case: DcpCase, tmp_path: Path) -> None:
    """UCP-W-004."""
    assert ucp("convert", dcp_case("tp_2").path, tmp_path / "a").exit_code == 0
    before = (tmp_path / "a" / "ucp.json").read_bytes()
    refused = ucp("convert", dcp_case("tp_2").path, tmp_path / "a")
    assert (refused.exit_code, refused.stderr.split()[1]) == (1, "UCP-E-EXISTS")
    assert (tmp_path / "a" / "ucp.json").read_bytes() == before


def test_a_place_without_a_checkpoint(ucp: Ucp, tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none", "memory://none"):
        refused = ucp("convert", source, tmp_path / "a")
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"error UCP-E-SOURCE at {source}: ")


def test_memory_workers_and_resuming(ucp: Ucp, make: Make, tmp_path: Path) -> None:
    source = make("a")
    short = ucp("convert", source, tmp_path / "b", "--to", "ucp", "--memory", "1M")
    assert (short.exit_code, short.stderr.split()[1]) == (1, "UCP-E-LIMIT")
    assert "give --memory 37M or more" in short.stderr
    for number, options in enumerate(
        (("--memory", "37M"), ("--workers", "1"), ("--resume",), ("--pool", "threads"))
    ):
        assert ucp("convert", source, tmp_path / str(number), "--to", "ucp", *options).exit_code == 0
        assert ucp("diff", source, tmp_path / str(number)).exit_code == 0
    assert ucp("convert", source, tmp_path / "c", "--memory", "much").exit_code == 2
    assert ucp("convert", source, tmp_path / "c", "--set", "nothing").exit_code == 2
    dry = ucp("convert", source, tmp_path / "c", "--to", "ucp", "--dry-run")
    assert dry.stdout.rstrip().endswith("nothing written")
    dcp = ucp("convert", source, tmp_path / "c.dcp", "--dry-run")
    assert "renamed layer.[bold]w[/bold]/value: model.layer.[bold]w[/bold]" in dcp.stdout
    dropped = ucp("convert", source, tmp_path / "c", "--to", "ucp", "--drop", "blobs/*", "--format", "json")
    assert json.loads(dropped.stdout)["dropped"] == [{"what": "blobs/extra", "why": "--drop blobs/*"}]
    assert not [path for path in tmp_path.iterdir() if path.name == "b"]


def test_formats_are_listed(ucp: Ucp) -> None:
    result = ucp("formats")
    assert result.exit_code == 0
    assert "deepspeed (reads, writes)" in result.stdout
    formats = {
        entry["name"]: entry for entry in json.loads(ucp("formats", "--format", "json").stdout)["formats"]
    }
    assert "stage" in {setting["name"] for setting in formats["deepspeed"]["export_settings"]}
    assert not any(entry["broken"] for entry in formats.values())


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("b.ucp", "ucp"),
        ("b.dcp", "dcp"),
        ("b.safetensors", "safetensors"),
        ("b.pt", "torch-save"),
        ("b.PTH", "torch-save"),
        ("b.ckpt/", "torch-save"),
    ],
)
def test_the_suffix_says_what_is_written(
    ucp: Ucp, make: Make, tmp_path: Path, name: str, format_name: str
) -> None:
    source = make("a")
    drop = () if format_name != "safetensors" else ("--weights-only",)
    report = json.loads(ucp("convert", source, f"{tmp_path}/{name}", *drop, "--format", "json").stdout)
    assert (report["from"], report["to"]) == ("ucp", format_name)
    assert detect_format(tmp_path / name) == format_name
    other = "dcp" if format_name != "dcp" else "ucp"
    refused = ucp("convert", source, tmp_path / f"other-{name}", "--to", other)
    assert refused.exit_code == 1
    assert f"is that of {format_name}, and --to says {other}" in refused.stderr
    assert not (tmp_path / f"other-{name}").exists()


def test_a_universal_checkpoint_is_not_converted_into_a_guess(ucp: Ucp, make: Make, tmp_path: Path) -> None:
    refused = ucp("convert", make("a"), tmp_path / "b")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "nothing says what to write: give the destination a suffix, such as .dcp (dcp)" in refused.stderr
    assert not (tmp_path / "b").exists()


def test_other_formats_do_not_lie_behind_urls(ucp: Ucp, make: Make, tmp_path: Path) -> None:
    source = make("a")
    refused = ucp("convert", source, "memory://x/b.dcp")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error UCP-E-MISMATCH at memory://x/b.dcp: dcp is written to local paths alone; only ucp lies behind URLs\n",
    )
    refused = ucp("convert", "memory://x/b.dcp", tmp_path / "b", "--from", "dcp")
    assert "dcp is read from local paths alone; copy it first" in refused.stderr
    assert ucp("convert", source, f"file://{tmp_path}/b.dcp").exit_code == 0
    assert detect_format(tmp_path / "b.dcp") == "dcp"


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--workers", "3"], "workers", 3),
        (["--drop", "a/*", "--drop", "b"], "drop", ("a/*", "b")),
        (["--expand", "2K"], "expand", 2048),
        (["--set", "a=b=c"], "settings", {"a": "b=c"}),
        (["--from-set", "a="], "source_settings", {"a": ""}),
        (["--to-set", "a=1", "--to-set", "b=2"], "destination_settings", {"a": "1", "b": "2"}),
        (["--memory", "2M"], "memory", 1 << 21),
        (["--shards", "4"], "shard_count", 4),
        (["--foreign-objects", "opaque"], "foreign_objects", "opaque"),
        (["--storage", "plain"], "storage", "plain"),
        (["--dask", "tcp://x"], "dask", "tcp://x"),
        (["--pool", "processes"], "pool", "processes"),
        (["--resume"], "resume", True),
        (["--weights-only"], "weights_only", True),
        (["--dry-run"], "dry_run", True),
    ],
)
def test_each_option_is_handed_on(
    ucp: Ucp, monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str, value: object
) -> None:
    found: dict[str, object] = {}

    def run(*_: object, **options: object) -> None:
        found.update(options)
        raise UcpError("UCP-E-SOURCE", "seen")

    monkeypatch.setattr("ucpformat.cli.convert.run", run)
    assert ucp("convert", "a", "b", *arguments).exit_code == 1
    assert found[name] == value
