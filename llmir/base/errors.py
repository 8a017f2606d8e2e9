"""The exceptions of llmir, all under `LlmirError`.

A message is one line: the thing, what was given, and what is allowed. Each class has the exit code with which
the command line ends.
"""


class LlmirError(Exception):
    """Anything the user can put right; `exit_code` is what the command line ends with."""

    exit_code = 2


class ConfigError(LlmirError):
    """A model name or config that cannot be read, or that contradicts itself."""


class UnsupportedError(ConfigError):
    """A well-formed model that llmir does not model (yet)."""

    exit_code = 3


class HardwareError(LlmirError):
    """A device name or file that cannot be read, or that contradicts itself."""


class ParseError(LlmirError):
    """Text that is not IR, a pipeline, or a dimension; names the line."""


class VerifyError(LlmirError):
    """IR that breaks a rule of the IR; names the op."""


class PassError(LlmirError):
    """A pass that failed; names the pipeline so far."""


class InputError(LlmirError):
    """A number or option outside its range."""


class PluginError(LlmirError):
    """A plugin that cannot be loaded or defines what is there already; names it."""


class PluginWarning(UserWarning):
    """An installed plugin that cannot be loaded; all else works."""


class OutputError(LlmirError):
    """A file that cannot be written."""


class UnreadableError(LlmirError):
    """A text that is not what it should be, or passes a budget; whoever reads it says of which file."""
