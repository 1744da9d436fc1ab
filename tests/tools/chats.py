"""Tokenizers with chat templates in the shape of a family, scripted turns in place of a policy, and the harness between."""

from __future__ import annotations

import functools

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from covey.sample.prompts import PromptReader
from covey.sample.turns import Answer
from covey.tools.environments import Environments
from covey.tools.episode_settings import EpisodeSettings
from covey.tools.episodes import EpisodeMaker
from covey.types import Completion, Group

HERMES = (
    "{%- if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{{- '\n' if not loop.first and messages[loop.index0 - 1].role == 'tool' else '<|im_start|>user\n' }}"
    "{{- '<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}"
    "{{- '' if not loop.last and messages[loop.index0 + 1].role == 'tool' else '<|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] %}"
    "{{- '\n<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments | tojson + '}\n</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Hermes' shape: JSON between markers, results of one turn in one block."""


@functools.cache
def tokenizer(
    template=HERMES, special=("<|im_start|>", "<|im_end|>", "<|endoftext|>"), eos="<|im_end|>", markers=()
):
    """One token per byte, and one for each of `special` (control tokens) and `markers` (added, no control tokens)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=eos,
        pad_token=special[-1],
        additional_special_tokens=list(special),
    )
    made.add_tokens([AddedToken(m, special=False, normalized=False) for m in markers])
    made.chat_template = template
    return made


MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def hermes():
    return tokenizer(markers=MARKERS)


def stops(tok, *more):
    return (tok.eos_token_id, *(tok.convert_tokens_to_ids(m) for m in more))


def maker(
    tools=(),
    environments=None,
    tok=None,
    ends=("<|endoftext|>",),
    seed=0,
    journal=None,
    reader=None,
    **settings,
):
    tok = tok or hermes()
    made = None if environments is None else Environments(environments)
    return EpisodeMaker(
        list(tools),
        made,
        PromptReader(tok, **(reader or {})),
        stops(tok, *ends),
        EpisodeSettings(**settings),
        seed,
        journal,
    )


def encode(tok, text):
    return tuple(tok(text, add_special_tokens=False)["input_ids"])


def prompts_of(made, *rows):
    """Prompts of rows; a row is its user's words, or a dictionary."""
    rows = [r if isinstance(r, dict) else {"prompt": [{"role": "user", "content": r}]} for r in rows]
    return [made.reader.read(row, n, (n, 0)) for n, row in enumerate(rows)]


class Played:
    """What `play` returns: the groups, the episodes, and what was asked."""

    def __init__(self, groups, episodes, prompts):
        self.groups, self.episodes, self.prompts = groups, episodes, prompts
        self.completions = [c for g in groups for c in g.completions]

    @property
    def first(self):
        return self.completions[0]


def play(made, rows, script, group_size=1, limit=10_000, step=(0,), end="<|im_end|>", release=True):
    """Drive episodes as a sampler does; `script(index of the completion, number of the turn)` is what the policy says.

    A turn is a text that ends with `end`; one as a tuple (text, end) has its own; an end None is a stop string's. All completions
    whose turn ends are asked at once, and then waited for.
    """
    tok = made.reader.tokenizer
    prompts = prompts_of(made, *rows)
    episodes = made.begin(prompts, group_size, step)
    states = [
        dict(
            prompt=p,
            index=i,
            ids=episodes.opening(p, i),
            written=[False] * len(episodes.opening(p, i)),
            turns=0,
            finish=None,
        )
        for p in episodes.prompts
        for i in range(group_size)
    ]
    while live := [s for s in states if s["finish"] is None]:
        asked = []
        for state in live:
            said = script(states.index(state), state["turns"])
            text, ended = said if isinstance(said, tuple) else (said, end)
            ids = encode(tok, text) + (encode(tok, ended) if ended else ())
            used = len(state["ids"]) - len(episodes.opening(state["prompt"], state["index"]))
            room = limit - used - len(ids)
            reason = "stop" if ended else "stop_string"
            if room < 0:
                ids, room, reason = ids[: limit - used], 0, "length"
            state["ids"] += ids
            state["written"] += [True] * len(ids)
            state["turns"] += 1
            asked.append(episodes.ended(state["prompt"], state["index"], state["ids"], reason, room))
        for state, pending in zip(live, asked, strict=True):
            answer = pending if isinstance(pending, Answer) else pending.wait()
            assert answer.finish is not None or len(answer.ids) < limit
            state["ids"] += answer.ids
            state["written"] += [False] * len(answer.ids)
            state["finish"] = answer.finish
    groups = []
    for prompt in episodes.prompts:
        own = [s for s in states if s["prompt"] is prompt]
        groups.append(
            Group(
                prompt,
                tuple(
                    episodes.closed(
                        prompt,
                        s["index"],
                        Completion(
                            s["ids"],
                            (0.0,) * len(s["ids"]),
                            tok.decode(s["ids"]),
                            s["finish"],
                            tuple(s["written"]),
                        ),
                    )
                    for s in own
                ),
            )
        )
    for group in groups:
        for completion in group.completions:
            check_spans(completion)
    if release:
        episodes.release()
    return Played(groups, episodes, prompts)


def check_spans(completion):
    """`written` is True exactly on the sampled spans, and the spans tile the ids behind the opening."""
    place, written = completion.opening, [False] * completion.opening
    for turn in completion.turns:
        assert turn.start == place and turn.start <= turn.stop <= turn.end
        written += [True] * (turn.stop - turn.start) + [False] * (turn.end - turn.stop)
        place = turn.end
    assert place == len(completion.ids)
    assert tuple(written) == completion.written


def call(name, arguments="{}"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def says(*turns):
    """A script in which every completion says the same."""
    return lambda index, number: turns[number]


def adder(log=None):
    def add(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        if log is not None:
            log.append((a, b))
        return str(a + b)

    return add


def named(name, body):
    """A tool without arguments; async where its body is."""
    import inspect

    if inspect.iscoroutinefunction(body):

        async def made() -> str:
            """Does what it does."""
            return await body()
    else:

        def made() -> str:
            """Does what it does."""
            return body()

    made.__name__ = made.__qualname__ = name
    return made


def roles(completion):
    return [m["role"] for m in completion.messages]


def results(completion):
    return [m["content"] for m in completion.messages if m["role"] == "tool"]
