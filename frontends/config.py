"""A model's config, read field by field with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from llmir.errors import ConfigError, UnsupportedError
from llmir.frontends.source import locate, show
from llmir.names import plain

# Sizes beyond this are typos, and products of them would leave float64's exact integers anyway.
_ABSURD = 2**48
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

# Fields that Hugging Face writes and that change nothing in a forward pass at inference.
_TABLE = """
architectures attention_dropout attn_pdrop auto_map bad_words_ids begin_suppress_tokens bos_token_id
cache_implementation chat_template chunk_size_feed_forward decoder_start_token_id diversity_penalty
do_sample dropout early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
gradient_checkpointing id2label initializer_range keys_to_ignore_at_inference label2id length_penalty
max_length max_window_layers min_length model_type no_repeat_ngram_size num_beam_groups num_beams
num_return_sequences output_attentions output_hidden_states output_router_logits output_scores
pad_token_id prefix pretraining_tp problem_type remove_invalid_values repetition_penalty resid_pdrop
return_dict return_dict_in_generate router_aux_loss_coef sep_token_id suppress_tokens
task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torchscript
transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
"""
_HARMLESS = frozenset(_TABLE.split())
# These would change the model, but are written as off, null or empty for every decoder.
_TABLE_WHEN_OFF = """
add_cross_attention cross_attention_hidden_size is_decoder is_encoder_decoder pruned_heads
tie_encoder_decoder
"""
_HARMLESS_WHEN_OFF = frozenset(_TABLE_WHEN_OFF.split())


class Config:
    """A read-only view of a config that remembers what was asked of it.

    Each accessor raises `ConfigError` with the field's path. A field without a default is required,
    and null is a value like any other: only the `optional_` accessors, `nested` and `integers` take it
    for "none". `lenient` turns what llmir does not model from an error into one of the `notes`.
    """

    def __init__(self, fields: Mapping[str, object], *, name: str, lenient: bool = False) -> None:
        self.fields: Mapping[str, object] = MappingProxyType(dict(fields))
        self.name = plain(name) or "model"
        self.lenient = lenient
        self.notes: list[str] = []
        self._path = ""
        self._asked: set[str] = set()
        self._nested: dict[str, Config] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.fields

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = _ABSURD) -> int:
        """An integer from `minimum` to `maximum`, which is 2**48 unless stated."""
        return self._integer(key, self._get(key, default), minimum, maximum)

    def assumed(self, key: str, default: int) -> int:
        """An integer; where the field is absent, the family's `default`, with a note."""
        if key not in self.fields:
            self.note(f"config names no {key}; {default} assumed")
        return self.integer(key, default)

    def optional_integer(self, key: str, minimum: int = 1) -> int | None:
        """An integer, or None where the field is absent or null."""
        value = self._get(key, None, required=False)
        return None if value is None else self._integer(key, value, minimum)

    def integers(self, key: str, default: Iterable[int] = ()) -> tuple[int, ...]:
        """A list of integers from 0 up; null counts as absent."""
        value = self._get(key, None, required=False)
        if value is None:
            return tuple(default)
        if not isinstance(value, list | tuple):
            raise self.error(key, f"expected a list of integers, got {show(value)}")
        return tuple(self._integer(f"{key}[{i}]", item, 0) for i, item in enumerate(value))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; null and absent are empty."""
        value = self._get(key, None, required=False)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self.error(key, f"expected a list of strings, got {show(value)}")
        return tuple(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:  # an integer that no float holds
                number = math.inf
            if 0 < number < math.inf:
                return number
        raise self.error(key, f"expected a positive finite number, got {show(value)}")

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {show(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string that is not empty."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            raise self.error(key, f"expected a string, got {show(value)}")
        return value

    def nested(self, key: str) -> Config | None:
        """The object under `key` as a view that shares these notes; None where absent or null."""
        value = self._get(key, None, required=False)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"expected an object, got {show(value)}")
        if key not in self._nested:
            inner = Config(value, name=self.name, lenient=self.lenient)
            inner.notes, inner._path = self.notes, f"{self._path}.{key}"
            self._nested[key] = inner
        return self._nested[key]

    def dtype(self) -> str:
        """`bf16`, `fp16` or `fp32`, from either spelling of the field."""
        found = [(key, self._get(key, None, required=False)) for key in ("dtype", "torch_dtype")]
        for key, value in found:
            if value is None or value == "auto":
                continue
            # A config still in memory may hold torch's own dtype, which spells itself the same way.
            spelling = str(value) if type(value).__name__ == "dtype" else value
            known = _DTYPES.get(spelling.removeprefix("torch.")) if isinstance(spelling, str) else None
            if known is None:
                raise self.error(key, f"expected one of {', '.join(_DTYPES)}, got {show(spelling)}")
            return known
        self.note("config names no dtype; bf16 assumed")
        return "bf16"

    def unmodelled(self, key: str, allowed: Collection[object], reason: str) -> None:
        """Refuse (or, when lenient, note) a field whose value changes the model in a way llmir leaves out."""
        if key not in self.fields:
            return
        value = self._get(key, None)
        # True equals 1 in Python but not in JSON, where 1 and 1.0 are the same.
        if any(isinstance(value, bool) == isinstance(a, bool) and value == a for a in allowed):
            return
        choices = " or ".join(map(show, allowed)) or "no value"
        error = self.error(key, f"{show(value)} is not modelled ({reason}); {choices} is", UnsupportedError)
        if not self.lenient:
            raise error
        self.note(str(error))

    def every(self, key: str, allowed: str) -> None:
        """Refuse (or, when lenient, note) a list of strings in which one is not `allowed`."""
        for i, kind in enumerate(self.texts(key)):
            if kind != allowed:
                fact = f"{show(kind)} is not modelled; {show(allowed)} is"
                error = self.error(f"{key}[{i}]", fact, UnsupportedError)
                if not self.lenient:
                    raise error
                self.note(str(error))

    def ignore(self, *keys: str) -> None:
        """Count `keys` as asked for: this family knows that they change nothing llmir computes."""
        self._asked.update(keys)

    def error(self, key: str, fact: str, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """The error that says `fact` of a field, for the caller to raise."""
        return kind(f"${self._path}.{key}: {fact}")

    def note(self, message: str) -> None:
        """Keep a warning for whoever reads the result, once."""
        if message not in self.notes:
            self.notes.append(message)

    def finish(self) -> None:
        """Note each field that nobody asked for and that is not known to be harmless."""
        for key, value in self.fields.items():
            off = key in _HARMLESS_WHEN_OFF and not value
            # Hugging Face keeps its own bookkeeping under a leading underscore.
            if not (key in self._asked or key in _HARMLESS or off or str(key).startswith("_")):
                self.note(f"unknown config field {plain(f'{self._path}.{key}'.lstrip('.'))!r} ignored")
        for inner in self._nested.values():
            inner.finish()

    def _get(self, key: str, default: object, *, required: bool = True) -> object:
        self._asked.add(key)
        if key in self.fields:
            return self.fields[key]
        if required and default is None:
            raise self.error(key, "missing")
        return default

    def _integer(self, key: str, value: object, minimum: int, maximum: int = _ABSURD) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        kind = {0: "a non-negative integer", 1: "a positive integer"}.get(
            minimum, f"an integer of at least {minimum}"
        )
        most = "2**48" if maximum == _ABSURD else f"{maximum:,}"
        limit = f" up to {most}" if isinstance(value, int) and value > maximum else ""
        raise self.error(key, f"expected {kind}{limit}, got {show(value)}")


def read(model: object, *, lenient: bool = False) -> Config:
    """The config of a model: whatever `locate` understands, or a Config, whose fields are read anew."""
    if isinstance(model, Config):
        return Config(model.fields, name=model.name, lenient=lenient or model.lenient)
    fields, name = locate(model)
    return Config(fields, name=name, lenient=lenient)
