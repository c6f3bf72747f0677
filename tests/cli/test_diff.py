from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.conftest import Make, Ucp
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def test_equal_content_in_another_storage_is_equal(ucp: Ucp, checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    convert_checkpoint(checkpoint, copy, source_format="ucp", destination_format="ucp", storage="plain")
    result = ucp("diff", checkpoint, copy)
    # Nobody has to look at a tensor without elements.
    told = "equal, by files that both have of 1 tensor, the recorded digests of 2\n"
    assert (result.exit_code, result.stdout) == (0, told)
    assert result.stderr.startswith(
        "warning: 2 tensors were compared by recorded digests alone, which do not show"
    )
    result = ucp("diff", checkpoint, copy, "--bytes")
    assert (result.exit_code, result.stdout) == (0, "equal, by every byte (32.01 KiB read)\n")
    assert not result.stderr
    result = ucp("diff", "--format", "json", checkpoint, copy)
    report = json.loads(result.stdout)
    assert (result.exit_code, report.pop("warnings")[0][:9]) == (0, "2 tensors")
    assert report == {
        "equal": True,
        "tolerance": None,
        "within_tolerance": True,
        "slots_by_sharing": 1,
        "slots_by_digest": 2,
        "slots_by_bytes": 0,
        "fetched": 0,
        "differences": [],
    }


def test_a_flipped_byte_is_found_by_reading_bytes(ucp: Ucp, checkpoint: Path, make: Make) -> None:
    """The default says what it went by; with --bytes the error names the checkpoint that is damaged."""
    other = make("other")
    (pack,) = (other / "packs").iterdir()
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.write_bytes(content)
    assert "by recorded digests alone" in ucp("diff", checkpoint, other).stderr
    for order in ((checkpoint, other), (other, checkpoint)):
        result = ucp("diff", *order, "--bytes")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"error UCP-E-CHECKSUM in {other} at packs/{pack.name}")


def test_differences(ucp: Ucp, checkpoint: Path, make: Make) -> None:
    other = make("other", first=5, aliases=("tied",), lr=0.2, blob=b"y")
    result = ucp("diff", checkpoint, other)
    assert result.exit_code == 1
    others = "the recorded digests of 1, the bytes of 1"
    measured = "1 of 64 rows, 1 element; at most 5 absolute, 1 relative, 1,084,227,584 ULP"
    assert result.stdout.splitlines() == [
        '~ atoms/layer.[bold]w[/bold]/aliases: [] to ["tied"]',
        f"~ atoms/layer.[bold]w[/bold]/value: {measured}; rows 0",
        "~ optimizers/optim/groups/0/options/lr: 0.1 to 0.2",
        "~ blobs/extra: other content",
        f"4 differences, by files that both have of 1 tensor, {others} (8.00 KiB read)",
    ]
    report = json.loads(ucp("diff", checkpoint, other, "--format", "json").stdout)
    assert not report["equal"]
    found = report["differences"][1]
    assert (found["kind"], found["what"]) == ("changed", "atoms/layer.[bold]w[/bold]/value")
    assert found["tensor"] == {
        "rows": 64,
        "changed_rows": 1,
        "ranges": [[0, 1]],
        "changed": 1,
        "max_abs": 5.0,
        "max_rel": 1.0,
        "max_ulp": 1084227584,
        "deviation": 1.0,
        "nonfinite": 0,
    }
    assert ucp("diff", checkpoint, other, "--brief").stdout.splitlines()[1].endswith("/value: other bytes")


def test_more_and_less(ucp: Ucp, tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path / "a", [AtomSpec("w", {"value": SlotSpec("int8", (2,))})]) as writer:
        writer.write("w", "value", np.zeros(2, np.int8))
        writer.set_value("old", 1)
        writer.set_value("both", 1)
    assert (ucp("diff", tmp_path / "a", tmp_path / "a").exit_code) == 0
    with CheckpointWriter(tmp_path / "b", [AtomSpec("v", {"value": SlotSpec("int8", ())})]) as writer:
        writer.write("v", "value", np.zeros((), np.int8))
        writer.set_value("new", 1)
        writer.set_value("both", 2)
    assert ucp("diff", tmp_path / "a", tmp_path / "b").stdout.splitlines() == [
        "+ atoms/v",
        "- atoms/w",
        "~ values/both: 1 to 2",
        "+ values/new: 1",
        "- values/old: 1",
        "5 differences",
    ]


def test_a_checkpoint_that_is_not_there(ucp: Ucp, checkpoint: Path, tmp_path: Path) -> None:
    result = ucp("diff", checkpoint, tmp_path / "none")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error UCP-E-NOT-FOUND at ")


def test_a_tolerance_admits_elements_and_nothing_else(ucp: Ucp, checkpoint: Path, make: Make) -> None:
    near = make("near", first=0.001)
    assert ucp("diff", checkpoint, near).exit_code == 1
    admitted = ucp("diff", checkpoint, near, "--tolerance", "0.01")
    assert admitted.exit_code == 0
    assert admitted.stdout.startswith("= atoms/")
    assert "1 difference, all within the tolerance, by " in admitted.stdout
    refused = ucp("diff", checkpoint, near, "--tolerance", "0.0001")
    assert refused.exit_code == 1
    assert "1 difference, 1 beyond the tolerance, by " in refused.stdout
    values = ucp("diff", checkpoint, make("other", first=0.001, lr=0.1001), "--tolerance", "0.01")
    assert values.exit_code == 1, "values are compared exactly"
    assert json.loads(ucp("diff", checkpoint, near, "--tolerance", "0.01", "--format", "json").stdout)[
        "within_tolerance"
    ]


def test_wrong_usage(ucp: Ucp, checkpoint: Path) -> None:
    both = ucp("diff", checkpoint, checkpoint, "--brief", "--tolerance", 1)
    assert (both.exit_code, both.stdout) == (2, "")
    assert "--tolerance needs what --brief does not read" in both.stderr
    assert ucp("diff", checkpoint, checkpoint, "--tolerance", "-1").exit_code == 2
    assert "UCP-E-MISMATCH" in ucp("diff", checkpoint, checkpoint, "--tolerance", "nan").stderr
