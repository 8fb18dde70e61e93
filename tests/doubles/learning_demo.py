"""The embedded demo with a head made worse, its answers kept as `--learn` keeps them, and jobs to learn from them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import torch
from doubles.shift_kinds import tasks_of
from guide.corpus.mixture import render_prompt

from eaglelocal import locations
from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.events import Failed, Finished, RequestEvent
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.learning.answer_keeper import AnswerKeeper, RequestActivity
from eaglelocal.learning.kept_answers import KeptAnswers
from eaglelocal.learning.learner import LearningJob
from eaglelocal.training.draft_head import choose_vocabulary, make_draft_head
from eaglelocal.training.head_file import make_head_entries, make_head_name, make_head_tensors, read_source

DEMO = locations.profiles_dir() / "demo"
TARGET, HEAD = DEMO / "guide-target.gguf", DEMO / "guide-head.gguf"
OWNER = "local"
AT_ONCE = 8


def write_worse_head(path: Path, noise: float) -> Path:
    """Write the embedded head with noise in its matrices, in standard deviations of each."""
    source = read_source(TARGET, HEAD)
    vocabulary = choose_vocabulary(source, None)
    head = make_draft_head(source, vocabulary, max_context=512)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for matrix in head.parameters():
            if matrix.ndim == 2:
                matrix += noise * matrix.std() * torch.randn(matrix.shape, generator=generator)
    entries = make_head_entries(head.head, source, name=make_head_name(source), kind="bf16")
    with write_head_file(path, entries, make_head_tensors(head, vocabulary, "bf16"), on_progress=lambda done: None):
        pass
    return path


def make_plan(head: Path, *, target: Path = TARGET, num_slots: int = 4, threads: int = 1) -> Plan:
    return Plan(
        target=target,
        target_label=target.stem,
        draft_kind="eagle3",
        draft=head,
        draft_label="head",
        n_ctx=1024,
        num_slots=num_slots,
        threads=threads,
    )


def make_requests(kinds: Iterable[str], per_kind: int, *, seed: int = 1, owner: str = OWNER) -> list[ChatRequest]:
    """Return questions of these kinds of the demo's corpus, and of those in `shift_kinds`."""
    return [
        ChatRequest(
            id=f"{owner}-{kind}-{seed}-{number}",
            text=render_prompt(task),
            params=SamplingParams(temperature=0.7, max_tokens=96, seed=number),
            owner=owner,
        )
        for kind in kinds
        for number, task in enumerate(islice(tasks_of(kind, seed, "held_out"), per_kind))
    ]


def keep_answers(plan: Plan, folder: Path, requests: Iterable[ChatRequest]) -> KeptAnswers:
    """Let the engine answer, and keep the answers of all owners."""
    answers = KeptAnswers(folder, max_bytes=1_000_000_000, max_age_s=1e9)
    asked = list(requests)
    activity = RequestActivity(lambda: None, lambda: 0.0)
    keeper = AnswerKeeper(answers, frozenset(request.owner for request in asked), activity)
    places = threading.Semaphore(AT_ONCE)

    def listen(event: RequestEvent) -> None:
        if isinstance(event, Finished | Failed):
            places.release()

    with EngineClient(plan, watch=keeper.submit) as client:
        client.start()
        for request in asked:
            places.acquire()
            client.submit(request, listen)
        for _ in range(AT_ONCE):
            places.acquire()
    keeper.close()
    return answers


def make_job(plan: Plan, head: Path, folder: Path, *, min_new: int = 64, general: tuple[str, ...] = ()) -> LearningJob:
    return LearningJob(
        plan=plan,
        base=head,
        answers=folder / "answers",
        folder=folder / "work",
        versions=folder / "versions",
        threads=1,
        min_new=min_new,
        general=general,
    )
