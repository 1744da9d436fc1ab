"""Two processes on a CPU (gloo) take the same steps as one."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.config import resolving
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy
from tests.trainer.distributed.processes import assert_close, completions, run
from tests.trainer.harness import MANY_ENDS

SETTINGS = dict(learning_rate=0.5, max_steps=3, num_generations=4)


def passes(out, rank):
    """How often a process went forward to train."""
    return int((out / f"passes{rank}.json").read_text())


@pytest.mark.parametrize(
    "settings",
    [
        dict(loss_type="dapo", beta=0.1),
        dict(loss_type="grpo", scale_rewards="batch"),
        dict(loss_type="dr_grpo", multi_objective_aggregation="normalize_then_sum"),
        dict(loss_type="dapo", steps_per_generation=4, num_iterations=2, max_steps=6),
        dict(loss_type="dapo", lora=True, gradient_checkpointing=True, learning_rate=5.0),
        dict(
            loss_type="prompt_mean",
            beta=0.1,
            top_entropy_quantile=0.5,
            use_adaptive_entropy=True,
            entropy_target=99.0,
            entropy_coef_delta=0.1,
        ),
        dict(
            loss_type="cispo",
            epsilon_high=5.0,
            beta=0.1,
            kl_in_reward=True,
            advantage_estimator="reinforce_pp",
        ),
    ],
    ids=[
        "dapo and kl",
        "grpo, batch scaling",
        "dr_grpo, gdpo",
        "two steps, two passes",
        "adapter",
        "choices and an adaptive bonus",
        "kl in the reward",
    ],
)
def test_two_processes_take_the_steps_of_one(tmp_path, settings):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    per_step = settings.get("steps_per_generation")
    one = {**SETTINGS, **settings, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    two = {**one, "gradient_accumulation_steps": 1}
    if per_step:
        two["steps_per_generation"] = per_step // 2
    single = run(1, folder, tmp_path / "one", **one)
    double = run(2, folder, tmp_path / "two", **two)
    assert completions(single[2]) == completions(double[2]), "the same prompts say the same"
    assert_close(single[0], double[0])
    for a, b in zip(single[1], double[1], strict=True):
        for key in ("loss", "reward", "reward_std", "completions/mean_length", "num_tokens", "kl", "entropy"):
            if key in a:
                assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-6), key


@pytest.mark.parametrize("more", [dict(beta=0.1), dict(num_iterations=2, gradient_checkpointing=True)])
def test_processes_that_cut_micro_batches_differently_take_the_steps_of_one(tmp_path, more):
    """Under DDP each process cuts its own micro-batch by tokens, and gradients travel once per micro-batch."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "per_device_train_batch_size": 4, "loss_type": "dapo", "max_steps": 6, **more}
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=2)
    double = run(2, folder, tmp_path / "two", **settings, max_tokens_per_forward=16)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    of_ranks = [passes(tmp_path / "two", rank) for rank in range(2)]
    assert min(of_ranks) > 6 and of_ranks[0] != of_ranks[1], "some micro-batches were cut, and not all alike"


@pytest.mark.parametrize(
    ("where", "accumulation"), [("forward", 1), ("forward", 2), ("backward", 2)], ids=str
)
def test_a_process_that_runs_out_of_memory_repeats_its_passes_alone(tmp_path, where, accumulation):
    """Under DDP, as long as no gradient has been sent: in the first pass of a step here, and in the last one's forward."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "per_device_train_batch_size": 4, "beta": 0.1, "num_generations": 4}
    settings["gradient_accumulation_steps"] = accumulation
    plain = run(2, folder, tmp_path / "plain", **settings)
    number = {"forward": 2 * accumulation, "backward": 3}[where]
    small = run(2, folder, tmp_path / "small", **settings, out_of_memory=[1, where, number])
    assert completions(plain[2]) == completions(small[2])
    assert_close(plain[0], small[0])
    logs = [[e["loss"] for e in side[1] if "loss" in e] for side in (plain, small)]
    assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6)
    assert sum(e.get("update/out_of_memory", 0) for e in small[1]) == 1


@pytest.mark.parametrize(
    "more",
    [dict(), dict(beta=0.1), dict(beta=0.1, kl_in_reward=True), dict(advantage_estimator="reinforce_pp")],
    ids=["plain", "kl in the loss", "kl in the reward", "whitened over the round"],
)
def test_groups_that_straddle_processes_are_scored_whole(tmp_path, more):
    """One prompt of four completions per step over two processes with micro-batches of two."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    single = run(1, folder, tmp_path / "one", **SETTINGS, **more, per_device_train_batch_size=4)
    double = run(2, folder, tmp_path / "two", **SETTINGS, **more, per_device_train_batch_size=2)
    assert_close(single[0], double[0])
    for key in ("loss", "reward", "kl", "num_tokens"):
        logs = [[entry[key] for entry in side[1] if key in entry] for side in (single, double)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6), key
    sizes = [len(c["ids"]) for rank in double[2] for c in rank if c["ids"]]
    assert sizes == [4] * 3, "a reward sees whole groups, each once"


@pytest.mark.parametrize("loss_type", ["dr_grpo", "dapo"])
def test_groups_that_grow_share_the_budget_of_all_processes(tmp_path, loss_type):
    """So they grow as they would in one process, and straddle processes."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "group_allocation": "grow", "advantage_estimator": "rloo", "beta": 0.1}
    settings |= {"loss_type": loss_type, "per_device_train_batch_size": 8}
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=2)
    double = run(2, folder, tmp_path / "two", **settings)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    for key in ("loss", "reward", "kl", "num_tokens", "allocation/grown_share", "allocation/largest_group"):
        logs = [[entry[key] for entry in side[1] if key in entry] for side in (single, double)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6), key
    assert max(logs[0]) > 4, "one group at least is larger than the mean"


def test_tasks_have_their_budgets_in_all_processes_together(tmp_path):
    """The same prompts by their shares, and one factor of each task, of the completions of both processes."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {
        **SETTINGS,
        "per_device_train_batch_size": 8,
        "scale_rewards": "none",
        "task_weights": "equal",
    }
    settings |= {"columns": {"task": ["sums", "words"] * 8}, "task_shares": {"sums": 3, "words": 1}}
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=2)
    double = run(2, folder, tmp_path / "two", **settings)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    for key in ("loss", "tasks/words/factor", "tasks/words/advantage_share", "tasks/words/sample_share"):
        logs = [[entry[key] for entry in side[1] if key in entry] for side in (single, double)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6), key
    assert logs[0] == [0.25] * 3


@pytest.mark.parametrize("micro_batch", [4, 2], ids=["whole", "straddling"])
def test_a_multiplier_is_the_same_to_the_bit_however_processes_share_a_rollout(tmp_path, micro_batch):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "tokens": {"at_most": 3.0, "multiplier_step": 0.03}, "learning_rate": 0.05}
    single = run(1, folder, tmp_path / "one", **settings, per_device_train_batch_size=2 * micro_batch)
    double = run(2, folder, tmp_path / "two", **settings, per_device_train_batch_size=micro_batch)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    for key in ("multiplier", "value", "violation"):
        logs = [[e[f"constraints/tokens/{key}"] for e in side[1] if "loss" in e] for side in (single, double)]
        assert logs[0] == logs[1] and len(set(logs[0])) == 3


@pytest.mark.parametrize(("micro_batch", "received"), [(4, [8, 0]), (2, [4, 4])], ids=["whole", "straddling"])
def test_completions_travel_only_where_they_are_needed(tmp_path, micro_batch, received):
    """To the process that records them; to all only where groups straddle processes."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "max_steps": 1, "per_device_train_batch_size": micro_batch}
    run(2, folder, tmp_path / "run", **settings)
    counts = [json.loads((tmp_path / "run" / f"received{rank}.json").read_text()) for rank in range(2)]
    assert counts == received


def test_two_processes_resume_inside_a_round(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4}
    settings |= {"save_strategy": "steps", "save_steps": 3, "beta": 0.1}
    whole = run(2, folder, tmp_path / "a", **settings)
    checkpoint = str(tmp_path / "a" / "run" / "checkpoint-3")
    rest = run(2, folder, tmp_path / "b", fresh=True, **settings, resume=checkpoint)
    assert all(torch.equal(whole[0][name], rest[0][name]) for name in whole[0])


FSDP2 = dict(
    fsdp=True,
    fsdp_config={
        "version": 2,
        "state_dict_type": "FULL_STATE_DICT",
        "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
    },
    beta=0.1,
)


@pytest.mark.parametrize("more", [dict(), dict(gradient_checkpointing=True, num_iterations=2, max_steps=4)])
def test_sharded_weights_take_the_steps_of_whole_ones(tmp_path, more):
    """FSDP2: the same samples, the same update, the reference included."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "per_device_train_batch_size": 4, **more}
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=2, beta=0.1)
    double = run(2, folder, tmp_path / "two", **settings, **FSDP2)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])
    assert [e["kl"] for e in single[1] if "kl" in e] == pytest.approx(
        [e["kl"] for e in double[1] if "kl" in e], rel=1e-3, abs=1e-6
    )


@pytest.mark.parametrize(
    "more",
    [
        dict(num_iterations=2, max_steps=4),
        dict(gradient_checkpointing=True, gradient_accumulation_steps=2),
        dict(kl_in_reward=True, loss_type="grpo"),
        dict(per_device_train_batch_size=2, kl_in_reward=True),
    ],
    ids=["two passes", "checkpointed, accumulated", "kl in the reward", "groups that straddle"],
)
def test_sharded_weights_make_as_many_passes_on_every_process(tmp_path, more):
    """FSDP2 with a limit of tokens: each process cuts its own micro-batches, and makes idle passes where another makes more."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, **FSDP2, "per_device_train_batch_size": 4, **more}
    whole = run(2, folder, tmp_path / "whole", **settings)
    cut = run(2, folder, tmp_path / "cut", **settings, max_tokens_per_forward=14)
    assert completions(whole[2]) == completions(cut[2])
    assert_close(whole[0], cut[0])
    for key in ("loss", "kl", "entropy", "grad_norm", "update/dropped_share", "ratio/mean"):
        logs = [[entry[key] for entry in side[1] if key in entry] for side in (whole, cut)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-6), key
    of_ranks = [passes(tmp_path / "cut", rank) for rank in range(2)]
    assert of_ranks[0] == of_ranks[1] > passes(tmp_path / "whole", 0)


@pytest.mark.parametrize("more", [dict(), dict(gradient_checkpointing=True)])
def test_sharded_weights_in_half_precision_are_packed_and_score_as_whole_ones(tmp_path, monkeypatch, more):
    """FSDP2 computes in bfloat16 and keeps weights in float32: the comparison of the two ways has to allow for the first,
    and log-probabilities must not be rounded on their way out, which would be 0.016 nats where they are above 4."""
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    monkeypatch.setattr(resolving, "computes_bf16", lambda on_cpu: True)  # as in `worker.py`
    settings = {**SETTINGS, "per_device_train_batch_size": 4, "bf16": True, "learning_rate": 1e-3, **more}
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=2, beta=0.1)
    double = run(2, folder, tmp_path / "two", **settings, **FSDP2)
    packs = [json.loads((tmp_path / "two" / f"packs{rank}.json").read_text()) for rank in range(2)]
    assert packs == [True, True]
    for key in ("sampling/logp_gap/mean", "sampling/logp_gap/max"):
        whole, sharded = ([e[key] for e in side[1] if key in e] for side in (single, double))
        assert whole and max(sharded) < 3 * max(whole), (key, whole, sharded)


def test_sharded_weights_are_saved_and_resumed(tmp_path):
    folder = tiny_policy(tmp_path / "m", scale=2.0, generation=MANY_ENDS)
    settings = {**SETTINGS, "per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 4}
    settings |= {
        "save_strategy": "steps",
        "save_steps": 3,
        "optim": "adamw_torch",
        "learning_rate": 1e-3,
        **FSDP2,
    }
    whole = run(2, folder, tmp_path / "a", **settings)
    rest = run(
        2, folder, tmp_path / "b", fresh=True, **settings, resume=str(tmp_path / "a" / "run" / "checkpoint-3")
    )
    assert_close(whole[0], rest[0], 1e-7)


def test_a_sharded_policy_of_the_general_path_ends_with_an_error(tmp_path):
    """Where one makes more passes than the other, they would wait for each other inside the model."""
    folder = tiny_policy(tmp_path / "m", kind="gpt2", generation=MANY_ENDS)
    config = {**FSDP2["fsdp_config"], "transformer_layer_cls_to_wrap": ["GPT2Block"]}
    settings = {**SETTINGS, **FSDP2, "fsdp_config": config, "per_device_train_batch_size": 4}
    with pytest.raises(AssertionError, match=r"FSDP2 or ZeRO-3.*covey serve MODEL"):
        run(2, folder, tmp_path / "out", **settings)


def test_a_sharded_policy_of_the_general_path_is_sampled_by_a_server(tmp_path):
    """What the native engine draws from whole weights; a server that would be waited for longer than a process is refused."""
    folder = tiny_policy(tmp_path / "m", kind="gpt2", generation=MANY_ENDS)
    config = {**FSDP2["fsdp_config"], "transformer_layer_cls_to_wrap": ["GPT2Block"]}
    settings = {**SETTINGS, "learning_rate": 0.05, "per_device_train_batch_size": 4, "beta": 0.1}
    single = run(1, folder, tmp_path / "one", **settings, gradient_accumulation_steps=2)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with serving(policy, AutoTokenizer.from_pretrained(folder)) as (server, _):
        sharded = {**settings, **FSDP2, "fsdp_config": config, "engine": "covey", "engine_urls": server.url}
        double = run(2, folder, tmp_path / "two", **sharded)
        with pytest.raises(AssertionError, match="engine_timeout=1900 is longer than ddp_timeout=1800"):
            run(2, folder, tmp_path / "late", **sharded, engine_timeout=1900)
    assert completions(single[2]) == completions(double[2])
    assert_close(single[0], double[0])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux lists them")
def test_threads_of_gloo_end_after_the_collection_and_before_the_interpreter(tmp_path):
    """Later, one may abort the interpreter; earlier, it waits for the GIL that the collection holds. `worker.py` ends its processes."""
    folder = tiny_policy(tmp_path / "m", generation=MANY_ENDS)
    run(
        2,
        folder,
        tmp_path / "run",
        fresh=True,
        **SETTINGS | {"max_steps": 1, "per_device_train_batch_size": 4},
    )
    for rank in range(2):
        collected, left = json.loads((tmp_path / "run" / f"threads{rank}.json").read_text())
        assert [name for name in collected if "gloo" in name], collected
        assert left and not [name for name in left if "gloo" in name], left
