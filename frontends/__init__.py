"""From a model's `config.json` to a program: the first stage of the compiler.

- `models/`: bundled configs by name;  `config/`: a reader that uses or refuses every field
- `layers/`: attention, MLPs, experts and norms as data that build ops
- `families/`: one file per model family;  `checkpoints/`: names and sizes of stored tensors

Start with `load.py` (`load`), then read `families/llama.py` and `layers/decoder.py` (`Decoder`). Imports
`llmir.base` and `llmir.ir` only. Of the folders models, config, layers, families and checkpoints and the
files of this folder, each imports only earlier ones.
"""
