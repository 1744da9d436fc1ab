"""Chat templates in the shape of each family, written for these tests, and what their policies write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tools.chats import HERMES, MARKERS, tokenizer

TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"


@dataclass(frozen=True)
class Family:
    """One family: `call` is what its policy writes to call f(a=3, b="04"), `end` the token behind it."""

    format: str
    template: str
    special: tuple[str, ...]
    call: str
    broken: str
    """A call that cannot be read, as the family would write it."""
    end: str
    answer: str
    """What stands between such a turn and the next, for the result R."""
    markers: tuple[str, ...] = ()
    eos: str = ""
    stops: tuple[str, ...] = ()
    between: str = ""
    """What stands between two calls of a turn."""
    pair: str = ""
    """A call that cannot be read and one that can, where they do not just follow one another."""
    thinking: tuple[str, str] | None = ("<think>", "</think>")
    content: str = "{}"
    """How the policy says plain words."""

    def tokenizer(self) -> Any:
        return tokenizer(self.template, self.special, self.eos or self.end, self.markers)


XML = HERMES.replace(
    "'\n<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments | tojson + '}\n</tool_call>'",
    "'\n<tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments.items() %}"
    "{{ '<parameter=' ~ k ~ '>\n' ~ v ~ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>'",
)

GLM = (
    "[gMASK]" + TOOLS + "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ '' if messages[loop.index0 - 1].role == 'tool' else '<|observation|>' }}"
    "{{ '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' ~ c.function.name ~ '\n' }}"
    "{% for k, v in c.function.arguments.items() %}{{ '<arg_key>' ~ k ~ '</arg_key>\n<arg_value>' ~ v ~ '</arg_value>\n' }}{% endfor %}"
    "{{ '</tool_call>' }}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

LLAMA = (
    "<|begin|>" + TOOLS + "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|head|>ipython<|head_end|>\n\n' ~ (m.content | tojson) ~ '<|eot_id|>' }}"
    "{% elif m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '{{ \'<|head|>assistant<|head_end|>\n\n{"name": "\' ~ m.tool_calls[0].function.name ~ \'", "parameters": \' }}'
    "{{ m.tool_calls[0].function.arguments | tojson ~ '}<|eot_id|>' }}"
    "{% else %}{{ '<|head|>' ~ m.role ~ '<|head_end|>\n\n' ~ m.content ~ '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|head_end|>\n\n' }}{% endif %}"
)

MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.first %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 signs') }}{% endif %}"
    "[TOOL_RESULTS]{{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}{{ '' if loop.last else ', ' }}{% endfor %}{{ ']</s>' }}"
    "{% else %}{{ m.content ~ '</s>' }}{% endif %}{% endfor %}"
)

MISTRAL_NAMED = MISTRAL.replace(
    "{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}{{ '' if loop.last else ', ' }}{% endfor %}{{ ']</s>' }}",
    "{% for c in m.tool_calls %}{{ '[TOOL_CALLS]' ~ c.function.name ~ '[ARGS]' ~ (c.function.arguments | tojson) }}{% endfor %}{{ '</s>' }}",
)

HARMONY = (
    "<|start|>system<|message|>" + TOOLS + "<|end|>{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|start|>functions.' ~ messages[loop.index0 - 1].tool_calls[0].function.name ~ ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{ (m.content | tojson) ~ '<|end|>' }}{% elif m.tool_calls %}"
    "{{ '<|start|>assistant to=functions.' ~ m.tool_calls[0].function.name ~ '<|channel|>commentary json<|message|>' }}"
    "{{ (m.tool_calls[0].function.arguments | tojson) ~ '<|call|>' }}{% elif m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|return|>' }}"
    "{% else %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

DEEPSEEK = (
    "<｜begin｜>"
    + TOOLS
    + "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' ~ m.content }}{% elif m.role == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' ~ m.content ~ '<｜tool▁output▁end｜>' }}{% elif m.tool_calls %}"
    "{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```<｜tool▁call▁end｜>' }}"
    "{% endfor %}{{ '<｜tool▁calls▁end｜><｜end｜>' }}{% else %}{{ '<｜Assistant｜>' ~ m.content ~ '<｜end｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role == 'user' %}<｜Assistant｜>{% endif %}"
)

DEEPSEEK_BARE = DEEPSEEK.replace(
    "'<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments + '\n```<｜tool▁call▁end｜>'",
    "'<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>'",
)

GEMMA = (
    "<bos>" + TOOLS + "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '' if messages[loop.index0 - 1].role == 'tool' else '<|tool_response>' }}{{ 'response:' ~ m.name ~ '{value:<|\"|>' ~ m.content ~ '<|\"|>}' }}"
    "{{ '<tool_response|>' if loop.last }}{% elif m.tool_calls %}{{ '<|turn>model\n' }}{% for c in m.tool_calls %}"
    "{{ '<|tool_call>call:' ~ c.function.name ~ '{' }}{% for k, v in c.function.arguments.items() %}"
    "{{ k ~ ':' ~ ('<|\"|>' ~ v ~ '<|\"|>' if v is string else v) }}{{ '' if loop.last else ',' }}{% endfor %}{{ '}<tool_call|>' }}{% endfor %}"
    "{% else %}{{ '<|turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' ~ m.content ~ '<turn|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|turn>model\n' }}{% endif %}"
)

PYTHONIC = (
    TOOLS
    + "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}{% if m.tool_calls %}{{ '<|tool_call_start|>[' }}"
    "{% for c in m.tool_calls %}{{ c.function.name ~ '(' }}{% for k, v in c.function.arguments.items() %}{{ k ~ '=' ~ (v | tojson) }}"
    "{{ '' if loop.last else ', ' }}{% endfor %}{{ ')' ~ ('' if loop.last else ', ') }}{% endfor %}{{ ']<|tool_call_end|>' }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

PYTHONIC_BARE = PYTHONIC.replace("<|tool_call_start|>[", "[").replace("]<|tool_call_end|>", "]")

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
BLOCK = "\n<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
DEEP = tuple(f"<｜{word}｜>" for word in (
    "begin", "User", "Assistant", "end", "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end", "tool▁sep",
    "tool▁output▁begin", "tool▁output▁end"))  # fmt: skip

FAMILIES = {
    "hermes": Family(
        "hermes", HERMES, CHATML, '<tool_call>\n{"name": "f", "arguments": {"a": 3, "b": "04"}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {a: 3}}\n</tool_call>', "<|im_end|>", BLOCK, MARKERS, between="\n"),
    "xml": Family(
        "xml_parameters", XML, CHATML,
        "<tool_call>\n<function=f>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n04\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n3\n</function>\n</tool_call>", "<|im_end|>", BLOCK, MARKERS, between="\n"),
    "glm": Family(
        "glm", GLM, ("<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n<arg_key>b</arg_key>\n<arg_value>04</arg_value>\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n3\n</tool_call>", "<|observation|>",
        "\n<tool_response>\nR\n</tool_response><|assistant|>", MARKERS, "<|endoftext|>", ("<|user|>", "<|observation|>"), "\n"),
    "llama": Family(
        "llama", LLAMA, ("<|begin|>", "<|head|>", "<|head_end|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        '{"name": "f", "parameters": {"a": 3, "b": "04"}}', '{"name": "f", "parameters": {a: 3}}', "<|eot_id|>",
        '<|head|>ipython<|head_end|>\n\n"R"<|eot_id|><|head|>assistant<|head_end|>\n\n', between="; "),
    "mistral": Family(
        "mistral", MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 3, "b": "04"}, "id": "abcdefghi"}]', '[TOOL_CALLS][{"name": "f", "arguments": {a: 3}}]',
        "</s>", '[TOOL_RESULTS]{"content": "R", "call_id": "call00000"}[/TOOL_RESULTS]'),
    "mistral, named": Family(
        "mistral", MISTRAL_NAMED, ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        '[TOOL_CALLS]f[ARGS]{"a": 3, "b": "04"}', "[TOOL_CALLS]f[ARGS]{a: 3}",
        "</s>", '[TOOL_RESULTS]{"content": "R", "call_id": "call00000"}[/TOOL_RESULTS]'),
    "harmony": Family(
        "harmony", HARMONY, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"),
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 3, "b": "04"}', " to=functions.f<|channel|>commentary json<|message|>{a: 3}",
        "<|call|>", '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"R"<|end|><|start|>assistant', eos="<|return|>",
        stops=("<|call|>",), between="<|end|><|start|>assistant", thinking=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        content="<|channel|>final<|message|>{}"),
    "harmony, channel first": Family(
        "harmony", HARMONY, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"),
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 3, "b": "04"}',
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{a: 3}",
        "<|call|>", '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"R"<|end|><|start|>assistant', eos="<|return|>",
        stops=("<|call|>",), between="<|end|><|start|>assistant", thinking=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        content="<|channel|>final<|message|>{}"),
    "deepseek": Family(
        "deepseek", DEEPSEEK, DEEP,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 3, "b": "04"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{a: 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜end｜>", "<｜tool▁output▁begin｜>R<｜tool▁output▁end｜>"),
    "deepseek, bare": Family(
        "deepseek", DEEPSEEK_BARE, DEEP,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 3, "b": "04"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{a: 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜end｜>", "<｜tool▁output▁begin｜>R<｜tool▁output▁end｜>"),
    "gemma": Family(
        "gemma", GEMMA, ("<bos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
                         "<|channel>", "<channel|>"),
        '<|tool_call>call:f{a:3,b:<|"|>04<|"|>}<tool_call|>', "<|tool_call>call:f{a}<tool_call|>", "<|tool_response>",
        'response:f{value:<|"|>R<|"|>}<tool_response|>', eos="<turn|>", stops=("<|tool_response>",), thinking=("<|channel>thought\n", "<channel|>")),
    "pythonic": Family(
        "pythonic", PYTHONIC, (*CHATML, "<|tool_call_start|>", "<|tool_call_end|>"), '<|tool_call_start|>[f(a=3, b="04")]<|tool_call_end|>',
        "<|tool_call_start|>[f(a=3]<|tool_call_end|>", "<|im_end|>", "\n<|im_start|>tool\nR<|im_end|>\n<|im_start|>assistant\n"),
    "pythonic, bare": Family(
        "pythonic", PYTHONIC_BARE, CHATML, '[f(a=3, b="04")]', "[f(a=3, 4)]", "<|im_end|>",
        "\n<|im_start|>tool\nR<|im_end|>\n<|im_start|>assistant\n", pair='[f(a=3, 4), f(a=3, b="04")]'),
}  # fmt: skip
