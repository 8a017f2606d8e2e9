"""From a model's `config.json` to a program: the first stage of the compiler.

- `models/`: bundled configs by name;  `config/`: a reader in which every field is used or refused
- `layers/`: attention, MLPs, experts and norms as data that build ops
- `families/`: one file per model family;  `checkpoints/`: names and sizes of stored tensors

Start with `load.py` (`load`), then read `families/llama.py` and `layers/decoder.py` (`Decoder`). Imports
`llmir.base` and `llmir.ir` only. Each of models, config, layers, families, checkpoints and the files of this
folder imports only earlier ones.
"""
