"""The site builds from docs/, every page has its place in it, and every link and anchor leads somewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_every_page_stands_in_the_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = {
        page
        for entry in nav
        for pages in entry.values()
        for page in ([pages] if isinstance(pages, str) else pages)
    }
    assert named == {p.name for p in (ROOT / "docs").glob("*.md")}


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {p.name for p in (tmp_path / "site").glob("*.html")}
    assert {"index.html", "start.html", "rewards.html", "settings.html"} <= pages
    hosts = [
        p.name
        for p in (tmp_path / "site").glob("*.html")
        if "fonts.googleapis" in p.read_text(encoding="utf-8")
    ]
    assert hosts == []  # a reader's browser asks no other host
