"""Beam search of a priced workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmir.base import arguments

if TYPE_CHECKING:
    from llmir.backends.request.workload import Workload


def beam_search(job: Workload, beams: int) -> Workload:
    """A workload whose requests decode so many sequences each, after one prompt, and give the best.

    Steps have `batch`·`beams` rows, of which each has 2·`beams` candidates. Caches in place share the whole
    blocks of a prompt; those that grow by copies, of transformers, are each sequence's own, and are copied
    where beams change places. With 1 it is the job itself. InputError for what cannot be.

    >>> import llmir
    >>> program = llmir.run(llmir.load("llama3.1-8b"), llmir.DEFAULT_PIPELINE)
    >>> job = llmir.workload(program, "h100-sxm", batch=8, prompt=1000, generate=100, cost="ideal")
    >>> four = beam_search(job, 4)
    >>> four.rows, four.cache_bytes == 8 * (1000 + 4 * 99) * program.cache_bytes(1)
    (32, True)
    """
    from llmir.backends.request.beams import check, searched
    from llmir.backends.request.workload import Workload
    from llmir.ir.ops.beam_search import MOST
    from llmir.passes.beam_search import BeamSearch, copied

    if not isinstance(job, Workload):
        arguments.refuse("job", job, "a Workload")
    count = arguments.integer("beams", beams, 1, MOST)
    if count == 1:
        return job
    check(job)
    return searched(job, BeamSearch(count)(job.program), count, count if copied(job.program) else 1)
