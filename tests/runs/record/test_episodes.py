"""Episodes in the record: what was sampled, called, answered and earned by turn; nothing of it for plain completions."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import covey.runs
from covey.errors import CoveyWarning, RewardError
from covey.runs.record import schema, segments
from covey.runs.record.episodes import MAX_ARGUMENTS_CHARS, turn_entries
from covey.runs.record.group_lines import group_line
from covey.runs.record.group_statistics import group_statistics
from covey.runs.record.json_text import encode
from covey.runs.record.jsonl import read_lines
from covey.runs.record.regroup import regroup
from covey.runs.what_if import WhatIf, rescore
from covey.types import Completion, Group, Prompt, Score, ScoredGroup
from tests.runs.episodes import QUESTION, Told, answered, call, episodes, silent, stumbling, write_episodes
from tests.runs.synthetic import Story, batch, write_run

SHORT = Story(steps=4, prompts_per_step=2, group_size=3, evaluate_every=0)


def three(**more):
    return episodes([answered(), stumbling(), silent()], [1.0, 0.0, 0.0], **more)


def test_episodes_come_back_by_hand(tmp_path):
    frame = covey.runs.open(write_episodes(tmp_path, [three()])).completions()
    assert list(frame["tokens"]) == [9, 17, 4]
    assert list(frame["written_tokens"]) == [5, 9, 4]
    assert list(frame["num_turns"]) == [2, 2, 1]
    assert list(frame["calls"]) == [1, 2, 0]  # one that nobody answered is none
    assert list(frame["call_failures"]) == [0, 2, 0]
    assert list(frame["finish"]) == ["stop", "turns", "stop"]
    assert frame["logprob"].tolist() == pytest.approx([-0.7, -0.5, -0.5])
    assert [json.loads(m) for m in frame["messages"]] == [list(c.messages) for c in three().group.completions]
    assert json.loads(frame["own_prompt"][1]) == stumbling().own_prompt
    assert frame["own_prompt"].isna().tolist() == [True, False, True]


def test_a_turn_says_what_was_sampled_answered_called_and_earned():
    scores = {"accuracy": (Score(0.75, turns=(0.25, 0.5)), Score(0.0), Score(0.0))}
    scored = replace(three(turn_advantages=((0.5, -0.25), (0.0, -0.5), (0.1,))), scores=scores)
    first, second = turn_entries(scored, 0)
    assert first == {
        "sampled": 3, "injected": 4, "logprob": -0.5, "seconds": 0.25, "reward": 0.2, "scores": {"accuracy": 0.25}, "advantage": 0.5,
        "calls": [{"name": "calculator", "arguments": '{"expression":"12*37"}', "status": "ok", "seconds": 0.25}],
    }  # fmt: skip
    assert (second["sampled"], second["injected"], second["calls"], second["advantage"]) == (2, 0, [], -0.25)
    # Without rewards by turn there is no number that nobody gave.
    (only,) = turn_entries(episodes([silent()], [0.0]), 0)
    assert not {"reward", "scores", "advantage"} & set(only)


def test_a_run_without_tools_leaves_the_bytes_that_it_always_left(tmp_path):
    keys = {
        "step", "group", "task", "row", "chat", "prompt_tokens", "cut_tokens", "tokens", "finish", "logprob", "total", "advantage",
        "score", "status", "error", "prompt", "columns", "cut_columns", "completion", "extra",
    }  # fmt: skip
    assert set(group_line(1, 0, batch(SHORT, 1)[0], None, True)) == keys
    (path,) = (write_run(tmp_path / "record", SHORT) / "groups").glob("*.parquet")
    assert not set(schema.EPISODE_LEVEL) & set(pq.read_schema(path).names)


def test_plain_and_other_completions_stand_side_by_side(tmp_path):
    plain = Completion((1, 2, 3), (-1.0,) * 3, "44", "stop")
    masked = Completion(
        (1, 2, 3), (-1.0, 0.0, 0.0), "4 4", "stop", (True, False, False)
    )  # no tools, a mask all the same
    folder = write_episodes(
        tmp_path, [episodes([plain, answered(), masked], [0.0, 1.0, 0.0])], batch(SHORT, 1)
    )
    frame = covey.runs.open(folder).completions()
    assert frame["written_tokens"].isna().tolist() == [True, False, False] + [True] * 6
    assert frame["written_tokens"].dropna().tolist() == [5, 1]
    assert frame["messages"].notna().sum() == frame["turns"].notna().sum() == 1
    groups = covey.runs.open(folder).groups()
    assert groups["tokens"][0] == pytest.approx((3 + 5 + 1) / 3)
    assert groups["tokens"][1] == frame["tokens"][3:6].mean()


def test_a_segment_with_tools_and_one_without_are_one_frame(tmp_path, monkeypatch):
    monkeypatch.setattr(segments.GroupFiles.__init__, "__defaults__", (1,))
    folder = write_episodes(tmp_path, batch(SHORT, 1), [three()], batch(SHORT, 2))
    assert len(list((folder / "groups").glob("*.parquet"))) == 3
    run = covey.runs.open(folder)
    assert run.completions()["num_turns"].dropna().tolist() == [2, 2, 1]
    assert run.completions(columns=["turns", "step"]).shape == (15, 2)
    assert len(run.groups()) == 5


def test_a_record_of_version_1_is_read(tmp_path):
    folder = write_run(tmp_path / "record", SHORT)
    header = read_lines(folder / "run.json")[0]
    assert header["version"] == schema.VERSION == 3
    (folder / "run.json").write_bytes(encode(header | {"version": 1}))
    frame = covey.runs.open(folder).completions()
    assert len(frame) == 24 and not set(schema.EPISODE_LEVEL) & set(frame.columns)
    assert len(rescore(folder, WhatIf()).flips) == 24


SECRET = "the word that only the policy said"


def test_without_texts_no_word_of_an_episode_is_on_the_disk(tmp_path):
    told = Told().says(
        SECRET, call(result=SECRET, query=SECRET), call(SECRET, "", "unknown"), call(SECRET, "", "malformed")
    )
    group = episodes([told.ends(own_prompt=[{"role": "user", "content": SECRET}])], [1.0])
    folder = write_episodes(tmp_path, [group], record_completions="none")
    frame = covey.runs.open(folder).completions()
    assert SECRET not in frame.to_json() and "messages" not in frame and "own_prompt" not in frame
    (turn,) = json.loads(frame["turns"][0])
    assert [c.get("name") for c in turn["calls"]] == ["calculator", None, None]
    assert frame["calls"][0] == 3 and frame["call_failures"][0] == 2


def test_arguments_are_bounded_in_turns_and_whole_in_messages(tmp_path):
    told = Told().says("", call(code="x" * 50_000))
    frame = covey.runs.open(write_episodes(tmp_path, [episodes([told.ends()], [1.0])])).completions()
    (entry,) = json.loads(frame["turns"][0])[0]["calls"]
    assert len(entry["arguments"]) < MAX_ARGUMENTS_CHARS + 100 and "characters left out" in entry["arguments"]
    assert (
        json.loads(frame["messages"][0])[0]["tool_calls"][0]["function"]["arguments"]["code"] == "x" * 50_000
    )


@pytest.mark.parametrize("result", ["lone \ud800", "\x00\x1b[31m", "\u202e", '"}]', "x" * 100_000, ""])
def test_whatever_a_tool_says_comes_back_whole(tmp_path, result):
    told = Told().says(result, call(result=result, query=result))
    folder = write_episodes(tmp_path, [episodes([told.ends()], [1.0])])
    (table,) = covey.runs.open(folder).group_tables()
    (group,) = regroup(table)
    assert group.completions[0].messages == told.ends().messages


def test_regrouped_episodes_show_rewards_what_they_saw(tmp_path):
    (table,) = covey.runs.open(write_episodes(tmp_path, [three()])).group_tables()
    (group,) = regroup(table)
    original = three().group
    assert group.contents() == original.contents()
    assert [c.own_prompt for c in group.completions] == [c.own_prompt for c in original.completions]
    places = [[(t.start, t.stop, t.end, t.reward) for t in c.turns] for c in group.completions]
    assert places == [[(t.start, t.stop, t.end, t.reward) for t in c.turns] for c in original.completions]


def says_answer(completions, answer, **kwargs):
    return [float(a in c[-1]["content"]) for c, a in zip(completions, answer, strict=True)]


def says_answer_by_turn(completions, answer, **kwargs):
    return [
        [float(a in m["content"]) for m in c if m["role"] == "assistant"]
        for c, a in zip(completions, answer, strict=True)
    ]


@pytest.mark.parametrize("function", [says_answer, says_answer_by_turn])
def test_a_changed_reward_is_run_on_the_messages(tmp_path, function):
    folder = write_episodes(tmp_path, [episodes([silent(), answered(), silent()], [1.0, 0.0, 0.0])])
    np.testing.assert_allclose(
        rescore(folder, WhatIf(rewards={"accuracy": function})).after.totals, [0, 1, 0]
    )


def test_what_if_weighs_the_tokens_that_the_policy_wrote(tmp_path):
    # W1 of the design: 5 and 4 sampled of 7 and 4 ids, rewards 1 and 0: A = ±0.707007.
    first = Told().says("", call(), sampled=3, injected=2).says("", sampled=2).ends()
    settings = {"loss_type": "dapo", "max_completion_length": 16}
    folder = write_episodes(tmp_path, [episodes([first, silent()], [1.0, 0.0])], settings=settings)
    after = {
        name: rescore(folder, WhatIf(loss_type=name)).after.loss.sum() for name in ("dapo", "grpo", "dr_grpo")
    }
    assert after["dapo"] == pytest.approx(-0.078556, abs=1e-6)
    assert after["grpo"] == pytest.approx(0.0, abs=1e-9)
    assert after["dr_grpo"] == pytest.approx(-0.022094, abs=1e-6)
    opo = rescore(folder, WhatIf(advantage_estimator="opo"))
    assert opo.after.advantages[0] == pytest.approx(1 - 5 / 9)
    assert opo.keys["tokens"].tolist() == [5, 4]


@pytest.mark.parametrize("name", ["environments", "completion_ids", "completion_masks"])
def test_a_reward_on_what_is_not_recorded_is_refused_and_told_why(tmp_path, name):
    space = {}
    exec(f"def asks(completions, {name}, **kwargs): return [0.0] * len(completions)", space)
    folder = write_episodes(tmp_path, [three()])
    with pytest.raises(RewardError, match=f"'accuracy' asks for {name}, which are not recorded"):
        rescore(folder, WhatIf(rewards={"accuracy": space["asks"]}))


def test_an_episode_that_failed_is_shown_to_no_changed_reward(tmp_path):
    failed = replace(silent(), finish="failed")
    scored = ScoredGroup(
        Group(Prompt(QUESTION, (1,), {"answer": "444"}), (answered(), failed, silent())),
        {"accuracy": (Score(1.0), Score(None, "not_applicable"), Score(0.0))}, (1.0, None, 0.0), (0.7, 0.0, -0.7),
    )  # fmt: skip
    seen = []

    def reward(completions, **kwargs):
        seen.append(len(completions))
        return [1.0] * len(completions)

    result = rescore(write_episodes(tmp_path, [scored]), WhatIf(rewards={"accuracy": reward})).after
    assert seen == [2]
    np.testing.assert_allclose(result.totals, [1.0, np.nan, 1.0])


def test_what_if_says_that_it_knows_no_turn_credit(tmp_path):
    folder = write_episodes(tmp_path, [three()], settings={"credit_assignment": "turn"})
    with pytest.warns(CoveyWarning, match="an advantage to each turn"):
        rescore(folder, WhatIf())


def test_statistics_count_what_the_policy_wrote_and_did():
    numbers = group_statistics([three(), episodes([silent()], [0.0])], ["sums", "sums"])
    assert numbers["length/mean"] == pytest.approx((5 + 9 + 4 + 4) / 4)
    assert (numbers["length/min"], numbers["length/max"]) == (4, 9)
    assert numbers["turns/mean"] == pytest.approx((2 + 2 + 1 + 1) / 4) and numbers["turns/groups"] == 2
    assert numbers["calls/mean"] == pytest.approx(3 / 4)
    assert numbers["call_failure_share"] == pytest.approx(2 / 3)
    plain = group_statistics(batch(SHORT, 1), ["t", "t"])
    assert not [name for name in plain if name.startswith(("turns/", "calls/", "call_"))]


def test_a_column_of_another_type_is_damage(tmp_path):
    folder = write_episodes(tmp_path, [three()])
    (path,) = (folder / "groups").glob("*.parquet")
    rows = pq.read_table(path)
    at = rows.column_names.index("num_turns")
    pq.write_table(rows.set_column(at, "num_turns", rows["finish"]), path)
    with pytest.warns(CoveyWarning, match="num_turns are of other types"):
        assert covey.runs.open(folder).completions().empty
