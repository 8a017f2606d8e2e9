"""Hardware and engines: devices, clusters, calibrations and prices, as YAML files and their readers.

- `devices/`, `clusters/`: peaks, memory and links of a device, and nodes of devices
- `engines/<name>/<version>.yaml`: the behavior of an inference engine, by range of versions
- `calibrations/<device>/<engine>.yaml`: fitted kernel parameters

Start with `library.py` (`load`), which finds a device by name or path, and `device.py` (`Device`). The keys
of a file are in `schema.py`; engines are in `engine.py` and `engine_sections.py`. Imports `llmir.base` and
`llmir.ir`.
"""
