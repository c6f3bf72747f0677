"""A driver to begin with: it speaks the protocol and implements nothing yet. Standard library only.

Fill in one method after the other and claim it in `hello`; what is not claimed is not tested.
Run it with `ucp-conformance run --driver "mine=python driver.py" --only good/basic`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


class RefusalError(Exception):
    """The specification asks for a refusal: `RefusalError(code, at, sentence)`, the code one of SPEC section 18."""


class UnsupportedError(Exception):
    """What was asked for is not implemented, and `hello` does not claim it: `UnsupportedError(feature)`."""


def hello(params: Json) -> Json:
    return {
        "protocol": 1,
        "implementation": {"name": "template", "version": "0", "language": "python"},
        # Add "reader", "writer" and "rewriter" one by one, beginning with "validator" or "reader".
        "roles": ["reader"],
        "format_versions": [0],
        "storages": ["plain", "packed"],
        "read_features": [],
        "write_features": [],
        "compressors": [],
        "dtypes": ["float32"],
        # Profiles of layouts, beginning with "core": what `lower`, `read` and `write` take beyond whole tensors.
        "profiles": [],
    }


def validate(params: Json) -> Json:
    # params: path, level. Return {"problems": [{"code": "UCP-E-...", "at": "ucp.json#/member"}]}; [] if it is good.
    raise UnsupportedError("validate")


def inspect(params: Json) -> Json:
    # params: path. The first method to write: read ucp.json, then the parts, then the state document.
    raise UnsupportedError("inspect")


def lower(params: Json) -> Json:
    # params: mesh, steps, shape. No checkpoint is involved.
    raise UnsupportedError("lower")


def read(params: Json) -> Json:
    # params: path, atom, slot, and out, or box and out, or mesh, steps and outs. Write raw elements to the files.
    raise UnsupportedError("read")


def read_blob(params: Json) -> Json:
    # params: path, blob, out.
    raise UnsupportedError("read-blob")


def write(params: Json) -> Json:
    # params: path, storage, chunk_bytes, atoms, ... Return {"digest": the root digest}.
    raise UnsupportedError("write")


def rewrite(params: Json) -> Json:
    # params: source, path, storage. Return {"digest": the root digest}.
    raise UnsupportedError("rewrite")


def log(params: Json) -> Json:
    # params: path of an update log, maybe checkpoint, outs, allow_loss. Asked where `read_features` has "update-log".
    raise UnsupportedError("log")


def begin_epoch(params: Json) -> Json:
    # params: path, first_step, after, ranks, tensors, pieces, ... Asked where `writes_features` has "update-log".
    # Return {"log": the id of the log, "epoch": the number}, and keep what `write_batch` goes on with.
    raise UnsupportedError("begin-epoch")


def write_batch(params: Json) -> Json:
    # params: path, epoch, rank, steps, values. Return {"durable_step": the state behind the last step}.
    raise UnsupportedError("write-batch")


def nothing(params: Json) -> Json:
    return {}


METHODS: dict[str, Callable[[Json], Json]] = {
    "hello": hello,
    "validate": validate,
    "inspect": inspect,
    "lower": lower,
    "read": read,
    "read-blob": read_blob,
    "write": write,
    "rewrite": rewrite,
    "log": log,
    "begin-epoch": begin_epoch,
    "write-batch": write_batch,
    "reset": nothing,
    "shutdown": nothing,
}


def answer(method: str, params: Json) -> Json:
    try:
        return {"result": METHODS[method](params)}
    except RefusalError as refusal:
        code, at, detail = refusal.args
        return {"error": {"code": code, "at": at, "detail": detail}}
    except UnsupportedError as gap:
        return {"unsupported": {"feature": gap.args[0]}}
    except Exception:
        return {"internal": {"detail": traceback.format_exc()[-800:]}}


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        reply = {"id": request["id"], **answer(request["method"], request["params"])}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
        if request["method"] == "shutdown":
            return


if __name__ == "__main__":
    main()
