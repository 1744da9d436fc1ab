"""What one completion is worth. Stands alone: needs no trainer and no torch, and runs inside other trainers too."""

from covey.rewards.batch import RewardBatch, RewardTable
from covey.rewards.reward import Reward, as_rewards

__all__ = ["Reward", "RewardBatch", "RewardTable", "as_rewards"]
