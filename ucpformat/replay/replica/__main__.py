"""The process of a replica, as `feed` starts it: ``python -m ucpformat.replay.replica CHANNEL STREAM MEMORY TRAINER``.

The arguments are file descriptors, and the process identifier of the trainer.
"""

import sys

from ucpformat.replay.replica.process import main

main(*map(int, sys.argv[1:]))
