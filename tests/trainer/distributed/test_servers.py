"""Processes that sample on servers of vLLM: as many processes and servers as there are, the steps are the same."""

import pytest

from tests.sample.remote.fake_vllm import FakeVllm
from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, completions, run
from tests.trainer.distributed.test_two_processes import FSDP2, SETTINGS
from tests.trainer.harness import MANY_ENDS

pytestmark = pytest.mark.any_version

SERVER = {"use_vllm": True, "vllm_mode": "server", "vllm_server_timeout": 300.0, "learning_rate": 0.05}


def test_a_server_that_is_gone_ends_all_processes_with_one_error(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, **SERVER, "per_device_train_batch_size": 4, "vllm_server_timeout": 1.0}
    with FakeVllm(folder, {"lost": 3}) as fake, pytest.raises(AssertionError, match="EngineError"):
        run(2, folder, tmp_path / "out", **settings, vllm_server_base_url=fake.url)
    for rank in range(2):
        assert "EngineError" in (tmp_path / "out" / f"error{rank}.txt").read_text()


@pytest.mark.parametrize(
    ("kind", "more"),
    [("qwen2", {}), ("qwen2", {"lora": True}), ("gpt2", FSDP2)],
    ids=["full", "lora", "sharded, of a family that the native engine refuses"],
)
def test_two_processes_with_two_servers_take_the_steps_of_one_with_one(tmp_path, kind, more):
    """One of the two servers is restarted in the middle."""
    folder = tiny_policy(tmp_path / "m", kind=kind, scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, **SERVER, "per_device_train_batch_size": 4}
    plain = {name: value for name, value in more.items() if not name.startswith("fsdp")}
    with FakeVllm(folder) as fake:
        single = run(
            1,
            folder,
            tmp_path / "one",
            **settings,
            **plain,
            gradient_accumulation_steps=2,
            vllm_server_base_url=fake.url,
        )
    more = dict(more)
    if kind == "gpt2":
        more["fsdp_config"] = {**FSDP2["fsdp_config"], "transformer_layer_cls_to_wrap": ["GPT2Block"]}
    with FakeVllm(folder) as one, FakeVllm(folder, {"restarts": 2}) as other:
        double = run(
            2, folder, tmp_path / "two", **settings, **more, vllm_server_base_url=[one.url, other.url]
        )
        assert other.happened == {"restarts"} and not one.is_paused and not other.is_paused
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
