"""The module that defines each op; `python scripts/opmethods.py` wrote this file."""

# Each line: a module of this package, and ops that it defines.
_OPS = """
attention attention_mask attention_mix attention_scores flash_attention
beam_search log_softmax_top_k reorder
collective all_gather all_reduce all_to_all reduce_scatter slice
delta decay_gate gated_delta key_decay_gate l2_norm lightning_attention
elementwise add cast clamped_glu clip gaussian_top gelu gelu_mul gelu_tanh gelu_tanh_mul moments mul relu
elementwise relu2 scale sigmoid sigmoid_mul silu silu_mul soft_cap sqrt_softplus subtract tanh xielu
expert_exchange return_tokens send_tokens
gather cut embedding last_token last_tokens layer_embedding positions stack
images append_row patch_embedding place_images
latent_attention index_scores latent_attention latent_mix latent_scores select_keys sparse_latent_attention
linear linear
moe combine dispatch grouped_linear scaled_dispatch sum_experts
norm add_rms_norm add_rms_norm_quantize all_reduce_add_rms_norm all_reduce_add_rms_norm_quantize group_norm
norm inverse_root layer_norm match_rms modulate pair_norm pair_squares rms_norm rms_norm_quantize row_mean
norm scale_rows sequence_mul shift sinusoid softmax square square_sum
pipeline_stage recv send
quant compress decompress dequantize quantize
region repeat
residual_streams enter_streams join_streams leave_streams pick scale_by split_streams stream_add stream_mix
rope append join_half negate_half norm_rope_append_index rope rope_append scale_by_cosine scale_by_sine
rope temper unrope
scan causal_conv causal_conv_silu selective_scan ssd_scan
sources concat zeros
sparse_attention block_scores block_sparse_attention compress_rows compressed_attention select_blocks
top_k expert_scale hash_top_k pick_replica sigmoid_top_k softmax_top_k sparse_mixer sqrt_softplus_top_k top_k
"""
_LINES = [line.split() for line in _OPS.strip().splitlines()]
MODULES = {op: f"llmir.ir.ops.{module}" for module, *ops in _LINES for op in ops}
