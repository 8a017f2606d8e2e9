"""Layers as data: each part of a decoder is a frozen record that builds its ops on a `Builder`.

Start with `layer.py` (`Layer`: mixer, MLP, norms and residual) and `decoder.py` (`Decoder`: embedding,
layers, head), then `blocks.py` (`Blocks`), which makes weights, products and norms.

- mixers: `attention.py`, `latent_attention.py`, `compressed_attention.py`, `linear_attention.py`, `mamba.py`
- `mlp.py`: gated MLPs and experts;  `vision.py`, `diffusion.py`, `draft.py`: other kinds of models and phases
- from a config: `parts.py`, `rope.py`, `attention_config.py` and `state_config.py`

Imports `llmir.base`, `llmir.ir` and `llmir.frontends.config`.
"""
