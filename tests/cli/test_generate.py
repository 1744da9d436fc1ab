"""`covey generate`: what is asked comes out, line by line, and says the same whatever else is asked."""

import argparse
import io
import json

import pytest
from datasets import Dataset

from covey import GRPOConfig
from covey.cli import main
from covey.cli.verbs import check
from covey.cli.verbs import generate as verb
from covey.rewards.check.run import read_completions
from covey.sample.native.engine import NativeEngine
from tests.tiny import tiny_policy
from tests.trainer.harness import make

ROWS = [{"prompt": f"{a} + 1 = ?", "answer": str(a + 1)} for a in range(5)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=2.0)


def test_without_options_it_samples_as_training_does(policy, tmp_path):
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    source = verb.Source(parser.parse_args([policy, "-p", "x", "--max-tokens", "8"]))
    trained = make(
        policy, tmp_path, lambda completions, **_: [0.0] * len(completions), Dataset.from_list(ROWS), seed=42
    )
    assert source.settings == trained.sampling
    assert GRPOConfig(output_dir=str(tmp_path), use_cpu=True).max_completion_length == verb.MAX_TOKENS


def test_check_samples_as_training_does_too(policy, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        NativeEngine, "generate", lambda self, prompts, size, sampling: asked.append(sampling) or []
    )
    with pytest.raises(KeyError):
        check.sampler(policy, 8)([{"prompt": "x"}], 2)
    trained = make(
        policy, tmp_path, lambda completions, **_: [0.0] * len(completions), Dataset.from_list(ROWS), seed=0
    )
    assert asked == [trained.sampling]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return path


@pytest.fixture
def generate(policy, capsys):
    """Runs the verb; gives the lines."""

    def command(*arguments, tokens=6):
        code = main(["generate", policy, *map(str, arguments), "--max-tokens", str(tokens)])
        out = capsys.readouterr()
        assert code == 0, out.err
        return [json.loads(line) for line in out.out.splitlines()]

    return command


@pytest.fixture
def refused(policy, capsys):
    """Runs the verb with wrong input; gives the message."""

    def command(*arguments, model=None):
        assert main(["generate", model or policy, *map(str, arguments)]) == 2
        out = capsys.readouterr()
        assert not out.out
        return out.err

    return command


def test_every_prompt_has_its_completions_in_order(generate, data):
    lines = generate(data, "-n", 3)
    assert [(line["row"], line["index"]) for line in lines] == [(r, i) for r in range(5) for i in range(3)]
    assert [line["prompt"] for line in lines[::3]] == [row["prompt"] for row in ROWS]
    assert {line["finish"] for line in lines} <= {"stop", "length"} and all(
        1 <= line["tokens"] <= 6 for line in lines
    )


def test_a_completion_does_not_depend_on_what_else_is_asked(generate, data, monkeypatch):
    many = generate(data, "-n", 3)
    assert [line for line in many if line["index"] == 0] == generate(data)
    monkeypatch.setattr("covey.cli.verbs.generate.CHUNK", 2)
    assert generate(data, "-n", 3) == many
    assert generate(data, "-n", 3, "--seed", 1) != many


def test_logprobs_are_those_of_the_model(generate, policy, data):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
    line = generate(data, "--logprobs")[0]
    prompt = tokenizer(ROWS[0]["prompt"])["input_ids"]
    ids = torch.tensor([[*prompt, *line["ids"]]])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].detach().clone()
    logits[:, tokenizer.pad_token_id] = float("-inf")  # padding is never drawn
    expected = logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
    assert line["logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)
    assert line["tokens"] == len(line["ids"]) == len(line["logprobs"])


def test_options_reach_the_sampler(generate, data):
    greedy = generate(data, "--greedy", "-n", 2)
    assert [line["completion"] for line in greedy[::2]] == [line["completion"] for line in greedy[1::2]]
    assert generate(data, "--top-k", 1) == [line for line in greedy if line["index"] == 0]
    assert generate(data, "--top-p", 0) == generate(data, "--top-k", 1)
    letter = greedy[0]["completion"][2]
    stopped = generate(data, "--greedy", "--stop", letter)[0]
    assert stopped["completion"] == greedy[0]["completion"][: greedy[0]["completion"].index(letter) + 1]
    assert stopped["finish"] == "stop_string"
    assert all(line["tokens"] == 6 for line in generate(data, "-n", 4, "--min-tokens", 6))


def test_prompts_of_the_command_line_of_text_files_and_of_standard_input_are_the_same(
    generate, data, tmp_path, monkeypatch
):
    expected = generate(data)
    text = tmp_path / "data.txt"
    text.write_text("\n".join(row["prompt"] for row in ROWS))
    assert generate(text) == expected
    assert generate(*(word for row in ROWS for word in ("-p", row["prompt"]))) == expected
    for content in (text.read_text(), data.read_text()):
        monkeypatch.setattr("sys.stdin", io.StringIO(content))
        assert generate("-") == expected


def test_chats_go_through_the_template(generate, tmp_path):
    messages = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hi"}]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"prompt": messages}))
    line = generate(path)[0]
    assert line["prompt"] == messages and line["completion"][0]["role"] == "assistant"
    assert generate("-p", "Hi", "--system", "Brief.")[0] == line
    assert generate("-p", "Hi", "--chat")[0]["prompt"] == messages[1:]


def test_what_is_written_is_what_covey_check_reads(generate, data, tmp_path, capsys):
    out = tmp_path / "samples.jsonl"
    assert generate(data, "-n", 2, "-o", out) == []
    samples = read_completions(out, ROWS)
    assert len(samples) == 10
    assert main(["check", str(data), "--reward", "NumberMatch", "--completions", str(out)]) in (0, 1)
    assert "completions from file" in capsys.readouterr().out


def test_wrong_input_says_where_and_what_was_expected(refused, data, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    (tmp_path / "torn.jsonl").write_text('{"prompt": "a"\n')
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "There is no prompt" in refused()
    assert "bad.jsonl, line 2" in refused(tmp_path / "bad.jsonl")
    assert "torn.jsonl, line 1 is no JSON" in refused(tmp_path / "torn.jsonl")
    assert "empty.txt: there is no prompt" in refused(tmp_path / "empty.txt")
    assert "none.txt cannot be read" in refused(tmp_path / "none.txt")
    assert "'nothing' cannot be loaded" in refused(data, model="nothing")
    assert "--samples is 0" in refused(data, "-n", 0)
    assert "temperature is 0.0; it must be positive" in refused(data, "--temperature", 0)
    assert "top_p is 1.5" in refused(data, "--top-p", 1.5)
    assert "does not fit" in refused(data, "--max-tokens", 100_000)
    assert "--device is 'warp'" in refused(data, "--device", "warp")
    assert "cannot be written" in refused(data, "-o", tmp_path / "no" / "folder")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["generate", "--help"])
    out = capsys.readouterr().out
    assert "examples:" in out and "questions.jsonl -n 8" in out and "Exit status" in out
