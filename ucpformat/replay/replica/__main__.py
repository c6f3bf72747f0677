"""The process of a replica, as `feed` starts it: ``python -m ucpformat.replay.replica CHANNEL STREAM MEMORY TRAINER``.

The arguments are file descriptors, and the process identifier of the trainer. Those of several ranks have descriptors
of sockets behind them: the first on which it serves the others, others that of their tie to the first.
"""

import os
import sys

from ucpformat.replay.replica.process import main

main(*map(int, sys.argv[1:]))
# Threads of gloo that let go of tensors during the teardown of an interpreter abort it.
os._exit(0)
