"""Reader of a Hugging Face config: each field is used, is known to have no effect, or is refused with its
name.

Start with `reader.py` (`Config`), whose accessors check a field and record that it was read. `source.py`
(`locate`) finds the config of a name, file, folder or mapping; `family.py` (`family`, `FAMILIES`) registers
the function that reads a class of models; `quantization.py` (`scheme`) reads `quantization_config`.
Imports `llmir.base`, `llmir.ir` and `llmir.frontends.models`.
"""
