"""Drives an OpenAI-compatible server with the unmodified `openai` package.

Environment: KVASIR_BASE_URL (with /v1), KVASIR_API_KEY (if the server wants one).
Prints a line for each check and, last, "N passed, N failed"; exits with 1 if any failed.
"""

import json
import os
import sys
import traceback

import openai

CHECKS = []
HELLO = [{"role": "user", "content": "Say hello, then count from one to twenty."}]
KEY = os.environ.get("KVASIR_API_KEY")

client = openai.OpenAI(
    base_url=os.environ["KVASIR_BASE_URL"], api_key=KEY or "none", max_retries=0, timeout=120
)
model = None


def check(function):
    CHECKS.append(function)
    return function


def chat(**extra):
    arguments = {"model": model, "messages": HELLO, "temperature": 0, "max_tokens": 24, **extra}
    return client.chat.completions.create(**arguments)


def complete(**extra):
    arguments = {"model": model, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 24, **extra}
    return client.completions.create(**arguments)


def raises(kind, function, **extra):
    try:
        function(**extra)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


@check
def models_are_listed():
    listed = client.models.list()
    assert model in [entry.id for entry in listed.data]
    assert client.models.retrieve(model).id == model


@check
def chat_answers():
    answer = chat()
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == model and answer.id
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 24


@check
def chat_streams_the_same_text():
    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    *others, last = chunks
    assert last.choices == [] and last.usage == whole.usage
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in others)
    assert {chunk.id for chunk in chunks} == {last.id}
    assert all(chunk.object == "chat.completion.chunk" and chunk.model == model and chunk.created for chunk in chunks)
    assert others[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in others)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in others]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])


@check
def a_stream_has_no_usage_unless_asked_for():
    chunks = list(chat(stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@check
def the_stream_helper_gathers_the_answer():
    with client.chat.completions.stream(model=model, messages=HELLO, temperature=0, max_tokens=8) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        gathered = stream.current_completion_snapshot.choices[0].message.content
    assert "".join(deltas) == gathered == chat(max_tokens=8).choices[0].message.content


@check
def completions_answer_and_stream():
    whole = complete()
    assert whole.object == "text_completion" and whole.choices[0].text
    text = "".join(chunk.choices[0].text for chunk in complete(stream=True))
    assert text == whole.choices[0].text


@check
def a_cap_ends_with_length():
    answer = chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=3)
    assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"


@check
def a_stop_string_ends_the_text_before_it():
    text = chat().choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    answer = chat(stop=[stop])
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(stop=[stop], stream=True))
    assert streamed == answer.choices[0].message.content


@check
def a_seed_repeats_the_text():
    first, second = (chat(temperature=1, seed=7).choices[0].message.content for _ in range(2))
    assert first == second
    others = {chat(temperature=1, seed=seed).choices[0].message.content for seed in range(8, 13)}
    assert others - {first}, "five other seeds gave the same text"


@check
def chat_log_probabilities():
    answer = chat(logprobs=True, top_logprobs=3, max_tokens=4)
    entries = answer.choices[0].logprobs.content
    assert entries and all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    spelled = b"".join(bytes(entry.bytes) for entry in entries)
    assert spelled.decode(errors="replace") == answer.choices[0].message.content
    assert chat(logprobs=True, max_tokens=2).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(max_tokens=2).choices[0].logprobs is None


@check
def completion_log_probabilities():
    found = complete(logprobs=2, max_tokens=3).choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) > 0
    assert found.text_offset[0] == 0


@check
def tools_are_called_or_refused_by_name():
    function = {"name": "now", "description": "the time", "parameters": {"type": "object", "properties": {}}}
    try:
        answer = chat(tools=[{"type": "function", "function": function}], tool_choice="required", max_tokens=200)
    except openai.BadRequestError as error:
        assert error.param in ("tools", "tool_choice")
        return
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and call.id and call.function.name == "now"
    assert isinstance(json.loads(call.function.arguments), dict)


@check
def another_model_is_not_found():
    error = raises(openai.NotFoundError, chat, model="no-such-model")
    assert error.code == "model_not_found" and error.param == "model"


@check
def a_prompt_beyond_the_context_is_refused():
    context_length = client.models.retrieve(model).context_length
    long = [{"role": "user", "content": "word " * (context_length + 1)}]
    for stream in (False, True):
        error = raises(openai.BadRequestError, chat, messages=long, stream=stream)
        assert error.code == "context_length_exceeded" and error.type == "invalid_request_error"


@check
def a_bad_value_is_refused_by_name():
    error = raises(openai.BadRequestError, chat, temperature=9)
    assert error.param == "temperature"
    error = raises(openai.BadRequestError, chat, n=2)
    assert error.param == "n"


@check
def a_wrong_key_is_refused():
    if not KEY:
        return
    stranger = client.with_options(api_key="not-" + KEY)
    error = raises(openai.AuthenticationError, stranger.models.list)
    assert error.code == "invalid_api_key"


def main():
    global model
    model = client.models.list().data[0].id
    failed = 0
    for function in CHECKS:
        try:
            function()
            print(f"ok   {function.__name__}")
        except Exception:
            failed += 1
            print(f"FAIL {function.__name__}\n{traceback.format_exc()}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
