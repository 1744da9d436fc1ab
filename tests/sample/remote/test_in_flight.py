"""Weights that change under running requests: what is accepted then, what is not, and which weights a completion says it is of."""

import copy
import threading
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.errors import EngineError, ServerLost
from covey.sample.remote.labels import new_label, oldest_version, pushed_again
from covey.sample.remote.post import Post
from covey.sample.remote.served_queue import Job
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest
from covey.sample.remote.sglang import SglangServer
from covey.sample.remote.vllm import VllmServer
from covey.sample.remote.wire import DrawBody
from covey.sample.sampling import Sampling
from covey.types import Prompt
from tests.sample.remote.fake_vllm import FakeVllm
from tests.sample.remote.moved import moved
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy

pytestmark = pytest.mark.any_version

PROMPT = Prompt("", tuple(range(7, 31)), row=3, seed_key=(3, 0))
SETTINGS = Sampling(max_new_tokens=16, min_new_tokens=16, seed=5)
A, B, C = (str(new_label("ours", number)) for number in (3, 4, 5))
FOREIGN = str(new_label("theirs", 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"), scale=2.0)


class Said:
    """A server of which the labels are given: what it says before, and after each thing that it draws."""

    url = "http://said:1"

    def __init__(self, label, told=None):
        self.served, self.then, self.told = label, [], told

    def label(self):
        return self.served

    def draw(self, request):
        if self.then:
            self.then.pop(0)()
        return [Drawn((9,), (-1.0,), "length", label=self.told)]


def post_at(label, told=None):
    """A server that has to serve a label, and does."""
    server, again = Said(label, told), []

    def serve_again(server):
        again.append(pushed_again(post.labels[-1]))
        server.served = again[-1]
        return again[-1]

    post = Post(server, 5.0, serve_again)
    post.serve(label)
    return server, post, again


def swap(server, post, label):
    """What a load does while a request runs."""
    post.swap(label)
    server.served = label
    post.serve(label)


def test_what_begins_under_one_label_may_end_under_those_that_follow_and_is_of_the_oldest():
    server, post, again = post_at(A)
    server.then = [lambda: swap(server, post, B), lambda: swap(server, post, C), lambda: None]
    assert post.draw(None, post.mark())[0].label == A
    assert post.draw(None, post.mark())[0].label == B
    assert post.draw(None, post.mark())[0].label == C and not again
    server, post, _ = post_at(A)
    server.then = [lambda: (swap(server, post, B), swap(server, post, C))]
    assert post.draw(None, post.mark())[0].label == A, "two changes under one request"


def test_while_weights_are_sent_a_server_may_serve_either_and_is_given_neither_again():
    server, post, again = post_at(A)
    post.swap(B)
    for served in (A, B):
        server.served = served
        assert post.mark(time.monotonic()) == served
    post.serve(B)
    server.served = A  # what was sent did not reach it
    assert post.mark(time.monotonic()).startswith(f"{B}+") and len(again) == 1


def test_an_answer_that_says_its_weights_is_believed_if_they_are_among_those():
    server, post, _ = post_at(A, told=B)
    with pytest.raises(ServerLost, match="started again"):
        post.draw(None, post.mark())
    server, post, _ = post_at(A, told=B)
    server.then = [lambda: swap(server, post, B)]
    assert post.draw(None, post.mark())[0].label == B


WRONG = {
    "a push that was not made under requests": lambda server, post: (post.serve(B), setattr(server, "served", B)),
    "a restart": lambda server, post: setattr(server, "served", UNLABELLED),
    "a restart before the change": lambda server, post: (setattr(server, "served", UNLABELLED), swap(server, post, B)),
    "a restart behind the change": lambda server, post: (swap(server, post, B), setattr(server, "served", UNLABELLED)),
    "the weights of before, once more": lambda server, post: (swap(server, post, B), setattr(server, "served", A)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_across_anything_else_is_none(name):
    server, post, _ = post_at(A)
    server.then = [lambda: WRONG[name](server, post)]
    with pytest.raises(ServerLost, match="started again"):
        post.draw(None, post.mark())


def test_another_run_is_another_run_also_then():
    server, post, _ = post_at(A)
    server.then = [lambda: (swap(server, post, B), setattr(server, "served", FOREIGN))]
    with pytest.raises(EngineError, match="Two runs cannot share"):
        post.draw(None, post.mark())


def test_the_oldest_of_labels_is_of_the_fewest_updates():
    assert oldest_version([B, A, pushed_again(C)]) == 3 and oldest_version([B]) == 4
    assert (
        oldest_version([B, UNLABELLED]) is None and oldest_version([str(new_label("ours", None)), A]) is None
    )


def logprobs_of(model, ids):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
    return logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_vllm_swaps_between_two_tokens_and_keeps_no_key_of_before(folder, tmp_path):
    new = moved(folder, tmp_path / "new")
    old, changed = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    changed.load_state_dict({name: -tensor for name, tensor in old.state_dict().items()})
    with FakeVllm(folder, {"halves": 300.0}) as fake:
        server, drawn = VllmServer(fake.url, 300.0), []
        server.facts()
        thread = threading.Thread(
            target=lambda: drawn.extend(server.draw(DrawRequest(PROMPT, SETTINGS, count=2)))
        )
        thread.start()
        assert fake.is_halfway.wait(60)
        server.swap(new, "run:1:a")  # waits for nothing: what runs is held until this is done
        thread.join(60)
        assert fake.happened == {"halves"} and not fake.is_paused and server.label() == "run:1:a"
        sent = [(route, body) for route, body in fake.asked if route != "/v1/completions"]
        assert [route for route, _ in sent] == [
            "/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume",
        ]  # fmt: skip
        assert sent[0][1] == {"mode": "keep"} and sent[2][1] == {"reset_running_requests": "true"}
    for one in drawn:
        first, last = (logprobs_of(m, [*PROMPT.ids, *one.ids])[-16:] for m in (old, changed))
        said = torch.tensor(one.logprobs)
        assert torch.allclose(said[:8], first[:8], atol=1e-4) and torch.allclose(
            said[8:], last[8:], atol=1e-4
        )
        assert not torch.allclose(said, first, atol=1e-2)


@pytest.mark.parametrize("in_flight", [True, False])
def test_covey_serve_swaps_between_two_requests_before_those_that_wait(folder, tmp_path, in_flight):
    new, model = (
        moved(folder, tmp_path / "new"),
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
    )
    with serving(copy.deepcopy(model), AutoTokenizer.from_pretrained(folder)) as (server, http):
        server.update(moved(folder, tmp_path / "same", lambda name, tensor: tensor), A)
        held, queue, drawn = threading.Event(), http.queue, {}
        queue.put(Job(lambda: held.wait(300)))

        def ask(row):
            drawn[row] = server.draw(DrawRequest(PROMPT, SETTINGS))[0]

        def wait_for(number):
            end = time.monotonic() + 60
            while len(queue.waiting) < number:
                assert time.monotonic() < end
                time.sleep(0.005)

        calls = [threading.Thread(target=ask, args=(row,)) for row in range(2)]
        while queue.waiting or not queue.is_busy:  # until the first job holds the thread
            time.sleep(0.005)
        for number, call in enumerate(calls, 1):
            call.start()
            wait_for(number)
        change = threading.Thread(target=server.swap if in_flight else server.update, args=(new, B))
        change.start()
        wait_for(3)
        late = threading.Thread(target=ask, args=(2,))
        late.start()
        wait_for(4)
        score = threading.Thread(target=server.prompt_logprobs, args=(PROMPT.ids,))
        score.start()
        wait_for(5)
        waiting = [isinstance(job.work, DrawBody) for job in queue.waiting]
        first = [False, False, True, True] if in_flight else [True, True, False, False]
        assert waiting == [*first, True], "what proves weights passes draws, and never a change of weights"
        held.set()
        for thread in (*calls, change, late, score):
            thread.join(60)
        labels = [drawn[row].label for row in range(3)]
        assert labels == ([B, B, B] if in_flight else [A, A, B])
        assert (drawn[0] == drawn[2]) is in_flight and drawn[0] == drawn[1]


def test_sglang_says_that_it_cannot(tmp_path):
    server = SglangServer("http://127.0.0.1:1", 1.0)
    assert not server.swaps_in_flight
    with pytest.raises(EngineError, match="not changed under running requests of SGLang"):
        server.swap(tmp_path, A)
