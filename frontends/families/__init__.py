"""Model families; each file has one or several functions from a `Config` to a `Decoder`.

The registry `FAMILIES` finds a function by the class name in `architectures`, or by `model_type`. It first
imports the file whose name is the first word of the class name. Start with `llama.py`, the shortest, then
`gemma.py` (windows and extra norms) and `deepseek.py` (latent attention and experts). A file contains only
the differences of its family; shared code is in `llmir.frontends.layers.parts`. Imports `llmir.base`,
`llmir.ir`, `llmir.frontends.config` and `llmir.frontends.layers`.
"""
