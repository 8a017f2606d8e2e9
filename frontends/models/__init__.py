"""Published models by name: the config of each, its parameter count and its aliases.

Each model is one YAML file, and `index.yaml` lists their names. Start with `presets.py` (`find`), which reads
both. `releases.py` finds the sizes of a tuned or quantized release by its suffix, and `hub.py` reads configs
from the local cache of Hugging Face.
Imports only `llmir.base` and `llmir.ir`.
"""
