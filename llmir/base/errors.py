"""The exceptions of llmir, all under `LlmirError`.

A message is one line: the thing, what was given, and what is allowed. Each class sets the exit code of the
command line.
"""


class LlmirError(Exception):
    """An error that the user can correct; `exit_code` is the exit code of the command line."""

    exit_code = 2


class ConfigError(LlmirError):
    """A model name or config that cannot be read, or that contradicts itself."""


class UnsupportedError(ConfigError):
    """A well-formed model that llmir does not model (yet)."""

    exit_code = 3


class HardwareError(LlmirError):
    """A device name or file that cannot be read, or that contradicts itself."""


class ParseError(LlmirError):
    """Text that is not IR, a pipeline, or a dimension; the message names the line."""


class VerifyError(LlmirError):
    """IR that breaks a rule of the IR; names the op."""


class PassError(LlmirError):
    """A failed pass; the message contains the pipeline up to it."""


class InputError(LlmirError):
    """A number or option outside its range."""


class WorkError(InputError):
    """Work that takes more time or memory than the limit."""


class PluginError(LlmirError):
    """A plugin that cannot be loaded, or that defines an existing name; the message names it."""


class PluginWarning(UserWarning):
    """An installed plugin that cannot be loaded; everything else works."""


class OutputError(LlmirError):
    """A file that cannot be written."""


class UnreadableError(LlmirError):
    """A malformed text, or one that exceeds a budget; the caller adds the file name."""
