"""The scripts of the guides: killed jobs and other meshes go on with the losses of a job that was never stopped."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

import ucpformat as ucp
from tests.documentation.markdown import run_by
from tests.documentation.running import commands_of
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


def guided(page: str, tmp_path: Path, *options: str) -> list[Ranks]:
    """The jobs of a guide's commands, one after the other, with a tenth of the steps and ``options`` besides."""
    (block,) = run_by("tests/examples/test_training_scripts.py", page)
    found = []
    for number, command in enumerate(commands_of(block.text)):
        words = shlex.split(command, comments=True)
        chosen = get_args_parser().parse_args(
            words[1:]
        )  # that of python alone has the same form, for one process
        script: str = chosen.training_script
        arguments: list[str] = list(chosen.training_script_args)
        folder, steps = arguments.index("--folder") + 1, arguments.index("--steps") + 1
        arguments[folder] = str(tmp_path / arguments[folder])
        arguments[steps] = str(int(arguments[steps]) // 10)
        kept = str(tmp_path / f"guided-{number}.json")
        world = int(chosen.nproc_per_node) if words[0] == "torchrun" else 1
        found.append(Ranks([str(tmp_path), Path(script).name, *arguments, *options, "--losses", kept], world))
    return found


def folder_of(job: Ranks) -> str:
    """The run directory of a job of a guide."""
    return job.arguments[job.arguments.index("--folder") + 1]


def test_plain_pytorch_goes_on_with_any_number_of_ranks(tmp_path: Path) -> None:
    """On 2 ranks to the end; as the guide has it, on 2 until step 6, on 3, and on 1; and from step 6 again on 2."""

    def job(run: str, steps: int) -> Ranks:
        kept = str(tmp_path / f"{run}.json")
        place = ["--folder", str(tmp_path / run), "--losses", kept]
        return Ranks([str(tmp_path), "train_plain.py", *place, "--steps", str(steps), "--save-every", "3"], 2)

    first, *others = guided("docs/guides/pytorch.md", tmp_path, "--save-every", "3")
    launch_in_turn(WORKER, [job("whole", 12), first])
    shutil.copytree(folder_of(first), tmp_path / "a")
    launch_in_turn(WORKER, [job("a", 12), *others])
    whole = losses(tmp_path / "whole.json")
    assert list(whole) == list(range(12))
    assert losses(tmp_path / "a.json") == {step: whole[step] for step in range(6, 12)}, "to the last bit"
    for number, steps in enumerate([range(6), range(6, 9), range(9, 12)]):
        found = losses(tmp_path / f"guided-{number}.json")
        assert list(found) == list(steps)
        assert close(found, whole, steps)
    assert len(set(whole.values())) == 12, "a loss that moves"
    run = ucp.CheckpointManager(tmp_path / "a")
    best = min((3, 6, 9, 12), key=lambda step: whole[step - 1])
    assert run.steps() == sorted({9, 12, best})
    assert list(ucp.validate(run.path(12))) == []


def test_a_parallel_loop_goes_on_on_other_meshes(tmp_path: Path) -> None:
    """FSDP2 over 2 x TP over 2 to the end; as the guide has it, then FSDP2 over 2, then 1 process; and in two parts."""

    def job(run: str, steps: int) -> Ranks:
        place = ["--folder", str(tmp_path / run), "--losses", str(tmp_path / f"{run}.json")]
        mesh = ["--dp", "2", "--tp", "2"]
        return Ranks(
            [str(tmp_path), "train_parallel.py", *place, *mesh, "--steps", str(steps), "--save-every", "2"], 4
        )

    first, *others = guided("docs/guides/torchtitan.md", tmp_path, "--save-every", "2")
    launch_in_turn(WORKER, [job("whole", 6), first])
    shutil.copytree(folder_of(first), tmp_path / "a")
    launch_in_turn(WORKER, [job("a", 6), *others])
    whole = losses(tmp_path / "whole.json")
    assert list(whole) == list(range(6))
    assert losses(tmp_path / "a.json") == {step: whole[step] for step in range(2, 6)}, "to the last bit"
    for number, steps in enumerate([range(2), range(2, 4), range(4, 6)]):
        found = losses(tmp_path / f"guided-{number}.json")
        assert list(found) == list(steps)
        assert close(found, whole, steps)
    run = ucp.CheckpointManager(tmp_path / "out" / "parallel")
    assert run.steps() == [4, 6]
    for step in run.steps():
        assert list(ucp.validate(run.path(step))) == []


def test_torchrun_takes_the_commands_of_the_scripts() -> None:
    """It takes what begins an option of its own for that option, wherever it stands."""
    texts = [path.read_text() for path in ROOT.glob("examples/train_*.py")]
    commands = [line.split("#")[0] for text in texts for line in text.splitlines() if "torchrun --" in line]
    assert len(commands) >= 3
    for command in commands:
        _, *words = shlex.split(command)
        found = get_args_parser().parse_args(words)
        assert (ROOT / found.training_script).exists()
        assert found.training_script_args == words[words.index(found.training_script) + 1 :]
