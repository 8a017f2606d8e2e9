"""A model's config, read field by field, and the fields that have no effect.

Accessors of `Config` check a value and record that the field was read; errors name the field by its path. A
field that no family reads is an error unless `INERT` lists it, or `NEUTRAL` lists its value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from math import inf
from types import MappingProxyType

from llmir.base.errors import ConfigError, UnsupportedError
from llmir.base.names import bounded, plain, suggest
from llmir.ir.core.dtype import BF16, FP16, FP32

from .source import locate, show

# --- Reader ---

# Sizes beyond this are typos, and products of them would leave float64's exact integers anyway.
_ABSURD = 2**48
_DTYPES = {d.torch: d.name for d in (BF16, FP16, FP32)}
Neutral = tuple[Collection[object], str]
"""The values with which a field does not act, and what it is otherwise."""
_NOTHING: Mapping[str, Neutral] = MappingProxyType({})


class Config:
    """A read-only view of a config that records which fields were read.

    Each accessor raises ConfigError with the path of the field. A field without a default is required. null
    is an ordinary value; only the `optional_` accessors, `nested` and `integers` interpret it as "none". With
    `lenient`, fields that llmir does not model or know give `notes` instead of errors.
    """

    def __init__(self, fields: Mapping[str, object], *, name: str, lenient: bool = False) -> None:
        self.fields: Mapping[str, object] = MappingProxyType({str(k): v for k, v in fields.items()})
        self.name = plain(name) or "model"
        self.lenient = lenient
        self.notes: list[str] = []
        self._path = ""
        self._spellings: dict[str, str] = {}
        self._asked: set[str] = set()
        self._nested: dict[str, Config] = {}

    def __contains__(self, key: str) -> bool:
        return self._key(key) in self.fields

    def spelled(self, **spellings: str) -> Config:
        """Add alternative names for fields, as used by a class of models; returns the config."""
        self._spellings |= spellings
        return self

    def _key(self, key: str) -> str:
        own = self._spellings.get(key, key)
        return own if own in self.fields or key not in self.fields else key

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = _ABSURD) -> int:
        """An integer from `minimum` to `maximum`, by default 2**48."""
        return self._integer(key, self._get(key, default), minimum, maximum)

    def assumed(self, key: str, default: int) -> int:
        """An integer; if the field is missing, the `default` of the family, with a note."""
        if key not in self:
            self.note(f"config names no {self._key(key)}; {default} assumed")
        return self.integer(key, default)

    def fill(self, **defaults: object) -> None:
        """The family's values for absent fields, each with a note."""
        absent = {key: value for key, value in defaults.items() if key not in self.fields}
        for key, value in absent.items():
            self.note(f"config names no {key}; {show(value)} assumed")
        self.fields = MappingProxyType({**self.fields, **absent})

    def absent(self, *keys: str) -> None:
        """Treat null as a missing value in these fields, as their class does."""
        left = {k: v for k, v in self.fields.items() if k not in keys or v is not None}
        self.fields = MappingProxyType(left)

    def optional_integer(self, key: str, minimum: int = 1) -> int | None:
        """An integer, or None if the field is absent or null."""
        value = self._get(key, None, required=False)
        return None if value is None else self._integer(key, value, minimum)

    def stated(self, key: str) -> int | None:
        """An integer, or None if the field is absent or "auto"."""
        return None if self._get(key, "auto") == "auto" else self.integer(key)

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
        return self._number(key, self._get(key, default))

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:  # an integer too large for a float
                number = math.inf
            if 0 < number < math.inf:
                return number
        raise self.error(key, f"expected {bounded('a number', 0, above=True)}, got {show(value)}")

    def optional_number(self, key: str, *, zero: bool = False) -> float | None:
        """A finite number above zero, or None if the field is absent or null (or 0, if `zero` means none)."""
        value = self._get(key, None, required=False)
        off = value is None or (zero and value == 0 and not isinstance(value, bool))
        return None if off else self.number(key)

    def numbers(self, key: str, count: int, *, zero: bool = False) -> tuple[float, ...]:
        """A list of `count` finite numbers above zero; with `zero`, zero is also allowed."""
        value = self._get(key, None)
        if not isinstance(value, list | tuple) or len(value) != count:
            got = f"a list of {len(value)}" if isinstance(value, list | tuple) else show(value)
            raise self.error(key, f"expected a list of {count} numbers, got {got}")
        off = (0,) if zero else ()
        return tuple(
            0.0 if item in off and not isinstance(item, bool) else self._number(f"{key}[{i}]", item)
            for i, item in enumerate(value)
        )

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
        """The object under `key` as a view that shares these notes; None if absent or null."""
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

    def part(self, key: str, beside: Collection[str]) -> Config:
        """The object under `key` as a separate config, together with the outer fields in `beside`.

        Outer fields that are set replace the fields of the object.
        """
        inner = self.nested(key) or self
        fields = {k: v for k in beside if (v := self.fields.get(k)) is not None}
        found = Config({**inner.fields, **fields}, name=self.name, lenient=self.lenient)
        found.notes, found._path = self.notes, inner._path
        inner.ignore(*inner.fields)  # the reader of the part reads them
        return found

    def dtype(self) -> str:
        """`bf16`, `fp16` or `fp32`, from either spelling of the field."""
        found: dict[str, str] = {}
        for key in ("dtype", "torch_dtype"):
            value = self._get(key, None, required=False)
            if value is None or value == "auto":
                continue
            # A config in memory may contain a dtype of torch, whose text has this form.
            spelling = str(value) if type(value).__name__ == "dtype" else value
            known = _DTYPES.get(spelling.removeprefix("torch.")) if isinstance(spelling, str) else None
            if known is None:
                raise self.error(key, f"expected one of {', '.join(_DTYPES)}, got {show(spelling)}")
            found[key] = known
        if len(set(found.values())) > 1:
            raise self.error("torch_dtype", f"{found['torch_dtype']} contradicts dtype {found['dtype']}")
        if not found:
            self.note("config names no dtype; bf16 assumed")
        return next(iter(found.values()), "bf16")

    def unmodelled(self, key: str, allowed: Collection[object], reason: str) -> None:
        """Refuse a field whose value changes the model in a way that llmir does not model; with `lenient`,
        add a note instead.
        """
        if key not in self:
            return
        value = self._get(key, None)
        # True equals 1 in Python but not in JSON, in which 1 and 1.0 are equal.
        if any(isinstance(value, bool) == isinstance(a, bool) and value == a for a in allowed):
            return
        choices = " or ".join(map(show, allowed)) or "no value"
        self._refuse(key, f"{show(value)} is not modelled ({reason}); {choices} is")

    def fixed(self, reason: str, **usual: object) -> None:
        """Refuse each field that is present, not null, and different from `usual`; with `lenient`, add a note
        instead.
        """
        for key, value in usual.items():
            self.unmodelled(key, (None, value), reason)

    def every(self, key: str, *allowed: str) -> None:
        """Refuse a list of strings with any that is not `allowed`; with `lenient`, add a note instead."""
        kinds = self.texts(key)
        if self.fields.get(key) is not None and len(kinds) != len(allowed):
            raise self.error(key, f"{len(kinds)} kinds for {len(allowed)} layers")
        for i, (kind, due) in enumerate(zip(kinds, allowed, strict=False)):
            if kind != due:
                self._refuse(f"{key}[{i}]", f"{show(kind)} is not modelled; {show(due)} is")

    def ignore(self, *keys: str) -> None:
        """Mark fields as read, because for this family they do not change any result."""
        self._asked.update(keys)

    def error(self, key: str, fact: str, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Build the error about a field, for the caller to raise."""
        return kind(f"${self._path}.{self._key(key)}: {fact}")

    def note(self, message: str) -> None:
        """Record a note for the user, once."""
        if message not in self.notes:
            self.notes.append(message)

    def finish(self, inert: Collection[str] = (), neutral: Mapping[str, Neutral] = _NOTHING) -> None:
        """Refuse each unread field that may have an effect; with `lenient`, add a note.

        Fields in `inert` never have an effect, and fields in `neutral` have none with the listed values.
        Nested objects are checked too; their readers must have read them before.
        """
        unknown = []
        for key in self.fields:
            if key in self._asked or key in inert:
                continue
            if key in neutral:
                self.unmodelled(key, *neutral[key])
            elif not key.startswith("_"):  # metadata of Hugging Face
                unknown.append(key)
        self._asked.update(self.fields)
        if unknown:
            self._unknown(unknown, {*self._asked, *inert, *neutral} - {*unknown})
        for view in self._nested.values():
            view.finish()

    def _unknown(self, keys: list[str], known: Collection[str]) -> None:
        if self.lenient:
            for key in keys:
                self.note(f"unknown config field {plain(f'{self._path}.{key}'.lstrip('.'))!r} ignored")
            return
        first, *others = keys
        near = suggest(first, known, limit=1)
        more = f" ({len(others)} more: {', '.join(map(plain, others[:5]))})" if others else ""
        reason = "unknown, so it may act; --lenient leaves it out"
        fact = f"{show(self.fields[first])} is not modelled ({reason}){near}{more}"
        raise UnsupportedError(f"${self._path}.{plain(first)}: {fact}")

    def _refuse(self, key: str, fact: str) -> None:
        """Raise an error for an unmodeled value; with `lenient`, add a note instead."""
        error = self.error(key, fact, UnsupportedError)
        if not self.lenient:
            raise error
        self.note(str(error))

    def _get(self, key: str, default: object, *, required: bool = True) -> object:
        key = self._key(key)
        self._asked.add(key)
        if key in self.fields:
            return self.fields[key]
        if required and default is None:
            raise self.error(key, "missing")
        return default

    def _integer(self, key: str, value: object, minimum: int, maximum: int = _ABSURD) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        raise self.error(key, f"expected {bounded('an integer', minimum, maximum)}, got {show(value)}")


def read(model: object, *, lenient: bool = False) -> Config:
    """The config of a model: any argument of `locate`, or a Config, which is read again from the start."""
    if isinstance(model, Config):
        return Config(model.fields, name=model.name, lenient=lenient or model.lenient)
    found = locate(model)
    config = Config(found.fields, name=found.name, lenient=lenient)
    if found.note:
        config.note(found.note)
    return config


# --- Fields without effect ---

# The fact of a program that states how its checkpoint is quantized.
METHOD = "quant_method"

# These fields do not affect the logits of a forward pass with tokens and a cache.
_INERT = {
    "it names the model, its files or what wrote them": """
        architectures auto_map finetuning_task is_llama_config model_name model_type name_or_path
        tokenizer_class transformers.js_config transformers_version unsloth_fixed unsloth_version
    """,
    "it is the number of a token": """
        begin_suppress_tokens bos_token_id decoder_start_token_id eod_token_id eos_token_id
        forced_bos_token_id forced_eos_token_id mask_token_id pad_token_id sep_token_id
    """,
    "it configures generation from the logits": """
        assistant_confidence_threshold assistant_lookbehind bad_words_ids chat_template diversity_penalty
        do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff
        eta_cutoff exponential_decay_length_penalty generation_config length_penalty max_length
        max_new_tokens min_length min_p no_repeat_ngram_size num_assistant_tokens
        num_assistant_tokens_schedule num_beam_groups num_beams num_logits_to_keep num_return_sequences prefix
        remove_invalid_values repetition_penalty stop_strings suppress_tokens target_lookbehind
        temperature top_k top_p typical_p
    """,
    "it acts in training only": """
        attention_dropout attention_probs_dropout_prob attn_pdrop aux_loss_alpha dropout embd_pdrop
        gradient_checkpointing hidden_dropout hidden_dropout_prob initializer_range layerdrop
        activation_dropout emb_pdrop embedding_dropout init_std neftune_noise_alpha resid_pdrop
        residual_dropout router_aux_loss_coef router_jitter_noise seq_aux tf_legacy_loss z_loss_coefficient
    """,
    "it configures the initialization of weights": """
        block_mlp_init_scale block_use_xavier_init embedding_initializer_range linear_a_log_max
        linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min rescale_prenorm_residual
        time_step_floor time_step_init_scheme time_step_max time_step_min time_step_scale
    """,
    "it selects outputs other than the logits": """
        keys_to_ignore_at_inference output_attentions output_hidden_states output_router_logits
        output_scores return_dict return_dict_in_generate use_return_dict
    """,
    "it configures classifiers": """
        classifier_dropout id2label label2id num_labels problem_type summary_activation summary_first_dropout
        summary_proj_to_labels summary_type summary_use_proj task_specific_params
    """,
    "it selects an implementation of the same arithmetic": """
        attn_implementation chunk_size_feed_forward context_window_size ep_size experts_implementation
        chunk_size mamba_chunk_size prefill_chunk_size pretraining_tp residual_in_fp32 use_associative_scan
        attention_softmax_in_fp32 attn_impl bias_dropout_fusion masked_softmax_fusion reorder_and_upcast_attn
        scale_attention_softmax_in_fp32 slow_but_exact use_bfloat16 use_cache use_mamba_kernels use_mambapy
    """,
    "the classes read another length, and rotary positions and ALiBi go on past it": """
        max_sequence_length n_ctx seq_length
    """,
    "it counts the layers before those with a sliding window, in classes that have none": "max_window_layers",
}


def _by_field(reasons: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({field: reason for reason, fields in reasons.items() for field in fields.split()})


INERT: Mapping[str, str] = _by_field(_INERT)

# Values with which a field has no effect in any supported family, and its meaning otherwise.
_OFF = (None, False)
_SCALED, _LOW_RANK = "scaled activations", "latent attention"
_SHARED, _GROUPS = "a shared expert", "experts chosen by groups"
NEUTRAL: Mapping[str, Neutral] = MappingProxyType(
    {
        "activation": ((None, "swiglu", "silu"), "another activation"),  # Falcon 3
        "add_cross_attention": (_OFF, "cross attention"),
        "attention_bias": (_OFF, "biases"),
        "attention_chunk_size": ((None,), "chunked attention"),  # Llama 4
        "attn_logit_softcapping": ((None,), "soft-capped logits"),  # Gemma 2
        "cache_implementation": (
            (None, "dynamic", "hybrid", "offloaded", "offloaded_static", "static"),
            "a cache of another kind",
        ),
        "cross_attention_hidden_size": ((None,), "cross attention"),
        "embedding_multiplier": ((None, 1.0), _SCALED),  # Granite
        "final_logit_softcapping": ((None,), "soft-capped logits"),
        "first_k_dense_replace": ((None, 0), "dense layers before those of experts"),  # DeepSeek
        "hidden_activation": ((None, "silu", "swish"), "another activation"),
        "is_causal": ((True,), "attention to later tokens"),
        "is_decoder": (_OFF, "a decoder beside an encoder"),
        "is_encoder_decoder": (_OFF, "an encoder"),
        "kv_lora_rank": ((None, 0), _LOW_RANK),  # DeepSeek
        "logit_scale": ((None, 1.0), _SCALED),  # Cohere
        "logits_scaling": ((None, 1.0), _SCALED),
        "mlp_bias": (_OFF, "biases"),
        "moe_layer_freq": ((None, 1), "layers of experts between others"),
        "n_group": ((None, 0, 1), _GROUPS),
        "n_shared_experts": ((None, 0), _SHARED),
        "no_rope_layers": ((None,), "layers without positions"),  # Llama 4, SmolLM 3
        "num_nextn_predict_layers": ((None, 0), "layers that predict further tokens"),
        "pruned_heads": ((None, {}), "pruned heads"),
        "q_lora_rank": ((None, 0), _LOW_RANK),
        "quantization": ((None,), "the quantization of MLX"),
        "residual_multiplier": ((None, 1.0), _SCALED),
        "rope_interleaved": (_OFF, "rotary positions on neighbouring elements"),
        "routed_scaling_factor": ((None, 1.0), "scaled outputs of experts"),
        "scoring_func": ((None, "softmax"), "another score of the router"),
        "shared_expert_intermediate_size": ((None, 0), _SHARED),  # Qwen2 MoE
        "sliding_window": ((None,), "sliding-window attention"),
        "tie_encoder_decoder": (_OFF, "an encoder"),
        "time_step_limit": ((None, [0.0, inf]), "steps of scans that are cut"),
        "topk_group": ((None, 0, 1), _GROUPS),
        "topk_method": ((None, "greedy"), "another choice of experts"),
        "torchscript": (_OFF, "untied copies of tied weights"),
        "use_bidirectional_attention": (_OFF, "attention to later tokens"),
        "use_sliding_window": (_OFF, "sliding-window attention"),
        "use_mrope": (_OFF, "positions in several dimensions"),  # Qwen2-VL
    }
)

# Fields without effect in a `quantization_config`; it contains no field that affects the bytes of a tensor.
_QUANTIZATION_INERT = {
    "it describes how the weights were quantized": """
        act_group_aware batch_size block_name_to_quantize cache_block_outputs damp_auto_increment
        damp_percent dataset global_compression_ratio max_input_length meta model_file_base_name
        model_name_or_path model_seqlen module_name_preceding_first_block mse observer observer_kwargs
        pad_token_id producer quant_method quantization_status quantizer static_groups tokenizer
        true_sequential uri
    """,
    "it describes their layout or kernel": """
        actorder backend bnb_4bit_quant_storage checkpoint_format do_fuse exllama_config format
        fuse_max_seq_len is_marlin_format llm_int8_enable_fp32_cpu_offload llm_int8_threshold modules_to_fuse
        pack_dtype run_compressed scale_dtype use_cuda_fp16 use_exllama use_optimized_inference version
        zp_dtype
    """,
    "it is the type that weights are widened to, taken as the model's own": """
        bnb_4bit_compute_dtype
    """,
}
QUANTIZATION_INERT: Mapping[str, str] = _by_field(_QUANTIZATION_INERT)
QUANTIZATION_NEUTRAL: Mapping[str, Neutral] = MappingProxyType(
    {
        "act_per_tensor": ((None, False), "another group of each scale"),
        "dequantize": ((None, False), "weights that are widened when they are loaded"),
        "dynamic": ((None, False, {}), "other bits in some modules"),
        "kv_cache_scheme": ((None,), "a cache of few bits"),
        "llm_int8_has_fp16_weight": ((None, False), "weights that are kept in fp16 too"),
        "modules_in_block_to_quantize": ((None,), "some modules only"),
        "modules_to_convert": ((None,), "some modules only"),
        "transform_config": ((None, {}), "products with Hadamard matrices"),
        "weight_per_tensor": ((None, False), "another group of each scale"),
    }
)
