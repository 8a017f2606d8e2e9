"""Commands as tests run them, in a folder with a tiny model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmir.cli.main import cli

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]
SETTINGS = ("LLMIR_TRACEBACK", "FORCE_COLOR", "NO_COLOR", "TERM")  # what a user may have set


def environment(*paths: Path) -> dict[str, str]:
    """For a process of its own: llmir of this folder, modules in `paths`, and no settings of the user's."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    root = Path(__file__).parent.parent
    return {**kept, "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(map(str, (*paths, root)))}


def interruptible() -> None:
    """Tests that are run in the background may ignore interrupts; their commands would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def runner(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands in `folder`, where tiny.json is."""
    monkeypatch.chdir(folder)
    (folder / "tiny.json").write_text(json.dumps(TINY), "utf-8")

    def call(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return call


def config(folder: Path, **changes: Any) -> str:
    (folder / "changed.json").write_text(json.dumps({**TINY, **changes}), "utf-8")
    return "changed.json"
