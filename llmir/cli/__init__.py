"""The command line: one file per command, each named like its command.

Start with `main.py` (`main`, the entry point) and `analyze.py`, a typical command. A command parses its
options, calls a function of `llmir.api`, and prints the result.

- `command.py`: the decorator `command`, exit codes and the progress line
- `options.py`, `inputs.py`: shared options, and the programs and devices that they describe
- `output.py`: results on stdout or in a file

May import every package. A command's module is imported only when that command runs.
"""
