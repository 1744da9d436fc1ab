"""What the measured examples share: held-out success before and after training, an estimate of the time, one small file of results.

The held-out rows are answered greedily, once each; their intervals are of 95 %. `result.json` in the output folder holds them, the
numbers of every step, and what the model answered to the same prompts before and after.
"""

import argparse
import json
import time
from pathlib import Path

from peft import LoraConfig
from transformers import TrainerCallback

import covey.runs
from covey import GRPOTrainer
from covey.runs.accuracy import compare_prompts, estimate_reward

SHOWN = 4
"""Held-out prompts of each task whose answers are kept."""

STEP_NUMBERS = {
    "reward": "reward",
    "tokens": "completions/mean_length",
    "cut_off": "completions/clipped_ratio",
    "seconds": "step_time",
}


def read_options(about: str, model: str, **defaults: object) -> argparse.Namespace:
    """Read the options that the examples share; `defaults` replaces the value of some."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=model, help="a name of the hub, or a folder")
    parser.add_argument("--out", default="runs/example")
    parser.add_argument("--full", dest="lora", action="store_false", help="train all weights")
    parser.add_argument(
        "--lora", action="store_true", help="train an adapter of rank 16 on all linear layers"
    )
    parser.add_argument(
        "--learning-rate", type=float, help="(default: 1e-4 for an adapter, 2e-5 for all weights)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the rows and of what is sampled")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=4, help="per step; each is answered 8 times")
    parser.add_argument("--new-tokens", type=int, default=48, help="longest completion")
    parser.add_argument("--held-out", type=int, default=96, help="prompts of each task to measure with")
    parser.set_defaults(**defaults)
    options = parser.parse_args()
    options.learning_rate = options.learning_rate or (1e-4 if options.lora else 2e-5)
    return options


def settings(options: argparse.Namespace) -> dict[str, object]:
    """Return the arguments of GRPOConfig that the examples share."""
    return {
        "output_dir": options.out,
        "seed": options.seed,
        "max_steps": options.steps,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 2,
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": options.prompts,
        "per_device_eval_batch_size": 96,
        "num_generations_eval": 1,
        "eval_generation_kwargs": {"do_sample": False},
        "max_completion_length": options.new_tokens,
        "bf16": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def adapter(options: argparse.Namespace) -> LoraConfig | None:
    """Return the adapter to train: rank 16 on all linear layers; None where all weights are trained."""
    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear") if options.lora else None


class TimeLeft(TrainerCallback):
    """Says after the third step how long the others will take; the first also warms up."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.global_step == 3 and "step_time" in (logs or {}):
            seconds = logs["step_time"]
            print(
                f"{seconds:.1f} s a step here: {seconds * (state.max_steps - 3) / 60:.0f} min left",
                flush=True,
            )


def train_and_measure(trainer: GRPOTrainer, measures: dict[str, str], options: argparse.Namespace) -> None:
    """Evaluate, train, evaluate, print both, and write `result.json`.

    Args:
        measures: name of the reward that counts as success, by task of the trainer's eval sets.
    """
    trainer.add_callback(TimeLeft())
    began = time.monotonic()
    trainer.evaluate()
    seconds = time.monotonic() - began
    print(f"The evaluation before took {seconds:.0f} s; after three steps you see what is left.", flush=True)
    trainer.train()
    trainer.evaluate()
    result = {
        "model": Path(options.model).name,
        "weights": "LoRA" if options.lora else "all",
        **{name: getattr(options, name) for name in ("seed", "learning_rate", "prompts", "new_tokens")},
        "cpu_minutes": round(time.process_time() / 60, 1),
        **measured(covey.runs.open(options.out), measures, options.steps),
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (Path(options.out) / "result.json").write_text(text, encoding="utf-8")
    for task, found in result["held_out"].items():
        before, after = (
            f"{found[at]['mean']:.2f} ({found[at]['low']:.2f}-{found[at]['high']:.2f})"
            for at in ("before", "after")
        )
        print(
            f"{task}: {before} before, {after} after, p = {found['p_value']:.1g}, {found['prompts']} prompts"
        )


def measured(run: covey.runs.Run, measures: dict[str, str], last: int) -> dict[str, object]:
    """Return what the record says about success, steps and answers."""
    steps = run.steps()
    held_out, answers = {}, {}
    for task, measure in measures.items():
        rows = [run.evaluation_rows(task, step) for step in (0, last)]
        values = [[[] if v is None else [float(v)] for v in part[f"score/{measure}"]] for part in rows]
        estimates = [estimate_reward(part) for part in values]
        held_out[task] = {
            "prompts": estimates[0].prompts,
            **{
                at: {
                    "mean": round(estimate.interval.estimate, 4),
                    "low": round(estimate.interval.low, 4),
                    "high": round(estimate.interval.high, 4),
                    "tokens": round(float(part["tokens"].mean()), 1),
                    "cut_off": round(float((part["finish"] == "length").mean()), 4),
                }
                for at, estimate, part in zip(("before", "after"), estimates, rows, strict=True)
            },
            "p_value": compare_prompts(*values).test.p_value,
        }
        answers[task] = [
            {"prompt": a["prompt"], "before": a["completion"], "after": b["completion"]}
            for a, b in zip(*(part.head(SHOWN).to_dict("records") for part in rows), strict=True)
        ]
    numbers = {name: [round(float(v), 4) for v in steps[key]] for name, key in STEP_NUMBERS.items()}
    return {"held_out": held_out, "steps": numbers, "answers": answers}
