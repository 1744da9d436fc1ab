"""A server of vLLM alone, over HTTP, against the routes and traps that were measured on vLLM 0.32."""

import copy
import threading
import time
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from covey.errors import CoveyWarning, EngineError, ServerLost
from covey.sample.remote import vllm
from covey.sample.remote.request_seed import HIGHEST, request_seed
from covey.sample.remote.server import UNLABELLED, DrawRequest
from covey.sample.remote.vllm import VllmServer
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.moved import LORA, PROMPT, moved
from tests.tiny import EOS, PAD, tiny_policy

pytestmark = pytest.mark.any_version

SETTINGS = Sampling(12, stop_ids=(EOS, 40, 41, 42), padding_id=PAD, seed=1)


@pytest.fixture
def serve(folder):
    """Makes a fake with faults and a server that speaks to it; all are closed at the end."""
    fakes = []

    def made(timeout=300.0, extra=None, model=folder, **faults):
        fakes.append(FakeVllm(model, faults))
        return fakes[-1], VllmServer(fakes[-1].url, timeout, extra)

    yield made
    for fake in fakes:
        fake.close()


def reference(folder, ids, count=1):
    """Log-probabilities of the ids of a prompt, by a plain forward."""
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(input_ids=torch.tensor([ids])).logits[0]
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_a_request_says_everything_that_a_default_of_the_server_could_change(serve):
    fake, server = serve()
    settings = Sampling(
        9, 0.7, 0.9, 20, 0.05, 1.1, 2, (7,), 0, (99,), stop_ids=(2,), stop_strings=("ab",), max_turn_length=5
    )
    server.draw(DrawRequest(PROMPT, settings, count=3))
    [(route, body)] = fake.asked
    seed, salt = body.pop("seed"), body.pop("cache_salt")
    assert 0 <= seed < 2**63 and salt.isalnum()
    assert route == "/v1/completions" and body == {
        "model": "smol", "prompt": list(PROMPT.ids), "n": 3, "max_tokens": 5, "min_tokens": 2, "temperature": 0.7, "top_p": 0.9,
        "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "stop": ["ab"], "stop_token_ids": [2], "ignore_eos": True,
        "logit_bias": {"0": -100.0, "7": -100.0, "99": -100.0}, "logprobs": 0, "return_token_ids": True,
        "return_tokens_as_token_ids": True, "skip_special_tokens": False,
    }  # fmt: skip
    server.draw(DrawRequest(PROMPT, Sampling(4, greedy=True)))
    assert fake.asked[-1][1]["temperature"] == 0 and "logit_bias" not in fake.asked[-1][1]


def test_completion_i_of_a_group_is_that_of_a_request_of_its_own(serve):
    _, server = serve()
    group = server.draw(DrawRequest(PROMPT, SETTINGS, count=4))
    assert [server.draw(DrawRequest(PROMPT, SETTINGS, first=i))[0] for i in range(4)] == group
    assert len({d.ids for d in group}) == 4 and {d.reason for d in group} <= {"stop", "length"}
    assert all(d.ids[-1] in SETTINGS.stop_ids for d in group if d.reason == "stop")


def test_seeds_hang_on_the_run_the_step_the_prompt_the_index_and_the_place_and_on_nothing_else():
    base = DrawRequest(PROMPT, SETTINGS)
    key = dict(prompt=PROMPT, settings=SETTINGS)
    others = [
        DrawRequest(Prompt("", PROMPT.ids, seed_key=(4,)), SETTINGS),
        DrawRequest(PROMPT, Sampling(12, seed=2)),
        DrawRequest(PROMPT, Sampling(12, seed=1, step=(0, 1))),
        DrawRequest(PROMPT, Sampling(12, seed=1, step=(0, 0))),
        DrawRequest(**key, first=1),
        DrawRequest(**key, given=(5, 6)),
        DrawRequest(**key, given=(5, 6, 7), opening=2),
    ]
    seeds = [request_seed(r) for r in [base, *others]]
    assert len(set(seeds)) == len(seeds) and all(0 <= s < 2**63 for s in seeds)
    same = [
        DrawRequest(Prompt("x", (1,), row=9, seed_key=(3,)), SETTINGS, count=8),
        DrawRequest(**key, given=(5, 6), opening=2),
    ]
    assert [request_seed(r) for r in same] == [seeds[0]] * 2
    assert request_seed(DrawRequest(**key, first=5)) == seeds[0] + 5 and HIGHEST + 2**32 == 2**63


def test_a_turn_goes_on_behind_what_is_given_and_has_its_own_room(serve):
    fake, server = serve()
    [drawn] = server.draw(DrawRequest(PROMPT, SETTINGS, first=2, given=(50, 51, 52), room=3))
    assert fake.asked[-1][1]["prompt"] == [*PROMPT.ids, 50, 51, 52] and fake.asked[-1][1]["max_tokens"] == 3
    assert len(drawn.ids) <= 3


def test_a_stop_string_is_told_from_an_end_token(serve):
    _, server = serve()
    [plain] = server.draw(DrawRequest(PROMPT, SETTINGS))
    text = server_text(plain.ids[:2])
    [drawn] = server.draw(
        DrawRequest(
            PROMPT, Sampling(12, stop_ids=SETTINGS.stop_ids, padding_id=PAD, seed=1, stop_strings=(text,))
        )
    )
    assert drawn.reason == "stop_string" and drawn.ids == plain.ids[:2]


def server_text(ids):
    from tests.tiny import tiny_tokenizer

    return tiny_tokenizer().decode(ids)


def test_prompt_logprobs_are_those_of_a_forward_whatever_the_cache_holds(serve, folder, tmp_path):
    _, server = serve(stale_kv=True)
    assert server.prompt_logprobs(PROMPT.ids) == pytest.approx(reference(folder, PROMPT.ids), abs=1e-5)
    server.draw(DrawRequest(PROMPT, SETTINGS))
    new = moved(folder, tmp_path / "new", lambda n, t: t * 1.5)
    server.update(new, "run:1:a")
    assert server.prompt_logprobs(PROMPT.ids) != pytest.approx(reference(folder, PROMPT.ids), abs=1e-3)


REFUSED = [
    ({"aborts": 1}, ServerLost, "aborted there"),
    ({"errors": 1}, ServerLost, "EngineCore encountered"),
    ({"drops": 1}, ServerLost, "connection was lost"),
    ({"lost": 1}, ServerLost, "connection was lost"),
    ({"silent": 1}, ServerLost, "no answer for"),
    ({"count": True}, EngineError, "gave 1 completions of 2 for the prompt of row 0"),
]


@pytest.mark.parametrize(
    ("faults", "kind", "text"), REFUSED, ids=lambda v: next(iter(v)) if isinstance(v, dict) else ""
)
def test_what_is_no_answer_is_an_error_that_says_whether_it_may_be_sent_again(serve, faults, kind, text):
    _, server = serve(timeout=0.4, busy=True, **faults)
    server.client.timeout = 300.0  # of what draws nothing
    server.facts()
    with pytest.raises(EngineError, match=text) as raised:
        server.draw(DrawRequest(PROMPT, SETTINGS, count=2))
    assert type(raised.value) is kind


def test_a_request_that_is_refused_is_not_sent_again_and_quotes_the_server(serve):
    _, server = serve()
    with pytest.raises(EngineError, match="maximum context length is 512") as raised:
        server.draw(DrawRequest(PROMPT, Sampling(500)))
    assert not isinstance(raised.value, ServerLost)
    with pytest.raises(EngineError, match="model `gone` does not exist"):
        server.update(Path(server.root), "run:1:a")
        server.draw(DrawRequest(PROMPT, SETTINGS, adapter="gone"))


def test_weights_that_are_not_finite_are_named(serve, folder, tmp_path):
    _, server = serve()
    server.update(moved(folder, tmp_path / "nan", lambda n, t: t * float("nan")), "run:1:a")
    with pytest.raises(EngineError, match="not finite"):
        server.draw(DrawRequest(PROMPT, SETTINGS))
    with pytest.raises(EngineError, match="not finite"):
        server.prompt_logprobs(PROMPT.ids)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_an_update_pauses_reads_empties_labels_and_resumes_in_this_order(serve, folder, tmp_path):
    fake, server = serve(no_reset=2)
    new = moved(folder, tmp_path / "new")
    before = server.draw(DrawRequest(PROMPT, SETTINGS))
    server.update(new, "run:1:a")
    routes = [route for route, _ in fake.asked[1:]]
    assert routes == [
        "/pause",
        "/collective_rpc",
        *["/reset_prefix_cache"] * 3,
        "/update_weight_version",
        "/resume",
    ]
    assert fake.asked[1][1] == {"mode": "wait"} and fake.asked[2][1]["kwargs"] == {"weights_path": str(new)}
    assert server.label() == "run:1:a" and not fake.is_paused
    assert server.draw(DrawRequest(PROMPT, SETTINGS)) != before
    salts = {body["cache_salt"] for route, body in fake.asked if route == "/v1/completions"}
    assert len(salts) == 2


def test_an_update_waits_for_what_runs_and_what_comes_meanwhile_waits(serve, folder, tmp_path):
    fake, server = serve(slow=0.3)
    server.facts()
    drawn = []
    ask = lambda: drawn.append(server.draw(DrawRequest(PROMPT, SETTINGS)))  # noqa: E731
    first = threading.Thread(target=ask)
    first.start()
    while not fake.running:
        time.sleep(0.01)
    update = threading.Thread(target=server.update, args=(moved(folder, tmp_path / "new"), "run:1:a"))
    update.start()
    while not fake.is_paused:
        time.sleep(0.01)
    second = threading.Thread(target=ask)
    second.start()
    for thread in (first, update, second):
        thread.join(60)
    fake.faults.clear()
    _, fresh = serve()
    assert drawn[0] == fresh.draw(DrawRequest(PROMPT, SETTINGS)) != drawn[1]


@pytest.mark.parametrize("salted", [True, False])
def test_old_keys_and_values_are_found_by_no_request_after_an_update(serve, folder, tmp_path, salted):
    """A cache that is not emptied is met by another salt; a salt that is ignored by a reset that has to succeed."""
    _, server = serve(**({"stale_kv": True} if salted else {}))
    server.draw(DrawRequest(PROMPT, SETTINGS))
    new = moved(folder, tmp_path / "new")
    server.update(new, "run:1:a")
    if not salted:
        server.told = UNLABELLED
    _, fresh = serve(model=folder)
    fresh.update(new, "x")
    assert server.draw(DrawRequest(PROMPT, SETTINGS)) == fresh.draw(DrawRequest(PROMPT, SETTINGS))


def test_a_cache_that_is_not_emptied_is_an_error_and_the_server_is_not_left_paused(
    serve, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(vllm, "CACHE_SECONDS", 0.3)
    fake, server = serve(no_reset=10**6)
    with pytest.raises(EngineError, match="success=false"):
        server.update(moved(folder, tmp_path / "new"), "run:1:a")
    assert not fake.is_paused and server.label() == UNLABELLED


BAD = {
    "no folder": (
        lambda folder, to: to,
        EngineError,
        "Cannot find any model weights.*weights of before again",
    ),
    "unknown name": (
        lambda folder, to: moved_with(folder, to, {"model.extra.weight": torch.zeros(2)}),
        EngineError,
        "no module or parameter.*weights of before again",
    ),
    "wrong shape": (
        lambda folder, to: moved_with(folder, to, {"model.norm.weight": torch.zeros(3)}),
        ServerLost,
        r"\(3,\) into \(32,\).*it has none",
    ),
}


def moved_with(folder, to, more):
    to.mkdir()
    save_file(more, to / "model.safetensors")
    return to


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("is_first", [True, False])
def test_refused_weights_leave_those_of_before_or_the_server_counts_as_lost(
    serve, folder, tmp_path, name, is_first
):
    """The next request would end a server without weights: those of before come back before it is resumed."""
    make, kind, text = BAD[name]
    fake, server = serve()
    server.facts()
    good = moved(folder, tmp_path / "good", lambda n, t: t * 1.1)
    part = moved(folder, tmp_path / "part", keep=lambda n: "layers.0" in n)
    if not is_first:
        server.update(good, "run:1:a")
        server.update(part, "run:1:b")
    before = server.prompt_logprobs(PROMPT.ids)
    with pytest.raises(EngineError, match=text) as raised:
        server.update(make(folder, tmp_path / "bad"), "run:2:b")
    assert type(raised.value) is kind and not fake.is_paused
    if kind is EngineError:
        assert server.prompt_logprobs(PROMPT.ids) == before
        assert server.label() == (UNLABELLED if is_first else "run:1:b")


def test_the_weights_of_before_that_were_deleted_make_it_lost(serve, folder, tmp_path):
    _, server = serve()
    good = moved(folder, tmp_path / "good")
    server.update(good, "run:1:a")
    good.rename(tmp_path / "away")
    with pytest.raises(ServerLost, match="gone from the disk"):
        server.update(tmp_path / "nothing", "run:2:a")


def test_a_folder_with_a_part_of_the_weights_leaves_the_others(serve, folder, tmp_path):
    _, server = serve()
    server.update(moved(folder, tmp_path / "half", keep=lambda n: "layers.1" in n), "run:1:a")
    after = server.prompt_logprobs(PROMPT.ids)
    server.update(moved(folder, tmp_path / "rest", keep=lambda n: "layers.1" not in n), "run:1:b")
    _, whole = serve()
    whole.update(moved(folder, tmp_path / "whole"), "run:1:a")
    assert server.prompt_logprobs(PROMPT.ids) == whole.prompt_logprobs(PROMPT.ids) != after


def test_adapters_are_held_beside_the_weights_each_under_its_name(serve, folder, tmp_path):
    _, server = serve()
    base = server.prompt_logprobs(PROMPT.ids)
    expected = {}
    for seed, name in enumerate(("run-v1", "run-v2")):
        torch.manual_seed(seed)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), copy.deepcopy(LORA))
        model.save_pretrained(tmp_path / name)
        server.load_adapter(name, tmp_path / name)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([PROMPT.ids])).logits[0].log_softmax(-1)
        expected[name] = logits[:-1].gather(1, torch.tensor(PROMPT.ids[1:])[:, None])[:, 0].tolist()
    for name in expected:
        assert server.prompt_logprobs(PROMPT.ids, name) == pytest.approx(expected[name], abs=1e-4)
    assert server.prompt_logprobs(PROMPT.ids) == base
    server.unload_adapter("run-v1")
    server.unload_adapter("run-v1")
    with pytest.raises(EngineError, match="already been loaded"):
        server.load_adapter("run-v2", tmp_path / "run-v2")
    with pytest.raises(EngineError, match="No adapter found"):
        server.load_adapter("run-v3", tmp_path / "nowhere")


def test_a_server_that_takes_no_adapters_says_how_to_start_one(serve, tmp_path):
    _, server = serve(no_adapters=True)
    with pytest.raises(EngineError, match=r"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.*weight_sync='files'"):
        server.load_adapter("a", tmp_path)
    assert server.facts().max_adapter_rank is None


def test_a_restart_in_the_middle_takes_the_adapter_away_and_says_lost(serve, folder, tmp_path):
    fake, server = serve()
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder), copy.deepcopy(LORA)).save_pretrained(
        tmp_path / "a"
    )
    server.load_adapter("a", tmp_path / "a")
    fake.start()
    with pytest.raises(ServerLost, match="started again"):
        server.draw(DrawRequest(PROMPT, SETTINGS, adapter="a"))


# --- what it is -------------------------------------------------------------------------------------------------------


def test_facts_are_what_the_server_says(serve):
    _, server = serve()
    facts = server.facts()
    assert (facts.kind, facts.release, facts.model, facts.dtype, facts.device) == (
        "vllm",
        "0.32.0",
        "smol",
        "float32",
        "cpu",
    )
    assert (facts.max_length, facts.logprobs_mode, facts.max_adapter_rank) == (512, "processed_logprobs", 16)
    assert (facts.quantization, facts.chunks_prompts, facts.drafts_tokens) == (None, False, False)


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ({"old": True}, "server of TRL before 1.11.*VLLM_SERVER_DEV_MODE=1 vllm serve MODEL"),
        ({"no_dev_mode": True}, "without its development mode.*VLLM_SERVER_DEV_MODE=1 vllm serve MODEL"),
    ],
)
def test_a_server_that_cannot_be_trained_with_is_answered_with_the_command(serve, faults, text):
    _, server = serve(**faults)
    with pytest.raises(EngineError, match=text):
        server.facts()


def test_what_a_dead_run_left_behind_is_ended(serve):
    fake, server = serve()
    fake.is_paused = fake.is_asleep = True
    server.facts()
    assert not fake.is_paused and not fake.is_asleep and server.draw(DrawRequest(PROMPT, SETTINGS))


def test_fields_that_vllm_does_not_know_are_found_before_the_first_request(serve):
    """vLLM passes over them without a word."""
    _, server = serve(extra={"presence_penalty": 0.5})
    server.facts()
    _, server = serve(extra={"presense_penalty": 0.5})
    with pytest.raises(
        EngineError, match=r"'presense_penalty', which vLLM .* Did you mean 'presence_penalty'"
    ):
        server.facts()
    _, server = serve(extra={"presense_penalty": 0.5}, no_openapi=True)
    with pytest.warns(CoveyWarning, match="may have no effect"):
        server.facts()


def test_more_fields_reach_every_request_and_biases_are_joined(serve):
    fake, server = serve(extra={"presence_penalty": 0.5, "logit_bias": {"9": 1.5}})
    server.draw(DrawRequest(PROMPT, SETTINGS))
    assert fake.asked[-1][1]["presence_penalty"] == 0.5
    assert fake.asked[-1][1]["logit_bias"] == {"9": 1.5, str(PAD): -100.0}


def test_labels_of_a_release_without_them_last_as_long_as_its_process(serve, folder, tmp_path):
    fake, server = serve(no_labels=True)
    assert server.label() == UNLABELLED
    server.update(moved(folder, tmp_path / "new"), "run:1:a")
    assert server.label() == "run:1:a"
    fake.start()
    assert server.label() == UNLABELLED


def test_memory_is_given_back_and_that_of_the_cache_comes_after_the_weights(serve, folder, tmp_path):
    fake, server = serve()
    server.sleep(keeps_weights=False)
    assert fake.is_asleep and fake.asked[-1] == ("/sleep", {"level": "2"})
    server.wake()
    server.facts()  # is no reason to wake the cache before the weights are there
    server.update(moved(folder, tmp_path / "new"), "run:1:a")
    wakes = [(route, body) for route, body in fake.asked if route in ("/wake_up", "/collective_rpc")]
    assert [body.get("tags") for _, body in wakes] == ["weights", None, "kv_cache"]
    assert server.draw(DrawRequest(PROMPT, SETTINGS))
    server.sleep(keeps_weights=True)
    server.wake()
    assert fake.asked[-2:] == [("/sleep", {"level": "1"}), ("/wake_up", {})]


def test_the_counter_moves_with_what_is_drawn_and_a_closed_server_is_not_alive(serve):
    fake, server = serve()
    before = server.progress()
    drawn = server.draw(DrawRequest(PROMPT, SETTINGS, count=3))
    assert server.progress() - before == sum(len(d.ids) for d in drawn) and server.is_alive()
    fake.close()
    assert not server.is_alive()


def test_a_tied_head_that_vllm_keeps_on_a_cpu_follows_where_the_folder_has_it(serve, tmp_path):
    tied = tiny_policy(tmp_path / "tied", scale=3.0, tie_word_embeddings=True)
    logprobs = []
    for number, has_head in enumerate((True, False)):
        _, server = serve(model=tied, stale_head=True)
        keep = lambda n, has_head=has_head: has_head or n != "lm_head.weight"  # noqa: E731
        new = moved(tied, tmp_path / f"new{number}", lambda n, t: t * 1.5, keep)
        server.update(new, "run:1:a")
        logprobs.append(server.prompt_logprobs(PROMPT.ids))
    assert logprobs[0] != pytest.approx(logprobs[1], abs=0.01)
