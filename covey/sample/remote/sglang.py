"""Server of SGLang over its native HTTP routes, 0.5 and newer.

sample     /generate, ids in and ids out                    weights   /update_weights_from_disk, label and cache included
adapters   /load_lora_adapter, /unload_lora_adapter         memory    /release_memory_occupation, /resume_memory_occupation
label      weight_version in /model_info and each answer    state     /health, /server_info, /metrics
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from covey.errors import EngineError, ServerLost
from covey.sample.remote.client import Refused
from covey.sample.remote.folder_server import FolderServer, options_of
from covey.sample.remote.request_seed import request_seed
from covey.sample.remote.server import Drawn, DrawRequest, ServerFacts, ServerKind, reads_answers
from covey.sample.remote.strangers import refuse_stranger

START = "python -m sglang.launch_server --model-path MODEL --enable-metrics"


class SglangServer(FolderServer):
    """One server of SGLang; see `covey.sample.remote.server.Server` for the contract."""

    kind: ServerKind = "sglang"
    gives_policy_logprobs = swaps_in_flight = False
    counter = "sglang:generation_tokens_total"  # there with --enable-metrics

    @reads_answers
    def facts(self) -> ServerFacts:
        """Ask what it is; an EngineError where it is no server of SGLang."""
        model, said = self._info("model"), self._info("server")
        if model is None or said is None:
            refuse_stranger(self.client, self.kind, START)
            raise EngineError(f"{self.url} is SGLang without /server_info: too old. Use a newer SGLang.")
        self.model = self.root = str(model.get("model_path") or said.get("model_path") or "")
        dtype, length = said.get("dtype"), said.get("context_length") or said.get("max_req_input_len")
        return ServerFacts(
            kind="sglang",
            release=said.get("version"),
            model=self.model,
            dtype=None if dtype in (None, "auto") else str(dtype).removeprefix("torch."),
            device=said.get("device"),
            max_length=length,
            quantization=said.get("quantization"),
            max_adapter_rank=said.get("max_lora_rank") if said.get("enable_lora") else None,
            chunks_prompts=None,
            drafts_tokens=said.get("speculative_algorithm") is not None,
        )

    def _info(self, of: str) -> Any:
        """Return what it says of its model or of itself; the routes had another name before 0.5.6."""
        said = self._optional(f"/{of}_info")
        return self._optional(f"/get_{of}_info") if said is None else said

    @reads_answers
    def draw(self, request: DrawRequest) -> list[Drawn]:
        """Draw completions of one prompt, in the order of their indices; see `Server.draw`."""
        settings, seed = request.settings, request_seed(request)
        one = {
            "max_new_tokens": request.limit,
            "min_new_tokens": min(settings.min_new_tokens, request.limit),
            "top_k": settings.top_k or -1,
            "no_stop_trim": True,
            **options_of(settings),
        }
        prompt = [*request.prompt.ids, *request.given]
        several = {
            "input_ids": [prompt] * request.count,
            "sampling_params": [{**one, "sampling_seed": seed + i} for i in range(request.count)],
            "return_logprob": True,
            **({} if request.adapter is None else {"lora_path": [request.adapter] * request.count}),
        }
        answers = self._generate(several)
        if len(answers) != request.count:
            raise EngineError(
                f"{self.url} gave {len(answers)} completions of {request.count} for the prompt of row {request.prompt.row}."
            )
        return [self._drawn(answer, settings.stop_ids) for answer in answers]

    def _generate(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the answers to a request for completions."""
        try:
            said = self.client.ask("POST", "/generate", body, progress=self.progress)
        except Refused as error:
            if error.status >= 500:
                raise ServerLost(str(error)) from error
            raise
        answers = said if isinstance(said, list) else [said]
        if not all(isinstance(a, dict) and isinstance(a.get("meta_info"), dict) for a in answers):
            raise EngineError(f"{self.url} answered a request for completions with {str(said)[:200]!r}.")
        return answers

    def _drawn(self, answer: Mapping[str, Any], ends: Sequence[int]) -> Drawn:
        """Read one completion.

        Raises:
            ServerLost: it was cut off from outside, or other weights came in between.
        """
        info = answer["meta_info"]
        reason, version = (info.get("finish_reason") or {}).get("type"), info.get("weight_version")
        if version is not None and version != self.told:
            raise ServerLost(
                f"{self.url} drew with the weights {version!r}, and {self.told!r} were asked for."
            )
        entries, ids = info.get("output_token_logprobs") or (), answer.get("output_ids")
        ids = [entry[1] for entry in entries] if ids is None else ids
        return self._ended(reason, ids, [entry[0] for entry in entries], ends)

    @reads_answers
    def prompt_logprobs(self, ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """Return the log-probability of each id but the first, after those before it, at temperature 1."""
        [answer] = self._generate(
            {
                "input_ids": list(ids),
                "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
                "return_logprob": True,
                "logprob_start_len": 0,
                **({} if adapter is None else {"lora_path": adapter}),
            }
        )
        entries = (answer["meta_info"].get("input_token_logprobs") or [])[1:]
        if [entry[1] for entry in entries] != list(ids[1:]) or any(entry[0] is None for entry in entries):
            raise EngineError(
                f"{self.url} gave no log-probability for each of {len(ids)} tokens of a prompt."
            )
        return [float(entry[0]) for entry in entries]

    @reads_answers
    def label(self) -> str:
        """Return the label of the weights that it serves; `UNLABELLED` after its start."""
        said = self._info("model") or {}
        if "weight_version" not in said:
            refuse_stranger(self.client, self.kind, START)
            raise EngineError(
                f"{self.url} does not say which weights it serves (weight_version): it is older than 0.5.2. Use a newer SGLang."
            )
        self.told = str(said["weight_version"])
        return self.told

    @reads_answers
    def update(self, folder: Path, label: str) -> None:
        """Have it serve the weights in a folder, and nothing else from then on; see `Server.update`.

        It waits for requests that run, holds those that come meanwhile, and empties its cache before it answers.
        """
        self._reload(folder, label)
        if self._has_no_cache:
            self.client.ask("POST", "/resume_memory_occupation", {"tags": ["kv_cache"]}, repeats=True)
            self._has_no_cache = False
        self.told = label

    def swap(self, folder: Path, label: str) -> None:
        """Refuse: what becomes of keys and values of requests that run was not measured."""
        raise EngineError(f"{self.url}: weights are not changed under running requests of SGLang.")

    def _read(self, folder: Path, label: str) -> None:
        body = {
            "model_path": str(folder),
            "weight_version": label,
            "flush_cache": True,
            "abort_all_requests": False,
        }
        said = self.client.ask("POST", "/update_weights_from_disk", body)
        if not isinstance(said, dict) or said.get("success") is not True:
            raise Refused(
                f"POST {self.url}/update_weights_from_disk", 200, str((said or {}).get("message", said))
            )

    @reads_answers
    def load_adapter(self, name: str, folder: Path) -> None:
        """Have it hold an adapter beside its weights, under a name that was never used before."""
        said = self.client.ask("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        if isinstance(said, dict) and said.get("success") is False:
            raise EngineError(
                f"{self.url} does not take the adapter {name!r}: {said.get('error_message', said)}"
            )

    def unload_adapter(self, name: str) -> None:
        """Have it forget an adapter; one that it does not know is forgotten already."""
        with suppress(Refused):
            self.client.ask("POST", "/unload_lora_adapter", {"lora_name": name})

    @reads_answers
    def sleep(self, keeps_weights: bool) -> None:
        """Have it give back the memory of its cache, and of its weights unless they are to be kept."""
        tags = ["kv_cache"] if keeps_weights else ["kv_cache", "weights"]
        self.client.ask("POST", "/flush_cache", repeats=True)
        self.client.ask("POST", "/release_memory_occupation", {"tags": tags}, repeats=True)
        self._has_no_cache = not keeps_weights

    @reads_answers
    def wake(self) -> None:
        """Have it take its memory back; where weights have to be sent again first, that of the cache comes after them."""
        tags = ["weights"] if self._has_no_cache else ["kv_cache"]
        self.client.ask("POST", "/resume_memory_occupation", {"tags": tags}, repeats=True)
