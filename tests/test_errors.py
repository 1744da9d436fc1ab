"""A warning points at the user's script, not at a line of Covey's or of the libraries between."""

import warnings

import pytest
from peft import LoraConfig

from covey.errors import CoveyWarning
from covey.models import adapters, loading
from covey.plan import make_plan
from tests.tiny import tiny_policy
from tests.trainer.harness import Recorder, train
from tests.trainer.harness import rows as rows_of


def test_a_warning_shows_the_users_line():
    with pytest.warns(CoveyWarning, match="whole groups") as told:
        make_plan(group_size=8, micro_batch=4, accumulation=1, num_prompts=8)
    assert told[0].filename == __file__


def test_a_warning_out_of_the_training_loop_shows_the_users_line(tmp_path):
    with pytest.warns(CoveyWarning) as told:
        train(tiny_policy(tmp_path / "m"), tmp_path, Recorder([0.0] * 8), rows_of())
    files = {w.filename for w in told if w.category is CoveyWarning}
    assert files and all("/tests/" in file for file in files), files


def test_adapters_bring_no_warning_of_a_name_that_peft_should_not_use(tmp_path):
    folder = tiny_policy(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        adapted = adapters.with_adapter(
            loading.load_policy(folder), LoraConfig(r=4, target_modules=["q_proj"]), 0
        )
        adapted.save_pretrained(tmp_path / "adapter")
        adapters.load_adapter(str(tmp_path / "adapter"), folder)
