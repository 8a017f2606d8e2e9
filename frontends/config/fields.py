"""Fields of published configs that no family reads: those that cannot act, and the values that do not."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from .reader import Neutral

# Facts of a program: how its checkpoint is quantized, and which parts of a multimodal model it leaves out.
METHOD, TOWERS = "quant_method", "without"

# What these say does not reach the logits of a forward pass over tokens and a cache.
_INERT = {
    "it names the model, its files or what wrote them": """
        architectures auto_map finetuning_task is_llama_config model_name model_type name_or_path
        tokenizer_class transformers.js_config transformers_version unsloth_fixed unsloth_version
    """,
    "it is the number of a token": """
        begin_suppress_tokens bos_token_id decoder_start_token_id eod_token_id eos_token_id
        forced_bos_token_id forced_eos_token_id mask_token_id pad_token_id sep_token_id
    """,
    "it says how text is generated from the logits": """
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
    "it says how weights begin": """
        block_mlp_init_scale block_use_xavier_init embedding_initializer_range linear_a_log_max
        linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min rescale_prenorm_residual
        time_step_floor time_step_init_scheme time_step_max time_step_min time_step_scale
    """,
    "it says what is returned beside the logits": """
        keys_to_ignore_at_inference output_attentions output_hidden_states output_router_logits
        output_scores return_dict return_dict_in_generate use_return_dict
    """,
    "it is of classifiers": """
        classifier_dropout id2label label2id num_labels problem_type summary_activation summary_first_dropout
        summary_proj_to_labels summary_type summary_use_proj task_specific_params
    """,
    "it says how the same sums are done": """
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

# The values with which a field does not act in any family that llmir has, and what it is otherwise.
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

# The same of a `quantization_config`. What decides the bytes of a tensor is in neither.
_QUANTIZATION_INERT = {
    "it says how the weights were found": """
        act_group_aware batch_size block_name_to_quantize cache_block_outputs damp_auto_increment
        damp_percent dataset global_compression_ratio max_input_length meta model_file_base_name
        model_name_or_path model_seqlen module_name_preceding_first_block mse observer observer_kwargs
        pad_token_id producer quant_method quantization_status quantizer static_groups tokenizer
        true_sequential uri
    """,
    "it says how they are laid out, or which kernel takes them": """
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
