"""SGLang's native HTTP routes over the same tiny model as the fake of vLLM, with the faults of that one and these:

rejects       updates of weights are answered with success=false (times)          relabels    other weights come in before the n-th request
aborts        every n-th request is aborted: status 200, finish_reason "abort"     old_routes  /get_model_info and /get_server_info
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.sample.remote.fake_vllm import Answered, FakeVllm


class FakeSglang(FakeVllm):
    """A server of SGLang in threads of this process."""

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        info = "/get_{}_info" if "old_routes" in self.faults else "/{}_info"
        gets = {
            "/health": self.health,
            info.format("model"): self.model_info,
            info.format("server"): self.own_info,
            "/metrics": self.metrics,
        }
        posts = {"/generate": self.generate, "/update_weights_from_disk": self.update, "/flush_cache": lambda body: None,
                 "/load_lora_adapter": self.load, "/unload_lora_adapter": self.unload,
                 "/release_memory_occupation": lambda body: None, "/resume_memory_occupation": lambda body: None}  # fmt: skip
        if path not in (*gets, *posts):
            raise Answered(404, '{"detail":"Not Found"}')
        if (method == "GET") != (path in gets):
            raise Answered(405, '{"detail":"Method Not Allowed"}')
        if method == "GET":
            return gets[path]()
        self.asked.append((path, body))
        return posts[path](body or {})

    def model_info(self) -> Any:
        return {"model_path": self.folder, "is_generation": True, "weight_version": self.label}

    def own_info(self) -> Any:
        return {"version": "0.5.23", "dtype": "float32", "device": "cpu", "context_length": self.base.config.max_position_embeddings,
                "quantization": None, "enable_lora": True, "max_lora_rank": self.rank, "speculative_algorithm": None}  # fmt: skip

    def metrics(self) -> str:
        return f'sglang:generation_tokens_total{{model_name="m"}} {float(self.tokens)}\n'

    def update(self, body: Any) -> Any:
        if self.faults.get("rejects", 0) > 0:
            self.faults["rejects"] -= 1
            return {"success": False, "message": "Failed to update weights: shapes differ"}
        with self.state:
            self.state.wait_for(lambda: not self.running or self.is_closed)
            self.collective_rpc(
                {}, {"method": "reload_weights", "kwargs": {"weights_path": body["model_path"]}}
            )
            self.label = body["weight_version"]
            if body["flush_cache"]:
                self.kept.clear()
        return {"success": True, "message": "Succeeded to update model weights."}

    def load(self, body: Any) -> Any:
        self.load_adapter({}, body)
        return {"success": True}

    def unload(self, body: Any) -> Any:
        self.unload_adapter({}, body)
        return {"success": True}

    def generate(self, body: Any) -> Any:
        with self.state:
            self.requests += 1
            number = self.requests
            self.running += 1
        try:
            self.happen(number, isinstance(body["input_ids"][0], list) and len(body["input_ids"][0]) < 32)
            if self.faults.get("relabels") == number:
                self.label = "another:1:x"
            with self.computes:
                several = isinstance(body["input_ids"][0], list)
                texts = body["input_ids"] if several else [body["input_ids"]]
                wishes = body["sampling_params"] if several else [body["sampling_params"]]
                names = body.get("lora_path") or [None] * len(texts)
                names = names if isinstance(names, list) else [names]
                said = [self.one(*each, body, number) for each in zip(texts, wishes, names, strict=True)]
        finally:
            with self.state:
                self.running -= 1
                self.state.notify_all()
        return said if several else said[0]

    def one(self, ids: list[int], wishes: Any, adapter: str | None, body: Any, number: int) -> Any:
        """Draw one completion, or read a prompt."""
        model = self.model_named(adapter or "smol")
        if body.get("logprob_start_len") == 0:
            read = self.read(model, tuple(ids))["prompt_logprobs"]
            said = [
                [None, ids[0], None],
                *([e[str(i)]["logprob"], i, None] for i, e in zip(ids[1:], read[1:], strict=True)),
            ]
            return {
                "text": "",
                "output_ids": [0],
                "meta_info": {"input_token_logprobs": said, "weight_version": self.label},
            }
        drawn = self.choice(
            self.kept.setdefault(tuple(ids), model) if adapter is None else model,
            tuple(ids),
            {
                **wishes,
                "seed": wishes["sampling_seed"],
                "min_tokens": wishes["min_new_tokens"],
                "top_k": max(wishes["top_k"], 0),
            },
            wishes["max_new_tokens"],
            0,
        )
        kind = (
            "abort"
            if self.faults.get("aborts") and number % self.faults["aborts"] == 0
            else drawn["finish_reason"]
        )
        pairs = [
            [p, i, None] for p, i in zip(drawn["logprobs"]["token_logprobs"], drawn["token_ids"], strict=True)
        ]
        meta = {"finish_reason": {"type": kind}, "output_token_logprobs": pairs, "weight_version": self.label}
        return {"text": drawn["text"], "output_ids": drawn["token_ids"], "meta_info": meta}
