"""Print how the code is built: size, pieces, nesting, imports, types, words. One column per folder that is given.

    python tools/house.py covey            the table
    python tools/house.py covey --list     also the helpers that are private and called once

Counted by the syntax tree, without running anything. Code lines are lines that are neither blank, nor a comment, nor part
of a docstring. A function's length includes its docstring. A function is private and called once where its name begins
with an underscore and the package refers to it in exactly one place.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.BoolOp,
    ast.comprehension,
)
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try)


@dataclass(frozen=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def comments(self) -> int:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type == tokenize.COMMENT for token in tokens)

    @cached_property
    def prose(self) -> set[int]:
        """Line numbers of strings that stand alone: docstrings of modules, classes, functions and fields."""
        found: set[int] = set()
        for node in ast.walk(self.tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return found

    @cached_property
    def code_lines(self) -> int:
        lines = enumerate(self.text.splitlines(), start=1)
        return sum(
            bool(line.strip()) and not line.lstrip().startswith("#") and number not in self.prose
            for number, line in lines
        )


def read_package(folder: Path) -> list[Module]:
    """Return every Python file below `folder`, assets left out."""
    root = folder.resolve().parent
    files = (p for p in sorted(folder.resolve().rglob("*.py")) if "assets" not in p.parts)
    return [
        Module(
            ".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), p, p.read_text()
        )
        for p in files
    ]


def quantiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return median, 90th percentile (nearest rank) and maximum."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(0.9 * (len(ordered) - 1))], ordered[-1]


def length(function: Function) -> int:
    """Return the lines from `def` to the end, docstring included, decorators not."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def arguments(function: Function) -> list[ast.arg]:
    """Return the arguments but for self and cls."""
    a = function.args
    listed = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    return [x for x in listed if x.arg not in ("self", "cls")]


def depth(node: ast.AST) -> int:
    """Return how deep blocks are nested below `node`; an elif is no deeper than its if."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*Function.__args__, ast.ClassDef)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def says_any(function: Function) -> bool:
    """Return whether an annotation of the signature contains `Any`."""
    annotations = [x.annotation for x in arguments(function)] + [function.returns]
    return any(
        "Any" in ast.unparse(a).replace("[", " ").replace("]", " ").replace(",", " ").split()
        for a in annotations
        if a
    )


def attributes(modules: list[Module]) -> tuple[int, int]:
    """Return the largest number of `self.x` that a class assigns: alone, and with its bases in the package."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for node in (n for m in modules for n in ast.walk(m.tree) if isinstance(n, ast.ClassDef)):
        targets = (
            t
            for n in ast.walk(node)
            if isinstance(n, ast.Attribute)
            for t in [n]
            if isinstance(t.ctx, ast.Store)
        )
        own[node.name] = {t.attr for t in targets if isinstance(t.value, ast.Name) and t.value.id == "self"}
        bases[node.name] = [ast.unparse(b).split("[")[0].split(".")[-1] for b in node.bases]

    def whole(name: str) -> set[str]:
        return own.get(name, set()).union(*(whole(b) for b in bases.get(name, []) if b != name))

    return max(map(len, own.values()), default=0), max((len(whole(name)) for name in own), default=0)


def references(module: Module) -> Counter[str]:
    """Count how often a file reads each name, as a name or as an attribute."""
    nodes = (n for n in ast.walk(module.tree) if isinstance(n, (ast.Name, ast.Attribute)))
    return Counter(n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n.ctx, ast.Load))


def called_once(modules: list[Module]) -> list[tuple[Module, Function]]:
    """Return the private functions that the package refers to in one place.

    Another file that defines the same name means its own.
    """
    reads = {m.name: references(m) for m in modules}
    defines = {m.name: {f.name for f in m.functions} for m in modules}

    def uses(own: Module, name: str) -> int:
        return sum(reads[m.name][name] for m in modules if m is own or name not in defines[m.name])

    private = ((m, f) for m in modules for f in m.functions if f.name[:1] == "_" and f.name[:2] != "__")
    return [(m, f) for m, f in private if uses(m, f.name) == 1]


def imports(modules: list[Module]) -> dict[str, set[str]]:
    """Return what each module imports from its own package when it is loaded."""
    names = {m.name for m in modules}

    def targets(node: ast.stmt) -> Iterator[str]:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (x if (x := f"{node.module}.{a.name}") in names else node.module for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names)

    return {
        m.name: {t for n in m.tree.body for t in targets(n) if t in names and t != m.name} for m in modules
    }


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest path of imports, the importing module first."""
    known: dict[str, list[str]] = {}

    def chain(name: str, above: frozenset[str] = frozenset()) -> list[str]:
        if name not in known:
            below = (chain(n, above | {name}) for n in graph[name] - above)
            known[name] = [name, *max(below, key=len, default=[])]
        return known[name]

    return max((chain(name) for name in graph), key=len)


def table(modules: list[Module]) -> list[tuple[str, str]]:
    """Return the rows: what is counted, and the figures."""
    functions = [f for m in modules for f in m.functions]
    lines = sum(m.code_lines for m in modules)
    every = sum(len(m.text.splitlines()) for m in modules)
    documented = [
        n
        for m in modules
        for n in ast.walk(m.tree)
        if isinstance(n, (*Function.__args__, ast.ClassDef, ast.Module))
    ]
    defined = sum(isinstance(n, (*Function.__args__, ast.ClassDef)) for m in modules for n in m.tree.body)
    assigned = sum(isinstance(n, (ast.Assign, ast.AnnAssign)) for m in modules for n in m.tree.body)
    graph = imports(modules)
    over = sum(len(arguments(f)) > 6 for f in functions) / len(functions)
    typed = sum(all(x.annotation for x in arguments(f)) for f in functions) / len(functions)
    figures = "{:g} / {:g} / {:g}".format
    return [
        ("files / lines", f"{len(modules)} / {every}"),
        ("code lines", f"{lines}"),
        ("file median / p90 / max", figures(*quantiles(len(m.text.splitlines()) for m in modules))),
        ("function median / p90 / max", figures(*quantiles(map(length, functions)))),
        (
            "arguments p90 / max / over 6",
            "{:g} / {:g}".format(*quantiles(len(arguments(f)) for f in functions)[1:]) + f" / {over:.1%}",
        ),
        ("nesting max", f"{max(map(depth, functions))}"),
        (
            "branches p90 / max",
            "{:g} / {:g}".format(
                *quantiles(sum(isinstance(n, BRANCHES) for n in ast.walk(f)) for f in functions)[1:]
            ),
        ),
        ("attributes of a class, with bases", "{} ({})".format(*attributes(modules))),
        ("functions per 100 code lines", f"{100 * len(functions) / lines:.1f}"),
        ("private and called once", f"{len(called_once(modules)) / len(functions):.0%}"),
        (
            "module-level names per file",
            f"{assigned / len(modules):.1f} + {defined / len(modules):.1f} defined",
        ),
        (
            "longest import chain / largest fan-out",
            f"{len(longest_chain(graph))} / {max(map(len, graph.values()))}",
        ),
        (
            "annotated / Any in signature",
            f"{typed:.0%} / {sum(map(says_any, functions)) / len(functions):.0%}",
        ),
        ("docstrings", f"{sum(ast.get_docstring(n) is not None for n in documented) / len(documented):.0%}"),
        (
            "lines of prose / comments per 100",
            f"{sum(len(m.prose) for m in modules) / every:.0%} / {100 * sum(m.comments for m in modules) / lines:.1f}",
        ),
    ]


def main() -> None:
    """Print the table of every folder, side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--list", action="store_true", help="print the private functions that are called once"
    )
    arguments = parser.parse_args()
    packages = [read_package(folder) for folder in arguments.folders]
    for rows in zip(*map(table, packages), strict=True):
        print(f"{rows[0][0]:<42}" + "".join(f"{value:>26}" for _, value in rows))
    for modules in packages if arguments.list else ():
        for module, function in called_once(modules):
            print(f"{module.path}:{function.lineno} {function.name} {length(function)} lines")
        print(" → ".join(longest_chain(imports(modules))))


if __name__ == "__main__":
    main()
