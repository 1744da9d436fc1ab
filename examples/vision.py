"""A real vision-language model learns to count, from a rule alone.

    pip install 'covey[vision]'
    python examples/vision.py                         Qwen2.5-VL-3B-Instruct from the hub, on one GPU with 24 GB
    python examples/vision.py --model FOLDER          from a folder; any family of docs/vision.md

The pictures are drawn here: discs of four colours, some of them half hidden behind others. Whoever counts too fast miscounts, and models of this
size do. The adapter is on the decoder, so the tower looks at each picture once in a round, whatever the number of completions.
"""

import argparse
import random
import re

from datasets import Dataset
from peft import LoraConfig
from PIL import Image, ImageDraw

from covey import GRPOConfig, GRPOTrainer

SIDE = 448
COLOURS = {"red": (215, 45, 45), "green": (45, 160, 75), "blue": (55, 85, 215), "yellow": (230, 190, 30)}
QUESTION = (
    "How many {colour} discs are in the picture? Some are partly hidden. Look at them one after the other, then give the "
    "number, and nothing else, between <answer> and </answer>."
)


def scene(rng: random.Random) -> tuple[Image.Image, dict[str, int]]:
    """Draw six to sixteen discs, and count them by colour. No disc hides the middle of another."""
    image, counts, middles = Image.new("RGB", (SIDE, SIDE), "white"), dict.fromkeys(COLOURS, 0), []
    pen = ImageDraw.Draw(image)
    for _ in range(rng.randint(6, 16)):
        colour, radius = rng.choice(list(COLOURS)), rng.randint(24, 44)
        for _ in range(100):  # places until one is free enough
            x, y = (rng.randint(radius, SIDE - radius) for _ in range(2))
            if all((x - a) ** 2 + (y - b) ** 2 > radius**2 for a, b in middles):
                pen.ellipse(
                    (x - radius, y - radius, x + radius, y + radius), fill=COLOURS[colour], outline="black"
                )
                middles.append((x, y))
                counts[colour] += 1
                break
    return image, counts


def rows(count: int, seed: int) -> Dataset:
    """Questions about pictures, with the number that is right."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        image, counts = scene(rng)
        colour = rng.choice([name for name, number in counts.items() if number])
        prompt = [{"role": "user", "content": QUESTION.format(colour=colour)}]
        found.append({"prompt": prompt, "image": image, "number": counts[colour]})
    return Dataset.from_list(found)


def said_number(completion: list[dict]) -> int | None:
    """Return the number between the tags; None where there is none, or something stands beside it."""
    found = re.findall(r"<answer>\s*([0-9]{1,3})\s*</answer>", completion[0]["content"])
    return int(found[0]) if len(found) == 1 else None


def right_number(completions, number, **kwargs):
    """Give a point for the right number."""
    return [float(said_number(c) == wanted) for c, wanted in zip(completions, number, strict=True)]


def in_tags(completions, **kwargs):
    """Give a point for any number between the tags: without them nothing can be right."""
    return [float(said_number(c) is not None) for c in completions]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-3B-Instruct")
    parser.add_argument("--out", default="runs/vision")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=8, help="per step; each is answered 8 times")
    parser.add_argument("--new-tokens", type=int, default=256, help="longest completion")
    options = parser.parse_args()

    args = GRPOConfig(
        output_dir=options.out,
        max_steps=options.steps,
        learning_rate=1e-5,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=options.prompts,
        per_device_eval_batch_size=32,
        num_generations_eval=1,
        max_completion_length=options.new_tokens,
        max_pixels=SIDE * SIDE,
        reward_weights=[1.0, 0.2],
        model_init_kwargs={"dtype": "bfloat16"},
        bf16=True,
        logging_steps=1,
        log_completions=True,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=50,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=[right_number, in_tags],
        args=args,
        train_dataset=rows(options.prompts * options.steps, seed=1),
        eval_dataset=rows(4 * options.prompts, seed=0),
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model(f"{options.out}/model")


if __name__ == "__main__":
    main()
