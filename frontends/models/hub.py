"""Configs in the local cache of Hugging Face's hub. Nothing is downloaded.

The layout is that of huggingface_hub: `models--ORG--NAME/refs/main` names the commit whose files are in
`models--ORG--NAME/snapshots/COMMIT` (huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")  # a valid model id of the hub


def cache() -> Path:
    """The folder of the cache, as huggingface_hub finds it."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{above}/huggingface").expanduser() / "hub"


def config(model: str) -> Path | None:
    """The config.json of a model's id, from its main revision or else the newest stored one."""
    if not _ID.fullmatch(model):
        return None
    folder = cache() / f"models--{model.replace('/', '--')}"
    try:
        commits = [(folder / "refs" / "main").read_text("utf-8").strip()]
    except (OSError, ValueError):
        snapshots = (folder / "snapshots").glob("*/config.json")
        commits = [file.parent.name for file in sorted(snapshots, key=os.path.getmtime, reverse=True)]
    files = (folder / "snapshots" / commit / "config.json" for commit in commits if commit.isalnum())
    return next((file for file in files if file.is_file()), None)
