"""`make fuzz`: each reader for a while; finds are made small and kept in tests/data/finds."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from . import calls, lines, readers  # noqa: F401  (they register)
from .reader import READERS, ROOT
from .session import FINDS, Session


def _fuzz(name: str, seconds: float, seed: int) -> int:
    reader = READERS[name]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        os.chdir(folder)
        session = Session(reader, seconds, seed)
        start = time.monotonic()
        session.run()
        rate = session.tried / (time.monotonic() - start)
        share = 100 * session.results / max(1, session.tried)
        print(
            f"{name:12} {session.tried:7,} inputs, {rate:6,.0f}/s, {share:3.0f}% give a result, "
            f"{len(session.seen):3} ends, {len(session.finds)} finds",
            flush=True,
        )
        for kind, (data, outcome) in session.finds.items():
            small = session.minimized(data, kind)
            FINDS.mkdir(exist_ok=True)
            path = FINDS / f"{name}-{hashlib.sha256(small).hexdigest()[:8]}{reader.suffix}"
            path.write_bytes(small)
            print(f"  {path.relative_to(ROOT)}: {kind}: {outcome.said[:300]}", flush=True)
    if not session.tried:
        print(f"{name}: no input was tried in {seconds:g} s, ask for more --seconds", flush=True)
    return len(session.finds) or not session.tried


def main() -> int:
    """Readers side by side, as many as there are cores."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", help=f"of {', '.join(READERS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if unknown := set(asked.readers) - set(READERS):
        parser.error(f"unknown reader {', '.join(sorted(unknown))}; there are {', '.join(READERS)}")
    if len(asked.readers) == 1:
        return bool(_fuzz(asked.readers[0], asked.seconds, asked.seed))
    options = ["--seconds", str(asked.seconds), "--seed", str(asked.seed)]
    command = [sys.executable, "-m", "tests.fuzz", *options]
    with ThreadPoolExecutor(asked.jobs) as pool:
        codes = pool.map(
            lambda name: subprocess.run([*command, name], cwd=ROOT, check=False).returncode,
            asked.readers or READERS,
        )
        return max(codes)


if __name__ == "__main__":
    sys.exit(main())
