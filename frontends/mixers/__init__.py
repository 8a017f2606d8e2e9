"""What mixes tokens in a layer: each a spec that builds itself, and adds to hidden states."""

from .attention import Attention, Rope
from .latent import LatentAttention

__all__ = ["Attention", "LatentAttention", "Rope"]
