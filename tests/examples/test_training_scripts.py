"""The scripts of the guides: killed jobs and other meshes go on with the losses of a job that was never stopped."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import ucpformat as ucp
from tests.processes import Ranks, launch_in_turn

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parents[2]
WORKER = "tests.examples.script_worker"
TOLERANCE = 1e-4
"""Of a loss in nats, where sums of float32 are taken in another order."""


def losses(path: Path) -> dict[int, float]:
    return {int(step): loss for step, loss in json.loads(path.read_text()).items()}


def close(first: dict[int, float], second: dict[int, float], steps: range) -> bool:
    return all(abs(first[step] - second[step]) <= TOLERANCE for step in steps)


def test_plain_pytorch_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    """On 2 ranks to the end; or on 2 until step 6, and from there on 2 again, on 3, and on 1."""

    def job(world: int, run: str, steps: int) -> Ranks:
        kept = str(tmp_path / f"{run}-{world}.json")
        arguments = [
            "--folder",
            str(tmp_path / run),
            "--steps",
            str(steps),
            "--save-every",
            "3",
            "--losses",
            kept,
        ]
        return Ranks(["train_plain.py", *arguments], world)

    begun = [job(2, "whole", 12), job(2, "a", 6), job(2, "b", 6), job(2, "c", 6)]
    launch_in_turn(WORKER, [*begun, job(2, "a", 12), job(3, "b", 12), job(1, "c", 12)])
    whole = losses(tmp_path / "whole-2.json")
    assert list(whole) == list(range(12))
    assert losses(tmp_path / "a-2.json") == {step: whole[step] for step in range(6, 12)}, "to the last bit"
    for name in ("b-3", "c-1"):
        found = losses(tmp_path / f"{name}.json")
        assert list(found) == list(range(6, 12))
        assert close(found, whole, range(6, 12))
    assert len(set(whole.values())) == 12, "a loss that moves"
    run = ucp.CheckpointManager(tmp_path / "a")
    best = min((3, 6, 9, 12), key=lambda step: whole[step - 1])
    assert run.steps() == sorted({9, 12, best})
    assert list(ucp.validate(run.path(12))) == []


def test_a_parallel_loop_goes_on_on_other_meshes(tmp_path: Path) -> None:
    """FSDP2 over 2 x TP over 2 to the end; or until step 4, and from there likewise, on FSDP2 over 2, and on 1."""

    def job(dp: int, tp: int, run: str, steps: int) -> Ranks:
        kept = str(tmp_path / f"{run}-{dp}x{tp}.json")
        arguments = ["--dp", str(dp), "--tp", str(tp), "--steps", str(steps), "--save-every", "2"]
        return Ranks(
            ["train_parallel.py", "--folder", str(tmp_path / run), "--losses", kept, *arguments], dp * tp
        )

    begun = [job(2, 2, "whole", 8), job(2, 2, "a", 4), job(2, 2, "b", 4)]
    launch_in_turn(WORKER, [*begun, job(2, 2, "a", 8), job(2, 1, "b", 6), job(1, 1, "b", 8)])
    whole = losses(tmp_path / "whole-2x2.json")
    assert list(whole) == list(range(8))
    assert losses(tmp_path / "a-2x2.json") == {step: whole[step] for step in range(4, 8)}, "to the last bit"
    assert close(losses(tmp_path / "b-2x1.json"), whole, range(4, 6))
    assert close(losses(tmp_path / "b-1x1.json"), whole, range(6, 8))
    run = ucp.CheckpointManager(tmp_path / "b")
    assert run.steps() == [6, 8]
    for step in run.steps():
        assert list(ucp.validate(run.path(step))) == []


def test_torchrun_takes_the_commands_of_guides_and_scripts() -> None:
    """It takes what begins an option of its own for that option, wherever it stands."""
    from torch.distributed.run import get_args_parser

    guides = [ROOT / "docs" / "guides" / f"{name}.md" for name in ("pytorch", "torchtitan")]
    texts = [path.read_text() for path in (*guides, *ROOT.glob("examples/train_*.py"))]
    commands = [line.split("#")[0] for text in texts for line in text.splitlines() if "torchrun --" in line]
    assert len(commands) > 5
    for command in commands:
        _, *words = shlex.split(command)
        found = get_args_parser().parse_args(words)
        assert (ROOT / found.training_script).exists()
        assert found.training_script_args == words[words.index(found.training_script) + 1 :]
