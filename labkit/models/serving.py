"""Simulation of a language-model server, pass by pass: time to first token and time per output token."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Request(NamedTuple):
    """A request: its arrival in s, and the tokens of its prompt and answer."""

    arrival: float
    prompt: int
    answer: int


@dataclass
class Answer:
    """The answer to a request.

    Attributes
    ----------
    request : Request
        The request.
    unread : int
        The tokens of the prompt that no pass has read yet.
    times : list of float
        The time at which each token of the answer was written, in s.
    """

    request: Request
    unread: int
    times: list[float] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        """The time to first token (TTFT), from the request's arrival."""
        return self.times[0] - self.request.arrival

    @property
    def token_s(self) -> float:
        """The time per output token (TPOT) after the first, on average."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)

    @property
    def longest_gap_s(self) -> float:
        """The longest wait between two tokens of the answer: what a reader notices as a pause."""
        return float(max(np.diff(self.times), default=0.0))

    @property
    def cached(self) -> int:
        """The tokens in its KV cache."""
        return self.request.prompt - self.unread + len(self.times)


def poisson(rate: float, count: int, prompt: int, answer: int, seed: int = 0) -> list[Request]:
    """Return requests that arrive at random, `rate` per second on average, independently of each other."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return [Request(float(arrival), prompt, answer) for arrival in arrivals]


def serve(
    requests: Sequence[Request], pass_seconds: Callable[[int, int], float], slots: int, chunk: int = 0
) -> list[Answer]:
    """Return the answers of a server with continuous batching, in the order of arrival.

    Requests get a slot first come, first served, and leave it after their last token. Every pass writes a token for
    each request whose prompt has been read.

    Parameters
    ----------
    requests : sequence of Request
        In any order.
    pass_seconds : callable
        Takes the tokens that a pass computes and the cached tokens that it reads, and returns its seconds.
    slots : int
        The maximum number of requests that share a pass.
    chunk : int
        The maximum number of tokens in a pass that reads a prompt: longer prompts are read in several passes, which
        also write (chunked prefill). With 0, a prompt is read at once, in its own pass, while the others wait.
    """
    waiting = deque(Answer(request, request.prompt) for request in sorted(requests))
    answers, running, now = list(waiting), list[Answer](), 0.0
    while waiting or running:
        if not running:
            now = max(now, waiting[0].request.arrival)
        while waiting and len(running) < slots and waiting[0].request.arrival <= now:
            running.append(waiting.popleft())
        reading = next((answer for answer in running if answer.unread), None)
        writing = [answer for answer in running if not answer.unread and (chunk or not reading)]
        count = 0
        if reading:
            count = min(reading.unread, max(1, chunk - len(writing))) if chunk else reading.unread
        read = writing if reading is None else [*writing, reading]
        now += pass_seconds(count + len(writing), sum(answer.cached for answer in read))
        if reading:
            reading.unread -= count
            if not reading.unread:
                writing.append(reading)  # the pass that reads the last of the prompt returns the first token
        for answer in writing:
            answer.times.append(now)
        running = [answer for answer in running if len(answer.times) < answer.request.answer]
    return answers
