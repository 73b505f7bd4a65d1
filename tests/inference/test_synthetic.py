"""Synthetic corpora: what is kept, and that a stopped one goes on to the same files."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from nmtkit.core.errors import DataError
from nmtkit.inference.result import Translation
from nmtkit.inference.synthetic import SyntheticCorpus, SyntheticFilter
from nmtkit.inference.translator import Translator
from tests.inference.untrained import LINES, WORDS, untrained
from tests.support.commands import lines_in

TEXT = LINES * 6
ANY = SyntheticFilter(max_ratio=100.0)
SAMPLING = {"samples": 1, "temperature": 3.0}


def found(
    text: str, tokens: int, src_tokens: int, log_prob: float, finished: bool = True
) -> Translation:
    return Translation(text, log_prob, log_prob, ["x"] * tokens, [], ["y"] * src_tokens, finished)


def written(
    folder: Path, translator: Translator, groups: int | None = None, **settings: object
) -> SyntheticCorpus:
    """Translates the text, or no more than so many groups of it, as if the program was killed then."""
    corpus = SyntheticCorpus(folder, {"seed": 1, **settings}, forward=bool(settings.get("forward")))
    windows = iter([TEXT[:10], TEXT[10:13], TEXT[13:]])
    waiting = iter(TEXT)

    def pairs() -> Iterator[list[tuple[str, Translation]]]:
        for group in translator.stream(corpus.to_translate(windows)):
            yield [(next(waiting), one[0]) for one in group]

    for _ in islice(corpus.write(pairs(), ANY), groups):
        pass
    return corpus


def texts(folder: Path) -> tuple[list[str], list[str]]:
    return lines_in(folder / "src.txt"), lines_in(folder / "tgt.txt")


@pytest.mark.parametrize(
    ("line", "one", "fault"),
    [
        ("a line", found("a line", 4, 4, -3.0), None),
        (" ", found("a line", 4, 4, -3.0), "empty"),
        ("a line", found(" ", 4, 4, -3.0), "empty"),
        ("a line", found("a line", 4, 4, -3.0, finished=False), "cut off at the length limit"),
        ("a line", found("a line", 8, 4, -3.0), None),
        ("a line", found("a line", 9, 4, -3.0), "too different in length"),
        ("a line", found("a line", 4, 9, -3.0), "too different in length"),
        ("a line", found("a line", 4, 4, -5.0), None),
        ("a line", found("a line", 4, 4, -5.1), "too improbable"),
    ],
)
def test_what_is_kept(line: str, one: Translation, fault: str | None) -> None:
    assert SyntheticFilter(max_ratio=2.0, min_log_prob=-1.0).fault(line, one) == fault


@pytest.mark.parametrize("search", [{"at_limit": "end"}, SAMPLING])
def test_a_stopped_one_goes_on_to_the_same_files(search: dict[str, object], tmp_path: Path) -> None:
    translator = untrained("transformer", WORDS, 2.0, **search)
    whole = written(tmp_path / "whole", translator)
    assert whole.over
    assert whole.read == len(TEXT) > whole.written == len(texts(tmp_path / "whole")[0]) > 0
    text = iter(TEXT)
    assert all(target in text for target in texts(tmp_path / "whole")[1]), (
        "the text itself, in its order"
    )
    for groups in (1, 2):
        part = written(tmp_path / "part", translator, groups)
        assert 0 < part.read < len(TEXT)
        with open(tmp_path / "part" / "src.txt", "ab") as file:
            file.write(b"half a li")  # written, but not recorded
    assert written(tmp_path / "part", translator).over
    assert texts(tmp_path / "part") == texts(tmp_path / "whole")


def test_one_goes_on_that_was_stopped_before_it_came_to_new_lines(tmp_path: Path) -> None:
    def write(groups: int | None) -> SyntheticCorpus:
        corpus = SyntheticCorpus(tmp_path, {})
        lines = (
            line for window in corpus.to_translate(iter([["a"], ["b"], ["c"]])) for line in window
        )
        pairs = (
            [(text, found(line, 1, 1, -1.0))] for text, line in zip("abc", lines, strict=False)
        )
        for _ in islice(corpus.write(pairs, ANY), groups):
            pass
        return corpus

    assert [write(groups).read for groups in (2, 1, None)] == [2, 2, 3]


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    def write() -> Iterator[int]:
        return SyntheticCorpus(tmp_path, {}).write(
            ([(text, found(text, 1, 1, -1.0))] for text in "ab"), ANY
        )

    first = write()
    next(first)
    with pytest.raises(DataError, match="another process is writing here"):
        next(write())
    assert texts(tmp_path) == (["a"], ["a"])
    first.close()  # type: ignore[attr-defined]  # it is a generator
    next(write())


def test_forward_translations_are_targets(tmp_path: Path) -> None:
    translator = untrained("transformer", WORDS, 2.0, **SAMPLING)
    for forward in (False, True):
        written(tmp_path / str(forward), translator, forward=forward)
    assert texts(tmp_path / "True") == texts(tmp_path / "False")[::-1]


def test_only_the_same_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = untrained("transformer", WORDS, 2.0, **SAMPLING)
    written(tmp_path / "begun", translator, 1)
    with pytest.raises(DataError, match="started with a different seed: 1, not 2"):
        written(tmp_path / "begun", translator, seed=2)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "TEXT", ["something else", *TEXT[1:]])
        with pytest.raises(DataError, match="started with a different text"):
            written(tmp_path / "begun", translator)
    (tmp_path / "begun" / "progress.json").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        written(tmp_path / "begun", translator)
    (tmp_path / "begun" / "progress.json").unlink()
    with pytest.raises(DataError, match="this command did not write"):
        written(tmp_path / "begun", translator)
