"""Messages of errors in a config."""

from __future__ import annotations

import pytest

from llmir.base.errors import ConfigError


def message(error: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(error.value)
    assert text.isprintable(), "one line, without control characters"
    return text
