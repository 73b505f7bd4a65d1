"""Options: numbers have bounds, which are told to who goes beyond them; one run is one run."""

from pathlib import Path

import click
import pytest

from nmtkit.cli.commands.options.search_options import SEARCH
from nmtkit.cli.inference.model_options import search_type
from nmtkit.cli.options import Number
from nmtkit.core.limits import MAX_INT
from nmtkit.decoding.settings import SEARCH_FIELDS
from tests.support.commands import Command, refused, write_lines

FILES = "--source a --target b"
ENDLESS = "1" + "0" * 30


@pytest.mark.parametrize(
    ("command", "option", "values", "bound"),
    [
        (
            "translate",
            "--beam-size",
            f"0 1001 1000000 9223372036854775807 9223372036854775808 {ENDLESS}",
            "at least 1 and at most 1,000",
        ),
        ("summarize", "--n-best", f"0 1000000 {ENDLESS}", "at least 1 and at most 1,000"),
        ("translate", "--threads", f"0 1000000 {ENDLESS}", "at least 1 and at most 1,024"),
        ("translate", "--batch-tokens", f"0 {ENDLESS}", f"at least 1 and at most {MAX_INT:,}"),
        (f"align {FILES}", "--threshold", "nan 0 1.5 -inf", "greater than 0 and at most 1"),
        (
            "score a --ref b",
            "--n-samples",
            f"0 1000000 9223372036854775807 {ENDLESS}",
            "at least 1 and at most 10,000",
        ),
        (
            f"train {FILES}",
            "--minutes",
            f"0 nan inf 1e308 {ENDLESS}",
            "greater than 0 and at most 1e+07",
        ),
        ("preprocess demo", "--workers", "1000000", "at least 1 and at most 1,024"),
    ],
)
def test_a_number_out_of_bounds(
    console: Command, command: str, option: str, values: str, bound: str
) -> None:
    for value in values.split():
        refused(console(*command.split(), option, value), option, f"{value} is out of range", bound)


OTHERS = {"coverage_kind", "length_penalty", "mbr", "stop"}  # not numbers


@pytest.mark.parametrize("key", sorted(SEARCH.keys() - OTHERS))
def test_options_of_the_search_have_the_bounds_of_its_settings(key: str) -> None:
    whole, metadata = SEARCH_FIELDS[key].annotation is int, SEARCH_FIELDS[key].metadata
    option = search_type(key)
    bounds = {
        end: getattr(one, end) for one in metadata for end in ("ge", "le") if hasattr(one, end)
    }
    default = SEARCH_FIELDS[key].default
    assert option.convert(str(default), None, None) == default
    with pytest.raises(click.BadParameter):
        option.convert(str(bounds["ge"] - 1), None, None)
    with pytest.raises(click.BadParameter):
        option.convert(str(bounds.get("le", MAX_INT) + 1) if whole else "inf", None, None)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("--beam-size 3 --search beam_size=5", "beam_size"),
        ("--seed 3 --search search.seed=5", "seed"),
        ("--length-penalty gnmt:0.6 --search alpha=0.5", "alpha"),
    ],
)
def test_a_setting_of_the_search_is_given_once(console: Command, options: str, key: str) -> None:
    refused(
        console("translate", *options.split()),
        f"--search {key} conflicts with an option that sets the same value",
    )


@pytest.mark.parametrize(
    "words", ["translate --terms", "translate --dictionary", "rerank --channel", "rerank --lm"]
)
def test_what_stands_alone_is_given_once(console: Command, words: str) -> None:
    command, option = words.split()
    refused(
        console(command, option, "a", option, "b"),
        "this option takes only one value, but was given a and b",
    )


def test_a_number_within_bounds() -> None:
    assert [Number(1, 5).convert(text, None, None) for text in ("1", " 5 ", "+3")] == [1, 5, 3]
    assert Number(0, 1, whole=False, above=True).convert("1e-300", None, None) == 1e-300
    assert isinstance(Number(1).convert("7", None, None), int)
    with pytest.raises(click.BadParameter, match="not a valid integer"):
        Number(1).convert("many", None, None)


def test_a_run_that_is_not_there_is_told_which_are(console: Command, tmp_path: Path) -> None:
    for name in ("demo", "captions", "news"):
        write_lines(tmp_path / "runs" / name / "recipe.yaml", [f"name: {name}"])
    (tmp_path / "runs" / "notes").mkdir()
    known = "did you mean 'captions'? runs under runs/: captions, demo, news"
    for option in ("-m", "--model"):
        refused(console("translate", option, "caption", "--checkpoint", "best"), known)
