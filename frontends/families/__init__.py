"""Model families: one file each, with a function from a `Config` to a `Decoder`.

The registry `FAMILIES` finds a function by the class name in `architectures`, or by `model_type`; it imports
first the file that is named like the first word of the class. Start with `llama.py`, the shortest, then
`gemma.py` (windows and extra norms) and `deepseek.py` (latent attention and experts). A file contains only
what its family does differently; shared code is in `llmir.frontends.layers.parts`.
Imports `llmir.base`, `llmir.ir`, `llmir.frontends.config` and `llmir.frontends.layers`.
"""
