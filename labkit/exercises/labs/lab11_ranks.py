"""Lab 11's exercises on ranks: backward passes that send while they compute, in a module that ranks import quickly."""

from collections.abc import Iterator, Sequence

import numpy as np

from labkit.exercises.engine.on_ranks import Case, OnRanks, Saw, Script
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.ranks.lanes import Layer, Notes, Sender
from labkit.system.words import plural

EXERCISES: dict[int, OnRanks] = {}

SHAPE = 6, 10  # of a layer's weights, of which any number of ranks up to 4 can have equal shards
MAX_WHOLE = 2  # layers whose whole weights, or gradients, may exist at the same time: one computes, one travels
BUCKETS = {5: [[4, 3], [2, 1], [0]], 2: [[1], [0]], 1: [[0]]}  # by the number of layers
NEAR = 1e-5  # a sum's rounding in another order


def passes(n: int, buckets: bool = False, whole: bool = False) -> Iterator[Case]:
    """Return backward passes through some layers, with other gradients on every rank.

    Ranks also get buckets, or the last layer's whole weights.
    """
    for count, divided in BUCKETS.items():
        rng, arguments = np.random.default_rng(count), []
        weights = rng.integers(-99, 99, (count, *SHAPE)).astype(np.float32)
        for rank in range(n):
            gradients, notes = rng.integers(-99, 99, (count, *SHAPE)).astype(np.float32), Notes()
            shards = weights.reshape(count, n, -1)[:, rank].copy()
            layers = [Layer(k, gradients[k], weights[k], shards[k], notes) for k in range(count)]
            more = [divided] * buckets + [weights[-1].ravel()] * whole
            arguments.append((layers, *more, np.full(2, count, np.float32), Sender(notes, weights)))
        yield Case(f"{plural(count, 'layer')} on {plural(n, 'rank')}", arguments)


def notes_of(saw: Saw) -> Notes:
    """Return a rank's notes."""
    notes: Notes = saw.after[-1].notes
    return notes


def right_means(case: Case) -> np.ndarray:
    """Return the mean gradient of each layer."""
    every = [[layer.gradient for layer in arguments[0]] for arguments in case.arguments]
    return np.asarray(np.mean(every, axis=0, dtype=np.float64))


def layers_compute_once(case: Case, seen: Sequence[Saw]) -> None:
    """Each layer computes once, from the last to the first, with its own error and weights."""
    for saw in seen:
        computed = notes_of(saw).of("compute")
        right = list(reversed(range(len(case.arguments[0][0]))))
        expect(
            computed == right,
            f"`backward` of each layer once, from the last to the first; for {case.text}, rank {saw.rank} called it "
            f"for the layers {computed}",
            hint="A layer's error comes from the layer after it, so the last layer is the first to compute.",
        )
        expect(
            not (mixed := notes_of(saw).mixed),
            f"`backward` to get this layer's arguments; for {case.text}, rank {saw.rank} gave it something else for "
            f"{mixed[0] if mixed else ''}",
            hint="A layer needs the error that the layer after it returned and, if it is sharded, its own weights.",
        )


def layers_get_their_mean(case: Case, seen: Sequence[Saw]) -> None:
    """Each layer is updated once, with the mean over the ranks of its gradient, or this rank's shard of it."""
    means, n = right_means(case), len(seen)
    for saw in seen:
        updated = notes_of(saw).of("update")
        expect(
            sorted(updated) == list(range(len(means))),
            f"`update` of each layer once; for {case.text}, rank {saw.rank} called it for the layers {sorted(updated)}",
            hint="zip stops at the shorter list. And the sender makes a call later: what is in its arguments then?",
        )
        for number, mean in notes_of(saw).means.items():
            right = means[number].ravel()
            if mean.size < right.size:
                right = right.reshape(n, -1)[saw.rank]
            is_right = mean.size == right.size and np.allclose(mean, right, NEAR, NEAR)
            own = case.arguments[saw.rank][0][number].gradient.ravel()
            summed = mean.size == right.size and np.allclose(mean, n * right, NEAR, NEAR)
            got = "its own gradient" if np.array_equal(mean, own) else "the sum" if summed else "another array"
            expect(
                is_right,
                f"layer {number} to be updated with the mean of its gradient over the ranks, for {case.text}; on rank "
                f"{saw.rank} it got {got}",
                hint="Does each layer get the result of its own call?",
            )


def one_thread_sends(case: Case, seen: Sequence[Saw]) -> None:
    """All collective operations are in calls of the sender."""
    for saw in seen:
        expect(
            len(saw.collectives) <= len(notes_of(saw).of("send")) and not saw.messages,
            f"all sending to go through `submit`; for {case.text}, rank {saw.rank} called a function that sends, so "
            "two threads could send at once",
            hint="`submit` gets the function and its arguments, without a call: sender.submit(scatter, ranks, …)",
        )


def nothing_waits_too_early(case: Case, seen: Sequence[Saw]) -> None:
    """Between a call's `submit` and its `result()`, something is computed, as long as there is something."""
    for saw in seen:
        notes = notes_of(saw)
        end = max(notes.at("compute", number) for number in notes.of("compute"))
        for number in notes.of("wait"):
            submitted, waited = notes.events.index(("submit", number)), notes.events.index(("wait", number))
            between = [kind for kind, _ in notes.events[submitted:waited]]
            expect(
                waited > end or "compute" in between,
                f"to compute between `submit` and `result()`; for {case.text}, rank {saw.rank} waited for its call no. "
                f"{number + 1} at once. That hides nothing",
                hint="What can be computed before the result is needed? Call result() after that.",
            )


def buckets_leave_when_complete(case: Case, seen: Sequence[Saw]) -> None:
    """There is a call for each bucket, before the next bucket is computed, and no wait before all is computed."""
    for saw in seen:
        notes, buckets = notes_of(saw), case.arguments[0][1]
        expect(
            (calls := len(notes.of("submit"))) == len(buckets),
            f"one call of `submit` for each of the {plural(len(buckets), 'bucket')}; for {case.text}, rank {saw.rank} "
            f"made {calls}",
        )
        for number, bucket in enumerate(buckets):
            complete, submitted = notes.at("compute", bucket[-1]), notes.at("submit", number)
            later = [n for kind, n in notes.events[complete + 1 : submitted] if kind == "compute"]
            expect(
                not later,
                f"a bucket to leave when its gradients are there; for {case.text}, rank {saw.rank} computed layer "
                f"{later[0] if later else 0} before it submitted the layers {bucket}",
                hint="Submit inside the loop over buckets, after the loop over its layers.",
            )
        last = notes.at("compute", 0)
        expect(
            not any(kind == "wait" for kind, _ in notes.events[:last]),
            f"no wait before the last gradient; for {case.text}, rank {saw.rank} waited for a mean while there was "
            "more to compute",
            hint="Where is result() called? Keep the futures in a list, and call it in a second loop.",
        )


def few_are_whole(case: Case, seen: Sequence[Saw]) -> None:
    """On a slow network, few whole gradients and weights exist at the same time."""
    for saw in seen:
        for what in ("weights", "gradients"):
            peak = notes_of(saw).peaks[what]
            hint = (
                "A list, a dict, a future and the sender's queue all keep what they refer to. Which of them holds it?"
            )
            if what == "gradients":
                hint += " A call's arguments stay in the queue until it is made, so wait for an older call."
            expect(
                peak <= MAX_WHOLE,
                f"at most {MAX_WHOLE} layers' whole {what} to exist at the same time, on a slow network; for "
                f"{case.text}, rank {saw.rank} had those of {peak}",
                hint=hint,
            )


def next_weights_travel(case: Case, seen: Sequence[Saw]) -> None:
    """While a layer computes, the weights of the layer before it are under way."""
    for saw in seen:
        notes, last = notes_of(saw), len(case.arguments[0][0]) - 1
        for place, number in enumerate(notes.of("gather")):
            layer = last - place  # this gather brings the weights of the layer before it
            is_early = layer <= 0 or notes.at("submit", number) < notes.at("compute", layer)
            expect(
                is_early,
                f"the weights of layer {layer - 1} to travel while layer {layer} computes; for {case.text}, rank "
                f"{saw.rank} submitted their gather only after it",
                hint="Submit the gather for the layer before, number - 1, and then call backward.",
            )


def nothing_is_sent_twice(case: Case, seen: Sequence[Saw]) -> None:
    """A rank sends a gather of each layer but the last, and a reduce-scatter of each."""
    for saw in seen:
        n, count = len(seen), len(case.arguments[0][0])
        least = (2 * count - 1) * (n - 1) / n * 4 * float(np.prod(SHAPE))
        expect(
            saw.bytes_sent <= least + 1,
            f"rank {saw.rank} to send {least:,.0f} bytes for {case.text}: each layer's gradient once, and all weights "
            f"but the last layer's, which you get; it sent {saw.bytes_sent:,.0f}",
        )


def with_buckets(n: int) -> Iterator[Case]:
    """Return the cases of exercise 2."""
    return passes(n, buckets=True)


def with_whole_weights(n: int) -> Iterator[Case]:
    """Return the cases of exercise 4."""
    return passes(n, whole=True)


SUBMIT = "        futures.append(sender.submit(scatter, ranks, gradient))\n"
ERROR = "        gradient, error = layer.backward(error)\n"
DIRECT = Script(before="(scatter, ranks, gradient)", after="(lambda mine: mine, scatter(ranks, gradient))")
AT_ONCE = Script(before=SUBMIT, after=f"{SUBMIT}        futures[-1].result()\n")
GATHER = "            coming = sender.submit(gather, ranks, layers[number - 1].weights)\n"
MEANS = layers_compute_once, layers_get_their_mean, one_thread_sends

EXERCISES[2] = OnRanks(
    "ddp_backward",
    parameters=("layers", "buckets", "error", "sender"),
    cases=with_buckets,
    invariants=(*MEANS, buckets_leave_when_complete),
    hints=(
        "Two nested loops: over the buckets, and over the layers of a bucket. What do you do with the gradients after "
        "the inner one?",
        "Store what sender.submit(average, ranks, gradients) returns in a list. Call .result() on each when all "
        "gradients have been computed, not before.",
        "futures = []; for bucket in buckets: gradients = []; for number in bucket: gradient, error = "
        "layers[number].backward(error); gradients.append(gradient); then, after the inner loop, "
        "futures.append(sender.submit(average, ranks, gradients)). After it all: for bucket, future in zip(buckets, "
        "futures): for number, mean in zip(bucket, future.result()): layers[number].update(mean)",
    ),
    wrong=(
        (layers_compute_once, Script(before="gradient, error = layers", after="gradient, _ = layers")),
        (layers_compute_once, Script(before="for number in bucket:", after="for number in bucket[:1]:")),
        (layers_get_their_mean, Script(before="            layers[number].update(mean)", after="            pass")),
        (layers_get_their_mean, Script(before="update(mean)", after="update(mean * ranks.size)")),
        (layers_get_their_mean, Script(before="zip(bucket, future", after="zip(bucket[::-1], future")),
        (one_thread_sends, Script(before="(average, ranks, gradients)", after="(list, average(ranks, gradients))")),
        (buckets_leave_when_complete, Script(  # one call for all
            before="    for bucket in buckets:\n",
            after="    buckets = [sum(buckets, [])]\n    for bucket in buckets:\n",
        )),
        (buckets_leave_when_complete, Script(  # all at the end
            before="sender.submit(average, ranks, gradients))\n",
            after="gradients)\n    futures = [sender.submit(average, ranks, gradients) for gradients in futures]\n",
        )),
        (buckets_leave_when_complete, Script(
            before="ranks, gradients))\n", after="ranks, gradients))\n        futures[-1].result()\n"
        )),
    ),
    right=(
        Script(before="gradients.append(gradient)", after="gradients += [gradient]"),
        Script(before="(average, ranks, gradients)", after="(lambda them: average(ranks, them), gradients)"),
    ),
)  # fmt: skip

EXERCISES[3] = OnRanks(
    "zero2_backward",
    parameters=("layers", "error", "sender"),
    cases=passes,
    invariants=(*MEANS, nothing_waits_too_early, few_are_whole),
    hints=(
        "A gradient is freed when nothing refers to it: no variable, no list, no queue. When does the sender's queue "
        "let go of a call's arguments?",
        "When the call has been made. Before you compute another gradient, wait for a call that was submitted earlier. "
        "Not the latest: while the next gradient is computed, that one must be able to travel.",
        "At the head of the loop: if len(futures) > 1: futures[-2].result()",
    ),
    wrong=(
        (layers_compute_once, Script(before="in reversed(layers):", after="in layers:")),
        (layers_get_their_mean, Script(before="zip(reversed(layers), futures)", after="zip(layers, futures)")),
        (one_thread_sends, DIRECT),
        (nothing_waits_too_early, AT_ONCE),
        (nothing_waits_too_early, Script(
            before="if len(futures) > 1:\n            futures[-2]", after="if futures:\n            futures[-1]"
        )),
        *((few_are_whole, Script(before="futures[-2].result()", after=after)) for after in (
            "pass", "del gradient", "futures[0].result()", "futures[:-2] and futures[-3].result()",
        )),
    ),
    right=(
        Script(before=f"{ERROR}{SUBMIT}", after=f"{ERROR}        if futures: futures[-1].result()\n{SUBMIT}"),
        Script(before=SUBMIT, after=f"{SUBMIT}        if len(futures) > 1: futures[-2].result()\n"),
    ),
)  # fmt: skip

EXERCISES[4] = OnRanks(
    "fsdp_backward",
    parameters=("layers", "whole", "error", "sender"),
    cases=with_whole_weights,
    invariants=(*MEANS, next_weights_travel, nothing_is_sent_twice, nothing_waits_too_early, few_are_whole),
    hints=(
        "Draw three layers, from the last to the first: when does each compute, and what is sent meanwhile? Whose "
        "weights do you get?",
        "Take the weights from `coming.result()`, except for the last layer. Before you call backward, submit the "
        "gather for layer number - 1, into the same variable `coming`. After it, submit scatter.",
        "futures = []; for number in reversed(range(last + 1)): if number < last: whole = coming.result(); if number > "
        "0: coming = sender.submit(gather, ranks, layers[number - 1].weights); gradient, error = "
        "layers[number].backward(error, whole); futures.append(sender.submit(scatter, ranks, gradient)). Then, for "
        "number, future in zip(reversed(range(last + 1)), futures): layers[number].update(future.result())",
    ),
    wrong=(
        (layers_compute_once, Script(before="whole = coming.result()", after="coming.result()")),
        (layers_compute_once, Script(before="layers[number - 1].weights", after="layers[number].weights")),
        (layers_get_their_mean, Script(before="layers[number].update(future.result())", after="pass")),
        (one_thread_sends, DIRECT),
        (next_weights_travel, Script(
            before=f"            whole = coming.result()\n        if number > 0:\n{GATHER}",
            after="            whole = sender.submit(gather, ranks, layers[number].weights).result()\n",
        )),
        (nothing_waits_too_early, Script(before=GATHER, after=f"{GATHER}            coming.result()\n")),
        (nothing_waits_too_early, AT_ONCE),
        (few_are_whole, Script(
            before="whole = coming.result()", after="whole = layers[number].kept = coming.result()"
        )),
        (nothing_is_sent_twice, Script(
            before="    for number in reversed(range(last + 1)):\n        if number < last:",
            after="    coming = sender.submit(gather, ranks, layers[last].weights)\n"
            "    for number in reversed(range(last + 1)):\n        if True:",
        )),
    ),
    right=(
        Script(before="backward(error, whole)", after="backward(error, whole.reshape(6, 10))"),
        Script(before="if number < last:", after="if number != last:"),
    ),
)  # fmt: skip
