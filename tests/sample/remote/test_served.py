"""`covey serve` and the server that speaks to it: the same draws as in the process, to the bit; weights that change whole or not at all."""

from __future__ import annotations

import copy
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from covey.errors import ConfigError, EngineError, ServerLost
from covey.sample.chat import decode_text
from covey.sample.native.engine import NativeEngine
from covey.sample.remote import served_http
from covey.sample.remote.client import Client, Refused
from covey.sample.remote.served import CoveyServer
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest
from covey.sample.remote.wire import DrawBody, body_of, read_as, read_json
from covey.sample.sampling import Sampling
from covey.types import Completion, Prompt
from tests.sample.native.families import family_model
from tests.sample.remote.serving import serving
from tests.tiny import EOS, PAD, STOP, USER, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.any_version

TOKENIZER = tiny_tokenizer()
SETTINGS = Sampling(max_new_tokens=12, stop_ids=(EOS,), padding_id=PAD, seed=3, step=(5, 1))


def decode(ids: Sequence[int]) -> str:
    return decode_text(TOKENIZER, ids, frozenset({PAD, EOS, STOP}))


def prompt(text: str, number: int = 0) -> Prompt:
    return Prompt(text, tuple(TOKENIZER(text)["input_ids"]), {}, number, (number, 0))


PROMPTS = [prompt("2 + 3 =", 0), prompt("hello", 1), prompt("a much longer prompt than the others, is it", 2)]


def model_of(seed: int = 0, kind="qwen2", **config):
    return tiny_model(kind, seed=seed, scale=3.0, **config)


@pytest.fixture
def policy():
    return model_of()


@pytest.fixture
def server(policy):
    with serving(policy, TOKENIZER) as (server, _):
        yield server


def native(model, prompt=PROMPTS[0], size=3, settings=SETTINGS, **options) -> tuple[Completion, ...]:
    engine = NativeEngine(decode, **options)
    engine.load(model)
    [group] = engine.generate([prompt], size, settings)
    return group.completions


def drawn(server, prompt=PROMPTS[0], size=3, settings=SETTINGS, **more) -> list[Drawn]:
    return server.draw(DrawRequest(prompt, settings, count=size, **more))


def same(drawn: Sequence[Drawn], completions: Sequence[Completion]) -> bool:
    """Whether two are equal to the bit."""
    return [(d.ids, d.logprobs, d.policy_logprobs, d.reason) for d in drawn] == [
        (c.ids, c.logprobs, c.policy_logprobs, c.finish) for c in completions
    ]


def hold(http) -> threading.Event:
    """Have the server be busy until the event is set."""
    held = threading.Event()
    http.queue.put(served_http.Job(lambda: held.wait(300)))
    while http.queue.waiting or not http.queue.is_busy:
        time.sleep(0.005)
    return held


# --- draws ------------------------------------------------------------------------------------------------------------

OTHER = Sampling(
    max_new_tokens=9, temperature=1 / 3, top_p=0.9, top_k=7, min_p=0.01, repetition_penalty=1.1, min_new_tokens=2,
    suppress_tokens=(11, 12), padding_id=1, unknown_ids=(99,), begin_suppress_tokens=(20,), bad_words_ids=((30,), (31, 32)),
    no_repeat_ngram_size=3, stop_ids=(2, 3), stop_strings=("ab", "é\n"), max_turn_length=8, seed=2**62, step=(1, 2**40),
    greedy=True,
)  # fmt: skip


def test_every_setting_and_every_field_of_a_request_travels():
    assert all(getattr(OTHER, f.name) != getattr(Sampling(1), f.name) for f in fields(Sampling))
    request = DrawRequest(replace(PROMPTS[0], seed_key=(7, 2**50)), OTHER, 3, 1, (5, 6, 7), 2, 4, "run-v1")
    body = read_as(DrawBody, read_json(json.dumps(body_of(request, True)).encode()))
    assert body == DrawBody(PROMPTS[0].ids, OTHER, (7, 2**50), 3, 1, (5, 6, 7), 2, 4, "run-v1", True), (
        "to the bit: 1/3 too"
    )
    plain = DrawRequest(PROMPTS[0], Sampling(1))
    assert read_as(DrawBody, read_json(json.dumps(body_of(plain, False)).encode())).settings == Sampling(1)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 9, "min_p": 0.01},
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
        {"greedy": True},
        {"stop_strings": ("a", "e"), "stop_ids": ()},
    ],
    ids=str,
)
def test_draws_are_the_native_engines_to_the_bit(kind, options):
    model, settings = model_of(kind=kind), replace(SETTINGS, **options)
    with serving(model, TOKENIZER) as (server, _):
        for one in PROMPTS:
            assert same(drawn(server, one, settings=settings), native(model, one, settings=settings))


def test_what_a_request_gets_depends_on_nothing_that_waits_beside_it(server, policy):
    expected = {n: native(policy, prompt(f"{n} + {n} =", n)) for n in range(12)}
    with ThreadPoolExecutor(12) as pool:
        several = list(pool.map(lambda n: drawn(server, prompt(f"{n} + {n} =", n)), [*range(12)] * 2))
    assert all(same(got, expected[n % 12]) for n, got in enumerate(several))


def test_requests_that_are_batched_give_the_same_ids(policy):
    """Bits of log-probabilities depend on the batch: this is the law that `together` gives up."""
    with serving(policy, TOKENIZER, together=True) as (server, http), ThreadPoolExecutor(12) as pool:
        held = hold(http)
        several = [pool.submit(drawn, server, prompt(f"{n} + {n} =", n), 1 + n // 6) for n in range(12)]
        while len(http.queue.waiting) < 12:
            time.sleep(0.01)
        held.set()
        for n, got in enumerate(several):
            expected = native(policy, prompt(f"{n} + {n} =", n), 1 + n // 6)
            assert [d.ids for d in got.result()] == [c.ids for c in expected]
            for one, other in zip(got.result(), expected, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
                assert one.policy_logprobs == pytest.approx(other.policy_logprobs, abs=1e-5)


def test_a_group_may_be_drawn_in_parts(server, policy):
    """Index by index, on any server: the random numbers hang on the index in the group."""
    whole = native(policy, size=5)
    parts = [*drawn(server, size=2), *drawn(server, size=2, first=2), *drawn(server, size=1, first=4)]
    assert [d.ids for d in parts] == [c.ids for c in whole]
    assert drawn(server, size=2, first=2) == parts[2:4], "sent again, the same to the bit"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "bad_words_ids": ((9, 10),)},
        {"stop_strings": ("a", "e"), "stop_ids": ()},
    ],
    ids=str,
)
def test_a_completion_goes_on_where_it_stands(server, policy, options):
    settings = replace(SETTINGS, **options)
    for index, whole in enumerate(native(policy, settings=settings)):
        for cut in range(1, len(whole.ids)):
            [rest] = drawn(server, size=1, settings=settings, first=index, given=whole.ids[:cut])
            assert (rest.ids, rest.reason) == (whole.ids[cut:], whole.finish)
            [part] = drawn(server, size=1, settings=settings, first=index, given=whole.ids[:cut], room=1)
            assert part.ids == whole.ids[cut : cut + 1]


def test_an_opening_takes_no_random_number_and_counts_to_no_limit(server, policy):
    opening = (40, 41, 42)
    longer = replace(PROMPTS[0], ids=(*PROMPTS[0].ids, *opening))
    for index, expected in enumerate(native(policy, longer)):
        [one] = drawn(server, size=1, first=index, given=opening, opening=3)
        assert one.ids == expected.ids
        if len(one.ids) > 4:
            [rest] = drawn(server, size=1, first=index, given=(*opening, *one.ids[:4]), opening=3)
            assert rest.ids == one.ids[4:]


def test_rules_of_a_turn_begin_anew_where_one_goes_on(server, policy):
    """As in one call with turns: a minimum, the first token, the limit of a turn."""
    first = tuple(range(40, 80))
    settings = replace(SETTINGS, min_new_tokens=3, begin_suppress_tokens=first, max_turn_length=5)
    [one] = drawn(server, size=1, settings=settings, given=(33, 34))
    assert len(one.ids) <= 5 and one.ids[0] not in first and EOS not in one.ids[:3]
    [last] = drawn(server, size=1, settings=settings, given=(33,) * 11)
    assert len(last.ids) == 1 and last.reason == "length", "less room than the minimum"


def test_special_tokens_are_text_where_the_run_says_so(server):
    settings = replace(SETTINGS, stop_ids=(), stop_strings=("<|user|>",), max_new_tokens=300)
    [without] = drawn(server, size=1, settings=settings)
    assert without.reason == "length" and USER in without.ids
    [one] = drawn(CoveyServer(server.client, keep_special=True), size=1, settings=settings)
    assert one.reason == "stop_string" and one.ids == without.ids[: without.ids.index(USER) + 1]


def test_log_probabilities_of_a_text_are_those_of_the_policy(server, policy):
    ids = PROMPTS[2].ids
    with torch.no_grad():
        logits = policy(torch.tensor([ids])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[1:, None])[:, 0]
    assert server.prompt_logprobs(ids) == expected.tolist()
    assert server.prompt_logprobs(ids[:1]) == []


# --- weights ----------------------------------------------------------------------------------------------------------


def written(model, folder, names=None):
    """Write weights as they are, some or all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t.contiguous().clone() for n, t in model.state_dict().items() if names is None or n in names}
    save_file(state, folder / "model.safetensors")
    return folder


def test_new_weights_are_served_to_the_bit_under_their_label(server, tmp_path):
    assert server.label() == UNLABELLED
    drawn(server)
    new = model_of(1)
    server.update(written(new, tmp_path / "v1"), "run:1:ab")
    assert server.label() == "run:1:ab" and same(drawn(server), native(new))
    newer = model_of(2)
    server.update(written(newer, tmp_path / "v2"), "run:2:cd")
    assert same(drawn(server), native(newer)) and server.prompt_logprobs((7, 8, 9))


def test_weights_that_are_not_in_the_folder_stay(server, policy, tmp_path):
    new, names = model_of(1), {"model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"}
    mixed = copy.deepcopy(policy)
    mixed.load_state_dict({n: t for n, t in new.state_dict().items() if n in names}, strict=False)
    server.update(written(new, tmp_path / "part", names), "part")
    assert same(drawn(server), native(mixed))


def broken(kind: str, state: dict[str, torch.Tensor]) -> None:
    if kind == "unknown":
        state["model.layers.9.mlp.up_proj.weight"] = torch.zeros(2)
    elif kind == "shapes":
        state["lm_head.weight"] = state["lm_head.weight"][:-1]
    elif kind == "rounded":
        state["lm_head.weight"] = state["lm_head.weight"].double()
    elif kind == "not finite":
        state["model.norm.weight"][3] = float("nan")


REFUSED = {
    "unknown": "has weights that the policy has not: model.layers.9",
    "shapes": "of other shapes: lm_head.weight",
    "rounded": "would be rounded: lm_head.weight in torch.float64",
    "not finite": "not finite: model.norm.weight",
    "torn": "cannot be read",
    "empty": "holds no file",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_weights_that_do_not_fit_change_nothing(server, policy, tmp_path, kind):
    server.update(written(policy, tmp_path / "good"), "good")
    before, folder = drawn(server), written(model_of(1), tmp_path / "bad")
    file = folder / "model.safetensors"
    if kind == "torn":
        file.write_bytes(file.read_bytes()[:-100])
    elif kind == "empty":
        file.unlink()
    else:
        state = load_file(file)
        broken(kind, state)
        save_file(state, file)
    with pytest.raises(Refused, match=REFUSED[kind]) as caught:
        server.update(folder, "bad")
    assert caught.value.status == 400 and "Traceback" not in str(caught.value)
    assert server.label() == "good" and drawn(server) == before


def test_weights_of_less_precision_are_taken_where_nothing_is_rounded(server, tmp_path):
    model = model_of(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    folder = written(model, tmp_path / "short")
    file = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    server.update(folder, "short")
    assert same(drawn(server), native(model))


def test_a_tied_head_follows_under_either_name_and_two_values_are_refused(tmp_path):
    tied = model_of(tie_word_embeddings=True)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    with serving(copy.deepcopy(tied), TOKENIZER) as (server, _):
        for number, names in enumerate(({head}, {embedding}, {head, embedding})):
            new = model_of(number + 1, tie_word_embeddings=True)
            tied.load_state_dict({embedding: new.state_dict()[embedding]}, strict=False)
            server.update(written(new, tmp_path / str(number), names), f"v{number}")
            assert same(drawn(server), native(tied))
        folder = tmp_path / "two"
        folder.mkdir()
        values = new.state_dict()[embedding].clone()
        save_file({head: values, embedding: -values}, folder / "model.safetensors")
        with pytest.raises(Refused, match="tied"):
            server.update(folder, "two")
        assert server.label() == "v2" and same(drawn(server), native(tied))


@pytest.mark.parametrize("name", ["Qwen3Moe", "Mixtral"])
def test_experts_are_taken_under_the_names_that_files_have(tmp_path, name):
    """One tensor of the model holds all experts of a layer; a file has one for each. A part of a file's names is enough."""
    old, new = family_model(name), family_model(name, 1)
    new.save_pretrained(tmp_path / "v1")
    with serving(copy.deepcopy(old), TOKENIZER) as (server, _):
        server.update(tmp_path / "v1", "v1")
        assert same(drawn(server), native(new))
        file = tmp_path / "v1" / "model.safetensors"
        state = load_file(file)
        expert = next(n for n in state if ".experts.3." in n)
        save_file({expert: -state[expert], "model.norm.weight": -state["model.norm.weight"]}, file)
        server.update(tmp_path / "v1", "v2")
        state |= load_file(file)
        save_file(state, file, {"format": "pt"})
        new.load_state_dict(type(new).from_pretrained(tmp_path / "v1").state_dict())
        assert same(drawn(server), native(new))
        save_file({expert: state[expert][:-1].contiguous()}, file)
        with pytest.raises(Refused, match=r"other shapes: .*experts\.3"):
            server.update(tmp_path / "v1", "v3")
        server.sleep(keeps_weights=False)
        server.wake()
        save_file({n: t for n, t in state.items() if n != expert}, file)
        with pytest.raises(Refused, match=r"lacks .*experts\.3"):
            server.update(tmp_path / "v1", "v4")
        save_file(state, file)
        server.update(tmp_path / "v1", "v5")
        assert drawn(server)


def test_draws_wait_while_weights_change_and_the_other_way_round(policy, tmp_path):
    """What is asked for before an update is drawn with the weights before it, what comes after with those after."""
    new = model_of(1)
    folder = written(new, tmp_path / "v1")
    expected = [native(copy.deepcopy(policy)), native(new)]
    with serving(policy, TOKENIZER) as (server, http), ThreadPoolExecutor(3) as pool:
        held = hold(http)
        calls = []
        for position, work in enumerate(
            (lambda: drawn(server), lambda: server.update(folder, "v1"), lambda: drawn(server))
        ):
            calls.append(pool.submit(work))
            while len(http.queue.waiting) < position + 1:
                time.sleep(0.01)
        held.set()
        assert same(calls[0].result(), expected[0]) and same(calls[2].result(), expected[1])


def test_files_are_sent_where_the_server_does_not_see_the_folder(server, tmp_path, monkeypatch):
    folder_of = served_http._Routes._folder

    def blind(self, files):
        if files.folder is not None:
            raise served_http.Status(404, "not there")
        return folder_of(self, files)

    monkeypatch.setattr(served_http._Routes, "_folder", blind)
    new = model_of(1)
    server.update(written(new, tmp_path / "v1"), "sent")
    assert server.label() == "sent" and same(drawn(server), native(new))


def test_a_folder_of_the_same_name_with_other_files_is_not_taken(server, tmp_path):
    folder = written(model_of(1), tmp_path / "v1")
    for sizes in ({"model.safetensors": 1}, {"model-2.safetensors": 10}):
        with pytest.raises(Refused, match="holds other files") as caught:
            server.client.ask("POST", "/covey/weights", {"label": "x", "folder": str(folder), "sizes": sizes})
        assert caught.value.status == 404
    assert server.label() == UNLABELLED


def test_what_was_sent_wrong_is_not_kept(server, tmp_path):
    file = written(model_of(1), tmp_path / "v1") / "model.safetensors"
    for route, said in (
        (f"/covey/uploads/a/model.safetensors?sha256={'0' * 64}", "digest"),
        ("/covey/uploads/a/..%2Fmodel.safetensors?sha256=0", "named by"),
        ("/covey/uploads/../model.safetensors?sha256=0", "named by"),
        ("/covey/uploads/a/model.bin?sha256=0", "named by"),
    ):
        with pytest.raises(Refused, match=said) as caught:
            server.client.ask("PUT", route, file)
        assert caught.value.status == 400
    with pytest.raises(Refused, match="no file of safetensors"):
        server.client.ask("POST", "/covey/weights", {"label": "x", "upload": "a"})
    with pytest.raises(Refused, match="Nothing was sent"):
        server.client.ask("POST", "/covey/weights", {"label": "x", "upload": "b"})
    assert server.label() == UNLABELLED


def test_logits_that_are_no_numbers_are_an_error_of_the_server(server, policy, tmp_path):
    bad = copy.deepcopy(policy)
    with torch.no_grad():
        bad.model.norm.weight.fill_(3e38)
    server.update(written(bad, tmp_path / "bad"), "bad")
    for call in (lambda: drawn(server), lambda: server.prompt_logprobs((7, 8))):
        with pytest.raises(Refused, match="not finite") as caught:
            call()
        assert caught.value.status == 500
    server.update(written(model_of(1), tmp_path / "good"), "good")
    assert same(drawn(server), native(model_of(1)))


# --- adapters ---------------------------------------------------------------------------------------------------------


def adapted(model, seed: int, **options):
    torch.manual_seed(seed)
    wrapped = get_peft_model(
        copy.deepcopy(model), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **options)
    )
    return wrapped.eval()


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_adapters_are_drawn_with_by_name_to_the_bit(kind, tmp_path):
    base = model_of(kind=kind)
    one, two = adapted(base, 1), adapted(base, 2, use_rslora=True)
    for number, model in enumerate((one, two)):
        model.save_pretrained(tmp_path / f"{number}")
    with serving(copy.deepcopy(base), TOKENIZER) as (server, _):
        server.load_adapter("run:1.v/1", tmp_path / "0")
        assert same(drawn(server, adapter="run:1.v/1"), native(one))
        server.load_adapter("run:2", tmp_path / "1")
        for _ in range(2):
            assert same(drawn(server, adapter="run:2"), native(two))
            assert same(drawn(server), native(base))
            assert same(drawn(server, adapter="run:1.v/1"), native(one))
        assert server.prompt_logprobs((7, 8), "run:2") != server.prompt_logprobs((7, 8))
        with pytest.raises(Refused, match="already"):
            server.load_adapter("run:2", tmp_path / "0")
        server.unload_adapter("run:1.v/1")
        with pytest.raises(Refused, match=r"no adapter 'run:1.v/1'; there are 'run:2'"):
            drawn(server, adapter="run:1.v/1")
        server.unload_adapter("run:2")
        assert same(drawn(server), native(base))


def test_new_weights_reach_the_policy_under_its_adapter(tmp_path):
    base, new = model_of(), model_of(1)
    one = adapted(base, 1)
    one.save_pretrained(tmp_path / "adapter")
    over_new = adapted(new, 1)
    with serving(copy.deepcopy(base), TOKENIZER) as (server, _):
        server.load_adapter("a", tmp_path / "adapter")
        server.update(written(new, tmp_path / "v1"), "v1")
        assert same(drawn(server), native(new)) and same(drawn(server, adapter="a"), native(over_new))


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", ["shape", "missing", "unknown", "no file", "prompts"])
def test_an_adapter_that_does_not_fit_leaves_no_trace(tmp_path, kind, beside):
    base = model_of()
    good, folder = tmp_path / "good", tmp_path / "bad"
    one = adapted(base, 1)
    one.save_pretrained(good)
    adapted(base, 2).save_pretrained(folder)
    file = folder / "adapter_model.safetensors"
    state = load_file(file)
    name = next(iter(state))
    if kind == "shape":
        state[name] = state[name][:, :-1].contiguous()
    elif kind == "missing":
        del state[name]
    elif kind == "unknown":
        state["base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"] = torch.zeros(4, 32)
    save_file(state, file)
    if kind == "no file":
        file.unlink()
    elif kind == "prompts":
        (folder / "adapter_config.json").write_text(
            '{"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 2, "task_type": "CAUSAL_LM"}'
        )
    with serving(copy.deepcopy(base), TOKENIZER) as (server, http):
        if beside:
            server.load_adapter("good", good)
        names = [name for name, _ in http.policy.base.named_parameters()]
        with pytest.raises(Refused, match="was refused") as caught:
            server.load_adapter("bad", folder)
        assert caught.value.status == 400
        assert [name for name, _ in http.policy.base.named_parameters()] == names
        assert same(drawn(server), native(base))
        if not beside:
            server.load_adapter("good", good)
        assert same(drawn(server, adapter="good"), native(one))


# --- sleep ------------------------------------------------------------------------------------------------------------


def test_sleep_gives_weights_up_or_keeps_them(server, policy, tmp_path):
    before = copy.deepcopy(policy)
    server.update(written(before, tmp_path / "v0"), "v0")
    expected = drawn(server)
    server.sleep(keeps_weights=True)
    with pytest.raises(Refused, match="asleep"):
        drawn(server)
    server.wake()
    assert server.label() == "v0" and drawn(server) == expected
    server.sleep(keeps_weights=False)
    assert sum(p.numel() for p in policy.parameters()) == 0
    server.wake()
    server.wake()
    assert server.label() == UNLABELLED
    with pytest.raises(Refused, match="given its weights up"):
        drawn(server)
    with pytest.raises(Refused, match="lacks lm_head"):
        server.update(
            written(before, tmp_path / "part", set(before.state_dict()) - {"lm_head.weight"}), "part"
        )
    server.update(tmp_path / "v0", "v1")
    assert server.label() == "v1" and drawn(server) == [replace(one, label="v1") for one in expected]


# --- what others send -------------------------------------------------------------------------------------------------


def raw(server, method="POST", route="/covey/draw", body=b"{}", **headers) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.client.host, server.client.port, timeout=60)
    connection.request(
        method, route, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    said = answer.read().decode()
    connection.close()
    return answer.status, said


SETTING = {"max_new_tokens": 3}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "prompt is missing"),
        (b"\xff\xfe", "no JSON"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"prompt": [1], "settings": {"max_new_tokens": 3, "temperature": NaN}}', "no JSON: NaN"),
        (b'{"prompt": [1], "settings": {"max_new_tokens": 3, "temperature": 1e999}}', "settings.temperature is Infinity; it must be a finite"),
        (b'{"prompt": [' + b"9" * 5000 + b"]}", "no JSON"),
        ([1], "must be an object"),
        ({"prompt": [1], "setings": SETTING}, "setings is no field that is known here. Did you mean 'settings'"),
        ({"prompt": [1], "settings": {**SETTING, "tempreature": 1}}, "settings.tempreature is no field"),
        ({"prompt": [1], "settings": {}}, "settings.max_new_tokens is missing"),
        ({"prompt": [1], "settings": {**SETTING, "temperature": 0}}, "temperature is 0.0; it must be positive"),
        ({"prompt": [1], "settings": {**SETTING, "top_k": True}}, "settings.top_k is true; it must be a whole"),
        ({"prompt": [1], "settings": {**SETTING, "stop_strings": [""]}}, "empty text"),
        ({"prompt": "1", "settings": SETTING}, "must be a list"),
        ({"prompt": [1, -1], "settings": SETTING}, r"prompt\[1\] is -1"),
        ({"prompt": [1.5], "settings": SETTING}, r"prompt\[0\] is 1.5"),
        ({"prompt": [2**63], "settings": SETTING}, "whole number"),
        ({"prompt": [], "settings": SETTING}, "no ids"),
        ({"prompt": [10_000], "settings": SETTING}, "has the id 10000; tiny has"),
        ({"prompt": [1] * 510, "settings": SETTING}, "context of tiny is 512"),
        ({"prompt": [1], "settings": {"max_new_tokens": 10**9}}, "context of tiny is 512"),
        ({"prompt": [1], "settings": SETTING, "count": 10**9}, "too many for one request"),
        ({"prompt": [1], "settings": SETTING, "count": 0}, "at least one"),
        ({"prompt": [1], "settings": SETTING, "given": [4, 5, 6]}, "at most 0 tokens"),
        ({"prompt": [1], "settings": SETTING, "given": [4], "count": 2}, "count is 2"),
        ({"prompt": [1], "settings": SETTING, "given": [4], "opening": 2}, "opening is 2"),
        ({"prompt": [1], "settings": SETTING, "room": 0}, "at most 0 tokens"),
        ({"prompt": [1], "settings": SETTING, "adapter": "x"}, "no adapter 'x'"),
    ],
    ids=lambda x: str(x)[:60],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_said(server, body, said):
    import re

    status, text = raw(server, body=body if isinstance(body, bytes) else json.dumps(body).encode())
    assert status == 400 and re.search(said, json.loads(text)["error"]), text
    assert "Traceback" not in text and len(text) < 600
    assert drawn(server), "and it serves on"


def test_what_is_no_request_of_the_protocol_is_refused_by_its_head(server):
    for expected, how in (
        (404, {"route": "/covey/drew"}),
        (404, {"method": "GET"}),
        (405, {"route": "/covey/label"}),
        (411, {"Content_Length": "x"}),
        (411, {"Transfer_Encoding": "chunked"}),
        (413, {"Content_Length": str(1 << 40)}),
        (413, {"method": "PUT", "route": "/covey/uploads/a/m.json?sha256=0", "Content_Length": str(1 << 40)}),
        (403, {"Origin": "http://example.com"}),
        (400, {"route": "/covey/weights", "body": b'{"label": "x", "folder": "relative"}'}),
        (400, {"route": "/covey/weights", "body": b'{"label": "", "folder": "/tmp"}'}),
        (400, {"route": "/covey/weights", "body": b'{"label": "x"}'}),
        (400, {"route": "/covey/sleep", "body": b'{"keeps_weights": 1}'}),
    ):
        status, text = raw(server, **how)
        assert status == expected and json.loads(text)["error"], (how, text)


def test_a_token_is_asked_for(policy):
    with serving(policy, TOKENIZER, token="secret") as (server, _):
        assert drawn(server) and server.is_alive()
        for token in ("", "Bearer secre", "Bearer é", "secret"):
            status, text = raw(server, "GET", "/covey/label", Authorization=token.encode())
            assert status == 401 and "secret" not in text
        other = CoveyServer(Client(server.url, 60, "other"))
        with pytest.raises(EngineError, match="token is missing or another"):
            other.label()


def test_a_request_whose_client_has_gone_is_not_begun(policy):
    with serving(policy, TOKENIZER) as (server, http):
        held = hold(http)
        connection = http_connection(server)
        connection.request(
            "POST", "/covey/draw", json.dumps({"prompt": [7], "settings": SETTING, "count": 4}), {}
        )
        while not http.queue.waiting:
            time.sleep(0.01)
        [job] = http.queue.waiting
        connection.close()
        deadline = time.monotonic() + 60
        while not job.is_given_up and time.monotonic() < deadline:
            time.sleep(0.02)
        held.set()
        drawn(server)
        assert job.is_given_up and not job.done.is_set() and http.policy.counts["completions"] == 3


def http_connection(server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.client.host, server.client.port, timeout=60)


def test_an_end_gives_back_what_waits(policy):
    with serving(policy, TOKENIZER) as (server, http), ThreadPoolExecutor(2) as pool:
        held = hold(http)
        waits = pool.submit(drawn, server)
        while not http.queue.waiting:
            time.sleep(0.01)
        http.queue.close()
        with pytest.raises(ServerLost, match="ending"):
            waits.result(60)
        assert not server.is_alive()
        with pytest.raises(ServerLost, match="ending"):
            drawn(server)
        held.set()


def test_a_mistake_of_the_server_is_said_without_its_inside(server, monkeypatch, capfd):
    monkeypatch.setattr(NativeEngine, "generate", lambda *_: 1 / 0)
    with pytest.raises(Refused, match="ZeroDivisionError") as caught:
        drawn(server)
    assert caught.value.status == 500 and "line" not in str(caught.value)
    assert "1 / 0" in capfd.readouterr().err
    monkeypatch.undo()
    assert drawn(server)


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_facts_progress_and_metrics(server):
    facts = server.facts()
    assert (facts.kind, facts.dtype, facts.device, facts.max_length) == ("covey", "float32", "cpu", 512)
    assert server.progress() == 0
    tokens = sum(len(d.ids) for d in drawn(server))
    assert server.progress() >= tokens
    text = server.client.text("GET", "/metrics")
    assert 'covey_requests_total{route="/covey/draw",status="200"} 1' in text
    assert f"covey_generation_tokens_total {server.progress()}" in text


class SeenCounter(Counter):
    """Counts no more than 100 tokens beyond what was last seen: the draw waits for who looks."""

    seen = 0

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        end = time.monotonic() + 60
        while value > self.seen + 100 and time.monotonic() < end:
            time.sleep(0.001)


def test_the_counter_moves_while_a_group_is_drawn(policy):
    settings = replace(SETTINGS, max_new_tokens=200, stop_ids=())
    with serving(policy, TOKENIZER) as (server, http), ThreadPoolExecutor(1) as pool:
        http.policy.engine.counts, looks = SeenCounter(), set()
        long = pool.submit(drawn, server, settings=settings)
        while not long.done():
            SeenCounter.seen = server.progress()
            looks.add(SeenCounter.seen)
            time.sleep(0.01)
        assert len(looks) > 5, "600 tokens, and 100 between two looks at most"


def test_wrong_values_of_our_own_are_told_by_where_they_stand():
    with pytest.raises(ConfigError, match=r"ids\[1\] is \"a\""):
        read_as(Drawn, {"ids": [1, "a"], "logprobs": [], "reason": "stop"})
    with pytest.raises(ConfigError, match="reason is"):
        read_as(Drawn, {"ids": [1], "logprobs": [0.5], "reason": "abort"})
