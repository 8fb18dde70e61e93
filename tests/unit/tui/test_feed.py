"""The feed: whatever events arrive, and however often, each frame is correct."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from doubles.monitor_states import EMPTY, GONE, RESTARTING, busy, off, totals
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.server_reading import DraftingState, ServerReading, ServerTotals, make_reading
from eaglelocal.core.draft import SWITCHED_OFF
from eaglelocal.core.events import (
    EngineSnapshot,
    Failed,
    Finished,
    RequestEvent,
    SpeculationChanged,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError
from eaglelocal.tui.panel.feed import WINDOW_TOKENS, Feed, History


def tokens(count: int, request_id: str = "r") -> Tokens:
    return Tokens(request_id, tuple(TextPiece(i, "x", drafted=False) for i in range(count)))


def finished(stats: SpeculationStats, request_id: str = "r") -> Finished:
    return Finished(request_id, "stop", "", 10, 20, Timings(), stats)


# ---- speed
@given(rate=st.floats(1.0, 400.0), burst=st.integers(1, 6))
def test_the_speed_of_a_steady_stream_is_its_speed(rate: float, burst: int) -> None:
    """From the first to the last token, so a burst at the start does not count."""
    feed, now = Feed(by_events=True), 100.0
    feed.add_event(Started("r", 10, 0), now)
    for i in range(int(3 * rate / burst) + 3):
        now = 101.0 + i * burst / rate
        feed.add_event(tokens(burst), now)
    frame = feed.make_frame(now)
    assert frame.is_moving
    assert frame.tok_s == pytest.approx(rate, rel=0.15)


@given(rate=st.floats(1.0, 400.0), gap=st.floats(0.2, 1.5))
def test_readings_give_the_same_speed_as_events(rate: float, gap: float) -> None:
    feed, now = Feed(), 100.0
    for i in range(12):
        now = 100.0 + i * gap
        feed.add_reading(replace(EMPTY, totals=ServerTotals(process="1", generated_tokens=rate * i * gap)), now)
    assert feed.make_frame(now).tok_s == pytest.approx(rate, rel=0.01)


def test_the_wait_for_the_prompt_is_no_part_of_the_speed() -> None:
    feed = Feed(by_events=True)
    feed.add_event(Started("r", 10, 0), 0.0)
    for i in range(20):
        feed.add_event(tokens(1), 1.5 + i * 0.02)
    assert feed.make_frame(1.9).tok_s == pytest.approx(50.0, rel=0.05)


def test_a_pause_between_two_answers_does_not_slow_the_second() -> None:
    feed = Feed(by_events=True)
    for begin in (0.0, 5.0):
        feed.add_event(Started("r", 10, 0), begin)
        for i in range(20):
            feed.add_event(tokens(1), begin + i * 0.1)
        feed.add_event(finished(SpeculationStats()), begin + 2.0)
    assert feed.make_frame(6.95).tok_s == pytest.approx(10.0, rel=0.05)


def test_when_nothing_moves_the_last_speed_stays_and_is_said_to_be_old() -> None:
    feed = Feed()
    for i in range(8):
        feed.add_reading(replace(EMPTY, totals=ServerTotals(process="1", generated_tokens=10.0 * min(i, 4))), i * 0.5)
    frame = feed.make_frame(60.0)
    assert (frame.is_moving, frame.tok_s) == (False, pytest.approx(20.0, rel=0.3))
    assert frame.tok_s_window == "when busy"


def test_a_late_viewer_sees_the_last_answer_s_figures() -> None:
    feed = Feed()
    for second in range(3):
        feed.add_reading(busy(200), float(second))  # 37 answers, and nothing moves
    frame = feed.make_frame(9.0)
    assert (frame.tok_s, frame.tok_s_window) == (45.0, "last answer")
    feed = Feed()
    feed.add_reading(EMPTY, 0.0)
    assert (feed.make_frame(1.0).tok_s, feed.make_frame(1.0).tok_s_window) == (None, "waiting for tokens")


def test_a_stream_that_stands_still_gets_slower() -> None:
    feed = Feed(by_events=True)
    feed.add_event(Started("r", 10, 0), 0.0)
    for i in range(40):
        feed.add_event(tokens(1), i * 0.05)
    assert feed.make_frame(2.0).tok_s == pytest.approx(20.0, rel=0.1)
    assert (feed.make_frame(3.4).tok_s or 0.0) < 18.0


def test_a_server_without_token_counts_has_no_speed() -> None:
    feed = Feed()
    feed.add_reading(replace(EMPTY, totals=ServerTotals()), 1.0)
    frame = feed.make_frame(2.0)
    assert (frame.tok_s, frame.tok_s_history, frame.acceptance_history, frame.drafted) == (None, (), (), None)


# ---- history
@given(st.lists(st.tuples(st.floats(0.05, 3.0), st.integers(0, 60)), min_size=2, max_size=40))
def test_no_token_is_lost_or_counted_twice_in_the_history(steps: list[tuple[float, int]]) -> None:
    feed, now, count = Feed(), 1000.0, 0.0
    feed.add_reading(replace(EMPTY, totals=ServerTotals(process="1", generated_tokens=0.0)), now)
    for gap, more in steps:
        now, count = now + gap, count + more
        feed.add_reading(replace(EMPTY, totals=ServerTotals(process="1", generated_tokens=count)), now)
    history = feed._tokens.amounts(now + 1.0, 180)
    assert sum(value for value in history if value is not None) == pytest.approx(count)


@pytest.mark.parametrize("gap", [0.25, 0.5, 0.9])
def test_what_comes_between_two_readings_has_their_speed_in_the_history_too(gap: float) -> None:
    feed = Feed()
    for i, count in enumerate((0.0, 0.0, 28.0, 28.0, 28.0)):
        feed.add_reading(replace(EMPTY, totals=ServerTotals(process="1", generated_tokens=count)), 10.0 + i * gap)
    history = feed.make_frame(10.0 + 5 * gap, seconds=6).tok_s_history
    assert max(value or 0.0 for value in history) == pytest.approx(28 / gap)


def test_acceptance_of_a_second_without_drafts_is_a_gap() -> None:
    feed = Feed()
    for i in range(5):
        steps = 10 * min(i, 2)
        feed.add_reading(replace(EMPTY, totals=totals(steps)), float(i))
    history = feed.make_frame(5.0, seconds=5).acceptance_history
    assert history == (pytest.approx(0.6), pytest.approx(0.6), None, None, None)


# ---- figures
def test_figures_are_of_the_newest_tokens_only() -> None:
    """Drafting paid for a long time, then nothing more was accepted."""
    feed = Feed()
    good, now = totals(1000), 0.0
    feed.add_reading(replace(EMPTY, totals=good), now)
    for i in range(1, WINDOW_TOKENS + 40):
        now += 0.1
        worse = replace(
            good,
            generated_tokens=(good.generated_tokens or 0) + i,
            drafts=(good.drafts or 0) + i,
            draft_tokens=(good.draft_tokens or 0) + 3 * i,
        )
        feed.add_reading(replace(EMPTY, totals=worse), now)
    frame = feed.make_frame(now)
    assert frame.figures.acceptance == pytest.approx(0.0)
    assert frame.accepted == pytest.approx(1800)  # the totals are of all


def test_figures_of_a_process_that_ran_before_are_those_since_its_start() -> None:
    feed = Feed()
    feed.add_reading(busy(200), 1.0)
    figures = feed.make_frame(1.0).figures
    assert figures.acceptance == pytest.approx(0.6)
    assert figures.acceptance_length == pytest.approx(2.8)
    assert figures.draft_length == pytest.approx(3.0)
    assert figures.gain == pytest.approx(0.1 / 0.06)
    assert figures.per_position == pytest.approx((0.9, 0.6, 0.3))
    assert (figures.draft_share, figures.verify_share) == (pytest.approx(0.2), pytest.approx(0.8))
    assert figures.host_share == pytest.approx(0.02)


def test_nothing_done_is_no_figure() -> None:
    feed = Feed()
    feed.add_reading(EMPTY, 1.0)
    figures = feed.make_frame(1.0).figures
    assert {figures.acceptance, figures.gain, figures.draft_length, figures.per_position} == {None}


@given(st.lists(st.sampled_from([EMPTY, busy(10), busy(50), busy(300), GONE, RESTARTING]), max_size=12))
def test_shares_stay_shares_whatever_comes(readings: list[ServerReading]) -> None:
    """Engines die, begin anew, vanish and come back."""
    feed = Feed()
    for i, reading in enumerate(readings):
        feed.add_reading(reading, i * 0.7)
        frame = feed.make_frame(i * 0.7)
        shares = [frame.figures.acceptance, frame.figures.draft_share, *(frame.figures.per_position or ())]
        assert all(share is None or 0.0 <= share <= 1.0 + 1e-9 for share in shares)
        assert frame.tok_s is None or frame.tok_s >= 0.0
        assert frame.connection == reading.state


def test_an_engine_that_begins_anew_is_not_compared_with_its_past() -> None:
    feed = Feed()
    feed.add_reading(busy(1000), 0.0)
    again = replace(totals(10), process="78", accepted_tokens=0.0)
    feed.add_reading(replace(EMPTY, totals=again), 1.0)
    assert feed.make_frame(1.0).figures.acceptance == pytest.approx(0.0)


def test_nothing_drafted_is_no_gain() -> None:
    """Answers with `--spec off` take a little longer than estimated; that is no gain of 0.93x."""
    feed = Feed()
    plain = replace(totals(200), drafts=0.0, draft_tokens=0.0, accepted_tokens=0.0, plain_s=9.3, answer_s=10.0)
    feed.add_reading(replace(EMPTY, totals=plain), 1.0)
    figures = feed.make_frame(1.0).figures
    assert (figures.gain, figures.acceptance, figures.acceptance_length, figures.draft_length) == (None,) * 4


def test_figures_say_how_many_tokens_they_are_of() -> None:
    feed = Feed()
    feed.add_reading(busy(200), 1.0)
    assert feed.make_frame(1.0).num_figure_tokens == pytest.approx(560)


def test_figures_of_another_model_are_forgotten() -> None:
    feed = Feed(by_events=True)
    feed.add_event(Started("r", 10, 0), 0.0)
    for i in range(30):
        feed.add_event(tokens(1), 0.5 + i * 0.05)
    feed.add_event(finished(SpeculationStats("on", "", 10, 30, 18, (9, 6, 3), 1.5, 28)), 2.0)
    feed.add_reading(busy(200), 2.0)
    feed.forget()
    assert feed.make_frame(3.0) == Feed(by_events=True).make_frame(3.0)


# ---- events
def test_answers_of_an_engine_without_totals_count_when_they_end() -> None:
    feed = Feed(by_events=True)
    stats = SpeculationStats("on", "", 10, 30, 18, (9, 6, 3), 1.5, 28)
    feed.add_reading(make_reading(NOTHING_TOLD), 0.0)
    feed.add_event(finished(SpeculationStats("on", "", 10, 30, 0, (), 1.0, 10)), 1.0)
    feed.add_event(finished(stats), 2.0)
    frame = feed.make_frame(2.0)
    assert (frame.drafted, frame.accepted) == (60, 18)
    assert frame.figures.per_position == pytest.approx((0.9, 0.6, 0.3))
    assert frame.drafting.state == "on"


def test_the_figures_beside_the_speed_of_an_answer_are_of_that_answer() -> None:
    """After `/spec off` there is no gain, whatever the answers before had."""
    feed = Feed(by_events=True)
    feed.add_event(Started("r", 10, 0), 0.0)
    feed.add_reading(busy(200), 1.0)
    drafted = SpeculationStats("on", "", 10, 30, 20, (9, 7, 4), 1.5, 30)
    feed.add_event(replace(finished(drafted), timings=Timings(decode_s=1.0, decode_tok_s=19.0)), 2.0)
    frame = feed.make_frame(2.0)
    assert (frame.figures.gain, frame.num_figure_tokens) == (pytest.approx(1.5), 20)
    feed.add_event(Started("r", 10, 0), 3.0)
    figures = feed.make_frame(3.5).figures
    assert (figures.gain, figures.acceptance) == (None, None)  # nothing is known of this one yet
    plain = SpeculationStats("off", SWITCHED_OFF)
    feed.add_event(replace(finished(plain), timings=Timings(decode_s=2.0, decode_tok_s=9.5)), 5.0)
    frame = feed.make_frame(5.0)
    assert (frame.tok_s, frame.figures.gain, frame.figures.acceptance) == (9.5, None, None)
    assert frame.drafted == 600  # in all


def test_a_change_of_drafting_is_known_at_once() -> None:
    feed = Feed(by_events=True)
    feed.add_event(SpeculationChanged("r", "asleep", "0.94x over the last 64 tokens"), 1.0)
    frame = feed.make_frame(1.0)
    assert (frame.drafting.state, frame.drafting.reason) == ("asleep", "0.94x over the last 64 tokens")


@pytest.mark.parametrize(
    ("ended", "expected", "shown"),
    [
        ("asleep", "on", "asleep"),
        ("off", "on", "off"),
        ("on", "on", "on"),
        ("on", "off", "off"),  # it was switched off since
        ("off", "", ""),  # a server that does not say
    ],
)
def test_at_rest_the_last_answer_says_how_it_was_drafted_for(ended: str, expected: str, shown: str) -> None:
    feed = Feed(by_events=True)
    reading = replace(EMPTY, drafting=DraftingState(state=expected, setting="auto"))
    feed.add_event(finished(SpeculationStats(state=ended)), 1.0)
    feed.add_reading(reading, 1.5)
    assert feed.make_frame(2.0).drafting.state == shown
    feed.add_event(Started("s", 10, 0), 3.0)
    feed.add_reading(reading, 3.5)
    assert feed.make_frame(4.0).drafting.state == expected


@pytest.mark.parametrize("last", [finished(SpeculationStats()), Failed("r", EngineError("gone"))])
def test_an_answer_moves_until_it_ends(last: RequestEvent) -> None:
    feed = Feed(by_events=True)
    feed.add_event(Started("r", 10, 0), 0.0)
    assert feed.make_frame(30.0).is_moving  # a long prompt
    feed.add_event(last, 31.0)
    assert not feed.make_frame(40.0).is_moving


def test_threads_may_write_while_one_reads() -> None:
    feed = Feed(by_events=True)

    def write(name: str) -> None:
        for i in range(500):
            feed.add_event(tokens(2, name), i * 0.01)
            feed.add_reading(busy(i), i * 0.01)

    writers = [threading.Thread(target=write, args=(str(n),)) for n in range(4)]
    for writer in writers:
        writer.start()
    for i in range(200):
        feed.make_frame(i * 0.02)
    for writer in writers:
        writer.join()
    assert feed._rate.count == 4 * 500 * 2


NOTHING_TOLD = EngineSnapshot(0, 0, 0, 0, 0, SpeculationStats(), 0.0, 0.0, 0)


def test_state_and_figures_are_of_the_same_tokens() -> None:
    feed = Feed()
    for second, reading in enumerate([busy(100), busy(200), off(200)]):
        feed.add_reading(reading, float(second))
    assert feed.make_frame(2.0).figures.gain == pytest.approx(0.1 / 0.06), "nothing was generated since"
    plain = replace(totals(200), generated_tokens=600.0)
    feed.add_reading(replace(off(200), totals=plain), 3.0)
    frame = feed.make_frame(3.0)
    assert (frame.drafting.state, frame.figures.gain, frame.figures.acceptance) == ("asleep", None, None)
    assert frame.num_figure_tokens == pytest.approx(600 - 2.8 * 200)
    feed.add_reading(replace(EMPTY, totals=plain), 4.0)  # at rest, the engine says how the next answer would begin
    assert feed.make_frame(4.0).drafting == off().drafting
    switched = replace(EMPTY, totals=plain, drafting=DraftingState(state="on", setting="4"))
    feed.add_reading(switched, 5.0)
    assert feed.make_frame(5.0).drafting.setting == "4"


def test_a_second_without_tokens_has_no_rate() -> None:
    history = History()
    history.add(30.0, 0.0, 1.0)
    history.add(0.0, 1.0, 3.0)
    history.add(20.0, 3.0, 4.0)
    assert history.rates(4.0, 5) == (None, pytest.approx(30.0), None, None, pytest.approx(20.0))
