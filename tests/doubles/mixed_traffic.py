"""Random requests to one engine of several slots, and to a second engine that answers each of them alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from eaglelocal.core.events import Failed, Finished, Tokens
from eaglelocal.core.request import AUTO_SPEC, fixed_spec
from eaglelocal.engine.engine import Engine

from .engine_harness import drive
from .real_engine import RawLogits, ask, read, real_engine

NUM_READINGS, MAX_PIECE = 40, 128  # of a text that was said otherwise; rows of a batch
TIE_SHARE = 1e-4  # of the largest logit: caches are of 16 bits


class MixedTraffic:
    """A load of requests that begin, continue or change conversations and are cancelled, with any draft length.

    texts  by slot, the full texts of the running answers, for a drafter that is always right
    """

    def __init__(self, target: Path, engine: Engine, seed: int) -> None:
        self.random = random.Random(seed)
        self.alone, self.engine = real_engine(target, n_ctx=512), engine
        self.texts: dict[int, list[int]] = {}
        self.running: dict[str, tuple[tuple[int, ...], list[int]]] = {}  # prompt, and what should be said
        self.emitted: dict[str, list[int]] = {}
        self.earlier: list[tuple[int, ...]] = []
        self.target, self.num_right, self.num_ties = target, 0, 0

    def submit_random(self, name: str) -> None:
        prompt = self.prompt()
        request = ask(name, prompt, max_tokens=self.random.randint(3, 40))
        plain = drive(self.alone, [request])[name].tokens
        lengths = [AUTO_SPEC, fixed_spec(1), fixed_spec(3), fixed_spec(16)]
        self.engine.submit(replace(request, spec=self.random.choice(lengths)))
        self.running[name], self.emitted[name] = (prompt, plain), []

    def prompt(self) -> tuple[int, ...]:
        new = tuple(self.random.randrange(3, 290) for _ in range(self.random.randint(3, 180)))
        kind = self.random.random() if self.earlier else 1.0
        if kind > 0.6:
            return new
        before = self.random.choice(self.earlier)[:300]
        return (*before, *new[:15]) if kind > 0.3 else (*before[: len(before) * 3 // 4], *new[:15])

    def step(self) -> None:
        for answer in self.engine._answers._by_slot.values():
            prompt, plain = self.running[answer.request_id]
            self.texts[answer.sequence.slot] = [*prompt, *plain]
        for event in self.engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Tokens):
                self.emitted[event.request_id].extend(piece.token for piece in event.pieces)
            if isinstance(event, Finished):
                self.end(event)

    def end(self, event: Finished) -> None:
        prompt, plain = self.running.pop(event.request_id)
        said = self.emitted.pop(event.request_id)
        if said != plain[: len(said)]:
            self.check_tie(prompt, plain, said)
            return
        assert len(said) == len(plain) or event.reason == "cancelled"
        self.num_right += event.reason != "cancelled"
        self.earlier.append((*prompt, *plain))

    def check_tie(self, prompt: tuple[int, ...], plain: list[int], said: list[int]) -> None:
        """Assert that an answer differs at a near-tie only, of tokens or experts: several rows round differently."""
        at = next(i for i, (one, other) in enumerate(zip(plain, said, strict=False)) if one != other)
        raw = RawLogits(self.target, n_ctx=512)
        logits = raw.after([*prompt, *plain[:at]])
        raw.close()
        gap, scale = abs(logits[plain[at]] - logits[said[at]]), abs(logits).max()
        if gap >= TIE_SHARE * scale:
            assert said[at] in self.undrafted(prompt, plain[:at]), (gap, scale)
        self.num_ties += 1
        assert self.num_ties < 3

    def undrafted(self, prompt: tuple[int, ...], said: list[int]) -> set[int]:
        """Return the tokens that the target says next when it reads the same text in other pieces, as it did beside
        others: the answer by one to eight rows at once, the prompt in pieces of any size.
        """
        engine, found, sizes = real_engine(self.target, n_ctx=512), set[int](), random.Random(len(said))
        for _ in range(NUM_READINGS):
            engine.context.remove(0, 0)
            text, place, most = [*prompt, *said], 0, sizes.choice([1, 2, 3, 4, 6, 8, 17, 48, MAX_PIECE])
            while place < len(text):
                piece = sizes.randint(1, min(most, 17 if place >= len(prompt) else most))
                logits = read(engine.context, 0, place, text[place : place + piece])
                place += piece
            found.add(int(logits.argmax()))
        engine.close()
        return found

    def run(self, num_requests: int) -> None:
        """Run `num_requests` requests, and assert that most got the text that they would get alone."""
        for number in range(num_requests):
            self.submit_random(f"r{number}")
            for _ in range(self.random.choice([0, 0, 1, 5, 20])):
                self.step()
            if self.random.random() < 0.15 and self.running:
                self.engine.cancel(self.random.choice(list(self.running)))
            if self.random.random() < 0.2:
                assert self.engine.miscounted_slots() == []
        while self.engine.has_work:
            self.step()
        assert self.num_right > num_requests * 5 // 8

    def close(self) -> None:
        self.alone.close()
        self.engine.close()
