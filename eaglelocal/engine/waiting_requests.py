"""The requests without a slot: those being read on lanes, and those in the scheduler's queue.

Knows requests and the events that come before an answer starts; knows neither slots nor steps.
"""

from __future__ import annotations

import time

from eaglelocal.core.events import Failed, RequestEvent
from eaglelocal.core.request import ChatRequest
from eaglelocal.engine.conversation_files import ConversationFiles
from eaglelocal.engine.image_lane import ImageLane
from eaglelocal.engine.input_processor import InputProcessor, ReadRequest
from eaglelocal.engine.input_queue import INPUT_WAIT_S, InputQueue, Lanes, Prepared
from eaglelocal.engine.input_size import IMAGE_LANE, ChatLanes, count_chars, is_read_quickly
from eaglelocal.engine.running_answer import make_count_events, make_prompted
from eaglelocal.engine.step_times import Clock
from eaglelocal.scheduler.scheduler import Scheduler
from eaglelocal.scheduler.stored_texts import MIN_STORED_ROWS


class WaitingRequests:
    """Requests from `submit` until `start`, when they get a slot."""

    def __init__(
        self,
        input_processor: InputProcessor,
        scheduler: Scheduler,
        lanes: Lanes,
    ) -> None:
        """Take ownership of the input processor and the lanes. Those from IMAGE_LANE on are threads for images."""
        self._input_processor, self._scheduler = input_processor, scheduler
        self._lanes = ChatLanes()
        executors = lanes.executors
        self._image_lane = ImageLane(input_processor.decode_images, executors[IMAGE_LANE:])
        self.files: ConversationFiles | None = None  # conversations on disk, which lanes read
        if len(executors) > IMAGE_LANE:
            lanes = Lanes((*executors[:IMAGE_LANE], self._image_lane), lanes.report)
        self._queue = InputQueue(self._read, lanes, lane_of=self._lanes.choose)
        self._submitted_at: dict[str, float] = {}  # of requests in the scheduler's queue

    def __len__(self) -> int:
        return len(self._queue) + self._scheduler.num_waiting

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._queue or request_id in self._submitted_at

    @property
    def num_reading(self) -> int:
        """The number of requests that are still being read."""
        return len(self._queue)

    def submit(self, request: ChatRequest) -> None:
        """Read the request, then queue it. A quick one is read at once if nobody waits for the next step."""
        self._queue.submit(request, at_once=self._is_read_at_once(request))

    def _is_read_at_once(self, request: ChatRequest) -> bool:
        """Return whether to read it on this thread: it is quick, also where the disk is looked at for long prompts."""
        is_short = self.files is None or count_chars(request) < MIN_STORED_ROWS
        return is_short and is_read_quickly(request) and not self._scheduler.has_work

    def _read(self, chat: ChatRequest) -> ReadRequest:
        """Read a request on a lane, and what the disk holds of its prompt."""
        prompt, request = self._input_processor.process(chat)
        if self.files is not None and request is not None and request.reuses_cache:
            self.files.fetch(request, self._scheduler.num_held(request), self._scheduler.swap.max_bytes)
        return prompt, request

    def wait(self) -> None:
        """Wait up to INPUT_WAIT_S for a request to have been read."""
        self._queue.wait(INPUT_WAIT_S)

    def enqueue(self) -> list[RequestEvent]:
        """Pass the requests that have been read to the scheduler; return the events of those that need no slot."""
        read = self._queue.take()
        if read and not self._queue:
            self._input_processor.forget_prompts_with_images()
        return [event for prepared in read for event in self._enqueue(prepared)]

    def _enqueue(self, prepared: Prepared[ChatRequest, ReadRequest]) -> list[RequestEvent]:
        chat = prepared.request
        self._lanes.learn(chat, prepared.read_s)
        if prepared.result is None:
            assert prepared.error is not None
            self._image_lane.release(chat.id)
            return [Failed(chat.id, prepared.error)]
        prompt, request = prepared.result
        events: list[RequestEvent] = []
        if chat.tells_prompt:
            events.append(make_prompted(chat.id, prompt, self._input_processor.vocabulary))
        if request is None:
            self._image_lane.release(chat.id)
            return [*events, *make_count_events(chat.id, prompt.num_rows)]
        self._submitted_at[chat.id] = prepared.submitted_at_s
        self._scheduler.add(request)
        return events

    def start(self, request_id: str) -> Clock:
        """Return the clock of a request that gets a slot now."""
        self._image_lane.release(request_id)
        return Clock(self._submitted_at.pop(request_id), time.perf_counter())

    def withdraw(self, request_id: str) -> bool:
        """Forget a request that has no slot yet. Returns False if there is none with this id."""
        is_reading = self._queue.withdraw(request_id)
        is_queued = not is_reading and self._scheduler.withdraw(request_id)
        if is_queued:
            del self._submitted_at[request_id]
        self._image_lane.release(request_id)
        self._input_processor.forget_images(request_id)
        return is_reading or is_queued

    def close(self) -> None:
        self._input_processor.close()  # first: it ends a rendering in progress
        self._queue.close()
