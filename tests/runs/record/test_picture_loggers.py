"""Each logger gets pictures as its own kind of image, beside the table, with the words that the table names them by."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("PIL", reason="pictures need the extra `vision`")

from covey.runs.record.completions_jsonl import completion_rows
from covey.runs.record.tables import SENDERS, send
from tests.runs.pictured import asked, painting, pictured


class Logged:
    """Stands for the module of a logger; remembers what it was given."""

    def __init__(self):
        self.logged, self.files = [], []

    def Image(self, image, caption=None):
        return SimpleNamespace(image=image, caption=caption)

    def Table(self, **given):
        return given

    def log(self, values):
        self.logged.append(values)

    def log_table(self, data, artifact_file):
        self.logged.append({"completions": data})

    def log_image(self, image, artifact_file):
        self.files.append((image, artifact_file))


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
@pytest.mark.parametrize("num_shown", [0, 2])
def test_images_stand_beside_the_table(monkeypatch, name, num_shown):
    kinds = {"wandb": "WandbCallback", "trackio": "TrackioCallback", "mlflow": "MLflowCallback"}
    module = Logged()
    assert set(SENDERS) == {*kinds.values(), "TensorBoardCallback"}
    monkeypatch.setitem(sys.modules, name, module)
    images = [painting(0), painting(1)]
    scored = pictured({"prompt": asked(), "images": images})
    shown = list(zip(scored.group.prompt.pictures, images, strict=True))[:num_shown]
    rows = list(completion_rows(1, [scored]))
    send([type(kinds[name], (), {})()], rows, 7, shown)
    beside = [v for values in module.logged for n, v in values.items() if n.startswith("pictures")]
    beside = [one for part in beside for one in (part if isinstance(part, list) else [part])]
    words = [f"[picture 400×300 {p.digest[:4]}]" for p, _ in shown]
    if name == "mlflow":
        assert [file for _, file in module.files] == [f"pictures/{p.digest[:16]}.png" for p, _ in shown]
    else:
        assert [one.caption for one in beside] == words and [one.image for one in beside] == images[
            :num_shown
        ]
    [table] = [values["completions"] for values in module.logged if "completions" in values]
    if "dataframe" in table:
        table = table["dataframe"].to_dict()
    assert all(word in str(table) for word in words) and "PIL" not in str(table)
