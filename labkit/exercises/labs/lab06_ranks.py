"""Lab 06's exercises on ranks, in a module that ranks import quickly: servers, a ring, a layer divided over ranks."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from labkit.exercises.engine.on_ranks import OVERWRITTEN, PICKLING, Case, OnRanks, Saw, Script
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.values import expect_equal, numeric_array
from labkit.system.words import plural

EXERCISES: dict[int, OnRanks] = {}

BEFORE = 4_096.0  # in `total` and `buffer` before a call
LENGTHS = (12, 1_000, 10, 5, 3, 2, 1, 300_003)  # some shorter than the number of ranks, one too long to be sent eagerly

# A sum of gradients: exercises 1 and 2


def numbers(rng: np.random.Generator, below: int, shape: tuple[int, ...], parts: int) -> np.ndarray:
    """Return float32 numbers of both signs, mostly not integers: multiples of 1 / `parts`."""
    return rng.integers(-below, below, shape).astype(np.float32) / np.float32(parts)


def sums(n: int) -> Iterator[Case]:
    """Return cases of each length."""
    for length in LENGTHS:
        # 17 bits, so that sums are exact in any order in float32, but not in fewer bits.
        rows = numbers(np.random.default_rng(length), 2**16, (n, length), 2**10)
        arguments = [(row, *np.full((2, length), BEFORE, np.float32)) for row in rows]
        late = 0.05 * (length == max(LENGTHS))  # time for others to return before they have sent everything
        yield Case(f"{plural(length, 'number')} on {plural(n, 'rank')}", arguments, receive_delay_s=late)


def total_is_filled(case: Case, seen: Sequence[Saw]) -> None:
    """No number in `total` is as it was."""
    for saw in seen:
        empty = int((saw.after[1] == BEFORE).sum())
        expect(
            empty == 0,
            f"`total` to be filled on every rank; for {case.text}, rank {saw.rank} left {empty:,} of "
            f"{len(saw.after[1]):,} as they were. Write into it, as in total[:] = …",
        )


def total_is_the_sum(case: Case, seen: Sequence[Saw]) -> None:
    """`total` is the sum of all gradients, on every rank."""
    rows = np.stack([arguments[0] for arguments in case.arguments])
    right = rows.sum(axis=0)
    for saw in seen:
        sums = saw.after[1]
        wrong = sums != right
        expect(
            not wrong.any(),
            f"`total` to be the sum over all ranks for {case.text}; on rank {saw.rank}, {wrong.sum():,} of "
            f"{len(sums):,} are wrong{_why(saw.rank, sums, right, rows)}",
        )


def _why(rank: int, sums: np.ndarray, right: np.ndarray, rows: np.ndarray) -> str:
    """Return the likely cause of wrong sums, or the first one."""
    if np.array_equal(sums, rows[rank]):
        return ". It is only this rank's gradient"
    if (sums == OVERWRITTEN).any():
        return ". A rank was still sending from its arrays after it returned: wait for each Isend before that"
    wrong = sums != right
    if np.array_equal(sums[wrong] - BEFORE, right[wrong]):
        return ". The sum was added to what `total` held before, which may be anything: set it first"
    at = int(np.argmax(wrong))  # how often does the first wrong sum contain each rank's gradient?
    times = (t for t in itertools.product((1, 0, 2), repeat=len(rows)) if t @ rows[:, at] == sums[at])
    if often := next(times, None):
        terms = {0: "lacks the gradient of", 2: "counts twice the gradient of"}
        return f", the first at [{at}], which " + " and ".join(
            f"{term} {' and '.join(f'rank {other}' for other, count in enumerate(often) if count == wanted)}"
            for wanted, term in terms.items()
            if wanted in often
        )
    return f", the first at [{at}]: {sums[at]:g} instead of {right[at]:g}"


def messages_only(case: Case, seen: Sequence[Saw]) -> None:
    """Ranks use no collective operation, and send through the communicator that they get."""
    for saw in seen:
        used = sorted({name for name, _ in saw.collectives})
        expect(not used, f"only point-to-point messages; yours used {', '.join(used)}, which does the work for you")
        sends = len(seen) == 1 or bool(saw.messages)
        expect(sends, f"rank {saw.rank} to send through `ranks` (Send, Isend, Sendrecv) for {case.text}; it sent none")


def nothing_is_allocated(case: Case, seen: Sequence[Saw]) -> None:
    """With long arrays, a call allocates less than half a chunk."""
    length = len(case.arguments[0][0])
    for saw in seen:
        expect(
            length < max(LENGTHS) or saw.allocated < 2 * length / len(seen),
            f"no new arrays; rank {saw.rank} allocated {saw.allocated:,} bytes for {case.text}. Receive into `buffer`, "
            "as in buffer[:k], add with +=, and use methods with a capital letter: the others make copies",
        )


def servers_get_their_part(case: Case, seen: Sequence[Saw]) -> None:
    """A rank sends each server its part, once, and only a server sends to the others: its sum, once."""
    n, servers, length = len(seen), case.arguments[0][3], len(case.arguments[0][0])
    for saw in seen:
        rank, not_servers = saw.rank, sorted({dest for dest, _ in saw.messages if dest >= servers})
        expect(
            rank < servers or not not_servers,
            f"rank {rank}, which is not a server, to send only to servers for {case.text}; it also sent to "
            f"{' and '.join(f'rank {dest}' for dest in not_servers)}",
        )
        pushed, pulled = (servers - 1, n - 1) if rank < servers else (servers, 0)
        expect(
            len(saw.messages) <= pushed + pulled,
            f"rank {rank} to send at most {pushed + pulled} messages for {case.text}: one to each other server"
            f"{', and one to each other rank' if pulled else ''}. It sent {len(saw.messages)}",
        )
        most = 4 * (length + pulled * -(-length // servers))
        expect(
            saw.bytes_sent <= most + PICKLING * len(saw.messages),
            f"rank {rank} to send at most {most:,} bytes for {case.text}: each server gets only its part, and returns "
            f"only that. It sent {saw.bytes_sent:,.0f}",
        )


def sums_by_servers(n: int) -> Iterator[Case]:
    """Return the same cases, with 1 to n servers."""
    for case in sums(n):
        for servers in range(1, n + 1):
            text = f"{case.text}, with {plural(servers, 'server')}"
            arguments = [(*arrays, servers) for arrays in case.arguments]
            yield case._replace(text=text, arguments=arguments)
            if servers == 2 < n and len(arguments[0][0]) == LENGTHS[0]:
                # While its next push is under way, a server that has all pushes may send its sum to another one.
                text += f", where rank {n - 1} waits after each message, so a sum may overtake its push"
                yield case._replace(text=text, arguments=arguments, send_pause_s=0.2, hint=MIXED_HINT)


MIXED_HINT = (
    "Here the last rank waits after each message it sends, so another server's sum may arrive before its push. How "
    "does your server tell the two apart? By their tags: ranks.Recv(incoming, source=…, tag=PUSH)."
)
BELOW_OTHERS = "others = [rank for rank in range(n) if rank != me]"

EXERCISES[1] = OnRanks(
    "parameter_server",
    parameters=("gradient", "total", "buffer", "servers"),
    fills=("total", "buffer"),
    cases=sums_by_servers,
    invariants=(total_is_filled, total_is_the_sum, messages_only, servers_get_their_part, nothing_is_allocated),
    hints=(
        "There are two rounds. In the first, each rank has sent each server its chunk. In the second, each server "
        "sends its sum to every rank. Who receives what in each round?",
        "A server is a worker too, and two servers send to each other. So use Isend for the second round as well, and "
        "wait for all requests only when everything has been received. Give the two rounds different tags.",
        "If me < servers: a, b = parts[me]; total[a:b] = gradient[a:b]; incoming = buffer[: b - a]; then, for each of "
        "the others, ranks.Recv(incoming, source=worker, tag=PUSH) and total[a:b] += incoming; and requests += "
        "[ranks.Isend(total[a:b], dest=worker, tag=PULL) for worker in others]. Every rank then receives the other "
        "servers' parts into total, with tag PULL. At the end: MPI.Request.Waitall(requests).",
    ),
    wrong=(
        (total_is_the_sum, Script(before="            chunk += incoming\n", after="")),
        (total_is_the_sum, Script(below=BELOW_OTHERS, after="    total[:] = gradient")),
        (total_is_filled, Script(below=BELOW_OTHERS, after="    return gradient.copy()")),
        (total_is_the_sum, Script(before="    MPI.Request.Waitall(requests)\n", after="")),
        (total_is_the_sum, Script(before="chunk[:] = gradient", after="chunk += gradient")),
        (messages_only, Script(below=BELOW_OTHERS, after="    ranks.Split(0).Allreduce(gradient, total)")),
        (servers_get_their_part, Script(  # one for all
            before="bounds(len(gradient), servers)",
            after="bounds(len(gradient), 1) + [(len(gradient),) * 2] * (servers - 1)",
        )),
        (servers_get_their_part, Script(before="    MPI.Req", after="    ranks.Send(gradient[:0], 0)\n    MPI.Req")),
        (nothing_is_allocated, Script(before="chunk += incoming", after="chunk[:] = chunk + incoming")),
    ),
    right=(
        Script(before="ranks.Recv(incoming, source=worker, tag=PUSH)", after="ranks.Recv(incoming, tag=PUSH)"),
        Script(before="    requests = [\n        ranks.Isend(", after="    requests = [\n        ranks.Issend("),
    ),
)  # fmt: skip


def ranks_send_to_the_right(case: Case, seen: Sequence[Saw]) -> None:
    """Each rank sends only to its right neighbour."""
    for saw in seen:
        right, others = (saw.rank + 1) % len(seen), {dest for dest, _ in saw.messages}
        expect(
            others <= {right},
            f"each rank to send only to its right neighbour, rank {saw.rank} to rank {right}, for {case.text}; it sent "
            f"to {' and '.join(f'rank {dest}' for dest in sorted(others))}. The sum is right, but that is not the ring "
            "in the picture",
            hint="In both rounds, a rank sends to `right`, (me + 1) % n, and receives from `left`, (me - 1) % n. Which "
            "chunk arrives from the left in the first step?",
        )


def messages_are_chunks(case: Case, seen: Sequence[Saw]) -> None:
    """A rank sends 2(n - 1) messages of at most one chunk."""
    steps, chunk = 2 * (len(seen) - 1), 4 * -(-len(case.arguments[0][0]) // len(seen))
    for saw in seen:
        sizes = [size for _, size in saw.messages]
        expect(
            max(sizes, default=0) <= chunk + PICKLING,
            f"each message to contain at most one chunk, {chunk:,} bytes for {case.text}; rank {saw.rank} sent one of "
            f"{max(sizes, default=0):,}. The sum is right, but a ring sends one chunk in each of 2(n - 1) steps",
        )
        expect(
            sum(sizes) <= steps * chunk + PICKLING * len(sizes) and len(sizes) <= steps,
            f"each rank to send at most 2(n - 1) = {steps} messages of {chunk:,} bytes for {case.text}; rank "
            f"{saw.rank} sent {len(sizes)}, in all {sum(sizes):,} bytes",
        )


EXERCISES[2] = OnRanks(
    "ring_allreduce",
    parameters=("gradient", "total", "buffer"),
    fills=("total", "buffer"),
    cases=sums,
    invariants=(total_is_filled, total_is_the_sum, messages_only, ranks_send_to_the_right, messages_are_chunks,
                nothing_is_allocated),
    hints=(
        "Draw it for three ranks, as in the picture above. In step 0, rank r sends chunk r to its right neighbour and "
        "adds what arrives from the left to chunk r - 1. Which chunk does it send in the next step?",
        "In step s of the reduce-scatter, rank r sends chunk (r - s) % n and adds to chunk (r - s - 1) % n. After "
        "n - 1 steps, its chunk (r + 1) % n is complete: the all-gather starts by sending that one. All ranks send at "
        "the same time, so use ranks.Sendrecv.",
        "Reduce-scatter: out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]; incoming = "
        "buffer[: len(into)]; ranks.Sendrecv(out, dest=right, recvbuf=incoming, source=left); into += incoming. "
        "All-gather: out, into = chunks[(me + 1 - step) % n], chunks[(me - step) % n]; ranks.Sendrecv(out, dest=right, "
        "recvbuf=into, source=left).",
    ),
    wrong=(
        (total_is_filled, Script(before="    total[:] = gradient", after="    total = gradient.copy()")),
        (total_is_the_sum, Script(before="into += incoming", after="into = into + incoming")),
        (total_is_the_sum, Script(before="me + 1 - step", after="me - step")),
        (messages_only, Script(after="    ranks.Allreduce(gradient, total)")),
        (ranks_send_to_the_right, Script(before="total[:]", after="left, right, me = right, left, -me; total[:]")),
        (messages_are_chunks, Script(after="""\
    last = gradient.copy()  # everything in each step
    for step in range(n - 1):
        ranks.Sendrecv(last, dest=right, recvbuf=buffer, source=left)
        total += buffer
        last[:] = buffer""")),
        (messages_are_chunks, Script(before="range(n - 1):  # all-gather", after="range(n and 2 * n - 2):")),
        (nothing_is_allocated, Script(before="buffer[: len(into)]", after="buffer[: len(into)].copy()")),
    ),
    right=(
        Script(
            before="ranks.Sendrecv(out, dest=right, recvbuf=incoming, source=left)",
            after="request = ranks.Isend(out, right); ranks.Recv(buffer, source=left); request.Wait()",
        ),
        Script(
            before="ranks.Sendrecv(out, dest=right, recvbuf=into, source=left)",
            after="request = ranks.Irecv(into, source=left); ranks.Send(out, dest=right); request.Wait()",
        ),
    ),
)  # fmt: skip

# A layer whose neurons are divided over ranks: exercise 4

SHAPES = (  # rows per rank, inputs, neurons per rank
    (2, 3, 5),
    (1, 1, 1),
    (64, 4, 32),  # fewer bytes in the weights than in rows and outputs
    (2, 64, 48),  # far more
)


def layers(n: int) -> Iterator[Case]:
    """Return layers of several shapes, each rank with some input rows and some neurons."""
    for rows, inputs, neurons in SHAPES:
        rng = np.random.default_rng(rows)
        x = numbers(rng, 36, (n, rows, inputs), 4)
        weights, bias = numbers(rng, 36, (inputs, n * neurons), 4), numbers(rng, 36, (n, neurons), 4)
        columns = np.split(weights, n, axis=1)
        text = f"{plural(rows, 'row')} and {plural(neurons, 'neuron')} per rank, on {plural(n, 'rank')}"
        yield Case(text, [(x[rank], columns[rank].copy(), bias[rank]) for rank in range(n)])


def rows_are_the_layers(case: Case, seen: Sequence[Saw]) -> None:
    """A rank returns its rows of the undivided layer's output."""
    weights, bias = (np.concatenate([of_rank[at] for of_rank in case.arguments], axis=-1) for at in (1, 2))
    for saw in seen:
        right = case.arguments[saw.rank][0] @ weights + bias
        result = numeric_array(saw.result)
        mixed = result is not None and np.array_equal(np.sort(result, axis=None), np.sort(right, axis=None))
        label = f"the output of rank {saw.rank} for {case.text},"
        expect_equal(
            saw.result, right, label, rel=0, abs=0,
            because="its rows of the undivided layer's output"
            + "; these are the right numbers in the wrong places: the blocks are stacked" * mixed,
        )  # fmt: skip


def outputs_go_where_they_belong(case: Case, seen: Sequence[Saw]) -> None:
    """A rank sends its rows to all, and each rank's outputs to that rank only."""
    x, weights, _ = case.arguments[0]
    least = 4 * (len(seen) - 1) * (x.size + len(x) * weights.shape[1])
    for saw in seen:
        slack = PICKLING * (len(saw.messages) + len(saw.collectives) * len(seen))
        expect(
            saw.bytes_sent <= least + slack,
            f"rank {saw.rank} to send {least:,} bytes for {case.text}: its rows to all, and each rank's outputs to "
            f"that rank only. It sent {saw.bytes_sent:,.0f}",
        )


EXCHANGE = """\
    ranks.Alltoall(mine, blocks)  # block r: own rows, neurons of rank r
    return blocks.reshape(n, rows, -1).transpose(1, 0, 2).reshape(rows, -1)"""

EXERCISES[4] = OnRanks(
    "split_dense",
    parameters=("x", "weights", "bias"),
    cases=layers,
    invariants=(rows_are_the_layers, outputs_go_where_they_belong),
    hints=(
        "A neuron needs every row of the batch, and each rank has some of the neurons. So what must every rank receive "
        "before it can multiply? And who needs the results?",
        "Allgather the rows; multiply by this rank's weights and add its bias: an array (batch, own neurons). Its rows "
        "are in rank order, so Alltoall sends each rank its block of rows as it is in memory.",
        "After Alltoall there are n consecutive blocks of (own rows, neurons of rank r): "
        "blocks.reshape(n, rows, -1).transpose(1, 0, 2).reshape(rows, -1) puts them side by side.",
    ),
    wrong=(
        (rows_are_the_layers, Script(
            before="blocks.reshape(n, rows, -1).transpose(1, 0, 2).reshape(rows, -1)", after="blocks.reshape(rows, -1)"
        )),
        (rows_are_the_layers, Script(before=" + bias", after="")),
        (rows_are_the_layers, Script(before="return blocks", after="return mine  #")),
        (outputs_go_where_they_belong, Script(  # the weights moved
            before=EXCHANGE,
            after="    return x @ np.hstack(ranks.allgather(weights)) + np.hstack(ranks.allgather(bias))",
        )),
        (outputs_go_where_they_belong, Script(before=EXCHANGE, after="""\
    own = slice(ranks.rank * rows, (ranks.rank + 1) * rows)  # outputs to all
    return np.concatenate([part[own] for part in ranks.allgather(mine)], axis=1)""")),
    ),
    right=(
        Script(before=EXCHANGE, after="    return np.concatenate(ranks.alltoall(np.split(mine, n)), axis=1).tolist()"),
        Script(before=EXCHANGE.split("\n")[0], after="""\
    for root in range(n):
        ranks.Gather(mine[root * rows : (root + 1) * rows], blocks if root == ranks.rank else None, root=root)"""),
    ),
)  # fmt: skip
