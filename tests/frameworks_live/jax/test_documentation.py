"""Commands of pages that need JAX or Orbax."""

from __future__ import annotations

import shlex

from tests.documentation.commands import check_command
from tests.documentation.markdown import run_by
from tests.documentation.running import commands_of

HERE = "tests/frameworks_live/jax/test_documentation.py"


def test_orbax_takes_part_in_the_benchmark() -> None:
    (block,) = run_by(HERE, "benchmarks/README.md")
    for line in commands_of(block.text):
        for command in line.split(" && "):
            check_command(shlex.split(command, comments=True))
