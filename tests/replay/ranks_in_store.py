"""`tests.replay.ranks_worker` at a URL, with what the environment says about its store (``FSSPEC_S3``)."""

from __future__ import annotations

import sys

import fsspec

from tests.replay.ranks_worker import main

if __name__ == "__main__":
    fsspec.config.set_conf_env(fsspec.config.conf)
    main(*sys.argv[1:])
