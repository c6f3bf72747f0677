"""What lies beside DeepSpeed's files is carried or stands in the report, and comes back where it lay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint
from ucpformat.conversion.convert import ConversionReport, convert_checkpoint, detect_format
from ucpformat.errors import UcpError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Hugging Face's Trainer and Accelerate leave it."""
    out = tmp_path / "ds"
    convert_checkpoint(
        make_checkpoint(tmp_path / "a.ucp"), out, source_format="ucp", destination_format="deepspeed"
    )
    (out / "trainer_state.json").write_text('{"global_step": 5}')
    torch.save({"last_epoch": 5}, out / "scheduler.pt")
    for rank in range(2):
        torch.save({"cpu": torch.arange(rank)}, out / f"random_states_{rank}.pkl")
    torch.save([1, 2], out / "old.bin", _use_new_zipfile_serialization=False)
    (out / "notes.md").write_text("kept")
    (out / "zero_to_fp32.py").write_text("print()")
    (out / "model.safetensors").write_bytes(b"weights")
    (out / ".hidden").write_text("")
    (out / "logs").mkdir()
    (out / "latest_universal").write_text("elsewhere")
    (out / "global_step5" / "inner.json").write_text("{}")
    return out


def read(source: Path, out: Path, *drop: str) -> ConversionReport:
    return convert_checkpoint(source, out, source_format="deepspeed", destination_format="ucp", drop=drop)


CARRIED = (
    "trainer_state.json",
    "scheduler.pt",
    "random_states_0.pkl",
    "random_states_1.pkl",
    "old.bin",
    "notes.md",
)


def test_files_are_carried_or_reported(folder: Path, tmp_path: Path) -> None:
    assert detect_format(folder) == "deepspeed"  # and not Accelerate's, for its random states
    report = read(folder, tmp_path / "out.ucp")
    with ucpformat.open(tmp_path / "out.ucp") as found:
        assert set(found.state.blobs) == {*CARRIED, "tag/inner.json"}
        assert found.blobs["scheduler.pt"] == (folder / "scheduler.pt").read_bytes()
    assert {loss.what for loss in report.dropped} == {
        "files/zero_to_fp32.py",
        "files/model.safetensors",
        "files/.hidden",
        "files/logs",
        "files/latest_universal",
    }


@pytest.mark.parametrize("format_name", ["deepspeed", "ds-universal"])
def test_files_come_back_where_they_lay(folder: Path, tmp_path: Path, format_name: str) -> None:
    convert_checkpoint(folder, tmp_path / "again", source_format="deepspeed", destination_format=format_name)
    for name in CARRIED:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    tag = "global_step5" if format_name == "deepspeed" else "universal"
    assert (tmp_path / "again" / tag / "inner.json").read_text() == "{}"
    read_again = convert_checkpoint(
        tmp_path / "again", tmp_path / "again.ucp", source_format=format_name, destination_format="ucp"
    )
    assert not read_again.dropped


@pytest.mark.parametrize("name", ["trainer_state.json", "scheduler.pt", "random_states_1.pkl", "old.bin"])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_file_that_was_cut_short_is_refused(folder: Path, tmp_path: Path, name: str, part: float) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(len(data) * part)])
    with pytest.raises(UcpError) as refusal:
        read(folder, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert name in str(refusal.value)


def test_random_states_of_another_rank_are_refused(folder: Path, tmp_path: Path) -> None:
    first = folder / "random_states_0.pkl"
    first.write_bytes((folder / "random_states_1.pkl").read_bytes())
    with pytest.raises(UcpError, match="it was saved as random_states_1"):
        read(folder, tmp_path / "out.ucp")


def test_what_is_too_large_has_to_be_allowed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucpformat.conversion.formats.deepspeed.files.companions._MAX_BLOB", 10)
    with pytest.raises(UcpError, match=r"files/\* .* would be lost"):
        read(folder, tmp_path / "out.ucp")
    report = read(folder, tmp_path / "out.ucp", "files/*")
    assert "files/scheduler.pt" in {loss.what for loss in report.dropped}


@pytest.mark.parametrize("format_name", ["deepspeed", "ds-universal"])
def test_a_directory_without_its_pointer_names_the_tags(tmp_path: Path, format_name: str) -> None:
    out = tmp_path / "ds"
    convert_checkpoint(
        make_checkpoint(tmp_path / "a.ucp"), out, source_format="ucp", destination_format=format_name
    )
    pointer = "latest" if format_name == "deepspeed" else "latest_universal"
    (out / pointer).unlink()
    with pytest.raises(UcpError, match=f"'{pointer}' is missing.*give the directory of one") as refusal:
        convert_checkpoint(
            out, tmp_path / "b.ucp", source_format=detect_format(out), destination_format="ucp"
        )
    assert refusal.value.code == "UCP-E-SOURCE"
