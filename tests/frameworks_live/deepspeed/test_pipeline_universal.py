"""What DeepSpeed's own converter makes of a pipeline: in, with the layers' files and without (see `test_pipeline`)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ucpformat
from tests.frameworks_live.deepspeed import jobs
from tests.frameworks_live.deepspeed.test_universal import stock_universal
from tests.frameworks_live.harm import flip, is_found, poison, remove
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed


def fewer_groups(path: Path) -> None:
    """As where a later stage has a group of its own: DeepSpeed's converter keeps the first stage's alone."""
    tree = torch.load(path, weights_only=False)
    del tree["param_groups"][1]
    torch.save(tree, path)


def by_stock(saved: Path, folder: Path, via: str) -> Path:
    """What DeepSpeed's converter makes; with ``-layers``, beside the layers' files, which it leaves behind."""
    folder.mkdir(parents=True)
    stock_universal(saved, folder, "--inject_missing_state")
    if via.endswith("-layers"):
        for path in (saved / "step3").glob("layer_*"):
            shutil.copy(path, folder / "universal")
    return folder


@pytest.mark.parametrize("via", ["stock", "stock-layers"])
@pytest.mark.parametrize("name", ["pipe2-bf16", "pipe2-fp32"])
def test_universal_checkpoints_of_pipelines_come_in(pipes: Path, name: str, via: str, tmp_path: Path) -> None:
    """With the layers' files all that the pipeline itself gives; without, all that was trained."""
    source = by_stock(pipes / name / "ckpt", tmp_path / "stock", via)
    assert detect_format(source) == "ds-universal"
    path, own = tmp_path / "out.ucp", jobs.converted(pipes / name / "ckpt", tmp_path / "own.ucp")
    settings = {} if via == "stock-layers" else {"tied_layers": "embed:0"}
    convert_checkpoint(
        source, path, source_format="ds-universal", destination_format="ucp", source_settings=settings
    )
    assert ucpformat.validate(path) == []
    with ucpformat.open(own) as wanted, ucpformat.open(path) as found:
        kept = {atom for atom, view in wanted.items() if via == "stock-layers" or "exp_avg" in view}
        assert set(found) == kept
        for atom in kept:
            assert found[atom].atom.aliases == wanted[atom].atom.aliases
            assert set(found[atom]) == set(wanted[atom])
            for slot, view in wanted[atom].items():
                assert found[atom][slot].read().tobytes() == view.read().tobytes(), (atom, slot)
        one, other = found.state, wanted.state
        assert one.values == other.values
        assert one.optimizers.keys() == other.optimizers.keys()
        for key, optimizer in other.optimizers.items():
            assert [group.options for group in one.optimizers[key].groups] == [
                group.options for group in optimizer.groups
            ]
            assert [sorted(group.atoms) for group in one.optimizers[key].groups] == [
                sorted(group.atoms) for group in optimizer.groups
            ]


def test_what_a_universal_checkpoint_of_a_pipeline_lacks_is_named(pipes: Path, tmp_path: Path) -> None:
    source = by_stock(pipes / "pipe2-bf16" / "ckpt", tmp_path / "stock", "stock")
    middle = tmp_path / "middle.ucp"
    convert_checkpoint(source, middle, source_format="ds-universal", destination_format="ucp")
    with pytest.raises(UcpError, match="tied_layers=embed:LAYER") as refusal:
        convert_checkpoint(middle, tmp_path / "native", source_format="ucp", destination_format="deepspeed")
    assert refusal.value.code == "UCP-E-MISMATCH"
    with pytest.raises(UcpError, match=r"no stage has tied_modules\.head") as refusal:
        convert_checkpoint(
            source,
            tmp_path / "no.ucp",
            source_format="ds-universal",
            destination_format="ucp",
            source_settings={"tied_layers": "head:0"},
        )
    assert refusal.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize(
    ("victim", "harm", "code", "named"),
    [
        ("mp_rank_01_model_states.pt", remove, "UCP-E-SOURCE", None),
        ("mp_rank_01_model_states.pt", poison, "UCP-E-PICKLE", None),
        ("zero/tied_modules.embed.weight/fp32.pt", flip, "UCP-E-SOURCE", None),
        ("layer_00-model_states.pt", flip, "UCP-E-SOURCE", None),
        ("layer_03-model_states.pt", remove, "UCP-E-SOURCE", "no layer file holds '3."),
        ("zero/optimizer_state.pt", fewer_groups, "UCP-E-SOURCE", "mp_rank_00_model_states.pt"),
    ],
)
def test_harm_to_universal_checkpoints_of_pipelines_is_found(
    pipes: Path,
    victim: str,
    harm: Callable[[Path], None],
    code: str,
    named: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = by_stock(pipes / "pipe2-bf16" / "ckpt", tmp_path / "stock", "stock-layers")
    is_found(
        source,
        "ds-universal",
        f"universal/{victim}",
        harm,
        code,
        tmp_path,
        monkeypatch,
        named=named or victim,
    )
