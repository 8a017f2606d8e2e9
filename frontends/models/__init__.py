"""Published models by name: the config of each, its parameter count and its aliases.

Start with `presets.py` (`find`), the table of all models, and `preset.py` (`Preset`), one entry of it. Each
other file has the models of one publisher or kind, as rows of sizes with their sources. `releases.py` finds
the sizes of a tuned or quantized release by its suffix, and `hub.py` reads configs from the local cache of
Hugging Face.
Imports only `llmir.base` and `llmir.ir`.
"""
