"""Neural reward models: one number per text, whatever it is padded with and whoever is beside it."""

import math
import pickle

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from covey.errors import LoadingError, RewardError
from covey.rewards import as_rewards
from covey.rewards.batch import RewardBatch
from covey.rewards.neural.reward_model import RewardModel, load_reward_model

SPECIAL = ["<pad>", "<bos>", "<eos>", "<user>", "<assistant>"]
CHARS = [chr(c) for c in range(32, 127)]
TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '<assistant>' }}{{ m['content'] }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer(pad="<pad>", template=TEMPLATE, adds_bos=False):
    backend = Tokenizer(models.WordLevel({t: i for i, t in enumerate(SPECIAL + CHARS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token=pad,
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def make_model(num_labels=1, pad_token_id=0, positions=64, seed=0):
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=len(SPECIAL + CHARS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        num_labels=num_labels,
        pad_token_id=pad_token_id,
    )
    model = transformers.Qwen2ForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)  # spread the scores, so that a wrong position is seen
    return model


def slow_score(model, ids):
    """One text alone, no padding: the head on the last position."""
    with torch.no_grad():
        states = model.model(input_ids=torch.tensor([list(ids)])).last_hidden_state
        return float(model.score(states)[0, -1, 0])


TEXTS = ["a", "ab", "abcdefgh", "zz top", "0123456789", "ab"]


@pytest.mark.parametrize("pad", ["<pad>", "<eos>", None], ids=["pad", "pad is eos", "no pad"])
def test_score_is_that_of_the_text_alone(pad):
    model, tokenizer = make_model(pad_token_id=None if pad is None else 0), make_tokenizer(pad)
    reward = RewardModel(model, tokenizer)
    prompts = ["q: "] * len(TEXTS)
    got = reward(prompts, TEXTS)
    expected = [slow_score(model, tokenizer(p + c)["input_ids"]) for p, c in zip(prompts, TEXTS, strict=True)]
    assert got == pytest.approx(expected, abs=1e-5)
    assert max(got) - min(got) > 0.01, "the case must tell texts apart"


def test_chat_is_rendered_by_its_own_template_and_read_at_the_last_token():
    """With pad = eos, reading by the pad's id would stop before the closing <eos>."""
    model, tokenizer = make_model(pad_token_id=2), make_tokenizer("<eos>")
    prompts = [[{"role": "user", "content": "hi"}]] * 2
    completions = [[{"role": "assistant", "content": c}] for c in ("yes", "no, never")]
    rendered = ["<user>hi<eos><assistant>yes<eos>", "<user>hi<eos><assistant>no, never<eos>"]
    expected = [slow_score(model, tokenizer(r)["input_ids"]) for r in rendered]
    assert RewardModel(model, tokenizer)(prompts, completions) == pytest.approx(expected, abs=1e-5)


def test_kinds_of_rows_may_be_mixed_in_one_batch():
    model, tokenizer = make_model(), make_tokenizer()
    reward = RewardModel(model, tokenizer)
    chat = [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "yes"}]
    both = reward(["hi", chat[0]], ["yes", chat[1]])
    assert both == pytest.approx([reward(["hi"], ["yes"])[0], reward([chat[0]], [chat[1]])[0]], abs=1e-5)
    assert abs(both[0] - both[1]) > 1e-3


@pytest.mark.parametrize("said", ["2+2=4", "4"], ids=["with the beginning", "the rest only"])
def test_an_answer_that_the_prompt_began_is_one_message(said):
    reward = RewardModel(make_model(), make_tokenizer())
    prompt = [{"role": "user", "content": "sum?"}, {"role": "assistant", "content": "2+2="}]
    ids = reward.encode(prompt, [{"role": "assistant", "content": said}])
    assert ids == tuple(make_tokenizer()("<user>sum?<eos><assistant>2+2=4<eos>")["input_ids"])


@pytest.mark.parametrize("text", ["ab", "<bos>ab"])
def test_bos_once(text):
    reward = RewardModel(make_model(), make_tokenizer(adds_bos=True))
    assert reward.encode(text, "c").count(1) == 1


def test_equal_texts_are_scored_once_and_equally():
    model = make_model()
    rows = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    scores = RewardModel(model, make_tokenizer())(
        ["q"] * 6, ["same", "other", "same", "same", "other", "third"]
    )
    assert sum(rows) == 3
    assert scores[0] == scores[2] == scores[3] and scores[1] == scores[4]


def test_forwards_keep_the_token_budget():
    model = make_model()
    sizes = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    texts = ["x" * n for n in range(1, 40)]
    cut = RewardModel(model, make_tokenizer(), max_tokens_per_batch=60)([""] * len(texts), texts)
    assert max(sizes) <= 60 and len(sizes) > 5
    whole = RewardModel(model, make_tokenizer())([""] * len(texts), texts)
    assert cut == pytest.approx(whole, abs=1e-5)


def test_too_long_cuts_the_prompts_beginning_and_never_the_completion():
    tokenizer = make_tokenizer(adds_bos=True)
    reward = RewardModel(make_model(), tokenizer, max_length=10)
    assert reward._fit(reward.encode("0123456789", "abc"), "0123456789", "abc") == tuple(
        tokenizer("456789abc")["input_ids"]
    )
    assert math.isnan(reward(["q"], ["x" * 30])[0])
    assert math.isnan(
        RewardModel(make_model(), tokenizer, max_length=10, overlong="fail")(["0123456789"], ["abc"])[0]
    )


def test_too_long_chat_keeps_the_whole_answer():
    tokenizer = make_tokenizer()
    reward = RewardModel(make_model(), tokenizer, max_length=12)
    prompt, answer = [{"role": "user", "content": "0123456789"}], [{"role": "assistant", "content": "abc"}]
    fitted = reward._fit(reward.encode(prompt, answer), prompt, answer)
    assert fitted == tuple(tokenizer("456789<eos><assistant>abc<eos>")["input_ids"])[-12:]
    assert reward._fit(reward.encode(prompt, [{**answer[0], "content": "x" * 11}]), prompt, answer) == ()


def test_failures_are_left_out_by_the_table():
    model = make_model()
    with torch.no_grad():
        model.score.weight.fill_(float("nan"))
    rewards = as_rewards(RewardModel(model, make_tokenizer(), name="rm"))
    table = as_rewards(rewards).score(RewardBatch(["q"], ["a"]), {"rm": 1.0})
    assert table.scores["rm"][0].status == "failed" and table.total(0) is None


def test_metrics_say_how_much_was_cut():
    reward = RewardModel(make_model(), make_tokenizer(), max_length=6, name="rm")
    table = as_rewards(reward).score(RewardBatch(["q", "0123456789"], ["abc", "abc"]), {"rm": 1.0})
    assert table.metrics["reward_models/rm/cut_share"].value == 0.5
    assert table.metrics["reward_models/rm/tokens"].value == 5.0


def test_scale_and_clip():
    model, tokenizer = make_model(), make_tokenizer()
    raw = RewardModel(model, tokenizer)(["q"] * 2, ["a", "b"])
    scaled = RewardModel(model, tokenizer, mean=1.0, std=2.0)(["q"] * 2, ["a", "b"])
    assert scaled == pytest.approx([(r - 1) / 2 for r in raw])
    assert set(RewardModel(model, tokenizer, std=1e-6, clip=3.0)(["q"] * 2, ["a", "b"])) <= {3.0, -3.0}


def test_reasoning_can_be_left_out():
    tokenizer = make_tokenizer()
    reward = RewardModel(make_model(), tokenizer, keep_reasoning=False)
    assert reward.encode("q ", "<think>hm</think>\nyes") == tuple(tokenizer("q yes")["input_ids"])


def test_several_labels_need_a_reduction():
    with pytest.raises(LoadingError, match="2 labels"):
        RewardModel(make_model(num_labels=2), make_tokenizer())
    second = RewardModel(make_model(num_labels=2), make_tokenizer(), reduce=1)(["q"], ["a"])
    first = RewardModel(make_model(num_labels=2), make_tokenizer(), reduce=0)(["q"], ["a"])
    gap = RewardModel(make_model(num_labels=2), make_tokenizer(), reduce=lambda x: x[:, 1] - x[:, 0])(
        ["q"], ["a"]
    )
    assert gap[0] == pytest.approx(second[0] - first[0])
    with pytest.raises(LoadingError, match="`reduce` is 2"):
        RewardModel(make_model(num_labels=2), make_tokenizer(), reduce=2)


def test_messages_need_a_template():
    reward = RewardModel(make_model(), make_tokenizer(template=None), name="rm")
    with pytest.raises(RewardError, match="'rm' got chat messages"):
        reward([[{"role": "user", "content": "hi"}]], [[{"role": "assistant", "content": "yes"}]])


def test_adapters_are_seen_through():
    peft = pytest.importorskip("peft")
    model, tokenizer = make_model(), make_tokenizer()
    plain = RewardModel(model, tokenizer)(["q"] * 2, ["abc", "d"])
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"]))
    assert RewardModel(wrapped, tokenizer)(["q"] * 2, ["abc", "d"]) == pytest.approx(plain, abs=1e-5)


def test_encoders_with_another_head_are_called_as_they_are():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    model, tokenizer = transformers.BertForSequenceClassification(config).eval(), make_tokenizer()
    got = RewardModel(model, tokenizer)(["q"] * 2, ["a", "abcdef"])
    with torch.no_grad():
        alone = [float(model(**tokenizer(t, return_tensors="pt")).logits[0, 0]) for t in ("qa", "qabcdef")]
    assert got == pytest.approx(alone, abs=1e-5)


def test_nothing_to_score():
    reward = RewardModel(make_model(), make_tokenizer())
    assert reward([], []) == []
    assert math.isnan(reward([""], [""])[0])


def test_loading_names_and_refuses(tmp_path):
    make_model().save_pretrained(tmp_path / "good")
    make_tokenizer().save_pretrained(tmp_path / "good")
    reward = load_reward_model(str(tmp_path / "good"), max_length=32)
    assert reward.__name__ == "good" and reward.max_length == 32
    assert reward(["q"], ["a"]) == pytest.approx(
        RewardModel(make_model(), make_tokenizer())(["q"], ["a"]), abs=1e-5
    )

    causal = transformers.Qwen2ForCausalLM(make_model().config)
    causal.save_pretrained(tmp_path / "policy")
    make_tokenizer().save_pretrained(tmp_path / "policy")
    with pytest.raises(LoadingError, match=r"not a trained reward model: score\.weight"):
        load_reward_model(str(tmp_path / "policy"))

    make_model(num_labels=2).save_pretrained(tmp_path / "two")
    make_tokenizer().save_pretrained(tmp_path / "two")
    with pytest.raises(LoadingError, match="not a trained reward model"):
        load_reward_model(str(tmp_path / "two"), num_labels=1, ignore_mismatched_sizes=True)
    with pytest.raises(LoadingError, match="2 labels"):
        load_reward_model(str(tmp_path / "two"))


def test_can_be_sent_to_another_process():
    reward = RewardModel(make_model(), make_tokenizer())
    assert pickle.loads(pickle.dumps(reward))(["q"], ["a"]) == reward(["q"], ["a"])
