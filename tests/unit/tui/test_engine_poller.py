"""The readings of a chat's engine: whole for an engine of one's own, without others' figures for a joined server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from doubles.scripted_client import ScriptedClient, says, scripted_plan

from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.events import NOTHING_YET, EngineSnapshot, Finished
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.tui.chat.chat_controller import read_model
from eaglelocal.tui.panel.feed import Feed

BUSY = replace(
    NOTHING_YET,
    engine_pid=7,
    running=2,
    generated_tokens=90_000,
    cached_tokens=3000,
    cache_cells=8192,
    speculation=SpeculationStats("on", "", 1000, 3000, 2000, (900, 700, 400), 0.7, 3000),
    spec="auto",
)


@dataclass(slots=True)
class BusyClient(ScriptedClient):
    """A client of an engine that has answered many others."""

    def snapshot(self) -> EngineSnapshot:
        return BUSY


def active_model(*, is_joined: bool) -> ActiveModel:
    client = BusyClient((says("hi"),))
    return ActiveModel(client, None if is_joined else scripted_plan(client.label), client.info)


def test_an_engine_of_ones_own_is_read_whole() -> None:
    reading = read_model(active_model(is_joined=False))
    assert (reading.totals.generated_tokens, reading.totals.drafts, reading.cached_tokens) == (90_000, 1000, 3000)


def test_the_totals_of_a_joined_server_are_not_the_chats() -> None:
    feed = Feed(by_events=True)
    feed.add_reading(read_model(active_model(is_joined=True)), 0.0)
    frame = feed.make_frame(1.0)
    assert (frame.drafted, frame.tok_s, frame.figures.gain) == (None, None, None)
    assert (frame.drafting.state, frame.drafting.setting) == ("on", "auto")
    stats, timings = (
        SpeculationStats("on", "", 10, 30, 20, (9, 7, 4), 1.5, 30),
        Timings(decode_s=2.0, decode_tok_s=15.0),
    )
    feed.add_event(Finished("r", "stop", "", 12, 31, timings, stats), 2.0)
    feed.add_reading(read_model(active_model(is_joined=True)), 2.5)  # others' answers are running
    frame = feed.make_frame(3.0)
    assert (frame.drafted, frame.accepted, frame.tok_s, frame.figures.gain) == (30, 20, 15.0, 1.5)
