"""Reduce a failed script's output to one sentence."""

import ast
import json
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from comfyrelay.comfyui.failures import explain_execution_error
from comfyrelay.comfyui.graphs.explain import explain_refusal
from comfyrelay.error_text import FALLBACK, user_sentence

_MAX_OBJECT_LENGTH = 200_000
_MAX_ATTEMPTS = 50
# The script has handled errors that precede these lines.
_LAST_LINES = 100
NO_REASON = "ComfyUI refused the graph (HTTP 400), and the script does not say why."
# ComfyUI's log of a refused graph: the nodes with their problems, then the response.
_LOGGED_NODE = re.compile(r"^\* (\S.*) (\S+):$")
_LOGGED_PROBLEM = re.compile(r"^ {2}- (\S.*?):? *$")
_LOGGED_REFUSAL = "invalid prompt: "

_EVIDENCE = re.compile(r"""["'](node_errors|exception_message)["']\s*:""")
_TRACEBACK = "Traceback (most recent call last)"
# The last line of a traceback, including exceptions without a message.
_EXCEPTION = re.compile(r"^(?:\w+\.)*(([A-Z]\w*)(?::.*)?)$")
_COMPLAINT = re.compile(
    r"\berror\b|\bfail|exception\b|refused\b|timed? ?out|cannot\b|\bnot found\b|fatal|invalid\b", re.I
)
_HTTP = re.compile(
    r"\bHTTP\b\D{0,20}([45]\d\d)\b|\bstatus\b\D{0,12}([45]\d\d)\b|\b([45]\d\d) (?:Client|Server) Error", re.I
)
_TIMEOUT = re.compile(r"timed?[ _-]?out|timeout", re.I)
_REFUSED = re.compile(r"connection refused|errno 111|winerror 10061|actively refused", re.I)
_PREFIX = re.compile(r"^[\W\d]*(?:fatal |critical )?(?:error|failed|failure|exception)\s*[:\]-]+\s*", re.I)


def error_sentence(output: str, exit_code: int) -> str:
    """Reduce the output of a script with this exit code to one sentence, which is never empty."""
    with suppress(ValueError):
        name = signal.Signals(exit_code - 128).name
        advice = " The machine may have run out of memory." if name == "SIGKILL" else ""
        return f"The script was ended by {name}.{advice}"
    return _from_comfyui(output) or _from_line(output, exit_code)


def refusal_in_log(lines: Sequence[str]) -> str | None:
    """Explain the last refusal in ComfyUI's log, for a script that did not print the response."""
    ends = [number for number, line in enumerate(lines) if line.startswith(_LOGGED_REFUSAL)]
    if not ends:
        return None
    begin, node, problems = ends[-2] + 1 if len(ends) > 1 else 0, "", list[str]()
    for line in lines[begin : ends[-1]]:
        if found := _LOGGED_NODE.match(line):
            node = f"{found[1]} ({found[2]})"
        elif node and (found := _LOGGED_PROBLEM.match(line)):
            problems.append(f"{node}: {user_sentence(found[1])}")
        elif line.startswith("got prompt"):
            # Earlier problems belong to another graph.
            node, problems = "", []
    if problems:
        return "; ".join(dict.fromkeys(problems))
    error = _read_object(lines[ends[-1]].removeprefix(_LOGGED_REFUSAL))
    return explain_refusal({"error": error}).detail if isinstance(error, dict) else None


def _from_comfyui(output: str) -> str | None:
    """Explain ComfyUI's response, if the script printed it as JSON or as a Python dictionary."""
    evidence = list(_EVIDENCE.finditer(output))
    found = _object_around(output, evidence[-1].start(), evidence[-1][1]) if evidence else None
    if found is None:
        return None
    error = explain_refusal(found) if "node_errors" in found else explain_execution_error(found)
    return error.detail


def _from_line(output: str, exit_code: int) -> str:
    last = [line.rstrip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    complaint = next((text for text in reversed(last) if _COMPLAINT.search(text)), "")
    exception, line = _last_exception(last) or (None, complaint)
    reason = line.removeprefix(f"{exception}:") if exception else _PREFIX.sub("", line)
    sentence = user_sentence(reason) if line else FALLBACK
    if (status := _HTTP.search(line)) is not None:
        code = next(filter(None, status.groups()))
        return NO_REASON if code == "400" else f"ComfyUI answered with HTTP {code}: {sentence}"
    if _REFUSED.search(line):
        return "No server listens at the address that the script calls (connection refused). Is ComfyUI running there?"
    if _TIMEOUT.search(line):
        return f"Timed out: {sentence}"
    if exception is not None:
        # "'images'" is meaningless without "KeyError".
        return sentence if sentence.count(" ") >= 2 else f"{exception}: {sentence}".removesuffix(f": {exception}")
    reason = f": {sentence}" if line else f"; last line: {user_sentence(last[-1])}" if last else " and printed nothing."
    return f"The script ended with exit code {exit_code}{reason}"


def _last_exception(lines: list[str]) -> tuple[str, str] | None:
    """Return the class and message of the last exception if there is a traceback."""
    starts = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    for line in lines[starts[-1] + 1 :] if starts else ():
        # Frames are indented. Later lines belong to the exception or to other output.
        if not line.startswith((" ", "\t")) and (found := _EXCEPTION.match(line)):
            return found[2], found[1]
    return None


def _object_around(text: str, inside: int, key: str) -> dict[str, Any] | None:
    """Return the smallest enclosing object that has the key."""
    start = inside
    for _ in range(_MAX_ATTEMPTS):
        start = text.rfind("{", max(0, inside - _MAX_OBJECT_LENGTH), start)
        if start < 0:
            return None
        value = _read_object(text[start : _end_of(text, start)])
        if isinstance(value, Mapping) and key in value:
            return {str(name): item for name, item in value.items()}
    return None


def _read_object(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _end_of(text: str, start: int) -> int:
    """Return the position after the closing bracket, ignoring brackets in quotes."""
    depth = 0
    quote = ""
    position = start
    while position < min(len(text), start + _MAX_OBJECT_LENGTH):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return start
