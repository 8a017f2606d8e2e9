"""Load a model: find its config, read it with its family, and build the program.

`load` also selects the language model of a multimodal config. If a class is a classifier or a backbone, it
builds the causal class with another head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmir.base.arguments import choice, flag
from llmir.base.errors import InputError, LlmirError, UnsupportedError
from llmir.base.names import plain, suggest
from llmir.frontends.config.family import FAMILIES, Family, Model
from llmir.frontends.config.quantization import KEY
from llmir.frontends.config.reader import INERT, NEUTRAL, Config, read
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.draft import ModelWithDraft
from llmir.frontends.layers.rope import multimodal_axes
from llmir.ir.core.program import LEFT_OUT, Program

from .config import quantization

LOGITS = ("last", "all")


def load(model: object, *, logits: str = "last", lenient: bool = False, draft: bool = False) -> Program:
    """Build the unfused, unsharded program of a model, with a draft phase if requested.

    Args:
        model: A preset's name, an HF id, a path to a config.json or its folder, a dict, or an object with
            `.to_dict()`.
        logits: `last` or `all` positions.
        lenient: Whether fields that llmir does not model or know give notes instead of errors.
        draft: Whether to build the multi-token prediction layer as a draft phase.

    Raises:
        ConfigError: A field is missing or invalid.
        UnsupportedError: llmir does not support the model.
    """
    logits, lenient = choice("logits", logits, LOGITS), flag("lenient", lenient)
    draft = flag("draft", draft)
    whole = read(model, lenient=lenient)
    config, without = _text(whole), ", ".join(_towers(whole))
    family = _model(config)
    if draft:
        family = _drafted(family, config)
    config.ignore(KEY)
    config.finish(INERT, NEUTRAL)
    remote = config.fields.get("auto_map")
    if isinstance(remote, Mapping) and any(str(auto).startswith("AutoModel") for auto in remote):
        config.note("config names code of its own in auto_map, which is not run; its class is modelled")
    program, how = quantization.scheme(config, lambda apart: family.program(logits, apart))
    facts = {**program.facts, **how, **({LEFT_OUT: without} if without else {})}
    own = {"facts": facts, "notes": tuple(config.notes)}
    phases = {name: phase.replace(**own) for name, phase in program.phases.items()}
    return program.replace(**own, phases=phases)


def _drafted(family: Model, config: Config) -> ModelWithDraft:
    """The model together with its multi-token prediction layer; InputError if it has none."""
    if not isinstance(family, Decoder) or family.draft is None:
        raise InputError(f"draft: {config.name} has no draft layer that llmir models")
    return ModelWithDraft(family, family.draft)


# Fields of a multimodal config that also apply to its language model.
_TOWERS = ("vision_config", "audio_config")
_SHARED = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")

# The head of a backbone, by the suffix of its class: logits of the vocabulary, logits of labels, or no head.
_CAUSAL = "ForCausalLM"
_HEADS = {"ForSequenceClassification": "score", "Model": ""}


def _text(config: Config) -> Config:
    """The language model of a multimodal config; a note names the omitted parts.

    A config with a family that reads all parts is returned whole.
    """
    if _whole(config):
        return config
    if others := _towers(config):
        config.note(f"the language model alone is modelled, without {' and '.join(others)}")
        config.ignore(*others)
    text = isinstance(config.fields.get("text_config"), Mapping)
    found = config.part("text_config", _SHARED) if text else config
    if others:
        multimodal_axes(found)
    return found


def _towers(config: Config) -> list[str]:
    """The parts of a multimodal config besides its language model, if its family does not read them."""
    found = [key for key in _TOWERS if isinstance(config.fields.get(key), Mapping)]
    return [] if found and _whole(config) else found


def _whole(config: Config) -> bool:
    """Whether the family of its class reads all parts of a multimodal config."""
    if not any(isinstance(config.fields.get(key), Mapping) for key in _TOWERS):
        return False
    named = config.texts("architectures")[:1]
    if named:
        return named[0] in FAMILIES and FAMILIES[named[0]].whole
    kind = config.fields.get("model_type")
    return bool(FAMILIES.matching(lambda family: family.whole and kind in family.model_types))


def _model(config: Config) -> Model:
    """Read a config by its family, with the head of its class."""
    classes = config.texts("architectures")
    for named in classes[:1]:
        for end, head in _HEADS.items():
            backbone = f"{named.removesuffix(end)}{_CAUSAL}"
            if named.endswith(end) and named not in FAMILIES and backbone in FAMILIES:
                config.every("architectures", *[named] * len(classes))
                decoder: Any = FAMILIES[backbone].read(config)  # of a causal class
                names = decoder.names if head else decoder.names.bare()
                own = {"architecture": named, "head": head, "labels": _labels(config), "names": names}
                model: Model = replace(decoder, **own)
                return model
    return _family(config).read(config)


def _labels(config: Config) -> int:
    """The number of labels, in either spelling; transformers' default is two."""
    named = config.fields.get("id2label")
    return len(named) if isinstance(named, Mapping) and named else config.integer("num_labels", 2)


def _family(config: Config) -> Family:
    classes = config.texts("architectures")
    for named in classes[:1]:
        if named not in FAMILIES:
            raise _unknown(config, "architectures", plain(named))
        config.every("architectures", *[named] * len(classes))
        config.unmodelled("model_type", (None, *FAMILIES[named].model_types), f"{named} is of another")
        return FAMILIES[named]
    if "model_type" not in config:
        if "_class_name" in config:  # the class name in diffusers' configs
            if (named := config.text("_class_name")) in FAMILIES:
                return FAMILIES[named]
            raise _unknown(config, "_class_name", plain(named))
        raise config.error("architectures", "missing, and there is no model_type either")
    kind = config.text("model_type")
    for found in FAMILIES.matching(lambda family: kind in family.model_types):
        return found
    raise _unknown(config, "model_type", repr(kind))


def _unknown(config: Config, field: str, named: str) -> LlmirError:
    near = suggest(named, FAMILIES)
    fact = f"{named} is not supported; supported are {len(FAMILIES)} classes, in docs/families.md{near}"
    return config.error(field, fact, UnsupportedError)
