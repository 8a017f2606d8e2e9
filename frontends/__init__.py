"""From a model's config to a program. `FAMILIES` is what llmir can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmir.errors import InputError, UnsupportedError
from llmir.graph import Program
from llmir.names import plain

from . import blocks, quantization
from .blocks import Decoder
from .config import Config, read
from .fields import INERT, NEUTRAL
from .llama import llama
from .qwen import qwen2, qwen3, qwen3_moe

# The class in HF's `architectures` -> its `model_type`, and who reads it.
FAMILIES: dict[str, tuple[str, Callable[[Config], Decoder]]] = {
    "LlamaForCausalLM": ("llama", llama),
    "Qwen2ForCausalLM": ("qwen2", qwen2),
    "Qwen3ForCausalLM": ("qwen3", qwen3),
    "Qwen3MoeForCausalLM": ("qwen3_moe", qwen3_moe),
}

LOGITS = ("last", "all")


def load(model: object, *, logits: str = "last", lenient: bool = False) -> Program:
    """The unfused, unsharded program of a model.

    `model` is a preset's name, an HF id, a path to a config.json or its folder, a dict, or an object
    with `.to_dict()`. `lenient` turns fields that llmir does not model or know from errors into notes.
    Raises `ConfigError`, or `UnsupportedError` for a model that llmir does not have.
    """
    if logits not in LOGITS:
        raise InputError(f"logits: expected {' or '.join(LOGITS)}, got {logits!r}")
    config = read(model, lenient=lenient)
    decoder = _family(config)(config)
    config.ignore(quantization.KEY)
    config.finish(INERT, NEUTRAL)
    remote = config.fields.get("auto_map")
    if isinstance(remote, Mapping) and any(str(auto).startswith("AutoModel") for auto in remote):
        config.note("config names code of its own in auto_map; the class of transformers is what is modelled")
    program = blocks.decoder(decoder, logits, ())
    stored = quantization.scheme(config, program)
    facts = {**program.facts, "quantization": stored} if stored else program.facts
    return program.replace(facts=facts, notes=tuple(config.notes))


def _family(config: Config) -> Callable[[Config], Decoder]:
    known = ", ".join(FAMILIES)
    for named in config.texts("architectures")[:1]:
        if named not in FAMILIES:
            fact = f"{plain(named)} is not supported; supported are {known}"
            raise config.error("architectures", fact, UnsupportedError)
        kind, reader = FAMILIES[named]
        config.every("architectures", named)
        config.unmodelled("model_type", (None, kind), f"{named} is of another")
        return reader
    if "model_type" not in config:
        if "_class_name" in config:  # diffusers' way to say what a config is of
            fact = f"{plain(config.text('_class_name'))} is not supported; supported are {known}"
            raise config.error("_class_name", fact, UnsupportedError)
        raise config.error("architectures", "missing, and there is no model_type either")
    kind = config.text("model_type")
    for model_type, reader in FAMILIES.values():
        if kind == model_type:
            return reader
    raise config.error("model_type", f"{kind!r} is not supported; supported are {known}", UnsupportedError)
