"""A server while there is room for all that comes: nobody is preempted, and each is read in its turn.

Then those that wait are the requests between two numbers, one prompt at most is read in part, and whoever
decodes ends when its last token is due. That is all in one loop, since calls would take as long as what they
do; what it leaves is what `Server` leaves, to the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from .course import FOREVER
from .log import row
from .server import Server

NEVER = 1 << 62  # a step that none is


def alone(server: Server) -> bool:
    """Whether all that decides how a server goes on is when requests come, and whether there is room.

    It has one rank, and prices that need the sum of contexts only. Its requests share no prefixes and wait as
    long as it takes, and nobody is told of their answers.
    """
    return (
        type(server) is Server
        and server.policy.roomy(server.capacity) is not None
        and server.capacity.ranks == 1
        and not server.capacity.state
        and server.batch is None
        and server.sharing is None
        and server.stays_s is None
        and server.answered is None
    )


def quiet(server: Server) -> bool:
    """Whether all that have come decode, and half the blocks are left when they end."""
    return not (server.waiting or server.late or server.reading) and 2 * server.demand < server.blocks.total


def calmly(server: Server, first: int, comes_s: Sequence[float]) -> int:  # noqa: PLR0912, PLR0915 (see above)
    """A server that is `alone` and `quiet` goes on with this request and those after it, while there is room.

    They come at `comes_s`, the last of which is never. The first that has not come when there is no room for
    whoever would be admitted next: from there the server goes on by itself.
    """
    course, blocks, capacity, policy = server.course, server.blocks, server.capacity, server.policy
    prompt, cached, generate, written = server.prompt, server.cached, server.generate, server.written
    final, log, running = server.final, server.log, len(server.running)
    start_s, first_s, end_s, joined_s = course.start_s, course.first_s, course.end_s, course.joined_s
    price, run = server.prices.step, server.prices.run
    held, turns, size = blocks.total - blocks.free, blocks.turns, blocks.size
    tokens, sequences = capacity.tokens, capacity.sequences
    mixes, chunked, ahead = policy.mixes, policy.chunked, policy.ahead
    now, step, decoding, kept, demand = server.now, server.step, server.decoding, server.kept, server.demand
    decoded_s, room = server.decoded_s, blocks.total - (policy.roomy(capacity) or 0)
    # Requests before `joined` are read in whole, those before `read` are admitted, those before `ready` may
    # be in the next step, and those before `come` have come.
    joined = read = begun = come = first
    part = 0  # tokens that are read of the one between, if there is one
    # A heap of numbers, the step after which a request ends · `count` + the request; the first is `due`.
    count = len(prompt)
    ends = [end * count + request for end, request in server.ends]
    due = ends[0] // count if ends else NEVER
    while True:
        ready = come
        if not (decoding or part) and read == come:
            if come == count:
                break
            now = max(now, comes_s[come])
        if comes_s[come] <= now:
            filled = ahead and (decoding or part or (comes_s[come] < now and read < ready))
            while comes_s[come] <= now:
                come += 1
            if not filled:
                ready = come
        chunks: list[tuple[int, int]] = []
        if part or read < ready:
            begun = read
            left = tokens - decoding if mixes else tokens
            if part and left:
                new = min(left, prompt[joined] - part)
                chunks.append((new, part))
                left -= new
            while read < ready and left and running < sequences:
                new = prompt[read] - cached[read]
                if new > left:
                    if not chunked:
                        break
                    new = left
                demand += final[read]
                if demand > room:
                    break
                chunks.append((new, cached[read]))
                start_s[read] = now
                left -= new
                read += 1
                running += 1
            if demand > room:
                break
        if chunks:
            decodes, sums = (decoding, kept) if mixes else (0, 0)
            seconds = float(price(decodes, (sums,), chunks))
            begin, now = now, now + seconds
            if part:
                held += -part // size
            if decodes:
                held += turns[step % size]
                decoded_s = now
                step += 1
                kept += decodes
            new, part = chunks[-1]
            part += new
            whole = read
            if part == prompt[read - 1]:
                part = 0
            else:
                whole -= 1
                held -= -part // size
            while joined < whole:
                first_s[joined] = now
                context, end = prompt[joined], generate[joined] - 1
                if end:
                    joined_s.append(now)
                end += step
                due = min(due, end)
                heappush(ends, end * count + joined)
                joined += 1
                decoding += 1
                kept += context
                held -= -context // size
                turns[(step - context) % size] += 1
            if len(chunks) > 1:
                new = sum([new for new, _ in chunks])
            log += row(begin, seconds, 1, decodes, sums, new, len(chunks), ready - read, held)
        else:
            most = 1 if ready < come else due - step
            steps, seconds = run(decoding, kept, None, most, comes_s[come] - now)
            held += turns[step % size] if steps == 1 else blocks.taken(step, steps)
            log += row(now, seconds, steps, decoding, kept, 0, 0, ready - read, held)
            now = decoded_s = now + seconds
            step += steps
            kept += steps * decoding
        while due == step:
            request = heappop(ends) % count
            context = written[request]
            end_s[request] = now
            decoding -= 1
            running -= 1
            kept -= context
            demand -= final[request]
            held += -context // size
            turns[(step - context) % size] -= 1
            due = ends[0] // count if ends else NEVER
    if demand > room:  # then nobody is admitted yet in this step
        for request in range(begun, read + 1):
            demand -= final[request]
            start_s[request] = FOREVER
        read = begun
    server.now, server.step, server.decoding, server.kept, server.demand = now, step, decoding, kept, demand
    server.decoded_s, blocks.free = decoded_s, blocks.total - held
    server.waiting.extend(range(read, ready))
    server.late.extend(range(ready, come))
    server.ends[:] = [divmod(end, count) for end in ends]
    _runs(server, first, {joined: part} if part else {})
    return come


def _runs(server: Server, first: int, reading: dict[int, int]) -> None:
    """Those that run, in the order of their admission: from the first one on that is the order of numbers."""
    decoding = {request for _, request in server.ends}
    new = sorted(request for request in decoding if request >= first and request not in server.running)
    old = [request for request in server.running if request in decoding]
    server.running.clear()
    server.running.update(dict.fromkeys([*old, *new, *reading], 0))
    server.reading.update(reading)
    server.on_ranks[0] = len(server.running)
    for request in new:
        server.last_s[request] = server.course.first_s[request]
