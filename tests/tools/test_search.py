"""Search by BM25: the formula, the order, what comes back, wrong corpora."""

import itertools
import json
import math
import pickle
import sys
from random import Random

import pytest

from covey.errors import ToolError
from covey.tools.search import NOTHING, Search

DOCUMENTS = [
    "A cat sat on the mat.",
    "A dog ran after the cat, and the cat ran.",
    "The moon is bright.",
    "Dogs and moons are old friends of mine.",
]


def by_hand(documents, query, k1=1.5, b=0.75):
    """BM25 with Lucene's idf: sum over words of ln(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + k1 (1 - b + b L / mean L))."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        total = 0.0
        for word in query:
            n, f = sum(word in d for d in documents), document.count(word)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            total += idf * f / (f + k1 * (1 - b + b * len(document) / mean))
        scores.append(total)
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_the_formula(seed):
    rng = Random(seed)
    words = ["".join(rng.choices("bcdfg", k=3)) for _ in range(12)]
    documents = [rng.choices(words, k=rng.randint(3, 20)) for _ in range(30)]
    index = Search([" ".join(d) for d in documents], k=30, stopwords=None)
    for query in (rng.choices(words, k=n) for n in (1, 2, 4)):
        scores = by_hand(documents, query)
        found = index.best(" ".join(query))

        assert set(found) == {n for n, score in enumerate(scores) if score > 0}
        values = [scores[n] for n in found]
        assert all(a >= b - 1e-5 for a, b in itertools.pairwise(values))


def test_of_equally_good_documents_the_earlier_comes_first():
    assert Search(["same words"] * 50, k=50).best("same") == list(range(50))


def test_what_comes_back():
    index = Search(DOCUMENTS, k=2)

    assert index.search("cat") == f"[1] {DOCUMENTS[1]}\n\n[2] {DOCUMENTS[0]}"
    assert index.search("BRIGHT moon?") == f"[1] {DOCUMENTS[2]}"
    assert Search(DOCUMENTS, k=99).search("cat").count("[") == 2


@pytest.mark.parametrize("query", ["", " ", "zebra", "the", "?!", "\ud800", "x" * 100_000, "\x00"])
def test_a_query_that_finds_nothing_says_so(query):
    assert Search(DOCUMENTS).search(query) == NOTHING


def test_documents_are_cut():
    index = Search(["word " * 1_000], max_characters=20)

    assert index.search("word") == "[1] word word word word  ..."


def test_a_title_is_searched_and_comes_back(tmp_path):
    path = tmp_path / "documents.jsonl"
    rows = [{"title": "Zebra", "text": "It has stripes."}, {"title": None, "text": "A lion."}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    for corpus in (path, str(path), rows):
        assert Search(corpus).search("zebra") == "[1] Zebra\nIt has stripes."
        assert Search(corpus).search("lion") == "[1] A lion."


def test_a_dataset_is_a_corpus():
    from datasets import Dataset

    index = Search(Dataset.from_dict({"body": DOCUMENTS}), column="body", k=1)

    assert index.search("moon") == f"[1] {DOCUMENTS[2]}"


def test_it_goes_to_another_process():
    index = Search(DOCUMENTS)

    assert pickle.loads(pickle.dumps(index)).search("cat") == index.search("cat")


@pytest.mark.parametrize(
    "corpus, given, message",
    [
        ([], {}, "empty"),
        ([{"body": "x"}], {}, "document 0 has no text in 'text'; it has columns 'body'"),
        (["a", 5], {}, "document 1 has no text in 'text'; it has int"),
        ("no/such/file.jsonl", {}, "no/such/file.jsonl"),
        (["a"], {"k": 0}, r"k=0"),
        (["a"], {"max_characters": True}, "max_characters=True"),
    ],
)
def test_a_wrong_corpus_is_found_when_the_index_is_made(corpus, given, message):
    with pytest.raises(ToolError, match=message):
        Search(corpus, **given)


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(ToolError, match="line 2 is no JSON"):
        Search(path)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ToolError, match=r"pip install 'covey\[search\]'"):
        Search(DOCUMENTS)


def test_the_method_is_a_tool_as_templates_take_it():
    from transformers.utils import get_json_schema

    schema = get_json_schema(Search(DOCUMENTS).search)["function"]

    assert schema["name"] == "search" and list(schema["parameters"]["properties"]) == ["query"]
