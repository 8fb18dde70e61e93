"""Replace images by texts for a model that reads none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.request import AnyRequest, EmbedRequest, Message
from eaglelocal.server.http_errors import unsupported

UNSEEN_IMAGE = "[an image, which this model cannot see]"
NO_VISION = "this model reads no images; if there is a projector for it, load it with `eaglelocal serve --mmproj FILE`"


def replace_unseen_images(requests: Sequence[AnyRequest], info: EngineInfo) -> list[AnyRequest]:
    """Return the requests as the model can read them. Raises Problem for a user's image if it reads none.

    Images in tool results are replaced by a text: they stay in the conversation, so a refusal would end the session.
    """
    if info.sees_images:
        return list(requests)
    return [describe_images(request) for request in requests]


def describe_images(request: AnyRequest) -> AnyRequest:
    if isinstance(request, EmbedRequest):
        return request
    for i, message in enumerate(request.messages):
        if message.images and message.role != "tool":
            raise unsupported(f"messages.{i}", NO_VISION)
    return replace(request, messages=tuple(map(describe_message_images, request.messages)))


def describe_message_images(message: Message) -> Message:
    """Replace each image of a message by a text at its place."""
    places = [image.at for image in message.images]
    texts = [message.content[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
    return replace(message, content=UNSEEN_IMAGE.join(texts), images=())
