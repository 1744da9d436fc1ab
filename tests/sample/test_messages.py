"""What a row may hold, what of it the chat template reads, and that a fault names its row."""

import json
from datetime import datetime, timedelta

import pytest
from datasets import Dataset
from tokenizers import processors

from covey.errors import DatasetError
from covey.sample.chat import Clock, closing_tokens, encode_prompt
from covey.sample.prompts import PromptReader
from tests.tiny import ASSISTANT, BOS, CHAT, EOS, STOP, USER, VOCABULARY, tiny_tokenizer

PARTS = CHAT.replace(
    "{{ message['content'] }}",
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ '(' + part['text'] + ')' }}{% endfor %}{% endif %}",
)
FOR_USERS = PARTS.replace("is string", "is string or message['role'] != 'user'")
TOOLS = (
    "{% if tools is not none %}{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% else %}(none){% endif %}"
    + CHAT
)


def user(content):
    return [{"role": "user", "content": content}]


def part(text, **more):
    return {"type": "text", "text": text, **more}


def read_text(row, template=CHAT, number=0, **reader):
    tokenizer = tiny_tokenizer(template=template)
    return tokenizer.decode(PromptReader(tokenizer, **reader).read(row, number, (0,)).ids)


def refusal(row, number=7, **reader):
    with pytest.raises(DatasetError) as told:
        read_text(row, number=number, **reader)
    assert str(told.value).startswith(f"Row {number}: ")
    return str(told.value)


# --- content --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [[part("say hi.")], [part("say "), part("hi.", image=None)], [{"text": "say hi."}]]
)
def test_text_parts_are_joined_where_the_template_knows_none(parts):
    assert read_text({"prompt": user(parts)}) == "<|user|>say hi.<|assistant|>"


def test_text_parts_stay_parts_where_the_template_reads_them_role_by_role():
    parts = [part("a"), part("b")]
    turns = [*user(parts), {"role": "assistant", "content": parts}, *user("c")]
    assert (
        read_text({"prompt": turns}, PARTS) == "<|user|>(a)(b)<|assistant|>(a)(b)<eos><|user|>c<|assistant|>"
    )
    assert (
        read_text({"prompt": turns}, FOR_USERS) == "<|user|>(a)(b)<|assistant|>ab<eos><|user|>c<|assistant|>"
    )


@pytest.mark.parametrize("template", [CHAT, PARTS])
@pytest.mark.parametrize("kind", ["audio", "input_audio", "video", "file"])
def test_any_other_part_names_its_row_and_kind(template, kind):
    told = refusal({"prompt": user([part("what is it"), {"type": kind}])}, template=template)
    assert repr(kind) in told and "message 0" in told and "not supported" in told


@pytest.mark.parametrize("kind", ["image", "image_url"])
def test_a_picture_for_a_policy_that_reads_text_names_its_row(kind):
    told = refusal({"prompt": user([part("what is it"), {"type": kind}])})
    assert "has pictures, and the policy reads text alone" in told and "use_images=False" in told


@pytest.mark.parametrize("content", [None, 5, 2.5, True, {"a": 1}, ["a"], [part(None)], [part(3)]])
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_content_that_is_no_text_names_its_row(content, role):
    assert "content" in refusal({"prompt": [{"role": role, "content": content}, *user("a")]})


@pytest.mark.parametrize(
    "message", [{"content": "a"}, {"role": None, "content": "a"}, {"role": 3, "content": "a"}]
)
def test_a_message_without_a_role_names_its_row(message):
    assert "role" in refusal({"prompt": [*user("a"), message]})


@pytest.mark.parametrize("prompt", [None, 5, "", [], {}, ["a"], {"role": "user", "content": "a"}])
def test_what_is_no_prompt_names_its_row(prompt):
    assert "'prompt'" in refusal({"prompt": prompt})


@pytest.mark.parametrize("parts", [False, True])
def test_a_long_chat_in_parts_is_cut_like_text(parts):
    content = [part("x" * 50), part("END")] if parts else "x" * 50 + "END"
    for template in (CHAT, PARTS):
        text = read_text({"prompt": user(content)}, template, max_length=12)
        assert (
            text.startswith("<|user|>") and "END" in text and len(tiny_tokenizer()(text)["input_ids"]) <= 12
        )


# --- keys that are None ---------------------------------------------------------------------------------------------------

CALLS = CHAT.replace(
    "{{ message['content'] }}", "{{ message['content'] | default('') }}{{ message | tojson }}"
)


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_keys_that_arrow_filled_in_are_gone_for_the_template_and_there_for_rewards():
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("f", {"x": 1}), call("g", {"y": {"z": [2]}})],
    }
    dataset = Dataset.from_list(
        [
            {"prompt": [*user("a"), said, *user("b")]},
            {"prompt": [{"role": "user", "content": "c", "name": "ann"}]},
        ]
    )
    for row in dataset:
        tokenizer = tiny_tokenizer(template=CALLS)
        prompt = PromptReader(tokenizer).read(row, 0, (0,))
        assert "null" not in tokenizer.decode(prompt.ids)
        assert prompt.content == row["prompt"]
    assert "null" in json.dumps(dataset["prompt"][0]), "the data set has keys to take away"


# --- columns that the template reads --------------------------------------------------------------------------------------


def tool(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


@pytest.mark.parametrize("form", [list, json.dumps, lambda tools: [json.dumps(t) for t in tools]])
def test_tools_of_a_row_are_rendered_in_every_form(form):
    text = read_text(
        {"prompt": user("a"), "tools": form([tool("alpha", a={"kind": "x", "other": None})])}, TOOLS
    )
    assert "alpha" in text and "(none)" not in text
    assert ("null" in text) == (form is not list), "Arrow fills in tables, and no JSON text"


@pytest.mark.parametrize("none", [[], "[]", None, "", "null"])
@pytest.mark.parametrize("where", ["column", "row", "run"])
def test_no_tools_are_rendered_as_no_tools(none, where):
    row = {"prompt": user("a")}
    row |= {"tools": none} if where == "column" else {}
    row |= {"chat_template_kwargs": {"tools": []}} if where == "row" else {}
    tokenizer = tiny_tokenizer(template=TOOLS)
    reader = PromptReader(tokenizer, {"tools": []} if where == "run" else {})
    assert tokenizer.decode(reader.read(row, 0, (0,)).ids) == "(none)<|user|>a<|assistant|>"


def test_tools_of_the_row_go_before_those_of_the_run():
    tokenizer = tiny_tokenizer(template=TOOLS)
    reader = PromptReader(tokenizer, {"tools": [tool("beta")]})
    own = tokenizer.decode(reader.read({"prompt": user("a"), "tools": [tool("alpha")]}, 0, (0,)).ids)
    none = tokenizer.decode(reader.read({"prompt": user("a"), "tools": []}, 0, (0,)).ids)
    assert "alpha" in own and "beta" not in own and "beta" in none


@pytest.mark.parametrize("tools", ["no json", {"a": 1}, 5, [5]])
def test_tools_that_are_none_name_the_row(tools):
    assert "tools" in refusal({"prompt": user("a"), "tools": tools}, template=TOOLS).lower()


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokenize": False},
        {"add_generation_prompt": True},
        {"return_tensors": "pt"},
        {"padding": True},
        5,
        ["a"],
    ],
)
def test_template_arguments_of_a_row_that_collide_name_the_row(arguments):
    told = refusal({"prompt": user("a"), "chat_template_kwargs": arguments})
    assert "chat_template_kwargs" in told and (
        not isinstance(arguments, dict) or next(iter(arguments)) in told
    )


def test_template_arguments_that_arrow_filled_in_leave_those_of_the_run():
    template = CHAT + "{{ mood }}"
    rows = Dataset.from_list(
        [
            {"prompt": user("a"), "chat_template_kwargs": {"mood": "?"}},
            {"prompt": user("a"), "chat_template_kwargs": {"other": 1}},
        ]
    )
    tokenizer = tiny_tokenizer(template=template)
    reader = PromptReader(tokenizer, {"mood": "!"})
    assert [tokenizer.decode(reader.read(row, 0, (0,)).ids)[-1] for row in rows] == ["?", "!"]


# --- what template and tokenizer refuse -----------------------------------------------------------------------------------

FAULTS = {
    "raise_exception": "{{ raise_exception('not this one') }}",
    "syntax": "{% if %}",
    "undefined": "{{ nothing.at.all }}",
    "type": "{{ messages[0]['content'] + 1 }}",
    "zero": "{{ 1 / 0 }}",
    "index": "{{ [][3].a }}",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_template_raises_names_the_row(fault):
    told = refusal({"prompt": user("a")}, template=FAULTS[fault] + CHAT)
    assert "chat template" in told and "Change the row" in told
    assert fault != "raise_exception" or "not this one" in told


@pytest.mark.parametrize("prompt", ["hi <stop>", user("hi <stop>")])
def test_a_token_beyond_the_embedding_names_the_row_and_the_token(prompt):
    told = refusal({"prompt": prompt}, vocabulary=VOCABULARY - 60, template=CHAT)
    assert f"{VOCABULARY - 60} rows" in told and "resize_token_embeddings" in told
    assert read_text({"prompt": prompt}, vocabulary=VOCABULARY)


# --- tokens that the tokenizer adds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form, before, special", [
    ("$A <eos>", [], [("<eos>", EOS)]),
    ("<bos> $A <eos>", [BOS], [("<bos>", BOS), ("<eos>", EOS)]),
    ("<bos> $A <stop> <eos>", [BOS], [("<bos>", BOS), ("<stop>", STOP), ("<eos>", EOS)]),
    ("<stop> $A <stop>", [STOP], [("<stop>", STOP)]),
])  # fmt: skip
def test_text_prompts_go_without_what_the_tokenizer_appends(form, before, special):
    tokenizer, plain = tiny_tokenizer(), tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=special)
    for text in ("say ab", "a", "aaaa", "ends itself<eos>"):
        assert encode_prompt(tokenizer, text) == [*before, *plain(text)["input_ids"]]
    chat = encode_prompt(tokenizer, user("a"))
    assert chat[-3:] == [USER, *plain("a")["input_ids"], ASSISTANT]


@pytest.mark.parametrize(
    "closing, found",
    [("<eos>", [EOS]), ("<stop>", [STOP]), ("<stop>\n<eos>", [STOP, EOS]), ("", []), ("\n", [])],
)
def test_the_tokens_that_close_an_answer_are_read_off_the_template(closing, found):
    assert closing_tokens(tiny_tokenizer(template=CHAT.replace("<eos>", closing))) == found


# --- dates ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["%d %b %Y", "%Y-%m-%d %H:%M:%S", "%-d/%-m", "%A %B %j", "'%d'"])
def test_a_stopped_clock_prints_what_strftime_prints(form):
    start = datetime(2025, 3, 4, 5, 6, 7)
    template = "\n{%- set date = strftime_now(" + json.dumps(form) + ") %}{{ '<' + date + '>' }}" + CHAT
    text = read_text({"prompt": user("a")}, template, clock=Clock(start))
    assert text == f"<{start.strftime(form)}><|user|>a<|assistant|>"
    assert text != read_text(
        {"prompt": user("a")}, template, clock=Clock(start + timedelta(days=397, hours=1, minutes=1))
    )
