"""What lies at a place where a checkpoint was looked for and is not: a hint for the error message.

Names of files are all that is looked at, and only where opening has failed already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final

from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.stores.store import PREFIXES
from ucpformat.storage.stores.urls import local_path

__all__ = ["another_place", "not_a_checkpoint"]

_STEP: Final = re.compile(r"step-(\d+)(?:\.r(\d+))?\.ucp")
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
    return another_place(url) or _safely(_foreign, url) or _UNKNOWN


def another_place(url: str) -> str | None:
    """Say in a clause which place may have been meant by ``url``, where there is no checkpoint of any kind."""
    return _safely(_another_place, url)


_UNKNOWN: Final = f"there is no {ROOT_KEY}: this is not a checkpoint, or it was never committed"

_Has = Callable[[str], bool]


def _safely(look: Callable[[str], str | None], url: str) -> str | None:
    try:
        return look(url)
    except Exception:  # whatever a file system raises: this is an attempt to help with another error
        return None


def _listed(url: str) -> tuple[list[str], _Has]:
    """Return the names in a directory, none where there is none, and whether there is a file at a path below."""
    path = local_path(url)
    if path is not None:
        names = os.listdir(path) if os.path.isdir(path) else []
        return names, lambda key: os.path.isfile(os.path.join(path, key))
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(url)
    base = root.rstrip("/")
    try:
        entries = filesystem.ls(root, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        entries = []
    names = [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries]
    return names, lambda key: bool(filesystem.exists(f"{base}/{key}"))


def _another_place(url: str) -> str | None:
    path = local_path(url)
    if path is not None and not os.path.isdir(path):
        return _no_directory(path)
    names, has = _listed(url)
    if not names:
        return (
            "the directory is empty; check the path"
            if path is not None
            else "nothing lies there; check the URL"
        )
    steps = sorted(
        (int(step[1]), int(step[2] or 0), name) for name in names if (step := _STEP.fullmatch(name))
    )
    committed = [name for _, _, name in steps if has(f"{name}/{ROOT_KEY}")]
    if committed:
        many = "a checkpoint" if len(committed) == 1 else f"{len(committed)} checkpoints"
        newest = _below(url, committed[-1])
        return f"this is a run directory with {many}; name one, such as {newest}"
    if steps:
        return "this is a run directory, and no checkpoint in it was committed"
    if any(f"{name}/" in PREFIXES for name in names):
        return (
            f"there is no {ROOT_KEY}: a save into this directory was interrupted, or is still at work; "
            "nothing in it was committed"
        )
    inner = sorted(name for name in names if has(f"{name}/{ROOT_KEY}"))
    if inner:
        return f"this is a directory with checkpoints in it; name one, such as {_below(url, inner[-1])}"
    return None


def _below(url: str, name: str) -> str:
    """Return the URL of an entry; that of a chain of protocols has the path in its first link."""
    first, *others = url.split("::")
    return "::".join((f"{first.rstrip('/')}/{name}", *others))


def _no_directory(path: str) -> str | None:
    parent, name = os.path.split(path.rstrip("/"))
    if os.path.exists(path):
        if name == ROOT_KEY:
            return "this is the root document of a checkpoint; name the directory that it lies in"
        return None
    if not os.path.isdir(parent or "."):
        return "there is no such directory; check the path"
    near = get_close_matches(name, os.listdir(parent or "."), n=1)
    hint = f"did you mean {os.path.join(parent, near[0])}?" if near else "check the path"
    return f"nothing lies there; {hint}"


def _foreign(url: str) -> str | None:
    path = local_path(url)
    if path is not None and os.path.isfile(path):
        kind = _FILE_SUFFIXES.get(os.path.splitext(path)[1].lower())
        if kind is not None:
            made = f"{os.path.splitext(path)[0]}.ucp"
            return f"this is {kind}; `ucp convert {path} {made}` makes a checkpoint of it"
        return "this is a file, and a checkpoint is a directory; check the path"
    names, _ = _listed(url)
    for pattern, kind in _OTHER_DIRECTORIES:
        if any(re.fullmatch(pattern, name) for name in names):
            return f"this looks like {kind}; `ucp convert {url} NAME.ucp` makes a checkpoint of it"
    return None
