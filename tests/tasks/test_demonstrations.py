"""What the bundled models are trained on: careful and careless work, never about a held-out puzzle."""

from itertools import islice

import pytest
from transformers import AutoTokenizer

from covey.tasks import assets, code_reward, countdown_reward, quickstart_run
from covey.tasks.code import CodePuzzle
from covey.tasks.countdown import CountdownPuzzle, countdown_puzzles
from covey.tasks.split import split_of


@pytest.fixture(scope="module", params=["CAREFUL", "CARELESS"])
def drawn(request, tools):
    """Demonstrations of one author."""
    module = tools("demonstrations")
    return list(islice(module.demonstrations(1, getattr(module, request.param)), 4_000))


def accuracy(demonstrations):
    """Share that is right, of countdown and of code."""
    demonstrations = list(demonstrations)
    countdown = [(d.completion, d.puzzle) for d in demonstrations if isinstance(d.puzzle, CountdownPuzzle)]
    code = [(d.completion, d.puzzle) for d in demonstrations if isinstance(d.puzzle, CodePuzzle)]
    solved = countdown_reward(
        [c for c, _ in countdown], [p.nums for _, p in countdown], [p.target for _, p in countdown]
    )
    passed = code_reward([c for c, _ in code], [p.row()["tests"] for _, p in code])
    return sum(solved) / len(solved), sum(passed) / len(passed)


def test_no_demonstration_is_of_a_held_out_puzzle(drawn):
    assert {split_of(d.puzzle.key) for d in drawn} == {"train"}


def test_what_is_asked_of_a_held_out_puzzle_is_asked_in_no_demonstration(drawn):
    asked = {row["prompt"][0]["content"] for rows in quickstart_run.held_out_rows().values() for row in rows}

    assert not asked & {d.prompt for d in drawn}


def test_no_row_of_the_run_is_of_a_held_out_puzzle():
    asked = {row["prompt"][0]["content"] for rows in quickstart_run.held_out_rows().values() for row in rows}

    for seed in range(3):
        assert not asked & {row["prompt"][0]["content"] for row in quickstart_run.train_rows(seed)}


def test_careful_authors_are_right_and_careless_ones_about_one_time_in_three(tools):
    module = tools("demonstrations")
    careful = accuracy(islice(module.demonstrations(1, module.CAREFUL), 1_000))
    careless = accuracy(islice(module.demonstrations(1, module.CARELESS), 4_000))

    assert min(careful) > 0.95
    assert min(careless) > 0.2 and max(careless) < 0.45


def test_every_attempt_is_worth_what_its_line_says(tools):
    for puzzle in countdown_puzzles(100):
        for attempt in tools("demonstrations").attempts(tuple(sorted(puzzle.nums))):
            answer = f"<answer>{attempt.expression}</answer>"
            assert countdown_reward([answer], [puzzle.nums], [attempt.value]) == [1.0]
            assert attempt.line.endswith(f"={attempt.value}")


@pytest.mark.parametrize(
    ("tool", "start"),
    [
        ("train_bundled_policy", assets.POLICY),
        ("train_calculator_policy", assets.CALCULATOR_POLICY),
    ],
)
def test_a_policy_that_is_gone_on_from_keeps_its_tokens(tool, start, tools, tmp_path, monkeypatch):
    """Its weights know tokens by number: a tokenizer that is learned anew, from other authors, would exchange the words."""
    maker, none = tools(tool), ["--careful-steps", "0", "--careless-steps", "0", "--threads", "1"]
    other = AutoTokenizer.from_pretrained({assets.POLICY, assets.CALCULATOR_POLICY}.difference([start]).pop())
    monkeypatch.setattr(maker, "train_tokenizer", lambda: other)
    monkeypatch.setattr("sys.argv", [tool, "--start", str(start), "--out", str(tmp_path), *none])
    maker.main()

    assert (
        AutoTokenizer.from_pretrained(tmp_path).get_vocab()
        == AutoTokenizer.from_pretrained(start).get_vocab()
    )


def test_better_sentences_are_the_ones_the_score_describes(tools):
    preferences = tools("preferences")
    prompt = preferences.TextPrompt(("fox", "river"))
    from_best_to_worst = [
        "The kind fox greets the bright river with a smile.",
        "The old fox greets the bright river with a smile.",
        "The old fox greets the bright garden with a smile.",
        "The old fox meets the rude garden in the cold rain.",
        "kind kind kind bright",
    ]

    scores = [preferences.quality(prompt, text) for text in from_best_to_worst]

    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)


def test_held_out_preferences_are_about_held_out_prompts(tools):
    pairs = list(islice(tools("preferences").preferences(0, "held_out"), 200))

    assert {split_of(pair.prompt.key) for pair in pairs} == {"held_out"}
