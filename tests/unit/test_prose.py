"""The check of the English finds banned phrases only where readers see them."""

from tools.prose import Prose, hits_in, python_prose, typescript_prose


def found(*texts: Prose) -> list[tuple[int, str, bool]]:
    return [(hit.line, hit.phrase.lower(), hit.prose.is_strict) for text in texts for hit in hits_in(text)]


def test_comments_and_docstrings_count_and_messages_are_strict() -> None:
    source = '"""Built anew."""\n\n# kept beside it\nraise ValueError("Nobody waits for this job.")\n'
    assert found(*python_prose("src/comfyrelay/x.py", source)) == [
        (1, "anew", False),
        (3, "beside", False),
        (4, "nobody", True),
    ]


def test_code_and_names_do_not_count() -> None:
    source = "whoever = 1\n# `beside` is an argument\nvalues = {'anew': 2}\n"
    assert found(*python_prose("src/comfyrelay/x.py", source)) == []


def test_strings_of_tests_do_not_count() -> None:
    assert found(*python_prose("tests/x.py", 'text = "What nobody waits for goes on"\n')) == []


def test_ui_texts_are_strict() -> None:
    source = 'const texts = { empty: "Nobody has added a job yet." };\n'
    assert found(*typescript_prose("ui/src/texts/x.ts", source)) == [(1, "nobody", True)]
