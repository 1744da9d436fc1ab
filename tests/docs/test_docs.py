"""Every Python example in the README and in docs/ runs.

The blocks of one page share a namespace. `MODEL = "..."` is replaced by a tiny local policy, which sees on the page about that; runs take one step, and what
they write goes to a temporary folder.
"""

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.score.episode_metrics import episode_metrics
from tests.clocks import PATIENCE
from tests.sample.remote.serving import serving
from tests.tiny import tiny_policy

ROOT = Path(__file__).parents[2]
METRICS = episode_metrics([], ())
"""Names that begin as the folder `tools/` does."""
SERVED = "http://127.0.0.1:8000"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = policy_of(page, tmp_path / "policy")
    namespace = {"__name__": "__main__"}
    with served(policy, page) as address:
        run(page, policy, address, namespace)


def policy_of(page, folder):
    """Save a tiny policy, one that sees for the page about those."""
    if page.stem != "vision":
        return tiny_policy(folder)
    from tests.vision.tiny_eyes import tiny_eyes_policy  # skips where the extra is missing

    return tiny_eyes_policy(folder)


@contextmanager
def served(policy, page):
    """Serve the policy where a page says that a server is, at a free port; yield the address."""
    if SERVED not in page.read_text():
        yield SERVED
        return
    tokenizer = AutoTokenizer.from_pretrained(policy)
    with serving(AutoModelForCausalLM.from_pretrained(policy), tokenizer) as (server, _):
        yield server.url
        assert server.progress() > 0, "nothing was drawn there"


def run(page, policy, address, namespace):
    """Run the blocks of a page."""
    for number, block in enumerate(blocks(page)):
        block = re.sub(r'^MODEL = ".*"$', f"MODEL = {policy!r}", block, flags=re.MULTILINE)
        block = block.replace("GRPOConfig(output_dir=", "GRPOConfig(max_steps=1, output_dir=").replace(
            SERVED, address
        )
        # Nothing hangs in them; what answers at once does so when it is let run.
        block = re.sub(r"\b((?:sample_)?timeout|(?:wall_)?seconds)=[\d.]+", rf"\1={PATIENCE}", block)
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_links_of_a_page_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert not missing, missing


def test_the_folders_in_the_architecture_are_the_folders():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"^\| `covey/(\w+(?:/|\.py))` \|", text, re.MULTILINE))
    there = {p.name + ("/" if p.is_dir() else "") for p in (ROOT / "covey").iterdir()}
    there -= {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert named == there


def test_the_source_distribution_holds_every_folder_of_the_repository():
    manifest = (ROOT / "MANIFEST.in").read_text().split()
    tracked = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    made = {"covey.egg-info", "build", "dist", "site", "runs", "quickstart-run", "__pycache__"}
    by_itself = {"covey", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
    assert tracked - made - by_itself <= set(manifest)


def test_every_path_that_a_page_names_is_there():
    """Folders that a page announces are named with the words "gets a folder" or under a heading of what one adds."""
    missing = [
        f"{page.name}: {path}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md"]
        for path in re.findall(
            r"`((?:covey|tests|tools|benchmarks|docs|recipes|examples)/[\w./]+)`", page.read_text()
        )
        if "yours" not in path and path not in METRICS and not (ROOT / path).exists()
    ]
    assert missing == []
