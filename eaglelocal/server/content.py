"""Texts and images of a message, in their order. Pure; raises Problem.

Images come in the request, as base64. URLs are never fetched: this server can reach what its clients must not
(services of this machine and its network, files), and a fetch would reveal the server's address. The engine decodes
the image. For a model that reads no images, texts replace them.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from dataclasses import replace

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, EmbedRequest, Image, Message
from eaglelocal.server.http_errors import Problem, unsupported

MAX_IMAGES = 64  # of a request, over all its answers: each is hundreds of tokens, computed before the first output
MAX_IMAGE_BYTES = 32 * 2**20  # more than cameras produce; the model sees a scaled-down copy
MAX_IMAGES_BYTES = 64 * 2**20  # of a request, over all its answers: all of it goes through the engine's pipe
MAX_QUOTED_CHARS = 100

NOT_FETCHED = "this server fetches no URLs: send the image as base64"
NOT_DATA = f"{NOT_FETCHED} (data:image/png;base64,...)"
NO_IMAGE = "there is no image: send its bytes as base64"

_STANDARD_ALPHABET = bytes.maketrans(b"-_", b"+/")  # from base64url to the standard alphabet
_WHITESPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Content:
    """The joined texts of a message, and the images with their positions in the text."""

    text: str = ""
    images: tuple[Image, ...] = ()


def join_pieces(pieces: Iterable[str | bytes]) -> Content:
    """Join texts and image files: `["In ", b"...", " and"]` becomes "In  and" with an image at position 3."""
    texts, images, at = list[str](), list[Image](), 0
    for piece in pieces:
        if isinstance(piece, bytes):
            images.append(Image(piece, at))
        else:
            texts.append(piece)
            at += len(piece)
    return Content("".join(texts), tuple(images))


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def decode_data_url(url: str, place: str) -> bytes:
    """Return the image of a data URL such as `data:image/png;base64,iVBO...`. Raises Problem."""
    if not url:
        raise no_image(place)
    if not is_data_url(url):
        raise unsupported(place, NOT_DATA)
    head, _, encoded = url[5:].partition(",")
    kind, *settings = [word.strip().lower() for word in head.split(";")]
    check_media_type(kind, place)
    if "base64" not in settings:
        raise invalid_image(place, "the data: URL of an image must be base64: data:image/png;base64,...")
    return decode_base64(encoded, place)


def check_media_type(kind: str, place: str) -> None:
    if not kind.startswith("image/"):
        raise unsupported(place, f"only texts and images are supported, not {kind[:MAX_QUOTED_CHARS]!r}")


def decode_base64(text: str, place: str) -> bytes:
    """Decode base64 of either alphabet, with or without line breaks and padding: clients differ. Raises Problem."""
    try:
        digits = text.encode("ascii").translate(_STANDARD_ALPHABET, _WHITESPACE).rstrip(b"=")
        if len(digits) * 3 // 4 > MAX_IMAGE_BYTES:
            raise invalid_image(place, f"the image is larger than {MAX_IMAGE_BYTES} bytes")
        image = binascii.a2b_base64(digits + b"=" * (-len(digits) % 4), strict_mode=True)
    except ValueError:  # of either step
        raise invalid_image(place, "this is not valid base64") from None
    if not image:
        raise no_image(place)
    return image


def check_images(messages: Sequence[Message], num_answers: int) -> None:
    """Check the images' number and size, multiplied by the answers, which each send them. Raises Problem."""
    images = [image for message in messages for image in message.images]
    if (count := len(images) * num_answers) > MAX_IMAGES:
        raise invalid_image("messages", f"there are {count} images; at most {MAX_IMAGES} are allowed in a request")
    if (size := sum(len(image.data) for image in images) * num_answers) > MAX_IMAGES_BYTES:
        what = f"the images have {size} bytes together; at most {MAX_IMAGES_BYTES} are allowed in a request"
        raise invalid_image("messages", what)


def no_image(place: str) -> Problem:
    return invalid_image(place, NO_IMAGE)


def invalid_image(place: str, why: str) -> Problem:
    return Problem(400, why, parameter=place, code="invalid_image")


UNSEEN_IMAGE = "[an image, which this model cannot see]"
NO_VISION = "this model reads no images; if there is a projector for it, load it with `eaglelocal serve --mmproj FILE`"


def replace_unseen_images(requests: Sequence[AnyRequest], info: EngineInfo) -> list[AnyRequest]:
    """Replace images in requests to a model that reads none. Raises Problem for a user's image.

    Images in tool results are replaced by a text: they stay in the conversation, so a refusal would end the session.
    """
    return list(requests) if info.sees_images else list(map(describe_images, requests))


def describe_images(request: AnyRequest) -> AnyRequest:
    if isinstance(request, EmbedRequest):
        return request
    for i, message in enumerate(request.messages):
        if message.images and message.role != "tool":
            raise unsupported(f"messages.{i}", NO_VISION)
    return replace(request, messages=tuple(map(describe_message_images, request.messages)))


def describe_message_images(message: Message) -> Message:
    """Replace each image of a message by a text in the same position."""
    places = [image.at for image in message.images]
    texts = [message.content[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
    return replace(message, content=UNSEEN_IMAGE.join(texts), images=())
