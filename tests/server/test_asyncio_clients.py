"""Every feature again through the asyncio clients, which editors and agents use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
from doubles.running_server import Server

TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def run_script(script: str) -> list[Any]:
    return [{"role": "user", "content": script}]


def with_openai(server: Server, work: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            await work(client)

    asyncio.run(run())


def test_chat_completions(actor: Server) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        ask = client.chat.completions.create
        whole = await ask(model="actor", messages=run_script("think hm\nsay yes"), n=2, logprobs=True, seed=1)
        assert [choice.message.content for choice in whole.choices] == ["yes", "yes"]
        called = await ask(
            model="actor", messages=run_script('call add {"a": 1}'), tools=[TOOL], tool_choice="required"
        )
        (call,) = called.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
        assert called.choices[0].finish_reason == "tool_calls"
        stream = await ask(model="actor", messages=run_script("say a\nsay b"), stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "ab"

    with_openai(actor, work)


def test_completions_responses_embeddings_models(actor: Server) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        assert (await client.completions.create(model="actor", prompt="say hello")).choices[0].text == "hello"
        response = await client.responses.create(model="actor", input="say hello")
        assert response.output_text == "hello"
        async with client.responses.stream(model="actor", input="say a\nsay b") as stream:
            assert (
                "".join([event.delta async for event in stream if event.type == "response.output_text.delta"]) == "ab"
            )
            assert (await stream.get_final_response()).status == "completed"
        assert (await client.embeddings.create(model="actor", input="four")).data[0].embedding == [4.0, 0.5]
        assert [model.id async for model in client.models.list()] == ["actor"]

    with_openai(actor, work)


def test_a_stream_that_is_closed_frees_its_slot(actor: Server) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model="actor", messages=run_script("say a\nforever"), stream=True)
        async for _ in stream:
            break
        await stream.close()

    with_openai(actor, work)
    actor.wait_until_idle()


def test_messages(actor: Server) -> None:
    async def run() -> None:
        async with anthropic.AsyncAnthropic(base_url=actor.url, api_key="none", max_retries=0) as client:
            whole = await client.messages.create(model="actor", max_tokens=9, messages=run_script("say hello"))
            assert [block.text for block in whole.content if block.type == "text"] == ["hello"]
            async with client.messages.stream(
                model="actor", max_tokens=9, messages=run_script("say a\nsay b")
            ) as stream:
                assert "".join([text async for text in stream.text_stream]) == "ab"

    asyncio.run(run())
