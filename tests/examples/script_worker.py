"""One rank of a job that runs an example script in a folder; the group is that of `launch`.

Arguments: the folder, the script's name, the script's arguments.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch
import torch._dynamo  # by optimizers, when they are made
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import ucpformat.state_dict.tensors.device_copier
import ucpformat.state_dict.tensors.torch_layouts  # noqa: F401 - as above

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, script, *arguments = sys.argv[1:]
    os.chdir(folder)
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [script, *arguments, "--rendezvous", os.environ["UCP_RENDEZVOUS"]]
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    # Gloo's threads outlive the group, and abort where the interpreter takes itself apart.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
