"""Fixtures, the profile of hypothesis, and the isolation of tests from settings and from each other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from llmir.base.registry import KINDS

from .commands import SETTINGS, Run, runner

BUSY = (HealthCheck.too_slow,)  # disabled: properties must also pass on a busy machine
settings.register_profile("llmir", deadline=None, suppress_health_check=BUSY, print_blob=True)
settings.load_profile("llmir")

VARIABLES = (*SETTINGS, "PATH", "HOME", "COLUMNS")


def surroundings() -> dict[str, object]:
    """State that a test could leave behind: definitions of plugins, environment variables, the folder."""
    plugins = {
        f"{kind.what} {name}": id(thing)
        for kind in KINDS.values()
        for name, thing in kind._things.items()
        if not kind._makers.get(name, ("",))[0].startswith("llmir.")
    }
    return {**plugins, **{name: os.environ.get(name) for name in VARIABLES}, "folder": os.getcwd()}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in SETTINGS:
            patch.delenv(name, raising=False)
        before = surroundings()
        yield
        after = surroundings()
        assert before == after


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a page with several set-ups."""
    import llmir

    from . import browser

    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(llmir.page(browser.MODEL, browser.AXES, **browser.START), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser without network access."""
    from . import browser

    with browser.browser() as driver:
        yield driver


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a folder that holds tiny.json."""
    return runner(capsys, tmp_path, monkeypatch)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first of each n parameter sets of a test with `mostly_slow(n)` as slow."""
    seen: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("mostly_slow"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1
