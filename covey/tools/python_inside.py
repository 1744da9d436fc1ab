"""The interpreter of one episode, in its locked child: names stay between calls, prints and the value of the last line come back.

The child executes this text itself. What it imports is there before the child is locked.
"""

import ast
import builtins
import contextlib
import io
import sys
import types

CELL = "<cell>"

main = types.ModuleType("__main__")
main.__dict__["__builtins__"] = builtins


class Printed(io.TextIOBase):
    """Start and end of what is printed; what stands between is counted."""

    def __init__(self, limit: int) -> None:
        self.half = limit // 2
        self.start, self.end, self.left_out = "", "", 0

    def write(self, text: str) -> int:
        room = max(0, self.half - len(self.start))
        self.start += text[:room]
        end = self.end + text[room:]
        kept = end[max(0, len(end) - self.half) :]
        self.left_out += len(end) - len(kept)
        self.end = kept
        return len(text)

    def text(self) -> str:
        note = f"\n[... {self.left_out} characters left out ...]\n" if self.left_out else ""
        return f"{self.start}{note}{self.end}"


def run(code: str, limit: int) -> str:
    """Execute code; return what it printed, the value of a last expression, and the error that ended it, at most `limit` characters."""
    printed = Printed(limit)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            value = execute(code)
            if value is not None:
                print(repr(value))
        except BaseException as error:
            print(told(error))
    return printed.text().removesuffix("\n")


def execute(code: str) -> object:
    """Execute code in the names of this child; return the value of its last line, None where that is no expression."""
    sys.modules["__main__"] = main  # where classes look for their module
    tree = ast.parse(code, CELL)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, CELL, "exec"), main.__dict__)
        return None
    tree.body.pop()
    exec(compile(tree, CELL, "exec"), main.__dict__)
    return eval(compile(ast.Expression(last.value), CELL, "eval"), main.__dict__)


def told(error: BaseException) -> str:
    """Return line, kind and text of an error; the line is that of the code, not of a library below it."""
    place, line = error.__traceback__, error.lineno if isinstance(error, SyntaxError) else None
    while place is not None:
        line = place.tb_lineno if place.tb_frame.f_code.co_filename == CELL else line
        place = place.tb_next
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException:  # its own text may fail
        text = ""
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}" + (f": {text}" if text else "")
