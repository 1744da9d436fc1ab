"""Point links out of docs/ at the repository, where the site has no page for them (a hook of mkdocs).

On the pages themselves they are relative, so that they work in a checkout. `repo_url` of mkdocs.yml says where the
repository is; without it the text stays and the link is dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTWARDS = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Return the page with links to files of the repository made absolute.

    Raises:
        FileNotFoundError: a link leads to a file that is not there.
    """

    def outwards(match: re.Match[str]) -> str:
        words, path = match.groups()
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"docs/: a link leads to {path}, which is not there")
        return f"[{words}]({config.repo_url}/blob/main/{path})" if config.repo_url else words

    return OUTWARDS.sub(outwards, markdown)
