"""Grading by calls: arguments go in, values come out, the comparison is made here."""

from __future__ import annotations

from covey.rewards.sandbox.child import Child, ChildEnded, Exit, TooLate, TooMuch
from covey.rewards.sandbox.compare import same_value
from covey.rewards.sandbox.grade import Call, CallsJob, Grade, Verdict
from covey.rewards.sandbox.inside.answers import NO_ANSWER, checked
from covey.rewards.sandbox.inside.codec import Opaque
from covey.rewards.sandbox.limits import Limits
from covey.rewards.sandbox.zygote import Zygote


def grade_calls(zygote: Zygote, job: CallsJob, limits: Limits, stop_early: bool = False) -> Grade:
    """Run the code once and call its functions one after the other, in one process."""
    verdicts: list[Verdict] = []
    with Child(zygote, limits) as child:
        try:
            child.send({"mode": "serve", "code": job.code, "filename": "<solution>"})
            raised = start_fault(child.receive())
            for call in job.calls if raised is None else ():
                child.send((call.name, list(call.args), dict(call.kwargs)))
                verdicts.append(answer_verdict(call, child.receive()))
                if stop_early and verdicts[-1].status != "ok":
                    break
            rest = raised or Verdict("wrong", "not run")
        except Opaque as error:
            rest = Verdict("infrastructure", f"a test's argument cannot cross: {error}")
        except (ChildEnded, TooLate, TooMuch) as error:
            rest = ended_verdict(error, child.close(), limits)
        return with_rest(verdicts, rest, len(job.calls), child.close())


def with_rest(verdicts: list[Verdict], rest: Verdict, count: int, end: Exit | None) -> Grade:
    """Return a grade of `count` verdicts; `rest` stands for those that were not reached."""
    filled = (*verdicts, *[rest] * (count - len(verdicts)))
    return Grade(filled, end.cpu_seconds if end else 0.0, end.peak_mb if end else 0.0)


def start_fault(message: object) -> Verdict | None:
    """Return why the code could not be executed; None where it was."""
    match checked(message):
        case ("ready", _):
            return None
        case ("raised", str(kind), str(text)):
            return raised_verdict(kind, text)
    return Verdict("crash", "it did not get ready")


def raised_verdict(kind: str, text: str) -> Verdict:
    """Return the verdict on an exception, by the name of its class and its text."""
    return Verdict("memory" if kind == "MemoryError" else "crash", f"{kind}: {text}")


def ended_verdict(error: Exception, end: Exit | None, limits: Limits) -> Verdict:
    """Return the verdict on a child that did not answer."""
    if isinstance(error, TooLate):
        return Verdict("timeout", f"more than {limits.wall_seconds} s")
    if isinstance(error, TooMuch):
        return Verdict("output", str(error))
    if end is None:
        return Verdict("infrastructure", "the fork server ended")
    if end.ran_out(limits):
        return Verdict("timeout", f"{end.cpu_seconds:.1f} s of processor time")
    return Verdict(
        "crash", f"signal {end.code}" if end.signaled else f"it ended before it answered ({error})"
    )


def answer_verdict(call: Call, answer: object) -> Verdict:
    """Return the verdict on an answer to a call."""
    match checked(answer):
        case ("value", value, _):
            try:
                if same_value(call.expected, value):
                    return Verdict("ok")
            except Exception as error:  # the boundary: a value that cannot be compared is the wrong one
                return Verdict(
                    "wrong", f"{call.name} returned what cannot be compared: {type(error).__name__}"
                )
            values = f"{shortened(value)}, expected {shortened(call.expected)}"
            return Verdict("wrong", f"{call.name} returned {values}")
        case ("raised", str(kind), str(text)):
            return raised_verdict(kind, text)
        case ("opaque", str(kind)):
            return Verdict("wrong", f"{call.name} returned {kind}")
        case ("missing", _):
            return Verdict("wrong", f"there is no {call.name!r}")
    return Verdict("crash", NO_ANSWER)


def shortened(value: object, limit: int = 200) -> str:
    """Return a value as text for people; huge integers are not spelled out, which takes quadratic time."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple | dict | set | frozenset) and len(value) > 20:
        return f"{type(value).__name__} of {len(value)} items"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(shortened(v, limit // 4) for v in value)})"[:limit]
    if isinstance(value, str | bytes):
        return repr(value[:limit])[:limit]
    return repr(value)[:limit] if isinstance(value, float | int | None) else type(value).__name__
