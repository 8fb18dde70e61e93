"""The head is exchanged while answers run: no text changes, and the new head drafts, whatever the slots were doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness, plain_text
from doubles.head_exchanges import HeadExchanges
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedHead, ScriptedMedusa, ScriptedParallelHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.events import Tokens
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.block_drafter import Medusa, PEagle
from eaglelocal.drafters.branch_sequences import BranchSequences
from eaglelocal.drafters.drafter import Exchangeable
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.head_holder import HeadHolder, OpenHead
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.drafters.row_buffer import MAX_BUFFERED
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError
from eaglelocal.scheduler.host_swap import HostSwap

RIGHT, WRONG = Table(seed=1), Table(seed=1, sharpness=-2.0)
TABLES = {"right": RIGHT, "wrong": WRONG}
KINDS = ("eagle3", "prompt ends", "window", "tree", "p-eagle", "medusa")
BRANCHES = 3


def make_drafter(kind: str, table: Table, num_slots: int) -> Exchangeable:
    match kind:
        case "prompt ends":
            return Eagle3(ScriptedHead(table), (0,), max_prompt_rows=6)
        case "window":
            return Eagle3(ScriptedHead(table), (0,), window=8)
        case "tree":
            head = ScriptedHead(table)
            return Eagle3(head, (0,), num_choices=3, sequences=BranchSequences(head, num_slots, BRANCHES))
        case "p-eagle":
            return PEagle(ScriptedParallelHead(table), (0,), ScriptedParallelHead.mask)
        case "medusa":
            return Medusa(ScriptedMedusa(table), 0, block_size=6)
    return Eagle3(ScriptedHead(table), (0,))


@dataclass
class Heads:
    """Heads whose file names say what they are, and which of them were closed."""

    kind: str = "eagle3"
    num_slots: int = 1
    closed: list[int] = field(default_factory=list)

    def open(self, path: Path, version: int) -> OpenHead:
        if path.name not in TABLES:
            raise ModelFileError(f"{path.name} is no head")
        drafter = make_drafter(self.kind, TABLES[path.name], self.num_slots)
        return OpenHead(drafter=drafter, close=lambda: self.closed.append(version), path=path, version=version)

    def hold(self, name: str) -> HeadHolder:
        return HeadHolder(self.open(Path(name), 0), self.open)


def make_harness(
    heads: Heads, first: str = "right", spec: Spec | None = None, swap: HostSwap | None = None
) -> EngineHarness:
    branches = BRANCHES if heads.kind == "tree" else 0
    drafters = (Ngram(128), heads.hold(first)) if spec is AUTO_SPEC else (heads.hold(first),)
    return EngineHarness(
        RIGHT, drafters, spec=spec or fixed_spec(4), num_slots=heads.num_slots, branches=branches, swap=swap
    )


def ask(name: str, prompt: tuple[int, ...], max_tokens: int = 40) -> ChatRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return ChatRequest(id=name, tokens=prompt, params=params)


def drive(harness: EngineHarness, exchanges: dict[int, str], cancels: dict[int, str]) -> dict[str, AnswerResult]:
    """Step until nothing is left; before the step of a number a head is exchanged, or an answer is cancelled."""
    results: dict[str, AnswerResult] = {}
    step, heads = 0, HeadExchanges(harness.engine)
    while harness.engine.has_work:
        if step in exchanges:
            heads.begin(Path(exchanges[step]), step + 1)
        if step in cancels:
            harness.engine.cancel(cancels[step])
        for event in heads.step():
            results.setdefault(event.request_id, AnswerResult()).add(event)
        step += 1
        assert step < 3000, "the engine does not come to an end"
    assert not heads.waiting
    return results


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(data=st.data())
def test_no_exchange_changes_a_text(kind: str, data: st.DataObject) -> None:
    """In every state: prompts being read, answers drafted for or asleep, slots that wait, cancels at the same step."""
    heads = Heads(kind, data.draw(st.integers(1, 3)))
    spec = data.draw(st.sampled_from([AUTO_SPEC, fixed_spec(1), fixed_spec(4)]))
    harness = make_harness(heads, data.draw(st.sampled_from(["right", "wrong"])), spec)
    prompts = data.draw(st.lists(st.lists(st.integers(1, 23), min_size=1, max_size=60), min_size=1, max_size=5))
    requests = [ask(str(i), tuple(prompt)) for i, prompt in enumerate(prompts)]
    names = [request.id for request in requests]
    exchanges = data.draw(st.dictionaries(st.integers(0, 60), st.sampled_from(["right", "wrong"]), max_size=6))
    cancels = data.draw(st.dictionaries(st.integers(0, 60), st.sampled_from(names), max_size=2))
    for request in requests:
        harness.engine.submit(request)
    results = drive(harness, exchanges, cancels)
    for request in requests:
        tokens, plain = results[request.id].tokens, plain_text(RIGHT, request)
        assert tokens == (plain[: len(tokens)] if request.id in cancels.values() else plain)
    assert harness.engine.miscounted_slots() == []
    made = [0, *(step + 1 for step in sorted(exchanges))]
    used = harness.engine.snapshot().draft_version
    assert heads.closed == made[: made.index(used)]  # each once, in order, and never the one in use


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_head_follows_an_answer_that_runs_and_then_drafts_for_it(kind: str) -> None:
    """A head that is always wrong gives way to one that is right."""
    harness = make_harness(Heads(kind), "wrong")
    harness.engine.submit(ask("a", tuple(range(1, 20)), max_tokens=100))
    heads, sizes, versions = HeadExchanges(harness.engine), list[int](), list[int]()
    while harness.engine.has_work:
        if len(sizes) == 10:
            heads.begin(Path("right"), 1)
        versions.append(harness.engine.snapshot().draft_version)
        sizes.append(sum(len(event.pieces) for event in heads.step() if isinstance(event, Tokens)))
    first = versions.index(1)  # the step in which the new head drafts first
    assert first == 10 + (0 if kind == "medusa" else MAX_BUFFERED)
    assert sizes[1:first] == [1] * (first - 1)  # step 0 reads the prompt
    assert max(sizes[first:]) == 5 and min(sizes[first:-1]) > 1


def test_an_answer_that_ends_does_not_hold_the_exchange_up() -> None:
    harness = make_harness(Heads(num_slots=2))
    harness.engine.submit(ask("short", tuple(range(1, 20)), max_tokens=8))
    heads = HeadExchanges(harness.engine)
    heads.step()
    heads.begin(Path("right"), 1)
    while harness.engine.has_work:
        heads.step()
    assert harness.engine.snapshot().draft_version == 1


def test_a_slot_that_sleeps_wakes_with_the_rows_kept_for_the_old_head() -> None:
    new = ScriptedHead(RIGHT)
    opened = OpenHead(drafter=Eagle3(new, (0,)), close=lambda: None, path=Path("right"), version=1)
    holder = HeadHolder(Heads().open(Path("wrong"), 0), lambda path, version: opened)
    harness = EngineHarness(RIGHT, (Ngram(128), holder), spec=AUTO_SPEC)
    harness.engine.submit(ask("a", tuple(range(1, 20)), max_tokens=90))
    while harness.engine.snapshot().speculation.state != "asleep":
        harness.engine.step()
    for _ in range(3):
        harness.engine.step()
    heads = HeadExchanges(harness.engine)
    heads.begin(Path("right"), 1)
    assert holder.next is opened
    assert opened.drafter.swapped_bytes(0) and not new.encoded_rows and not new.is_attached
    while harness.engine.has_work:
        heads.step()
    assert new.is_attached


def test_an_engine_that_closes_meanwhile_closes_both_heads() -> None:
    heads = Heads()
    holder = heads.hold("wrong")
    holder.begin(0, "", 4)
    exchange = holder.prepare(Path("right"), 1)
    assert exchange() is None
    holder.close()
    assert sorted(heads.closed) == [0, 1]


def test_a_conversation_in_ram_comes_back_without_the_old_heads_cells() -> None:
    heads = Heads()
    harness = make_harness(heads, "right", swap=HostSwap(10**9, min_rows=8))
    first = ask("first", tuple(range(1, 24)))
    harness.engine.submit(first)
    text = [*first.tokens, *drive(harness, {}, {})["first"].tokens]
    harness.engine.submit(ask("other", tuple(range(23, 0, -1)) * 2))
    drive(harness, {}, {})
    assert harness.context.swaps == 1
    HeadExchanges(harness.engine).begin(Path("right"), 1)
    again = ask("again", tuple(text))
    harness.engine.submit(again)
    result = drive(harness, {}, {})["again"]
    assert harness.context.swaps_in == 1
    assert result.tokens == plain_text(RIGHT, again)
    assert result.finished is not None and result.finished.speculation.acceptance_length > 3


def test_a_head_that_cannot_be_opened_leaves_the_old_one_in_use() -> None:
    heads = Heads()
    harness = make_harness(heads)
    request = ask("a", (1, 2, 3))
    harness.engine.submit(request)
    harness.engine.step()
    with pytest.raises(ModelFileError, match="is no head"):
        harness.engine.prepare_head(Path("damaged"), 3)
    assert (harness.engine.snapshot().draft_version, heads.closed) == (0, [])
    assert drive(harness, {}, {})["a"].finished is not None


@pytest.mark.parametrize("other", ["p-eagle", "medusa", "tree"])
def test_a_head_that_drafts_differently_is_refused_and_closed(other: str) -> None:
    heads = Heads()
    harness = make_harness(heads)
    heads.kind = other
    with pytest.raises(IncompatibleError, match="drafts differently"):
        harness.engine.prepare_head(Path("right"), 7)
    assert (harness.engine.snapshot().draft_version, heads.closed) == (0, [7])


@pytest.mark.parametrize("drafter", [Ngram(128), NoDrafter(), Eagle3(ScriptedHead(RIGHT), (0,), name="mtp")])
def test_other_drafters_refuse_in_one_line(drafter: Ngram) -> None:
    harness = EngineHarness(RIGHT, drafter)
    with pytest.raises(EagleLocalError, match="can be exchanged") as caught:
        harness.engine.prepare_head(Path("right"), 1)
    assert "\n" not in caught.value.message


def test_time_in_native_code_does_not_jump() -> None:
    class Timed(ScriptedHead):
        native_s = 3.0

    opened = OpenHead(drafter=Eagle3(Timed(RIGHT), (0,)), close=lambda: None, path=Path("right"))
    holder = HeadHolder(Heads().open(Path("right"), 0), lambda path, version: opened)
    before = holder.native_s
    holder.prepare(Path("right"), 1)()
    assert holder.native_s == before
