"""Rewards and prompts that show pictures: who cannot be shown them is refused by name, before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from covey.errors import ConfigError, RewardError
from covey.rewards.batch import RewardBatch
from covey.rewards.contract import Reward
from covey.rewards.routing import applicable_rows
from covey.types import Completion, Group, Picture, Prompt
from covey.vision.blocks import is_image

EMPTY = Completion((), (), "", "stop")


def check_can_see(
    rewards: Sequence[Reward],
    prompt: Prompt,
    task_column: str,
    seen_sizes: Callable[[Prompt], list[tuple[int, int]]] | None,
) -> None:
    """Raise where a reward that applies to a prompt would be given pictures of it and cannot take them.

    Args:
        seen_sizes: returns the sizes that the policy sees of the prompt's pictures; None: it is shown none.

    Raises:
        RewardError: names the reward, and what to do.
    """
    batch = RewardBatch.of_groups([Group(prompt, (EMPTY,))])
    for reward in rewards:
        check, is_boxed = getattr(reward.function, "check_can_see", None), reward.options.where == "sandbox"
        if not (check or is_boxed or "image_sizes" in reward.names):
            continue
        if not applicable_rows(reward, batch, task_column):
            continue
        given = reward.wanted({**batch.columns, "prompts": batch.prompts})
        named = [name for name, values in given.items() if holds_picture(values)]
        if is_boxed and named:
            raise RewardError(
                f"Reward {reward.name!r} runs in the sandbox and is given pictures ({', '.join(named)}), which do not go there. "
                "Let its signature name what it reads, without pictures; or use where='process'."
            )
        if check is not None and (prompt.pictures or "prompts" in named):
            check(prompt.content)
        if "image_sizes" in reward.names:
            try:
                if seen_sizes is None:
                    raise ConfigError(
                        "image_sizes: the policy is shown no pictures. Read their size from `images`."
                    )
                seen_sizes(prompt)
            except ConfigError as error:
                raise RewardError(f"Reward {reward.name!r} asks for {error}") from None


def holds_picture(value: object) -> bool:
    """Return whether there is a picture in a value, at whatever depth."""
    if isinstance(value, dict):
        return any(map(holds_picture, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_picture, value))
    return isinstance(value, Picture) or is_image(value)
