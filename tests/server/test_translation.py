"""Fields of a translated body are reported under their original names."""

from __future__ import annotations

import pytest

from eaglelocal.errors import EngineAwayError, RequestError
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_body import FieldTranslation

NAMES = FieldTranslation(
    {"messages": "input", "response_format": "text.format", "stop": "stop_sequences"}, ("system", "input.0")
)


@pytest.mark.parametrize(
    ("parameter", "own"),
    [
        ("messages", "input"),
        ("messages.0.content", "system.content"),
        ("messages.1.content.2", "input.0.content.2"),
        ("messages.1.tool_calls.0.function.name", "input.0"),
        ("messages.7", "input.7"),
        ("response_format.json_schema", "text.format.json_schema"),
        ("stop.1", "stop_sequences.1"),
        ("temperature", "temperature"),
        (None, None),
    ],
)
def test_places(parameter: str | None, own: str | None) -> None:
    problem = NAMES.translate_back(Problem(400, f"{parameter}: too long", parameter=parameter, code="a"))
    assert (problem.status, problem.parameter, problem.code) == (400, own, "a")
    assert problem.message == f"{own}: too long"


def test_failures_keep_their_status() -> None:
    with pytest.raises(Problem, match="no") as caught, NAMES.translate_errors():
        raise RequestError("no", parameter="stop")
    assert (caught.value.status, caught.value.parameter) == (400, "stop_sequences")
    with pytest.raises(Problem) as away, NAMES.translate_errors():
        raise EngineAwayError("gone")
    assert away.value.status == 503 and "Retry-After" in away.value.headers
