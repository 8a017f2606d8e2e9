"""LLaVA-OneVision: a SigLIP tower, a projector, Qwen2. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import astuple, replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import INERT, NEUTRAL, Config
from llmir.frontends.layers.decoder import CheckpointNames
from llmir.frontends.layers.parts import activation
from llmir.frontends.layers.vision import Multimodal, siglip

from .qwen import qwen2

_CLASS = "LlavaOnevisionForConditionalGeneration"
_NAMES = CheckpointNames(*(f"language_model.{name}" for name in astuple(CheckpointNames())))


@family(_CLASS, "llava_onevision", whole=True)
def llava_onevision(config: Config) -> Multimodal:
    """LlavaOnevisionForConditionalGeneration; the processor cuts an image into tiles."""
    config.ignore("image_grid_pinpoints", "vision_aspect_ratio", "video_token_index", "ignore_index")
    config.unmodelled("vision_feature_layer", (-1,), "features of another layer than the last")
    config.unmodelled("vision_feature_select_strategy", ("full",), "features of some patches")
    config.unmodelled("multimodal_projector_bias", (True,), "a projector without biases")
    shared = ("dtype", "torch_dtype", "tie_word_embeddings")
    text = config.part("text_config", shared)
    config.ignore(*shared)
    text.unmodelled("model_type", ("qwen2",), "another language model")
    language = replace(qwen2(text), architecture=_CLASS, names=_NAMES)
    text.finish(INERT, NEUTRAL)
    image = config.integer("image_token_index", 151646, minimum=0, maximum=language.vocab - 1)
    newline = "image_newline" if config.flag("use_image_newline_parameter", True) else ""
    act = activation(config, "projector_hidden_act", "gelu")
    tower = siglip(config.nested("vision_config") or Config({}, name=config.name))
    return Multimodal(language, replace(tower, activation=act, newline=newline), image)
