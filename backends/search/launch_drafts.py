"""How engines are told to verify drafts: flags of a launch command, or a file that a flag names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from llmir.backends.request.speculation import LAYER, LOOKUP, MODEL


class Drafted(NamedTuple):
    """What is said of drafts: how many a step verifies, and the model that makes them, if one does.

    `weights` is the type that a command has weights made, "" as the checkpoints have them.
    """

    tokens: int
    model: str
    weights: str


class Told(NamedTuple):
    """What an engine is told: `flags`, and `lines` of a file; since which release, and where it says so."""

    flags: Callable[[Drafted], list[str]]
    since: str
    source: str
    lines: Callable[[Drafted], list[str]] | None = None


FILE = "drafts.yaml"


def _vllm(method: str, **more: int) -> Callable[[Drafted], list[str]]:
    def flags(of: Drafted) -> list[str]:
        said: dict[str, str | int] = {"method": method, "num_speculative_tokens": of.tokens, **more}
        if of.model:
            said["model"] = of.model
        if of.model and of.weights:  # by default what drafts is as its checkpoint is
            said["quantization"] = of.weights
        return [f"--speculative-config {shlex.quote(json.dumps(said))}"]

    return flags


def _sglang(algorithm: str, *more: str) -> Callable[[Drafted], list[str]]:
    """A chain of drafts: its tokens are those of a step, the last one that was verified among them."""

    def flags(of: Drafted) -> list[str]:
        path = [f"--speculative-draft-model-path {shlex.quote(of.model)}"] if of.model else []
        count = f"--speculative-num-draft-tokens {of.tokens + 1}"
        said = (flag.format(steps=of.tokens) for flag in more)
        return [f"--speculative-algorithm {algorithm}", *path, *said, count]

    return flags


def _trtllm(kind: str, *more: str) -> Callable[[Drafted], list[str]]:
    def lines(of: Drafted) -> list[str]:
        model = [f"  speculative_model_dir: {json.dumps(of.model)}"] if of.model else []
        said = [line.format(tokens=of.tokens) for line in more]
        return ["speculative_config:", f"  decoding_type: {kind}", *model, *said]

    return lines


def _file(of: Drafted) -> list[str]:
    return [f"--extra_llm_api_options {FILE}"]


_CHAIN = "--speculative-num-steps {steps}", "--speculative-eagle-topk 1"
_LENGTH, _ALONE = "  max_draft_len: {tokens}", "disable_overlap_scheduler: true"
_TRTLLM = (
    "docs/source/features/speculative-decoding.md of TensorRT-LLM; --extra_llm_api_options, trtllm-serve"
)
_SGLANG = "docs.sglang.io/docs/advanced_features/speculative_decoding.md; github.com/sgl-project/sglang/"
TOLD: Mapping[str, Mapping[str, Told]] = {
    "vllm": {
        MODEL: Told(_vllm("draft_model"), "0.16", "vllm, docs/features/speculative_decoding/README.md"),
        LAYER: Told(_vllm("mtp"), "0.11", "docs.vllm.ai/en/v0.11.0/api/vllm/config/speculative.html"),
        LOOKUP: Told(
            _vllm("ngram", prompt_lookup_max=4),
            "0.11",
            "docs.vllm.ai/en/v0.11.0/api/vllm/config/speculative.html",
        ),
    },
    "sglang": {
        MODEL: Told(_sglang("STANDALONE", *_CHAIN), "0.5.4", _SGLANG + "pull/10090"),
        LAYER: Told(_sglang("EAGLE", *_CHAIN), "0.5.4", _SGLANG + "issues/24795"),
        LOOKUP: Told(
            _sglang("NGRAM", "--speculative-ngram-max-bfs-breadth 1"), "0.5.4", _SGLANG + "issues/12726"
        ),
    },
    "trtllm": {
        MODEL: Told(_file, "1.0", _TRTLLM, _trtllm("DraftTarget", _LENGTH, _ALONE)),
        LAYER: Told(_file, "1.0", _TRTLLM, _trtllm("MTP", "  num_nextn_predict_layers: {tokens}")),
        LOOKUP: Told(
            _file, "1.0", _TRTLLM, _trtllm("NGram", _LENGTH, "  max_matching_ngram_size: 4", _ALONE)
        ),
    },
}


def written(lines: list[str]) -> str:
    """What a shell writes into the file."""
    return "\n".join([f"cat > {FILE} <<'END'", *lines, "END", ""])
