"""/v1 against the openai package and a server process, and chat templates against transformers."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import keras_tx
from keras_tx import contract
from keras_tx.errors import InputError, RunError
from keras_tx.generation.generator import LONG, text_ids
from keras_tx.processing import train_byte_bpe
from keras_tx.runtime import load
from keras_tx.serving.engine.cache_rows import SharedRows
from keras_tx.serving.http.chat_template import ChatTemplate
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ModelOptions
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.exported_folders import CORPUS
from tests.serving.running_server import RunningServer, running, until
from tests.serving.server_process import ServerProcess, serving
from tests.tolerances import assert_close

openai = pytest.importorskip("openai", reason="openai is missing: pip install openai")

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES: list[Any] = [{"role": "system", "content": "Be kind. "}, {"role": "user", "content": "the cat"}]
CHAT = "system: Be kind.\nuser: the cat\nassistant:"
STEPS = 400  # a text that does not end before a client leaves


@pytest.fixture(scope="module")
def folders(exported_folders, tmp_path_factory) -> dict[str, Path]:
    """Two decoders, of which one has a chat template and a cache that streams share, and an embedder."""
    words = dataclasses.replace(train_byte_bpe(CORPUS, size=280), chat_template=TEMPLATE)
    chat = tmp_path_factory.mktemp("chat") / "chat"
    model = redraw(keras_tx.gpt("pico", max_length=STEPS + 64, processing=words))
    export_onnx(model, chat, cache="shared", verify=False)
    return {
        "poet": exported_folders["gpt"].path,
        "chat": chat,
        "minilm": exported_folders["bert, sentence"].path,
    }


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("secret\n")
    arguments = [f"{name}={path}" for name, path in folders.items()]
    with serving(*arguments, "--keys", keys, "--max-new-tokens", STEPS) as one:
        one.wait_for("ready")
        yield one


@pytest.fixture
def client(server) -> Iterator[Any]:
    url = f"http://{server.address}/v1"
    with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as one:
        yield one


def test_models(client, server):
    assert [one.id for one in client.models.list()] == ["poet", "chat", "minilm"]
    assert client.models.retrieve("chat").owned_by == "keras-tx"
    with pytest.raises(openai.NotFoundError, match="'chat'"):
        client.models.retrieve("chit")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


@pytest.mark.parametrize("name", ["poet", "chat"])
def test_completion(client, folders, name):
    """Greedy, the ids, the log probabilities, and the numbers of tokens are those of `generate`."""
    with load(folders[name], provider="cpu") as model:
        expected = model.generate("the cat", max_new_tokens=7, log_probabilities=True)
        length = len(model.tokenizer.encode("the cat").ids)
    made = client.completions.create(model=name, prompt="the cat", max_tokens=7, temperature=0, logprobs=3)
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish)
    assert made.usage.prompt_tokens == length and made.usage.completion_tokens == len(expected.ids)
    assert made.usage.total_tokens == length + len(expected.ids)
    logprobs = choice.logprobs
    assert_close(np.array(logprobs.token_logprobs), np.array(expected.log_probabilities))
    assert [len(one) for one in logprobs.top_logprobs] == [3] * len(expected.ids)
    best = [max(one.values()) for one in logprobs.top_logprobs]
    assert_close(np.array(best), np.array(logprobs.token_logprobs))  # greedy
    assert len(logprobs.text_offset) == len(logprobs.tokens) == len(expected.ids)


def test_structured_outputs(client):
    """response_format of chats, and structured_outputs of vLLM's clients."""
    pytest.importorskip("llguidance", reason='pip install "keras-tx[serve]"')
    schema = {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "of": {"enum": ["cat", "mat"]}},
        "required": ["on", "of"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "where", "strict": True, "schema": schema}}
    for stream in (False, True):
        made = client.chat.completions.create(
            model="chat", messages=MESSAGES, response_format=wanted, seed=4, max_tokens=90, stream=stream
        )
        if stream:
            with made:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in made)
        else:
            text = made.choices[0].message.content
            assert made.choices[0].finish_reason == "stop"
        answer = json.loads(text)
        assert type(answer["on"]) is bool and answer["of"] in ("cat", "mat") and len(answer) == 2
    for prompt, body in (("a", {"regex": "(cat|mat)[0-9]{3}"}), ("a", {"json": {"enum": ["cat", 7]}})):
        made = client.completions.create(
            model="poet", prompt=prompt, n=4, max_tokens=40, seed=1, extra_body={"structured_outputs": body}
        )
        for choice in made.choices:
            if "regex" in body:
                assert re.fullmatch(body["regex"], choice.text)
            else:
                assert json.loads(choice.text) in ("cat", 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "without json_schema"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "but a json_schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "b"}},
                }
            },
            "Invalid type: b",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "is not supported"),
        ({"extra_body": {"structured_outputs": {"regex": "a", "json": {}}}}, "one of regex and json_schema"),
        (
            {
                "response_format": {"type": "json_object"},
                "extra_body": {"structured_outputs": {"regex": "a"}},
            },
            "response_format and structured_outputs",
        ),
        ({"response_format": {"type": "json_object"}, "stop": "x"}, "stop="),
    ],
)
def test_invalid_structured_outputs_are_refused(client, options, message):
    pytest.importorskip("llguidance", reason='pip install "keras-tx[serve]"')
    with pytest.raises(openai.UnprocessableEntityError, match=message):
        client.chat.completions.create(model="chat", messages=MESSAGES, **options)


@pytest.mark.parametrize("name", ["poet", "chat"])
def test_sampling_with_a_seed(client, folders, name):
    options = {"temperature": 0.8, "seed": 5, "top_p": 0.9}
    with load(folders[name], provider="cpu") as model:
        expected = [
            model.generate("the cat", max_new_tokens=9, **{**options, "seed": seed}).text
            for seed in (5, 6, 7)
        ]
    made = client.completions.create(model=name, prompt="the cat", max_tokens=9, n=3, **options)
    assert [choice.text for choice in made.choices] == expected
    assert len(set(expected)) > 1
    assert [choice.index for choice in made.choices] == [0, 1, 2]


def test_several_prompts(client, folders):
    with load(folders["chat"], provider="cpu") as model:
        texts = [model.generate(prompt, max_new_tokens=5).text for prompt in ("the cat", "Ada lives")]
        ids = model.tokenizer.encode("Ada lives").ids
    options = {"model": "chat", "max_tokens": 5, "temperature": 0}
    made = client.completions.create(prompt=["the cat", "Ada lives"], **options)
    assert [choice.text for choice in made.choices] == texts
    assert client.completions.create(prompt=ids, **options).choices[0].text == texts[1]
    assert client.completions.create(prompt=[ids, ids], **options).choices[1].text == texts[1]


def test_stop(client, folders):
    with load(folders["chat"], provider="cpu") as model:
        whole = model.generate("the cat", max_new_tokens=30).text
        stop = whole[10:12]
        expected = model.generate("the cat", max_new_tokens=30, stop=stop)
    options = {"model": "chat", "prompt": "the cat", "max_tokens": 30, "temperature": 0, "stop": stop}
    made = client.completions.create(**options)
    assert made.choices[0].text == expected.text and made.choices[0].finish_reason == "stop"
    streamed = list(client.completions.create(**options, stream=True))
    assert "".join(part.choices[0].text for part in streamed) == expected.text


def test_completion_stream(client):
    options = {"model": "chat", "prompt": "the cat", "max_tokens": 8, "temperature": 0, "logprobs": 0}
    whole = client.completions.create(**options)
    with client.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
        parts = list(stream)
    assert parts[-1].choices == [] and parts[-1].usage == whole.usage
    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * 8 + ["length"]
    values = [
        x for part in parts[:-1] if part.choices[0].logprobs for x in part.choices[0].logprobs.token_logprobs
    ]
    assert_close(np.array(values), np.array(whole.choices[0].logprobs.token_logprobs))


def test_chat(client, folders):
    with load(folders["chat"], provider="cpu") as model:
        ids = model.tokenizer.encode(CHAT, add_special_tokens=False).ids
        expected = model.generate(ids, max_new_tokens=6, log_probabilities=True)
    options: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
    made = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    (choice,) = made.choices
    assert choice.message.content == expected.text and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and made.usage.prompt_tokens == len(ids)
    content = choice.logprobs.content
    assert_close(np.array([one.logprob for one in content]), np.array(expected.log_probabilities))
    assert all(len(one.top_logprobs) == 2 for one in content)
    for one, number in zip(content, expected.ids, strict=True):
        token = model.tokenizer.decode([number], skip_special_tokens=False)
        partial = "\N{REPLACEMENT CHARACTER}" in token
        assert one.token == (f"token_id:{number}" if partial else token)
        assert one.bytes == (None if partial else list(token.encode()))
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    made = client.chat.completions.create(
        **{**options, "messages": [MESSAGES[0], {"role": "user", "content": parts}]}
    )
    assert made.choices[0].message.content == expected.text


def test_second_turn(client):
    """The message of an answer becomes a message of the next request, as the client's own class writes it."""
    options: dict[str, Any] = {"model": "chat", "temperature": 0, "max_tokens": 6}
    made = client.chat.completions.create(messages=MESSAGES, **options).choices[0].message
    turn = {"role": "user", "content": "Ada"}
    answer = client.chat.completions.create(messages=[*MESSAGES, made, turn], **options)
    plain = {"role": "assistant", "content": made.content}
    expected = client.chat.completions.create(messages=[*MESSAGES, plain, turn], **options)
    assert answer.choices[0].message == expected.choices[0].message
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_chat_stream(client):
    options: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "n": 2, "seed": 1}
    options["max_completion_tokens"] = 8
    whole = client.chat.completions.create(**options)
    texts = ["", ""]
    finished = {}
    for part in client.chat.completions.create(**options, stream=True):
        (choice,) = part.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason is not None:
            finished[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert finished == {choice.index: choice.finish_reason for choice in whole.choices}
    with (
        client.chat.completions.stream(**options) as stream,  # the client's own accumulation
        pytest.raises(openai.LengthFinishReasonError) as length,
    ):
        stream.get_final_completion()
    assert [choice.message.content for choice in length.value.completion.choices] == texts


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_embeddings(client, folders, encoding):
    texts = ["The cat sat on the mat.", "Ada!"]
    with load(folders["minilm"], provider="cpu") as model:
        expected = model.embed(texts)
        tokens = sum(map(len, model.transform.encode(texts)))
    options = {} if encoding is None else {"encoding_format": encoding}
    made = client.embeddings.create(model="minilm", input=texts, **options)
    vectors = [one.embedding for one in made.data]
    if encoding == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
    assert_close(np.array(vectors, "float32"), expected)
    assert made.usage.prompt_tokens == made.usage.total_tokens == tokens
    assert_close(
        np.array(client.embeddings.create(model="minilm", input=texts[0]).data[0].embedding), expected[0]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "minilm"}, "/models/minilm"),
        ({"temperature": -1}, "temperature is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": STEPS + 1}, f"max_tokens is {STEPS + 1}"),
        ({"n": 17}, "n is 17"),
        ({"stop": ""}, "stop"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"echo": True}, "echo is True"),
        ({"suffix": "x"}, "suffix"),
        ({"extra_body": {"beams": 3}}, "beams"),
        ({"prompt": [10**6]}, "1000000"),
        ({"prompt": [[1, 2], "a"]}, "prompt"),
        ({"prompt": "the cat " * 400}, "context"),
        ({"stream_options": {"include_usage": True}}, "stream=true"),
    ],
)
def test_refused_completions(client, options, message):
    with pytest.raises(openai.UnprocessableEntityError, match=message):
        client.completions.create(**{"model": "chat", "prompt": "the cat", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "poet"}, "chat_template"),
        ({"tools": []}, "tools"),
        ({"top_logprobs": 2}, "logprobs=true"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "Send one"),
        ({"messages": [{"role": "robot", "content": "a"}]}, r"messages\[0\].role"),
        ({"messages": [{"role": "user", "content": "a", "refusal": "no"}]}, r"messages\[0\].refusal"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_refused_chats(client, options, message):
    with pytest.raises(openai.UnprocessableEntityError, match=message):
        client.chat.completions.create(**{"model": "chat", "messages": MESSAGES, **options})


def test_length_of_a_chat(folders):
    """Each message is within the limit, and the chat is not."""
    limits = Limits(max_characters=len(CHAT), max_new_tokens=2)
    with running({"chat": folders["chat"]}, limits=limits) as server:
        path, body = "/v1/chat/completions", {"model": "chat", "messages": MESSAGES}
        assert server.post(path, body).status == 200
        refused = server.post(path, {**body, "messages": [*MESSAGES, {"role": "user", "content": ""}]})
        length = len(CHAT) + len("user: \n")
        assert refused.status == 422 and f"messages have {length} characters" in refused.message


@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_ids_of_long_texts(folders, add_special_tokens):
    """A batch has the ids of the text alone."""
    text = "".join(CORPUS) + "\N{GRINNING FACE} \u00e9\n"
    long = text * (LONG // len(text) + 1)
    for path in (folders["chat"], folders["minilm"]):
        tokenizer = tokenizers.Tokenizer.from_file(str(path / contract.TOKENIZER))
        for one in (text[:LONG], long):
            alone = tokenizer.encode(one, add_special_tokens=add_special_tokens).ids
            assert text_ids(tokenizer, one, add_special_tokens=add_special_tokens) == alone


def test_unknown_models(client):
    for name in ("none", "chat:none"):
        with pytest.raises(openai.NotFoundError, match="none"):
            client.completions.create(model=name, prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="embeddings"):
        client.embeddings.create(model="chat", input="a")


def test_tokens_of_a_client_that_leaves_are_not_generated(folders, monkeypatch):
    decode = SharedRows.decode

    def slow(*arguments: Any) -> Any:
        time.sleep(0.01)
        return decode(*arguments)

    monkeypatch.setattr(SharedRows, "decode", slow)
    with running({"chat": folders["chat"]}, options=ModelOptions(prompt_lookup=False)) as server:
        engine = server.application.models.get("chat").engine
        client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="x", max_retries=0)
        options = {"model": "chat", "prompt": "the cat", "max_tokens": STEPS, "temperature": 0}
        for number, streamed in enumerate((True, False), 1):
            started = engine.stats.tokens
            if streamed:
                with client.completions.create(**options, stream=True) as parts:
                    next(iter(parts))
            else:
                _leave(server, options)
            until(lambda: engine.stats.running == engine.stats.waiting == 0)
            assert engine.stats.tokens - started < STEPS
            left = 'keras_tx_requests_total{model="chat",route="/v1/completions",status="499"}'
            until(lambda left=left, number=number: server.metrics().get(left) == number)


def _leave(server: RunningServer, options: dict[str, Any]) -> None:
    """Sends a request, and closes the connection when its text has begun."""
    engine = server.application.models.get("chat").engine
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/completions", json.dumps(options), {"content-type": "application/json"})
    until(lambda: engine.stats.running == 1)
    connection.close()


def test_full_queue_is_429(folders):
    with running({"chat": folders["chat"]}, options=ModelOptions(max_streams=1, max_queue=1)) as server:
        client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.RateLimitError, match="queue is full"):
            client.completions.create(model="chat", prompt=["a"] * 9, max_tokens=STEPS, n=9)
        engine = server.application.models.get("chat").engine
        until(lambda: engine.stats.running == engine.stats.waiting == 0)  # the others are cancelled
        assert client.completions.create(model="chat", prompt="a", max_tokens=2).usage.completion_tokens == 2


def test_error_within_a_stream(folders, monkeypatch):
    with running({"chat": folders["chat"]}) as server:
        client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="x", max_retries=0)
        for method in ("run", "decode"):
            monkeypatch.setattr(SharedRows, method, lambda *arguments: 1 / 0)
        with pytest.raises(openai.APIError, match="Internal error"):
            list(client.completions.create(model="chat", prompt="a", max_tokens=2, stream=True))


def test_error_within_a_stream_has_no_path_of_the_server(folders, monkeypatch):
    def fail(*arguments: Any) -> None:
        raise RunError(f"The graph in {folders['chat']} stopped.")

    with running({"chat": folders["chat"]}) as server:
        client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="x", max_retries=0)
        for method in ("run", "decode"):
            monkeypatch.setattr(SharedRows, method, fail)
        with pytest.raises(openai.APIError, match="The graph in chat stopped"):
            list(client.completions.create(model="chat", prompt="a", max_tokens=2, stream=True))


def test_metrics_of_tokens(client, server):
    client.completions.create(model="chat", prompt="the cat", max_tokens=5, temperature=0)
    lines = server.get("/metrics", authorization="Bearer secret").body.decode()
    for name in ("time_to_first_token_seconds_count", "time_per_token_seconds_count"):
        assert f'keras_tx_{name}{{model="chat"}}' in lines
    assert 'keras_tx_tokens_total{kind="prompt",model="chat"}' in lines


def test_template_of_a_checkpoint_reaches_the_folder(tmp_path):
    words = dataclasses.replace(train_byte_bpe(CORPUS, size=280), chat_template=TEMPLATE)
    words.save(tmp_path / "words")
    assert keras_tx.TextTransform.load(tmp_path / "words").chat_template == TEMPLATE
    (tmp_path / "words" / "chat_template.jinja").write_text("other")
    assert keras_tx.TextTransform.load(tmp_path / "words").chat_template == "other"


CHATML = (
    "{%- for m in messages %}\n    {%- if loop.first and m.role != 'system' %}\n"
    "        {{- bos_token + 'You help.\\n' }}\n    {%- endif %}\n"
    "    {{- '<|' + m.role + '|>' + m.content | tojson }}\n"
    "    {%- if m.role == 'assistant' %}{%- break %}{%- endif %}\n{%- endfor %}\n"
    "    {% if add_generation_prompt %}\n<|assistant|>\n{% endif %}\n"
)


@pytest.mark.parametrize("template", [TEMPLATE, CHATML])
def test_templates_against_transformers(template, tmp_path):
    transformers = pytest.importorskip("transformers")
    words = dataclasses.replace(train_byte_bpe(CORPUS, size=280), chat_template=template)
    words.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    special = {"bos_token": words.bos_token or "", "eos_token": words.eos_token or ""}
    rendered = ChatTemplate(template, special)
    chats = [MESSAGES, MESSAGES[1:], [*MESSAGES, {"role": "assistant", "content": '<b> é "x" '}, MESSAGES[1]]]
    for chat in chats:
        expected = reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert rendered.render(chat) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[5].content }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
    ],
)
def test_templates_run_in_a_sandbox(template):
    with pytest.raises(InputError, match="chat template"):
        ChatTemplate(template, {}).render(MESSAGES)
