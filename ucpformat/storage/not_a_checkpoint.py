"""What lies at a place where a checkpoint was looked for and is not: a hint for whoever named the place.

Names of files are all that is looked at, and only where opening has failed already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final

from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.store import PREFIXES, is_remote

__all__ = ["not_a_checkpoint"]

_STEP: Final = re.compile(r"step-(\d+)\.ucp")
_FILE_SUFFIXES: Final = {
    ".bin": "a file of torch.save",
    ".ckpt": "a file of torch.save",
    ".pt": "a file of torch.save",
    ".pth": "a file of torch.save",
    ".safetensors": "a safetensors file",
}
_OTHER_DIRECTORIES: Final[Sequence[tuple[str, str]]] = (
    (r"common\.pt|latest_checkpointed_iteration\.txt", "a directory of Megatron"),
    (r"latest|zero_pp_rank_\d+_mp_rank_\d+_.*\.pt|mp_rank_\d+_model_states\.pt", "a directory of DeepSpeed"),
    (r"\.metadata|__\d+_\d+\.distcp", "a directory of torch.distributed.checkpoint"),
    (r"_CHECKPOINT_METADATA|_METADATA|manifest\.ocdbt", "a directory of Orbax"),
    (r".*\.safetensors|.*\.safetensors\.index\.json", "a directory of safetensors files"),
    (r".*\.(pt|pth|bin|ckpt)", "a directory of files of torch.save"),
)
"""In this order, since Megatron and DeepSpeed put names of torch.distributed.checkpoint beside their own."""


def not_a_checkpoint(url: str) -> str:
    """Say in a clause what lies at ``url``, which is no checkpoint, and what to do about it."""
    try:
        return _remote(url) if is_remote(url) else _local(url.removeprefix("file://"))
    except Exception:  # whatever a file system raises: this is an attempt to help with another error
        return _UNKNOWN


_UNKNOWN: Final = f"there is no {ROOT_KEY}: this is not a checkpoint, or it was never committed"


def _local(path: str) -> str:
    if os.path.isdir(path):
        return _directory(path, os.listdir(path), lambda key: os.path.isfile(os.path.join(path, key)))
    name = os.path.basename(path)
    if os.path.exists(path):
        if name == ROOT_KEY:
            return "this is the root document of a checkpoint; name the directory that it lies in"
        kind = _FILE_SUFFIXES.get(os.path.splitext(name)[1].lower())
        if kind is not None:
            return f"this is {kind}; `ucp convert {path} {os.path.splitext(path)[0]}.ucp` makes a checkpoint of it"
        return "this is a file, and a checkpoint is a directory; check the path"
    parent = os.path.dirname(path) or "."
    if not os.path.isdir(parent):
        return "there is no such directory; check the path"
    near = get_close_matches(name, os.listdir(parent), n=1)
    hint = f"did you mean {os.path.join(parent, near[0])}?" if near else "check the path"
    return f"there is no such directory; {hint}"


def _remote(url: str) -> str:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    try:
        found = [entry["name"].rstrip("/").rpartition("/")[2] for entry in filesystem.ls(path, detail=True)]
    except (FileNotFoundError, NotADirectoryError):
        found = []
    if not found:
        return "nothing lies there; check the URL"
    base = path.rstrip("/")
    return _directory(url, found, lambda key: bool(filesystem.exists(f"{base}/{key}")))


def _directory(url: str, names: Sequence[str], has: Callable[[str], bool]) -> str:
    steps = sorted(int(step[1]) for name in names if (step := _STEP.fullmatch(name)))
    committed = [step for step in steps if has(f"step-{step}.ucp/{ROOT_KEY}")]
    if committed:
        first, *others = url.rstrip("/").split("::")
        newest = "::".join((f"{first.rstrip('/')}/step-{committed[-1]}.ucp", *others))
        many = "a checkpoint" if len(committed) == 1 else f"{len(committed)} checkpoints"
        return f"this is a run directory with {many}; name one, such as {newest}"
    if steps:
        return "this is a run directory, and no checkpoint in it was committed"
    for pattern, kind in _OTHER_DIRECTORIES:
        if any(re.fullmatch(pattern, name) for name in names):
            return f"this looks like {kind}; `ucp convert {url} NAME.ucp` makes a checkpoint of it"
    if any(f"{name}/" in PREFIXES for name in names):
        return (
            f"there is no {ROOT_KEY}: a save into this directory was interrupted, or is still at work; "
            "nothing in it was committed"
        )
    if not names:
        return "the directory is empty; check the path"
    inner = sorted(name for name in names if has(f"{name}/{ROOT_KEY}"))
    if inner:
        return f"this is a directory with checkpoints in it; name one, such as {url.rstrip('/')}/{inner[-1]}"
    return _UNKNOWN
