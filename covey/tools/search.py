"""Search over documents of one's own, by BM25 (Robertson and Zaragoza 2009), without a network.

trainer = GRPOTrainer(MODEL, [correct], args, dataset, tools=[Search("documents.jsonl").search])
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from covey.errors import ToolError

MISSING = "Search needs the package bm25s: pip install 'covey[search]'."
NOTHING = "Nothing found."


class Search:
    """An index of documents; its method `search` is the tool.

    Args:
        corpus: documents as texts, as rows of a dataset or a list, or the path of a file with one JSON object a line.
        k: documents that come back, best first; those that share no word with the query never do.
        column: column of a row that holds the text. A column `title` goes in front of it, and is searched too.
        max_characters: of a document that come back; the rest is left out.
        stopwords: words that are not searched for: a language that bm25s knows, such as "en", a list, or None.

    The index is made now: about a second for 100,000 short documents.

    Raises:
        ToolError: an empty corpus, a row without text, a file that cannot be read, or a number below 1.
    """

    def __init__(
        self,
        corpus: Iterable[str | Mapping[str, Any]] | str | os.PathLike[str],
        k: int = 3,
        column: str = "text",
        max_characters: int = 1_000,
        stopwords: str | list[str] | None = "en",
    ) -> None:
        for name, value in (("k", k), ("max_characters", max_characters)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ToolError(f"Search({name}={value!r}): it is a whole number from 1 on.")
        rows = lines_of(Path(corpus)) if isinstance(corpus, str | os.PathLike) else enumerate(corpus)
        self.documents = [document_of(row, number, column) for number, row in rows]
        if not self.documents:
            raise ToolError("Search(corpus=...): the corpus is empty. Give at least one document.")
        self.k, self.max_characters, self._stopwords = k, max_characters, stopwords or []
        self._index = bm25s().BM25()
        self._index.index(self._words(self.documents), show_progress=False)

    def search(self, query: str) -> str:
        """Search documents for words and return the best ones.

        Args:
            query: words to look for
        """
        found = self.best(query)
        texts = [self.documents[number] for number in found]
        cut = [t if len(t) <= self.max_characters else t[: self.max_characters] + " ..." for t in texts]
        return "\n\n".join(f"[{n}] {text}" for n, text in enumerate(cut, start=1)) or NOTHING

    def best(self, query: str) -> list[int]:
        """Return numbers of the best documents, best first; of equally good ones the earlier first."""
        [words] = self._words([query])
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        hits = scores.nonzero()[0]
        return [int(hit) for hit in hits[(-scores[hits]).argsort(kind="stable")][: self.k]]

    def _words(self, texts: list[str]) -> list[list[str]]:
        readable = [text.encode("utf-8", "replace").decode() for text in texts]  # without lone surrogates
        words: list[list[str]] = bm25s().tokenize(
            readable, stopwords=self._stopwords, return_ids=False, show_progress=False
        )
        return words


def bm25s() -> Any:
    """Return the library; raise a ToolError that says how to get it."""
    try:
        import bm25s
    except ImportError as error:
        raise ToolError(MISSING) from error
    return bm25s


def lines_of(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a JSON Lines file with their numbers, from 1 on."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except json.JSONDecodeError as error:
        raise ToolError(f"Search({str(path)!r}): line {number} is no JSON: {error}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(
            f"Search({str(path)!r}): the file cannot be read: {error}. Give a file with one JSON object a line, or a list of texts."
        ) from error


def document_of(row: Any, number: int, column: str) -> str:
    """Return the text of a row, its title in front."""
    if isinstance(row, str):
        return row
    if not isinstance(row, Mapping) or not isinstance(row.get(column), str):
        came = f"columns {', '.join(map(repr, row))}" if isinstance(row, Mapping) else type(row).__name__
        raise ToolError(
            f"Search(corpus=...): document {number} has no text in {column!r}; it has {came}. Documents are texts, or rows "
            "with a text in the column that column=... names."
        )
    title = row.get("title")
    return f"{title}\n{row[column]}" if isinstance(title, str) and title else str(row[column])
