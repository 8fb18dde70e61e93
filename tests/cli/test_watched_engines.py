"""Learning sees the requests to every engine of a command, also to one from which nothing is learned."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import cast

from doubles.embedding_models import write_bert
from doubles.timeouts import PATIENCE_S

from eaglelocal.cli.load_model import LoadingEngine
from eaglelocal.client.client import OnEvent
from eaglelocal.client.engine_client import Submit
from eaglelocal.core.events import Finished, RequestEvent
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AnyRequest, EmbedRequest
from eaglelocal.learning.answer_keeper import RequestActivity
from eaglelocal.learning.idle_learning import IdleLearning


class CountingLearning:
    """A learning that only counts requests."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.activity = RequestActivity(lambda: self.begun.append(1), lambda: 0.0)

    def count_request(self, submit: Submit, request: AnyRequest, on_event: OnEvent) -> None:
        self.activity.submit(submit, request, on_event)


def test_a_server_that_only_embeds_is_not_idle(tmp_path: Path) -> None:
    target = write_bert(tmp_path / "bert.gguf")
    plan = Plan(target=target, target_label="bert", n_ctx=64, threads=1, task=ModelTask.EMBEDDING)
    learning, events = CountingLearning(), SimpleQueue[RequestEvent]()
    loading = LoadingEngine(plan, learning=cast(IdleLearning, learning))
    try:
        loading._client.start()
        loading._client.submit(EmbedRequest(id="1", inputs=("hello",)), events.put)
        assert learning.begun == [1]
        while not isinstance(events.get(timeout=PATIENCE_S), Finished):
            pass
        assert learning.activity.num_running == 0
    finally:
        loading.close()
