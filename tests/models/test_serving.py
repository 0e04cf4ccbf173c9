import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.models.serving import Request, poisson, serve


def passes_of(log, fixed=1.0, per_token=0.01, per_cached=0.0):
    """Return a `pass_seconds` function that logs the passes."""

    def pass_seconds(tokens, cached):
        log.append((tokens, cached))
        return fixed + per_token * tokens + per_cached * cached

    return pass_seconds


REQUESTS = st.lists(
    st.builds(Request, st.floats(0, 50), st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=12
)


@given(requests=REQUESTS, slots=st.integers(1, 5), chunk=st.sampled_from((0, 1, 4, 16)))
def test_every_request_is_answered_in_full_whatever_the_schedule(requests, slots, chunk):
    log = []
    answers = serve(requests, passes_of(log), slots, chunk)
    assert [answer.request for answer in answers] == sorted(requests)
    for answer in answers:
        assert len(answer.times) == answer.request.answer
        assert not answer.unread
        assert answer.times == sorted(answer.times)
        assert answer.first_s >= 1 - 1e-9  # at least one pass
    # Work is conserved: the passes compute each prompt token once, and each token of an answer but its first once.
    assert sum(tokens for tokens, _ in log) == sum(request.prompt + request.answer - 1 for request in requests)
    if chunk:
        assert max(tokens for tokens, _ in log) <= max(chunk, slots)
    firsts = [answer.times[0] for answer in answers]
    assert firsts == sorted(firsts)  # first come, first served
    moments = np.unique([time for answer in answers for time in answer.times])
    sharing = [sum(time in answer.times for answer in answers) for time in moments]
    assert max(sharing) <= slots


def test_a_single_request_waits_for_its_prompt_and_then_writes_a_token_per_pass():
    log = []
    (answer,) = serve([Request(5.0, 100, 4)], passes_of(log), slots=3)
    assert log == [(100, 0), (1, 101), (1, 102), (1, 103)]
    assert answer.first_s == pytest.approx(2.0)
    assert answer.token_s == pytest.approx(1.01)


def test_a_long_prompt_stalls_the_others_unless_it_is_read_in_chunks():
    requests = [Request(0.0, 1, 40), Request(3.0, 1000, 2)]
    whole, _ = serve(requests, passes_of([]), slots=2)
    chunked, late = serve(requests, passes_of([]), slots=2, chunk=100)
    assert whole.longest_gap_s == pytest.approx(1 + 10 + 1 + 0.02)  # its pass, and then one for both
    assert chunked.longest_gap_s == pytest.approx(2.0)
    assert late.first_s > serve(requests, passes_of([]), slots=2)[1].first_s  # the price: its own first token


def test_cached_tokens_take_time():
    (answer,) = serve([Request(0.0, 10, 3)], passes_of([], per_cached=0.1), slots=1)
    assert answer.token_s == pytest.approx(1.01 + 0.1 * 11.5)


def test_arrivals_have_their_rate_and_follow_from_the_seed():
    requests = poisson(4.0, 2000, 8, 2)
    assert requests[-1].arrival / 2000 == pytest.approx(0.25, rel=0.1)
    assert requests == poisson(4.0, 2000, 8, 2)
    assert requests != poisson(4.0, 2000, 8, 2, seed=1)
