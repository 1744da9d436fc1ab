"""Server of vLLM over its HTTP routes, 0.28 and newer. Nothing of vLLM is imported: it lives in its own process and environment.

    sample     /v1/completions, ids in and ids out       weights   /collective_rpc reload_weights, /reset_prefix_cache
    adapters   /v1/load_lora_adapter, /v1/unload_...     label     /weight_info, /update_weight_version
    memory     /sleep, /wake_up                          state     /health, /metrics, /server_info, /is_paused

Weights and memory need a server in development mode: `VLLM_SERVER_DEV_MODE=1`.
"""

from __future__ import annotations

import difflib
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from covey.errors import EngineError, ServerLost, warn
from covey.sample.remote.client import Refused
from covey.sample.remote.folder_server import FolderServer, options_of
from covey.sample.remote.request_seed import request_seed
from covey.sample.remote.server import UNLABELLED, Drawn, DrawRequest, ServerFacts, ServerKind, reads_answers
from covey.sample.remote.strangers import refuse_stranger
from covey.sample.remote.uploads import brought, folder_at, forget

COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --generation-config vllm, on a private network"
"""Command by which a server is started that can be trained with."""

ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank RANK --max-loras 2"
"""What a server needs beside `COMMAND` for adapters."""

CACHE_SECONDS = 30.0
"""For which emptying the cache of keys and values is tried, at most."""


class VllmServer(FolderServer):
    """One server of vLLM; see `covey.sample.remote.server.Server` for the contract.

    Args:
        url: scheme, host and port.
        timeout: seconds of a call, or without a new token.
        extra: more fields of every request that draws, under vLLM's names.
    """

    kind: ServerKind = "vllm"
    gives_policy_logprobs, swaps_in_flight = False, True
    counter = "vllm:generation_tokens_total"

    def __init__(self, url: str, timeout: float = 240.0, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(url, timeout)
        self.extra = dict(extra or {})
        self._kept: tuple[str, str | None] = UNLABELLED, None
        """Label, and start of the process that it was given to, of a server that keeps no label."""
        self._uploads: dict[str, str | None] = {}
        """Adapters → the name under which an agent has their files, where they were sent."""

    # --- what it is ---------------------------------------------------------------------------------------------------

    @reads_answers
    def facts(self) -> ServerFacts:
        """Ask what it is, and end a pause or a sleep that a dead run left behind; an EngineError says how to start what can be trained with."""
        release, models = self._optional("/version"), self._optional("/v1/models")
        if not isinstance(models, dict) or not models.get("data"):
            self._refuse_strangers()
        own = next((m for m in models["data"] if not m.get("parent")), models["data"][0])
        self.model, self.root = str(own["id"]), str(own.get("root") or own["id"])
        if not self._has("/collective_rpc"):
            raise EngineError(
                f"{self.url} is vLLM without its development mode, so weights cannot be sent to it. Start it by {COMMAND}."
            )
        if (self._optional("/is_paused") or {}).get("is_paused"):
            self._post("/resume")
        if (self._optional("/is_sleeping") or {}).get("is_sleeping") and not self._has_no_cache:
            self._post("/wake_up")
        self._check_extra()
        said = self._optional("/server_info?config_format=json") or {}
        return read_facts(said, (release or {}).get("version"), self.model, own.get("max_model_len"))

    def _refuse_strangers(self) -> NoReturn:
        """Raise for a server that is no vLLM; the one that trl vllm-serve once started is called by its name."""
        if self._has("/init_communicator/") or self._has("/generate/"):
            raise EngineError(
                f"{self.url} is a server of TRL before 1.11 (trl vllm-serve), which takes weights only over NCCL and from TRL. Start "
                f"vLLM itself by {COMMAND}; the same server serves TRL 1.11 and newer."
            )
        refuse_stranger(self.client, self.kind, COMMAND)
        raise EngineError(f"{self.url} serves no model (/v1/models). Start it by {COMMAND}.")

    def _check_extra(self) -> None:
        """Raise where a field of requests that was asked for is none: vLLM passes over what it does not know."""
        if not self.extra:
            return
        page = self._optional("/openapi.json") or {}
        schema = ((page.get("components") or {}).get("schemas") or {}).get("CompletionRequest") or {}
        known = set(schema.get("properties") or ())
        if not known:
            warn(
                f"{self.url} does not say which fields it takes: {', '.join(self.extra)} may have no effect."
            )
        for name in sorted(set(self.extra) - known) if known else ():
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise EngineError(
                f"generation_kwargs has {name!r}, which vLLM at {self.url} does not know.{hint}"
            )

    # --- drawing ------------------------------------------------------------------------------------------------------

    @reads_answers
    def draw(self, request: DrawRequest) -> list[Drawn]:
        """Draw completions of one prompt, in the order of their indices; see `Server.draw`."""
        settings = request.settings
        prompt = [*request.prompt.ids, *request.given]
        body = {
            **self.extra,
            "n": request.count,
            "max_tokens": request.limit,
            "min_tokens": min(settings.min_new_tokens, request.limit),
            "seed": request_seed(request),
            "top_k": settings.top_k,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **options_of(settings, self.extra.get("logit_bias")),
        }
        answer = self._complete(prompt, request.adapter, body)
        choices = sorted(answer.get("choices") or (), key=lambda choice: choice.get("index", 0))
        if [c.get("index") for c in choices] != list(range(request.count)):
            raise EngineError(
                f"{self.url} gave {len(choices)} completions of {request.count} for the prompt of row {request.prompt.row}."
            )
        return [self._drawn(choice, prompt, settings.stop_ids) for choice in choices]

    def _complete(
        self, prompt: Sequence[int], adapter: str | None, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the answer to a request for completions."""
        if not self.model:
            self.facts()
        # A path's letters are refused in a salt.
        salt = hashlib.sha256(f"{self.told}/{adapter or ''}".encode()).hexdigest()
        sent = {"model": adapter or self.model, "prompt": list(prompt), "cache_salt": salt, **body}
        try:
            answer = self.client.ask("POST", "/v1/completions", sent, progress=self.progress)
        except Refused as error:
            if error.status == 404 and adapter is not None and self.label() == UNLABELLED:
                raise ServerLost(f"{self.url} was started again: it knows no adapter {adapter!r}.") from error
            if "Out of range float" in error.said:
                raise EngineError(
                    f"{self.url} drew from logits that are not finite (NaN): the weights that it serves are garbage, or its dtype cannot "
                    "hold them. Look at the policy's loss before this step."
                ) from error
            if error.status >= 500:
                raise ServerLost(str(error)) from error
            raise
        if not isinstance(answer, dict):
            raise EngineError(f"{self.url} answered a request for completions with {str(answer)[:200]!r}.")
        return answer

    def _drawn(self, choice: Mapping[str, Any], prompt: Sequence[int], ends: Sequence[int]) -> Drawn:
        """Read one completion.

        Raises:
            ServerLost: it was cut off from outside.
            EngineError: it is no completion of the prompt.
        """
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
        if ids is None:  # releases that do not return them write them as text
            ids = [int(t.removeprefix("token_id:")) for t in logprobs.get("tokens") or ()]
        read = choice.get("prompt_token_ids")
        if read is not None and list(read) != list(prompt):
            raise EngineError(
                f"{self.url} read a prompt of {len(read)} tokens where {len(prompt)} were sent, or other ones."
            )
        numbers = logprobs.get("token_logprobs") or ()
        return self._ended(choice.get("finish_reason"), ids, numbers, ends)

    @reads_answers
    def prompt_logprobs(self, ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """Return the log-probability of each id but the first, after those before it, at temperature 1."""
        body = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.0}
        choices = self._complete(ids, adapter, body).get("choices") or [{}]
        said = choices[0].get("prompt_logprobs") or []
        try:
            return [float(entry[str(i)]["logprob"]) for i, entry in zip(ids[1:], said[1:], strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.url} gave no log-probability for each of {len(ids)} tokens of a prompt."
            ) from error

    # --- weights ------------------------------------------------------------------------------------------------------

    @reads_answers
    def label(self) -> str:
        """Return the label of the weights that it serves; `UNLABELLED` after its start.

        A server that keeps no label has that which was given to it here, until its process is another one.
        """
        said = self._optional("/weight_info")
        if said is None:
            label, start = self._kept
            is_same = start == (self._metric("process_start_time_seconds") or "unknown")
            self.told = label if is_same else UNLABELLED
        else:
            self.told = str(said["weight_version"])
        return self.told

    @reads_answers
    def update(self, folder: Path, label: str) -> None:
        """Have it serve the weights in a folder; see `Server.update`.

        Raises:
            EngineError: it refuses them, and serves those of before again; or its cache cannot be emptied.
            ServerLost: it is gone, or left without weights.
        """
        self._post("/pause?mode=wait", is_optional=True)
        self._change(folder, label, "/reset_prefix_cache")

    @reads_answers
    def swap(self, folder: Path, label: str) -> None:
        """Have it serve the weights in a folder under requests that run; see `Server.swap`.

        They are held between two tokens. Emptying the cache takes theirs too: what they have is read again with the new weights.
        """
        self._post("/pause?mode=keep")
        self._change(folder, label, "/reset_prefix_cache?reset_running_requests=true")

    def _change(self, folder: Path, label: str, empties: str) -> None:
        """Change the weights of a server that is paused, and resume it.

        Args:
            empties: route that empties the cache of keys and values.
        """
        try:
            self._reload(folder, label)
            if self._has_no_cache:
                self._post("/wake_up?tags=kv_cache")
                self._has_no_cache = False
            self._empty_cache(empties)
            if self._post("/update_weight_version", {"new_version": label}, is_optional=True) is Ellipsis:
                self._kept = label, self._metric("process_start_time_seconds") or "unknown"
            self.told = label
        except BaseException:
            with suppress(EngineError):
                self._post("/resume", is_optional=True)
            raise
        self._post("/resume", is_optional=True)

    def _read(self, folder: Path, label: str) -> None:
        """Have every worker read the weights of a folder. A relative path would be taken for a name on the hub."""
        with folder_at(self.client, folder) as place:
            body = {"method": "reload_weights", "kwargs": {"weights_path": place}}
            answer = self.client.ask("POST", "/collective_rpc", body)
        if not isinstance(answer, dict) or not answer.get("results"):
            raise ServerLost(f"{self.url}: no worker answered that it read {folder}: {str(answer)[:200]}")

    def _empty_cache(self, route: str) -> None:
        """Empty the cache of keys and values, which belong to the weights of before.

        Raises:
            EngineError: it says that it did not, for as long as that is tried.
        """
        end, pause = time.monotonic() + min(self.client.timeout, CACHE_SECONDS), 0.05
        while (self._post(route) or {}).get("success") is False:
            if time.monotonic() + pause > end:
                raise EngineError(
                    f"{self.url} does not empty its cache of keys and values (reset_prefix_cache says success=false): requests of "
                    "another client hold parts of it, or its release cannot empty it under requests (async_in_flight). Without "
                    "that it would answer from the weights of before."
                )
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    @reads_answers
    def load_adapter(self, name: str, folder: Path) -> None:
        """Have it hold an adapter beside its weights, under a name that was never used before."""
        place, self._uploads[name] = brought(
            self.client, folder
        )  # read again later, where others have pushed it out
        try:
            self.client.text("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": place})
        except Refused as error:
            if error.status == 404 and not self._has("/v1/load_lora_adapter"):
                raise EngineError(
                    f"{self.url} takes no adapters. Start it with {ADAPTERS}, or set weight_sync='files'."
                ) from error
            raise

    def unload_adapter(self, name: str) -> None:
        """Have it forget an adapter; one that it does not know is forgotten already."""
        with suppress(Refused):
            self.client.text("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        forget(self.client, self._uploads.pop(name, None))

    # --- memory and state ---------------------------------------------------------------------------------------------

    @reads_answers
    def sleep(self, keeps_weights: bool) -> None:
        """Have it give back the memory of its cache, and of its weights unless they are to be kept."""
        self._post(f"/sleep?level={1 if keeps_weights else 2}")
        self._has_no_cache = not keeps_weights

    @reads_answers
    def wake(self) -> None:
        """Have it take its memory back; where weights have to be sent again first, that of the cache comes after them."""
        self._post("/wake_up?tags=weights" if self._has_no_cache else "/wake_up")

    def _post(self, route: str, body: object = None, is_optional: bool = False) -> Any:
        """Return the answer of a route that may be called twice; the ellipsis where it is optional and not there."""
        try:
            return self.client.ask("POST", route, body, repeats=True)
        except Refused as error:
            if error.status != 404:
                raise
            if is_optional:
                return ...
            raise EngineError(
                f"{self.url} has no route {route}: it runs without vLLM's development mode. Start it by {COMMAND}."
            ) from error


def read_facts(said: Mapping[str, Any], release: str | None, model: str, length: int | None) -> ServerFacts:
    """Return what a server says of itself in `/server_info`; the length is what its list of models has."""
    parts = said.get("vllm_config", said)
    parts = parts if isinstance(parts, dict) else {}
    own, scheduler, lora, device = (
        parts.get(f"{name}_config") or {} for name in ("model", "scheduler", "lora", "device")
    )
    takes_adapters = (said.get("vllm_env") or {}).get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", True)
    dtype, kind = own.get("dtype"), device.get("device_type") or device.get("device")
    return ServerFacts(
        kind="vllm", release=release, model=model, dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        device=None if kind is None else str(kind), max_length=length or own.get("max_model_len"),
        logprobs_mode=own.get("logprobs_mode"), quantization=own.get("quantization"),
        max_adapter_rank=lora.get("max_lora_rank") if takes_adapters else None,
        chunks_prompts=scheduler.get("enable_chunked_prefill"),
        drafts_tokens=bool(parts["speculative_config"]) if "speculative_config" in parts else None,
    )  # fmt: skip
