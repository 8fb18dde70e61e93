"""What a model that reads no images is given in their place. Pure: knows requests, no HTTP but its problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.request import AnyRequest, EmbedRequest, Message
from eaglelocal.server.errors import unsupported

UNSEEN_IMAGE = "[an image, which this model cannot see]"
BLIND = "this model reads no images; where there is a projector for it, `eaglelocal serve --mmproj FILE` lets it see"


def as_seen(requests: Sequence[AnyRequest], info: EngineInfo) -> list[AnyRequest]:
    """Raises Problem where somebody shows an image to a model that is blind.

    What a tool gave is described instead: one picture would end the session with all that it asks from then on, and
    nobody could take it back.
    """
    if info.sees_images:
        return list(requests)
    return [described(request) for request in requests]


def described(request: AnyRequest) -> AnyRequest:
    if isinstance(request, EmbedRequest):
        return request
    for i, message in enumerate(request.messages):
        if message.images and message.role != "tool":
            raise unsupported(f"messages.{i}", BLIND)
    return replace(request, messages=tuple(map(in_words, request.messages)))


def in_words(message: Message) -> Message:
    """Where each image stood it is said so."""
    places = [image.at for image in message.images]
    texts = [message.content[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
    return replace(message, content=UNSEEN_IMAGE.join(texts), images=())
