"""Classes of one backbone: classifiers, models without a head, and parts of multimodal ones."""

from __future__ import annotations

import pytest

import llmir
from llmir.base.errors import ConfigError
from tests.commands import TINY

from .test_families import EACH


@pytest.mark.parametrize("name", EACH)
def test_classifiers_and_backbones_have_another_head(name: str) -> None:
    """Parameters as transformers' classes have them: a matrix of labels, without bias, or no head at all."""
    whole = llmir.load(EACH[name])
    hidden, head = EACH[name]["hidden_size"], whole.parameters_by_kind.get("lm_head", 0)

    def like(end: str, **more: object) -> llmir.Program:
        architecture = f"{name.removesuffix('ForCausalLM')}{end}"
        return llmir.load({**EACH[name], "architectures": [architecture], **more})

    classifier = like("ForSequenceClassification", id2label={str(i): f"LABEL_{i}" for i in range(5)})
    backbone = like("Model")
    assert classifier.parameters == whole.parameters - head + 5 * hidden
    assert backbone.parameters == whole.parameters - head
    assert str(classifier["main"].type(classifier["main"].outputs[0])).endswith("[B, 5]")
    names = {w.op.param for w in backbone["main"].nodes if w.op.role == "weight"}
    assert names == {"embed_tokens.weight", "norm.weight"}
    for program in (classifier, backbone):
        sharded = llmir.run(program, "fuse-attention,fuse,shard{tp=2}")
        assert llmir.analyze(sharded, "h100-sxm", batch=2, new=64, context=0).time_s > 0


def test_the_language_model_of_a_multimodal_config_is_read_with_what_the_whole_says() -> None:
    text = {k: v for k, v in TINY.items() if k not in ("architectures", "torch_dtype", "dtype")}
    whole = {
        "architectures": ["SomeForConditionalGeneration"],
        "text_config": {**text, "model_type": "llama", "tie_word_embeddings": False},
        "vision_config": {"hidden_size": 32},
        "image_token_index": 7,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    }
    program = llmir.load(whole)
    assert program.notes == ("the language model alone is modelled, without vision_config",)
    alone = llmir.load({**text, "model_type": "llama", "tie_word_embeddings": True, "torch_dtype": "float16"})
    assert program.graphs == alone.graphs
    with pytest.raises(ConfigError, match=r"^\$\.text_config\.hidden_size: expected an integer from 1 to"):
        llmir.load({**whole, "text_config": {**text, "model_type": "llama", "hidden_size": -4}})
