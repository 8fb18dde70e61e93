"""Drafts that stop fitting: answers are counted by kind, and snapshot and metrics show what has drifted."""

from __future__ import annotations

from doubles.directed_server_engine import STATS
from doubles.running_server import Server
from doubles.timeouts import wait_until

from eaglelocal.client.servers.eaglelocal_server import parse_snapshot
from eaglelocal.learning.drift import TargetHistory


def histories(server: Server) -> dict[str, TargetHistory]:
    return server.serving.drift._targets


def test_answers_are_counted_by_their_kind(actor: Server) -> None:
    assert actor.ask("say x").status_code == 200
    wait_until(lambda: bool(histories(actor)), "the answer is recorded")
    (history,) = histories(actor).values()
    kind = history.kinds["prose"]
    assert kind.recent.drafts >= STATS.drafts
    assert kind.recent.share == STATS.accepted_per_position[0] / STATS.drafts
    conditions = kind.batches[-1].conditions
    assert set(conditions) == {"model file", "draft", "template", "system prompt", "draft length"}
    assert conditions["system prompt"] == ""


def test_a_changed_system_prompt_is_another_condition(actor: Server) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say x"}]
    assert actor.ask("say x", messages=messages).status_code == 200

    def hashed() -> str:
        kinds = [one.kinds["prose"] for one in histories(actor).values() if "prose" in one.kinds]
        return kinds[0].batches[-1].conditions["system prompt"] if kinds else ""

    wait_until(lambda: bool(hashed()), "the answer is recorded")
    assert "brief" not in hashed()


def test_what_has_drifted_is_shown(actor: Server) -> None:
    watch = actor.serving.drift
    for _ in range(60):
        watch.add("old friend", "code", 20, 14, {"draft": "a"})
    for _ in range(20):
        watch.add("old friend", "code", 20, 2, {"draft": "b"})
    snapshot = actor.http.get("/v1/snapshot").json()
    (shown,) = snapshot["drift"]
    assert (shown["level"], shown["changed"]) == ("alarm", ["draft"])
    assert (
        shown["text"] == "old friend, code: 10% of first drafted tokens are accepted, 70% were before; changed: draft"
    )
    assert parse_snapshot(snapshot).drift == (shown["text"],)
    metrics = actor.http.get("/metrics").text
    assert 'eaglelocal:acceptance_of_history{kind="code",target="old friend"} 0.14' in metrics
    watch._targets.pop("old friend")


def test_what_the_disk_holds_reaches_a_monitor(actor: Server) -> None:
    reading = parse_snapshot(actor.http.get("/v1/snapshot").json())
    assert (reading.stored_bytes, reading.store_problem) == (5 * 2**20, "No space left on device")
    assert "eaglelocal:stored_bytes 5.24" in actor.http.get("/metrics").text
