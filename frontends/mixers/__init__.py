"""What mixes tokens in a layer: each a spec that builds itself, and adds to hidden states."""

from .attention import Attention, Rope, Temper
from .blocks import BlockIndex
from .compressed import CompressedAttention, Compressor
from .conv import ShortConv
from .delta import DeltaNet, kda
from .latent import Indexer, LatentAttention
from .lightning import Lightning
from .mamba import Mamba, Mamba2
from .shared import Shared
from .side import Sides

__all__ = [
    "Attention",
    "BlockIndex",
    "CompressedAttention",
    "Compressor",
    "DeltaNet",
    "Indexer",
    "LatentAttention",
    "Lightning",
    "Mamba",
    "Mamba2",
    "Rope",
    "Shared",
    "ShortConv",
    "Sides",
    "Temper",
    "kda",
]
