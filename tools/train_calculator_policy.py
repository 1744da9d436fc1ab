"""Pre-train the policy of the calculator task on conversations, careful ones first, and write it to `covey/assets/calculator_policy`.

    python tools/train_calculator_policy.py [--careful-steps N] [--careless-steps N] [--out FOLDER]
    python tools/train_calculator_policy.py --start FOLDER ...      go on from a policy that was written before

It is made like the bundled policy (`tools/train_bundled_policy.py`), with a chat template that knows tools: calls as JSON in
`<tool_call>`, as Hermes and Qwen write them, and results in turns of the role `tool`. Numbers are single digits here: what a tool says
is read without tokens that were added to the vocabulary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from bundled_tokenizer import ROLES, tokenizer_of
from calculator_demonstrations import CAREFUL, CARELESS, Conversation, conversations
from train_bundled_policy import ASSETS, IGNORED, Labelled, batches, new_policy, train
from transformers import AutoTokenizer, PreTrainedTokenizerBase

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
TAGS = ["<tool_call>", "</tool_call>", "<answer>", "</answer>"]
CALL_PARTS = ['{"name": "', '", "arguments": {"', '": "', '"}}']
"""Of a call's JSON, one token each, so that a call is a dozen tokens long."""

CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>Tools:' }}"
    "{% for tool in tools %}"
    "{{ ' ' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}"
    "{% endfor %}{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    """{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{ (call.function.arguments | tojson) + '}</tool_call>' }}"
    "{% endfor %}{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.start) if args.start else train_tokenizer()
    model = new_policy(args.start, tokenizer, SHAPE)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    tokenizer.save_pretrained(args.out)
    for author, steps, lr in (
        (CAREFUL, args.careful_steps, args.lr),
        (CARELESS, args.careless_steps, args.lr / 4),
    ):
        print(author, flush=True)
        drawn = (encoded(tokenizer, c) for c in conversations(args.seed, author))
        train(model, batches(drawn, args.batch, args.seed, pool=1), steps, lr, args)
    model.save_pretrained(args.out)
    print(f"wrote {args.out}")


def train_tokenizer() -> PreTrainedTokenizerBase:
    """Learn the words of the task from conversations."""
    drawn = islice(conversations(0), 20_000)
    texts = ("Tools: calculator(expression)\n" + json.dumps(c.messages) for c in drawn)
    return tokenizer_of(texts, [*ROLES, "<|tool|>"], [*TAGS, *CALL_PARTS], CHAT_TEMPLATE)


def encoded(tokenizer: PreTrainedTokenizerBase, conversation: Conversation) -> Labelled:
    """Return ids of the whole conversation as the template writes it, and labels for what the assistant says, its end tokens included."""
    ids: list[int] = []
    labels: list[int] = []
    for text, is_said in pieces(conversation):
        part = tokenizer(text)["input_ids"]
        ids += part
        labels += part if is_said else [IGNORED] * len(part)
    return ids, labels


def pieces(conversation: Conversation) -> Iterator[tuple[str, bool]]:
    """Yield the template's text in pieces, and whether the assistant says them."""
    yield ("<|system|>Tools: calculator(expression)<|end|>" if conversation.has_tool else ""), False
    for message in conversation.messages:
        text = message["content"]
        for call in message.get("tool_calls", ()):
            arguments = json.dumps(call["function"]["arguments"])
            text += (
                f'<tool_call>{{"name": "{call["function"]["name"]}", "arguments": {arguments}}}</tool_call>'
            )
        yield f"<|{message['role']}|>", False
        yield f"{text}<|end|>", message["role"] == "assistant"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("--start", type=Path, help="a policy to go on from; default: random weights")
    parser.add_argument("--careful-steps", type=int, default=350)
    parser.add_argument("--careless-steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="conversations per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--out", type=Path, default=ASSETS / "calculator_policy")
    return parser.parse_args()


if __name__ == "__main__":
    main()
