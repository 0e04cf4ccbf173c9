import inspect
import itertools
import json
import math
import re
from typing import NamedTuple

import lab_cells
import numpy as np
import pytest
from labs import Student, ThreeWays, after, same, swap
from mpi4py import MPI
from scipy.optimize import least_squares

from labkit.display.measured import Measured
from labkit.exercises import lab06
from labkit.mpi import counting
from labkit.mpi.launch import run_ranks
from labkit.system import load, statistics
from labkit.system.statistics import Ratio
from labkit.testbed.testbed import SLEEP_WHILE_WAITING
from labkit_author import sources


@pytest.fixture
def student(tmp_path, monkeypatch, request):
    """The lab up to its exercises: chunks.py from the lab. What a mistake hangs in is reported sooner than live."""
    monkeypatch.chdir(tmp_path)
    if "message" in request.fixturenames:
        monkeypatch.setattr(lab06, "CALL_LIMIT_S", 3.0)
    student = Student("06", {"np": np, "math": math})
    (tmp_path / "work").mkdir()
    write(tmp_path, "chunks")
    return student


def write(folder, script):
    """Write a script of the lab that is no exercise."""
    cells = sources.read(sources.find("06")).cells
    text = next(cell.source for cell in cells if cell.source.startswith(f"%%writefile work/{script}.py"))
    (folder / "work" / f"{script}.py").write_text(text.partition("\n")[2])


SENDRECV = "ranks.Sendrecv(out, dest=right, recvbuf=room, source=left)"
ALLTOALL = "    ranks.Alltoall(mine, blocks)  # block r: own rows, neurons of rank r\n"
SIDE_BY_SIDE = "blocks.reshape(n, rows, -1).transpose(1, 0, 2).reshape(rows, -1)"


def by(text):
    """The ring done in another way."""
    return after("    incoming = np.empty_like(chunks[0])  # the first chunk is the longest", text)


def served_by(text):
    """The parameter server done in another way."""
    return after("    others = [rank for rank in range(n) if rank != me]", text)


def by_the_world(text):
    """The ring by MPI.COMM_WORLD."""
    return text.replace("import numpy", "from mpi4py import MPI\nimport numpy").replace("ranks.S", "MPI.COMM_WORLD.S")


SEND_FIRST = swap(SENDRECV, "ranks.Send(out, dest=right); ranks.Recv(room, source=left)")
EVERYTHING = by(
    """    for step in range(n - 1):
        room = np.empty_like(total)
        ranks.Sendrecv(gradient if step == 0 else last, dest=right, recvbuf=room, source=left)
        total += room
        last = room
"""
)
ALL_TO_ALL = by(
    """    own = chunks[me]
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        room = incoming[: len(own)]
        start = sum(map(len, chunks[:to]))
        ranks.Sendrecv(gradient[start : start + len(chunks[to])], dest=to, recvbuf=room, source=source)
        own += room
    for step in range(1, n):
        ranks.Sendrecv(own, dest=(me + step) % n, recvbuf=chunks[(me - step) % n], source=(me - step) % n)
"""
)
LEFTWARDS = by(
    """    for step in range(n - 1):
        request = ranks.Isend(chunks[(me + step) % n], left)
        into = chunks[(me + step + 1) % n]
        room = incoming[: len(into)]
        ranks.Recv(room, source=right)
        request.Wait()
        into += room
    for step in range(n - 1):
        request = ranks.Irecv(chunks[(me + step) % n], source=right)
        ranks.Send(chunks[(me - 1 + step) % n], dest=left)
        request.Wait()
"""
)
WHOLE_ON_TWO = swap(
    "    for step in range(n - 1):  # reduce-scatter\n",
    """    if n == 2:
        room = np.empty_like(total)
        ranks.Sendrecv(gradient, dest=right, recvbuf=room, source=left)
        total += room
        return
    for step in range(n - 1):  # reduce-scatter
""",
)
CHAIN = served_by(
    """    if me < n - 1:
        room = np.empty_like(gradient)
        ranks.Recv(room, source=me + 1)
        total[:] = gradient + room
    else:
        total[:] = gradient
    if me:
        ranks.Send(total, dest=me - 1)
        ranks.Recv(total, source=0)
    else:
        for worker in others:
            ranks.Send(total, dest=worker)
"""
)
BY_A_WINDOW = by(
    """    from mpi4py import MPI

    window = MPI.Win.Create(total, comm=ranks)
    window.Fence()
    for rank in range(n):
        if rank != me:
            window.Accumulate(gradient, rank)
    window.Fence()
    window.Free()
"""
)
CUT_SHORT = swap("bounds(len(total), n)", "[(i * (len(total) // n), (i + 1) * (len(total) // n)) for i in range(n)]")


def right_on_rank_0_alone(text):
    """The solution, spoilt on all other ranks."""
    return text.rstrip() + "\n    if me > 0:\n        total[:] = gradient\n"


ISEND = by(
    """    for step in range(n - 1):
        request = ranks.Isend(chunks[(me - step) % n], right)
        into = chunks[(me - step - 1) % n]
        room = incoming[: len(into)]
        ranks.Recv(room, source=left)
        request.Wait()
        into += room
    for step in range(n - 1):
        request = ranks.Irecv(chunks[(me - step) % n], source=left)
        ranks.Send(chunks[(me + 1 - step) % n], dest=right)
        request.Wait()
"""
)
BYTES = by(
    """    from mpi4py import MPI

    for step in range(2 * (n - 1)):
        out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
        room = incoming[: len(into)]
        sent, received = [out, 4 * len(out), MPI.BYTE], [room, 4 * len(room), MPI.BYTE]
        ranks.Sendrecv(sent, dest=right, recvbuf=received, source=left)
        into[:] = into + room if step < n - 1 else room
"""
)
PICKLED = by(
    """    for step in range(n - 1):
        chunks[(me - step - 1) % n][:] += ranks.sendrecv(chunks[(me - step) % n], dest=right, source=left)
    for step in range(n - 1):
        request = ranks.isend(chunks[(me + 1 - step) % n], dest=right)
        chunks[(me - step) % n][:] = ranks.recv(source=left)
        request.wait()
"""
)
CART = by(
    """    ring = ranks.Create_cart([n], periods=[True])
    left, right = ring.Shift(0, 1)
    for step in range(n - 1):
        room = incoming[: len(chunks[(me - step - 1) % n])]
        ring.Sendrecv(chunks[(me - step) % n], dest=right, recvbuf=room, source=left)
        chunks[(me - step - 1) % n] += room
    for step in range(n - 1):
        ring.Sendrecv(chunks[(me + 1 - step) % n], dest=right, recvbuf=chunks[(me - step) % n], source=left)
"""
)
TO_ITSELF_TOO = served_by(
    """    requests = [ranks.isend(gradient[start:stop], server, PUSH) for server, (start, stop) in enumerate(parts)]
    if me < servers:
        mine = sum(ranks.recv(source=worker, tag=PUSH) for worker in range(n))
        requests += [ranks.isend(mine, worker, PULL) for worker in range(n)]
    for server, (start, stop) in enumerate(parts):
        total[start:stop] = ranks.recv(source=server, tag=PULL)
    MPI.Request.waitall(requests)
"""
)
FROM_ANY_SOURCE = swap("ranks.Recv(incoming, source=worker, tag=PUSH)", "ranks.Recv(incoming, tag=PUSH)")
PERSISTENT = served_by(
    """    pushes = [ranks.Send_init(gradient[a:b], dest=s, tag=PUSH) for s, (a, b) in enumerate(parts) if s != me]
    for push in pushes:
        push.Start()
    pulls = []
    if me < servers:
        start, stop = parts[me]
        incoming = np.empty(stop - start, gradient.dtype)
        total[start:stop] = gradient[start:stop]
        for worker in others:
            ranks.Recv(incoming, source=worker, tag=PUSH)
            total[start:stop] += incoming
        pulls = [ranks.Ssend_init(total[start:stop], dest=worker, tag=PULL) for worker in others]
        MPI.Prequest.Startall(pulls)
    for server, (start, stop) in enumerate(parts):
        if server != me:
            ranks.Recv(total[start:stop], source=server, tag=PULL)
    for request in [*pushes, *pulls]:
        request.Wait()
        request.Free()
"""
)
WORKERS_AND_SERVERS = served_by(
    """    for server, (start, stop) in enumerate(parts):
        if server == me:
            total[start:stop] = gradient[start:stop]
            for _ in others:
                total[start:stop] += ranks.recv(tag=PUSH)
        else:
            ranks.send(gradient[start:stop], dest=server, tag=PUSH)
    for server, (start, stop) in enumerate(parts):
        if server == me:
            for worker in others:
                ranks.Send(total[start:stop], dest=worker, tag=PULL)
        else:
            ranks.Recv(total[start:stop], source=server, tag=PULL)
""",
)
ONE_FOR_ALL = swap(
    "bounds(len(gradient), servers)", "bounds(len(gradient), 1) + [(len(gradient),) * 2] * (servers - 1)"
)
WHOLE_GRADIENTS = swap(
    "ranks.Isend(gradient[start:stop], dest=server, tag=PUSH)", "ranks.Isend(gradient, dest=server, tag=PUSH)"
)
BLOCKING = swap(
    """    requests = [
        ranks.Isend(gradient[start:stop], dest=server, tag=PUSH)
        for server, (start, stop) in enumerate(parts)
        if server != me
    ]
""",
    """    requests = []
    for server, (start, stop) in enumerate(parts):
        if server != me:
            ranks.Send(gradient[start:stop], dest=server, tag=PUSH)
""",
)
GATHERED = swap(
    ALLTOALL + f"    return {SIDE_BY_SIDE}",
    "    own = slice(ranks.rank * rows, (ranks.rank + 1) * rows)\n"
    "    return np.concatenate([part[own] for part in ranks.allgather(mine)], axis=1)",
)
PIECES = swap(
    ALLTOALL + f"    return {SIDE_BY_SIDE}",
    "    return np.concatenate(ranks.alltoall(np.split(mine, n)), axis=1)",
)
WEIGHTS_MOVED = swap(
    ALLTOALL + f"    return {SIDE_BY_SIDE}",
    "    return x @ np.hstack(ranks.allgather(weights)) + np.hstack(ranks.allgather(bias))",
)
ROWS_BY_ALL = "    ranks.Allgather(x, batch)\n"
BROADCASTS = swap(
    ROWS_BY_ALL,
    """    for root in range(n):
        rows_of = batch[root * rows : (root + 1) * rows]
        rows_of[:] = x
        ranks.Bcast(rows_of, root=root)
""",
)
BROADCASTS_OF_OBJECTS = swap(
    ROWS_BY_ALL, "    batch = np.vstack([ranks.bcast(x if root == ranks.rank else None, root) for root in range(n)])\n"
)
GATHERS = swap(
    ALLTOALL,
    """    for root in range(n):
        ranks.Gather(mine[root * rows : (root + 1) * rows], blocks if root == ranks.rank else None, root=root)
""",
)
SCATTERS = swap(
    ALLTOALL + f"    return {SIDE_BY_SIDE}",
    """    sides = []
    for root in range(n):
        sides.append(np.empty((rows, mine.shape[1]), mine.dtype))
        ranks.Scatter(mine if root == ranks.rank else None, sides[-1], root)
    return np.hstack(sides)
""",
)
BY_MESSAGES = after(
    "    n, rows = ranks.size, len(x)",
    """    me = ranks.rank
    y = np.empty((rows, n * len(bias)), np.float32)
    requests = [ranks.Isend(x, dest=other, tag=1) for other in range(n) if other != me]
    room, sent = np.empty_like(x), []
    for other in range(n):
        theirs = x
        if other != me:
            ranks.Recv(room, source=other, tag=1)
            theirs = room
        part = theirs @ weights + bias
        if other == me:
            y[:, me * len(bias) : (me + 1) * len(bias)] = part
        else:
            sent.append(part)
            requests.append(ranks.Isend(part, dest=other, tag=2))
    for other in range(n):
        if other != me:
            part = np.empty((rows, len(bias)), np.float32)
            ranks.Recv(part, source=other, tag=2)
            y[:, other * len(bias) : (other + 1) * len(bias)] = part
    for request in requests:
        request.Wait()
    return y
""",
)
OUTPUTS_TO_ALL = swap(
    ALLTOALL + f"    return {SIDE_BY_SIDE}",
    """    sides = []
    for root in range(n):
        side = mine.copy()
        ranks.Bcast(side, root=root)
        sides.append(side[ranks.rank * rows : (ranks.rank + 1) * rows])
    return np.hstack(sides)
""",
)
SHORT_CHUNKS = swap("min(chunk, left[layer])", "1")
BY_SORTING = after(
    '    """Return (layer, spent): what the card sends at the time `now`; None if nothing waits."""',
    """    order = range(len(left)) if urgent_first else sorted(range(len(left)), key=ready.__getitem__)
    for layer in order:
        if ready[layer] <= now and left[layer] > 0:
            return layer, chunk if chunk < left[layer] else left[layer]
""",
)
BY_TUPLES = after(
    '    """Return (layer, spent): what the card sends at the time `now`; None if nothing waits."""',
    """    when = [(layer if urgent_first else ready[layer], layer) for layer, rest in enumerate(left) if rest]
    when = [(key, layer) for key, layer in when if now - ready[layer] >= 0]
    return [min(when)[1], float(min(left[min(when)[1]], chunk))] if when else None
""",
)
BY_NUMPY = swap(
    "layer = min(waiting) if urgent_first else min(waiting, key=lambda layer: ready[layer])",
    "layer = waiting[0] if urgent_first else waiting[np.argmin(np.array(ready)[waiting])]",
)
BY_A_LIMIT = after(
    '    """Return (layer, spent): what the card sends at the time `now`; None if nothing waits."""',
    """    best, first = None, 100_000
    for layer in range(len(left)):
        key = layer if urgent_first else ready[layer]
        if left[layer] and ready[layer] <= now and key < first:
            best, first = layer, key
    return None if best is None else (best, min(chunk, left[best]))
""",
)
FLOAT64 = swap("gradient + residual", "gradient.astype(np.float64) + residual")
LARGEST = "np.argpartition(-np.abs(owed), first)[:k]"
TIES = swap(LARGEST, "np.flatnonzero(np.abs(owed) >= np.sort(np.abs(owed))[-k])")
LISTS = swap("return indices, values, owed", "return indices.tolist(), values.tolist(), owed.tolist()")
SORTED = swap(LARGEST, "sorted(range(len(owed)), key=lambda place: -abs(owed[place]))[:k]")
FROM_THE_END = swap(LARGEST, "np.argsort(np.abs(owed))[-k:]")
BY_SORTING_ALL = swap(LARGEST, "np.argsort(-np.abs(owed))[:k]")
TABLE = after(
    '    """Return (steps, traffic, sums) of the busiest rank, for an all-reduce on n ranks."""',
    """    others, rounds = n - 1, n.bit_length() - 1
    parts = {"server": servers, "ring": n, "halving": n}.get(way)
    steps = 2 * (rounds if way == "halving" else others)
    return [rounds] * 3 if parts is None else [steps, 2 * others / parts, others / parts]
""",
)
BY_STEPS = after(
    '    """Return (steps, traffic, sums) of the busiest rank, for an all-reduce on n ranks."""',
    """    if way == "server":
        return 2 * (n - 1), 2 * (n - 1) / servers, (n - 1) / servers
    if way == "ring":
        return 2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n
    steps = math.ceil(math.log2(n))
    if way == "doubling":
        return steps, steps, steps
    sent = sum(1 / 2**step for step in range(1, steps + 1))
    return 2 * steps, 2 * sent, sent
""",
)


WHOLE_IN_EACH_STEP = swap("steps, 2 * (n - 1) / n", 'steps, 2 * (n - 1) / n if way == "ring" else math.log2(n)')
ADDED_TWICE = swap("(n - 1) / n\n", '(n - 1) / n if way == "ring" else 2 * (n - 1) / n\n')


class TestExercises(ThreeWays):
    lab = "06"
    mistakes = [
        (1, swap("            chunk += incoming\n", ""), "sum over all ranks for 12 numbers on 2 ranks, with 1 server"),
        (1, ONE_FOR_ALL, "each server gets only its part"),
        (1, WHOLE_GRADIENTS, ". A longer message came than there was room for. Was it one of another round"),
        (1, served_by("    ranks.Allreduce(gradient, total)\n"), "yours used Allreduce"),
        (1, served_by("    total[:] = gradient\n"), "It is this rank's gradient alone"),
        (1, served_by("    return gradient.copy()\n"), "`total` to be filled on every rank"),
        (1, swap("chunk, incoming = total[start:stop]", "chunk, incoming = gradient[start:stop]"), "changed its own"),
        (1, swap("chunk += incoming\n", "chunk += incoming\n            gradient[0] = 0\n"), "changed its own"),
        (1, swap("tag=PULL) for worker in others", "tag=PULL) for worker in others[:-1]"), 'after 3 s it is still'),
        (1, BLOCKING, '"ranks.Send(gradient[start:stop], dest=server, tag=PUSH)". Is the rank that'),
        (1, swap("parameter_server(", "server("), "no function parameter_server"),
        (1, swap("ranks.Recv", "MPI.COMM_WORLD.Recv"), "MPI.COMM_WORLD.Recv is used"),
        (1, swap("ranks.size, ranks.rank", "ranks.size, MPI.COMM_WORLD.rank"), "in another order: use ranks.rank"),
        (1, swap("    MPI.Request.Waitall(requests)\n", ""), "wait for each Isend before that"),
        (1, served_by("    ranks.Split(0).Allreduce(gradient, total)\n"), "yours used Allreduce"),
        (1, swap("np.empty(stop - start, gradient.dtype)", "np.empty(stop - start)"), "an array of float64 is sent or"),
        (1, swap("gradient.dtype)", "int)"), "an array of int64 is sent or received into"),
        (1, swap("+= incoming", "+= incoming.astype(np.float16)"), "sum over all ranks for 12 numbers on 2 ranks"),
        (1, swap("chunk[:] = gradient", "chunk += gradient"), "added to what `total` held before"),
        (1, CHAIN, "which is no server, to send to servers alone for 12 numbers on 3 ranks, with 1 server; it sent to"),
        (1, swap("n, me =", "servers = 1\n    n, me ="), "with 3 servers: each server gets only its part"),
        (1, swap("Recv(incoming, source=worker, tag=PUSH)", "Recv(incoming)"), "where rank 2 waits after each message"),
        (2, SEND_FIRST, ': "ranks.Send(out, dest=right); '),
        (2, swap("np.empty_like(chunks[0])", "np.empty(len(chunks[0]))"), "an array of float64 is sent or"),
        (2, swap("into += room", "into += room.astype(int)"), "sum over all ranks for 12 numbers"),
        (2, BY_A_WINDOW, "to send messages through `ranks`"),
        (2, CUT_SHORT, "sum over all ranks for 5 numbers on 2 ranks; on rank 0, 1 of 5 are wrong"),
        (2, swap("into += room", "into = into + room"), "sum over all ranks for 12 numbers"),
        (2, swap("(me + 1 - step) % n], chunks[(me - step)", "(me - step) % n], chunks[(me - step - 1)"), "the sum"),
        (2, swap("room = incoming[: len(into)]", "room = incoming"), "That was on rank 0, for 5 numbers on 2 ranks."),
        (2, swap("total[:] = gradient\n", "total = gradient\n"), "`gradient` to stay as it was"),
        (2, by_the_world, "COMM_WORLD.Sendrecv is used"),
        (2, EVERYTHING, "one chunk in each of 2(n - 1) steps"),
        (2, WHOLE_ON_TWO, "2,000 bytes for 1,000 numbers on 2 ranks; rank 0 sent one of 4,000"),
        (2, swap("range(n - 1):  # allgather", "range(n):  # allgather"), "A rank sent to itself from the very place"),
        (2, LEFTWARDS, "neighbour alone, rank 0 to rank 1, for 12 numbers on 3 ranks; it sent to rank 2"),
        (2, ALL_TO_ALL, "that is not a ring"),
        (2, by("    ranks.Allreduce(gradient, total)\n"), "yours used Allreduce"),
        (2, by("    if me == 1:\n        raise ValueError('oh')\n    ranks.Barrier()\n"), "ValueError: oh"),
        (2, by("    ranks.Reduce(gradient, total)\n"), "yours used Reduce"),
        (2, right_on_rank_0_alone, "on rank 1, 12 of 12 are wrong. It is this rank's gradient alone"),
        (2, by("    for step in range(n - 1)\n"), "SyntaxError: expected ':'"),
        (2, by("    raise SystemExit(0)\n"), "Your script called exit(), in line"),
        (2, by("    while True:\n        pass\n"), 'it is still in line'),
        (3, swap("(math.log2(n),)", "({2**i: i for i in range(11)}[n],)"), "KeyError: 3"),
        (3, swap("(math.log2(n),)", "(math.sqrt(n - 1),)"), 'steps of cost("doubling", 4) to be 2; it is 1.732'),
        (3, swap("2 * (n - 1) / servers", "2 * (n - 1)"), 'traffic of cost("server", 8, 4) to be 3.5; it is 14'),
        (3, swap("steps = 2 * (n - 1)", "steps = n - 1"), 'steps of cost("ring", 2) to be 2; it is 1'),
        (3, swap("(n - 1) / n\n", "1\n"), 'sums of cost("ring", 2) to be 0.5; it is 1'),
        (3, swap("(math.log2(n),)", "(n,)"), 'steps of cost("doubling", 2) to be 1; it is 2'),
        (3, swap("return (math.log2(n),) * 3", "pass"), 'steps of cost("doubling", 2) to be 1; it is 2'),
        (3, swap("    return steps, 2 * (n - 1) / n, (n - 1) / n\n", ""), "(steps, traffic, sums); it is None"),
        (3, swap("return (math.log2(n),) * 3", "return [math.nan] * 3"), "to be 1; it is nan"),
        (3, swap("return (math.log2(n),) * 3", "return True, True, True"), "a number; it is True"),
        (3, swap("2 * (n - 1) / n,", "2 - 2 / n if n % 2 == 0 else 2,"), 'traffic of cost("ring", 3) to be 1.333'),
        (3, swap("(n - 1) / servers\n", "(n - 1) / min(servers, 100)\n"), 'sums of cost("server", '),
        (3, swap('if way == "server"', "if servers > n / 0"), "ZeroDivisionError"),
        (3, swap("else 2 * math.log2(n)", "else math.log2(n)"), 'steps of cost("halving", 2) to be 2; it is 1'),
        (3, swap("else 2 * math.log2(n)", "else math.log2(n)"), "Hint 2 of 3: The ring adds"),
        (3, WHOLE_IN_EACH_STEP, 'traffic of cost("halving", 4) to be 1.5; it is 2'),
        (3, ADDED_TWICE, 'sums of cost("halving", 2) to be 0.5; it is 1'),
        (4, swap(SIDE_BY_SIDE, "blocks.reshape(rows, -1)"), "in the wrong places"),
        (4, swap(" + bias", ""), "numbers differ."),
        (4, swap(f"return {SIDE_BY_SIDE}", SIDE_BY_SIDE), "it is None: does it return?"),
        (4, swap(f"return {SIDE_BY_SIDE}", f"return np.nan * {SIDE_BY_SIDE}"), "numbers differ"),
        (4, swap(f"return {SIDE_BY_SIDE}", "return mine"), "it is of the shape"),
        (4, swap(f"return {SIDE_BY_SIDE}", f"return {SIDE_BY_SIDE}.tolist()"), "it is a list"),
        (4, swap(f"return {SIDE_BY_SIDE}", f"x *= 0\n    return {SIDE_BY_SIDE}"), "to stay as they were"),
        (4, WEIGHTS_MOVED, "2 rows and 48 neurons a rank, on 2 ranks: its rows to all"),
        (4, swap("batch @ weights", "(batch @ weights).astype(np.float16)"), "numbers differ"),
        (4, swap("x.shape[1]), x.dtype)", "x.shape[1]))"), "an array of float64 is sent"),
        (4, OUTPUTS_TO_ALL, "each rank's outputs to that rank alone"),
        (4, GATHERED, "each rank's outputs to that rank alone"),
        (5, swap(" and ready[layer] <= now", ""), "to be None, as nothing is waiting; it is a tuple"),
        (5, swap("if left[layer] and ready[layer] <= now", "if ready[layer] <= now"), "a layer that is not yet sent"),
        (5, swap("<= now", "< now"), "as layer 2 is ready and not yet sent; it is None"),
        (5, swap("    if not waiting:\n        return None\n", ""), "ValueError"),
        (5, swap("min(waiting) if urgent_first", "min(waiting) if not urgent_first"), "to name layer 2: of those"),
        (5, swap("min(waiting) if urgent_first else ", ""), "to name layer 1: of those waiting, the forward"),
        (5, swap("min(waiting) if urgent_first", "max(waiting) if urgent_first"), "the forward pass needs it first"),
        (5, swap("else min(waiting, key=lambda layer: ready[layer])", "else min(waiting)"), "it was ready first"),
        (5, swap("min(waiting, key=lambda layer: ready[layer])", "max(waiting)"), "it was ready first"),
        (5, BY_A_LIMIT, "ready and not yet sent; it is None"),
        (5, SHORT_CHUNKS, "to send a whole chunk, which takes 2"),
        (5, swap("return layer, min", "return layer + 0.0, min"), "to be an int; it is 2.0, a float"),
        (5, swap("if not waiting", "if not sum(left)"), "ValueError"),
        (5, swap("min(chunk, left[layer])", "left[layer]"), "to send at most a chunk, which takes 2"),
        (5, swap("min(chunk, left[layer])", "chunk"), "to send at most what is left of layer 1"),
        (5, swap("min(chunk, left[layer])", "0"), "to send something"),
        (5, swap("return layer, min(chunk, left[layer])", "return layer"), "to be (layer, spent); it is 2"),
        (5, swap("return layer, min(chunk, left[layer])", "return layer + 1, 1"), "a layer from 0 to 2"),
        (5, swap("return layer, min(chunk, left[layer])", "return layer, 0.5"), "to be a whole number"),
        (5, swap("return layer, min(", "left[layer] -= 1; return layer, min("), "left to stay as it was"),
        (5, swap("    return layer, min(chunk, left[layer])", "    pass"), "Does the function come to a `return`"),
        (6, swap("owed = gradient + residual", "owed = gradient.copy()"), "never sent"),
        (6, swap("owed = gradient + residual", "owed = gradient; owed += residual"), "gradient to stay"),
        (6, swap("    owed[indices] = 0\n", ""), "nothing may be lost, nor sent twice"),
        (6, swap("-np.abs(owed)", "-owed"), "largest in magnitude"),
        (6, swap("values = owed[indices]", "values = np.abs(owed[indices])"), "with their signs"),
        (6, swap("-np.abs(owed)", "np.abs(owed)"), "largest in magnitude"),
        (6, swap("[:k]\n", "\n"), "2 numbers to be sent for 5 numbers on 2 ranks with 16 bytes"),
        (6, swap("8 * (n - 1)", "4 * (n - 1)"), "you send 4, which takes 32 bytes to 1 other"),
        (6, swap("8 * (n - 1)", "8"), "you send 5, which takes 80 bytes to 2 others"),
        (6, swap("8 * (n - 1)", "8 * n"), "2 numbers to be sent for 5 numbers on 2 ranks with 16 bytes"),
        (6, FROM_THE_END, "0 numbers to be sent for 6 numbers on 2 ranks with 7 bytes"),
        (6, swap(" if pair else len(owed)", ""), "ZeroDivisionError"),
        (6, swap("if pair else len(owed)", "if pair else 0"), "3 numbers to be sent for 3 numbers on 1 rank"),
        (6, TIES, "0 numbers to be sent for 6 numbers"),
        (6, FLOAT64, "values of type float32, as the gradient's, for 5 numbers"),
        (6, swap("indices, values, owed", "indices, values, owed.astype(np.float64)"), "residual of type float32"),
        (6, swap("indices, values, owed", "indices, values, owed.round(6)"), "the new residual for 50 numbers"),
        (6, swap("return indices,", "return np.isin(np.arange(len(owed)), indices),"), "a boolean mask of shape"),
        (6, swap("return indices,", "return indices.astype(float),"), "different whole numbers as indices"),
        (6, swap("return indices, values, owed", "return values"), "three arrays"),
        (6, swap("return indices, values, owed", "pass"), "it is None: does it return?"),
        (6, swap("return indices, values, owed", "return indices, values * np.nan, owed"), "with their signs"),
        (6, swap("return indices, values, owed", "return indices + 5, values, owed"), "indices from 0 to 4"),
        (6, swap("return indices, values, owed", "return None, None, None"), "an array of numbers as indices"),
        (6, swap("gradient + residual", "gradient + left"), "NameError"),
        (6, swap("gradient + residual", "cost('ring', 4)"), "top_k moves into a module"),
    ]  # fmt: skip
    right = [
        (1, same),
        (1, WORKERS_AND_SERVERS),
        (1, TO_ITSELF_TOO),
        (1, FROM_ANY_SOURCE),
        (1, PERSISTENT),
        (2, same),
        (2, ISEND),
        (2, BYTES),
        (2, PICKLED),
        (2, CART),
        (3, same),
        (3, TABLE),
        (3, swap("return (math.log2(n),) * 3", "return np.full(3, np.log2(n))")),
        (3, BY_STEPS),
        (3, swap("(math.log2(n),)", "(0 if n == 1 else 1 + cost(way, n // 2)[0],)")),
        (4, same),
        (4, PIECES),
        (4, BROADCASTS),
        (4, BROADCASTS_OF_OBJECTS),
        (4, GATHERS),
        (4, SCATTERS),
        (4, BY_MESSAGES),
        (5, same),
        (5, BY_SORTING),
        (5, BY_TUPLES),
        (5, BY_NUMPY),
        (5, swap("return layer, min(chunk, left[layer])", "return np.array([layer, min(chunk, left[layer])])")),
        (6, same),
        (6, SORTED),
        (6, LISTS),
        (6, BY_SORTING_ALL),
        (6, swap("min(len(owed), budget // pair)", "budget // pair")),
    ]


def test_bytes_and_messages_are_those_of_theory(student, tmp_path):
    """For the solutions, as the lab counts them."""
    write(tmp_path, "count")
    servers, ring = (student.answer(number, same) for number in (1, 2))
    assert (servers, ring) == ("work/servers.py", "work/ring.py")
    lines = run_ranks(4, "work/count.py", "servers", "ring", threads=1, env=SLEEP_WHILE_WAITING, show=False).lines[0]
    told = [[part.strip() for part in line.replace("in theory", "theory").split("|")] for line in lines]
    for (way, *counted), (same_way, *theory) in zip(told[::2], told[1::2], strict=True):
        assert way.split()[:-1] == same_way.split()[:-1]
        assert (way.split()[-1], same_way.split()[-1]) == ("counted", "theory")
        assert counted == theory, way
    assert len(told) == 2 * (3 + 3 + 4)


def test_every_rank_ends_the_training_with_equal_weights(student, tmp_path):
    """With a top_k that gives lists too. And what it says it sent is what theory says, as FP16 half of float32."""
    for script in ("averages", "network", "compress"):
        write(tmp_path, script)
    writing = next(
        cell.source
        for cell in sources.read(sources.find("06")).cells
        if "top_k)" in cell.source and "write_text" in cell.source
    )
    top_k = student.answer(6, LISTS)
    exec(writing, {"inspect": inspect, "work": tmp_path / "work", "top_k": top_k})
    assert (
        tmp_path / "work" / "topk.py"
    ).read_text() == f"{student.check.lab.checks[6].imports}\n\n\n{inspect.getsource(top_k)}"
    run = run_ranks(2, "work/compress.py", "out.json", 256, 1, threads=1, show=False)
    assert [line.rpartition(" ")[2] for line in run.lines[0]] == ["0.0"] * 6
    sent = {way: told["megabytes"][-1] for way, told in json.loads((tmp_path / "out.json").read_text()).items()}
    weights = 784 * 64 + 64 + 64 * 10 + 10
    assert sent["float32"] == pytest.approx(4 * 4 * weights / 1e6)  # 256 digits in batches of 64: 4 steps
    assert sent["FP16"] == pytest.approx(sent["float32"] / 2)
    assert sent["1/50"] == sent["1/50, error feedback"] == pytest.approx(4 * 8 * (weights // 100) / 1e6)


@pytest.mark.parametrize(
    ("usual", "kept", "faults", "verdict"),
    [
        (Ratio(1.9, 1.8, 2.0), Ratio(1.0, 0.9, 1.1), (8193, 0), "saves MPI_Allreduce 8,193 page faults, and it gains"),
        (Ratio(0.9, 0.8, 1.0), Ratio(0.5, 0.4, 0.6), (16, 0), "saves MPI_Allreduce 16 page faults, and it gains"),
        (Ratio(0.5, 0.4, 0.6), Ratio(0.9, 0.8, 1.0), (8193, 0), "but your ring gains more by it"),
        (Ratio(1.9, 1.0, 3.0), Ratio(1.0, 0.9, 1.1), (8193, 17), "no change of the ratio is seen beyond chance"),
        (Ratio(1.9), Ratio(1.0), (8193, 0), "no change of the ratio is seen beyond chance"),
        (Ratio(1.9, 1.8, 2.0), Ratio(1.0, 0.9, 1.1), (8193, 8193), "doesn't explain the ratio"),
        (Ratio(1.9, 1.8, 2.0), Ratio(1.0, 0.9, 1.1), (0, 0), "doesn't explain the ratio"),
    ],
)
def test_what_fresh_memory_costs_is_said_from_the_intervals(usual, kept, faults, verdict):
    tell = lab_cells.functions("06", "tell_memory")["tell_memory"]
    assert verdict in tell(usual, kept, *faults)


def test_a_ring_is_compared_by_the_rounds_of_both():
    compare = lab_cells.functions("06", "compare", np=np, ratio=statistics.ratio)["compare"]
    rounds = {"MPI_Allreduce": [2.0, 2.1, 1.9], "ring": [1.0, 1.0, 1.0], "1 server": [3.0, 3.1, 2.9]}
    one = compare({way: {8: spent} for way, spent in rounds.items()}, 8)
    assert one.verdict == "faster"
    assert one.value == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("way", ["started", "tested"])
@pytest.mark.parametrize(
    ("after", "overlapped", "verdict"),
    [
        ([50.0, 51.0, 49.0], [42.0, 43.0, 41.0], "as after (50 ms): faster; 80% of the sending is hidden"),
        ([50.0, 51.0, 49.0], [30.0, 31.0, 29.0], "as after (50 ms): faster; 100% of the sending is hidden"),
        ([50.0, 51.0, 49.0], [54.0, 55.0, 53.0], "as after (50 ms): slower; no sending is seen to be hidden"),
        ([50.0, 51.0, 49.0], [49.0, 52.0, 48.0], "either way; no sending is seen to be hidden"),
        ([50.0], [42.0], "one round only, so there is no interval; no sending is seen to be hidden"),
        ([40.0, 40.0, 40.0], [30.0, 30.0, 30.0], "faster, but its share can't be told"),
    ],
)
def test_what_is_hidden_is_said_from_the_interval(after, overlapped, verdict, way):
    given = {"np": np, "ratios": statistics.ratios, "interval": statistics.interval}
    tell = lab_cells.functions("06", "tell_overlap", "over_rounds", **given)["tell_overlap"]
    milliseconds = {"compute": [40.0] * len(after), "after": after, way: overlapped}
    seconds = {one: [spent / 1e3 for spent in rounds] for one, rounds in milliseconds.items()}
    said = tell(seconds, way)
    assert said.startswith(way)
    assert verdict in said
    if "% of the sending" in said:
        assert tell(seconds, way, plain=49.0) == said
        assert tell(seconds, way, plain=20.0).endswith("faster; but without the thread, after takes 20 ms")


@pytest.mark.parametrize(
    ("usual", "changed", "verdict"),
    [
        (Ratio(1.6, 1.5, 1.7), Ratio(1.0, 0.9, 1.1), "MPI_Allreduce gains on your ring"),
        (Ratio(1.0, 0.9, 1.1), Ratio(2.0, 1.9, 2.1), "MPI_Allreduce falls back"),
        (Ratio(1.6, 1.0, 2.2), Ratio(1.2, 0.9, 1.5), "no change of the ratio is seen beyond chance"),
        (Ratio(1.6), Ratio(1.0), "one round only, so nothing can be said"),
    ],
)
def test_what_a_setting_does_is_said_from_the_intervals(usual, changed, verdict):
    tell = lab_cells.functions("06", "tell_setting", math=math)["tell_setting"]
    assert verdict in tell(usual, changed)


@pytest.mark.parametrize(
    ("one", "again", "verdict"),
    [
        (Ratio(1.2, 1.1, 1.3), (40, 2), "the ring is faster; a call of n servers sends 40 segments again"),
        (Ratio(1.2, 1.1, 1.3), (40, 2), "one of the ring 2: incast is a likely reason"),
        (Ratio(1.2, 1.1, 1.3), (2, 2), "incast as loss doesn't explain it"),
        (Ratio(1.2, 0.9, 1.6), (40, 2), "the ring is not seen to be faster"),
        (Ratio(0.8, 0.7, 0.9), (40, 2), "the ring is not seen to be faster"),
        (Ratio(1.2), (40, 2), "the ring is not seen to be faster"),
    ],
)
def test_incast_is_named_where_time_and_segments_say_so(one, again, verdict):
    tell = lab_cells.functions("06", "tell_incast")["tell_incast"]
    assert verdict in tell(one, *again)


@pytest.mark.parametrize("n", [4, 8, 64, 1024])
def test_an_uplink_costs_halving_more_than_the_ring(n):
    through = lab_cells.functions("06", "through_uplink")["through_uplink"]
    ring, last, first = (through(way, n) for way in ("ring", "halving, far partner last", "halving, far partner first"))
    assert ring == pytest.approx(2 * (n - 1) / n)
    # Step by step: partners of a rack exchange halves and so on, each on its own link; one step is through the uplink.
    halves = [1 / 2**step for step in range(1, n.bit_length())]
    assert last == pytest.approx(2 * (sum(halves[:-1]) + n / 2 * halves[-1]))
    assert first == pytest.approx(2 * (sum(halves[1:]) + n / 2 * halves[0]))
    assert ring < last <= first


@pytest.mark.parametrize(
    ("off", "verdict"),
    [
        ([0.1, -0.12, 0.5], "off by 12% in the median, close; worst +50% (ring, 3 ranks, 2 bytes)"),
        ([0.3, -0.4, -0.2], "off by 30% in the median, rough; worst -40% (ring, 3 ranks, 1 bytes)"),
        ([-0.9, 1.0, 2.0], "off by 100% in the median, of little use; worst +200%"),
    ],
)
def test_the_models_error_is_put_in_words(off, verdict):
    tell = lab_cells.functions("06", "tell_model", np=np)["tell_model"]
    assert verdict in tell("wires", {("ring", 3, n_bytes): error for n_bytes, error in enumerate(off)})


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([-0.5, -0.6, -0.55], "takes 2.2 times as long as the model's best"),
        ([-0.5, -0.6, -0.55], "doubling and halving: something else is in its time"),
        ([0.1, -0.1, 0.0], "takes 1.0 times as long as the model's best"),
        ([1.0, 1.0, 1.0], "takes 0.5 times as long as the model's best"),
    ],
)
def test_the_model_tells_when_mpi_does_something_else(errors, verdict):
    tell = lab_cells.functions("06", "tell_library", np=np)["tell_library"]
    assert verdict in tell(3, dict(enumerate(errors)))


@pytest.mark.parametrize(
    ("sparse", "verdict"),
    [
        ([10.0, 10.1, 9.9], "times as fast: faster"),
        ([100.0, 101.0, 99.0], "no difference beyond chance"),
        ([200.0, 202.0, 198.0], "slower"),
        ([10.0], " 10.0 ms, 10.00 times as fast: one round only, so there is no interval"),
    ],
)
def test_what_compression_saves_is_said_from_the_interval(sparse, verdict):
    given = {"np": np, "ratios": statistics.ratios, "interval": statistics.interval, "Measured": Measured}
    tell = lab_cells.functions("06", "tell_compression", "milliseconds", "over_rounds", **given)["tell_compression"]
    full = [100.0, 99.0, 101.0][: len(sparse)]
    milliseconds = {"float32": full, "FP16": [spent / 2 for spent in full], "top 1%": sparse}
    said = tell({way: [spent / 1e3 for spent in rounds] for way, rounds in milliseconds.items()})
    assert said.startswith("float32 100.0 ms")
    assert re.search(r"FP16 50\.0 ms( \(.+?\))?, 2\.00", said)
    assert verdict in said.partition("top 1%")[2]


MODEL = ("message", "fit", "seconds_of", "predict", "fit_wires", "errors_of")


class Machine(NamedTuple):
    """As the lab's own, which is a class and not a function."""

    latency: float
    bandwidth: float
    adding: float


def model():
    """The lab's model, with the costs of exercise 3."""
    cost = lab_cells.functions("06", "cost", math=math)["cost"]
    given = {"np": np, "math": math, "least_squares": least_squares, "cost": cost, "Machine": Machine}
    given["LIBRARY"] = ("doubling", "halving", "ring")
    return lab_cells.functions("06", *MODEL, **given)


@pytest.mark.parametrize(("latency", "bandwidth"), [(1e-4, 11.5e6), (2e-5, 118e6), (2e-6, 1.2e9)])
def test_the_fit_finds_the_wires_that_made_the_times_and_predicts_others(latency, bandwidth):
    lab, wires = model(), Machine(latency, bandwidth, 5e9)
    ways = ("ring", "1 server", "n servers")

    def times(nodes, sizes):
        return {(way, n, s): lab["predict"](way, n, s, wires) for way in ways for n in nodes for s in sizes}

    found = lab["fit_wires"](times((2, 4), (1_000, 30_000, 300_000, 4_000_000)), 5e9)
    assert found == pytest.approx(wires, rel=1e-3)
    assert all(abs(error) < 1e-2 for error in lab["errors_of"](times((3,), (10_000, 1_000_000)), found).values())


def test_of_the_ways_of_section_5_each_has_its_own_cost():
    predict, wires = model()["predict"], Machine(0.0, 1e6, math.inf)
    seconds = {way: predict(way, 4, 1e6, wires) for way in ("1 server", "n servers", "ring", "MPI_Allreduce")}
    assert seconds == pytest.approx({"1 server": 6, "n servers": 1.5, "ring": 1.5, "MPI_Allreduce": 1.5})


@pytest.mark.parametrize(
    ("way", "milliseconds", "megabytes"),
    [("1 server", 1_920, 12), ("n servers", 480, 6), ("ring", 480, 6), ("MPI_Allreduce", 480, 6)],
)
def test_what_the_wires_allow(way, milliseconds, megabytes):
    given = {"GRADIENT": 4_000_000, "RATES": {"100 Mbit/s": 1e8}}
    in_theory = lab_cells.functions("06", "in_theory", **given)["in_theory"]
    assert in_theory(way, 4, "100 Mbit/s") == pytest.approx((milliseconds / 1e3, megabytes * 1e6))


def test_where_no_network_can_be_made_the_cells_say_so_and_go_on(tmp_path, capsys):
    """Every cell that needs wires, without them: nothing is measured on nodes, and the reason is told."""
    cells = [cell.source for cell in sources.read(sources.find("06")).cells if cell.cell_type == "code"]
    sizes = next(cell for cell in cells if "GRADIENT = " in cell)
    wires = next(cell for cell in cells if "obstacle()" in cell and "import" not in cell)
    given = {"QUICK": False, "obstacle": lambda: "the kernel allows none."}
    exec(f"{sizes}\n{wires}", given)
    assert given["no_wires"] in capsys.readouterr().out

    def run_ranks(*args, **kwargs):
        raise AssertionError("nodes without a network")

    given |= {
        "run_ranks": run_ranks,
        "Testbed": run_ranks,
        "compare": run_ranks,
        "itertools": itertools,
        "load": load,
        "math": math,
        "np": np,
        "ratios": statistics.ratios,
        "work": tmp_path,
    }
    for wanted in ("wired = {}", "def in_theory(way", "def tell_incast", "ALGORITHMS = {", "def tell_setting"):
        exec(next(cell for cell in cells if wanted in cell), given)
    assert given["wired"] == given["chosen"] == {}
    assert capsys.readouterr().out.count("Not here: the kernel allows none.") == 3


@pytest.mark.parametrize(
    ("message", "pickled", "size"),
    [
        (np.zeros(6, np.float32), False, 24),
        ([np.zeros(6, np.float32), 4, None], False, 16),
        ([np.zeros(6, np.float32), [1, 3]], False, 16),
        ([np.zeros(6, np.float32), ([1, 3], [0, 1]), MPI.FLOAT], False, 16),
        ([np.zeros(6, np.float32), MPI.FLOAT], False, 24),
        ([np.zeros(6, np.float32), 24, MPI.BYTE], False, 24),
        ([np.zeros(6, np.float32), [8, 4], [0, 8], MPI.BYTE], False, 12),
        ([np.zeros(24, np.uint8), 6, MPI.FLOAT], False, 24),
        ([np.zeros(6, np.float32), 24, "B"], False, 24),
        ([np.zeros((2, 3), np.float64), None], False, 48),
        (np.zeros(0), False, 0),
        (None, False, 0),
    ],
)
def test_messages_are_counted_by_their_bytes(message, pickled, size):
    assert counting._size(message, pickled) == size


def test_what_a_counting_communicator_makes_counts_too():
    alone = counting.CountingComm(MPI.COMM_SELF)
    for made in (alone.Dup(), alone.Split(0), alone.Create(alone.group), alone.Create_cart([1])):
        counting.CountingComm.reset()
        made.Allreduce(np.zeros(2), np.zeros(2))
        made.sendrecv("to myself", dest=0, source=0)
        assert [name for name, _ in counting.CountingComm.collectives] == ["Allreduce"]
        assert counting.CountingComm.messages == []


def test_a_persistent_collective_counts_where_it_is_made():
    counting.CountingComm.reset()
    counting.CountingComm(MPI.COMM_SELF).Allreduce_init(np.zeros(2), np.zeros(2)).Free()
    assert [name for name, _ in counting.CountingComm.collectives] == ["Allreduce_init"]
