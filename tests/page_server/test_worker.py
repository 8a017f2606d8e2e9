"""The process that makes what a server answers: what takes long in it, or breaks."""

from __future__ import annotations

import os
from pickle import PicklingError

import pytest

from llmir.page_server.guard import RejectionError
from llmir.page_server.worker import Worker


def sleeps(body: bytes) -> bytes:
    if body == b"sleep":
        import time

        time.sleep(60)
    if body == b"end":
        os._exit(1)
    if body == b"break":
        raise KeyError("x")
    return body


@pytest.mark.slow
def test_what_takes_long_is_ended_and_the_next_is_answered() -> None:
    worker = Worker(sleeps, 0.5)
    for body, status, why in (
        (b"sleep", 422, "longer than 0.5 s"),
        (b"end", 422, "ended"),
        (b"break", 500, "KeyError"),
    ):
        with pytest.raises(RejectionError, match=why) as refused:
            worker(body)
        assert refused.value.status == status
        assert worker(b"fine") == b"fine"
    worker.end()


@pytest.mark.slow
def test_a_process_that_cannot_start_is_no_other_error_the_next_time() -> None:
    worker = Worker(lambda body: body)  # which cannot be sent to a process
    for _ in range(2):
        with pytest.raises((AttributeError, PicklingError), match="pickle"):
            worker(b"fine")
    worker.end()
    worker.does = sleeps
    assert worker(b"fine") == b"fine"
    worker.end()
