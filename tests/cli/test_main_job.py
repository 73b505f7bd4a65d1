"""From raw text to scored translations, by the commands a user types."""

import json
from pathlib import Path
from typing import Any

import pytest

from nmtkit import Translator
from tests.support.commands import (
    WORDS,
    Command,
    as_text,
    json_lines,
    lines_in,
    logged,
    refused,
    sentence_pairs,
    succeeded,
)


def lines(count: int, seed: int = 9) -> list[str]:
    return [source for source, _ in sentence_pairs(count, seed)]


def test_training_leaves_logs_results_and_a_scored_test_set(trained: Path) -> None:
    steps, validations = logged(trained, "step"), logged(trained, "evaluated")
    assert [record["update"] for record in steps] == [1, 10, 20, 30, 40, 50, 60]
    assert [record["update"] for record in validations] == [20, 40, 60]
    assert validations[-1]["valid_loss"] < validations[0]["valid_loss"]
    assert {"loss", "ppl", "lr", "grad_norm", "tokens_per_second"} <= steps[0].keys()
    assert json.loads((trained / "result.json").read_text())["reason"] == "max_updates"
    assert len(lines_in(trained / "test.out")) == 40
    assert [
        score["name"] for score in json.loads((trained / "test.json").read_text())["scores"]
    ] == ["BLEU", "chrF2"]


def test_translate_keeps_order_and_empty_lines(trained: Path, nmtkit: Command) -> None:
    given = ["", *lines(5), "   ", *lines(3, 4), ""]
    done = succeeded(nmtkit("translate", "-m", trained, stdin=as_text(given)))
    out = done.out.split("\n")
    assert out.pop() == ""
    assert len(out) == len(given)
    assert [number for number, text in enumerate(out) if not text] == [0, 6, 10]
    alone = [
        nmtkit("translate", "-m", trained, stdin=given[n] + "\n").out.rstrip("\n") for n in (1, 8)
    ]
    assert alone == [out[1], out[8]]
    assert str(trained) in done.err
    assert "cpu" in done.err
    assert Translator.load(str(trained), device="cpu").translate(given) == out


def test_a_line_of_odd_characters_is_one_translation(trained: Path, nmtkit: Command) -> None:
    odd = f"quux {WORDS[0]} 你好 \u2028 \x00 🙂\n"
    assert succeeded(nmtkit("translate", "-m", trained, stdin=odd)).out.count("\n") == 1


def test_threads_do_not_change_translations(trained: Path, nmtkit: Command) -> None:
    words = ["translate", "-m", trained, "--batch-tokens", "40", "--threads"]
    one, two = (nmtkit(*words, number, stdin=as_text(lines(60))) for number in "12")
    assert "(1 thread)" in one.err
    assert "2 threads" in two.err
    assert one.out == two.out


N_BEST = ["--beam-size", "4"]


def test_n_best_lists_are_sorted_and_begin_with_the_best(trained: Path, nmtkit: Command) -> None:
    text = as_text(lines(4))
    words = ["translate", "-m", trained, *N_BEST]
    rows = [
        line.split("\t")
        for line in succeeded(nmtkit(*words, "--n-best", "3", stdin=text)).out.splitlines()
    ]
    assert [int(row[0]) for row in rows] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    for first in range(0, 12, 3):
        scores = [float(row[1]) for row in rows[first : first + 3]]
        assert scores == sorted(scores, reverse=True)
    assert [row[3] for row in rows[::3]] == nmtkit(*words, stdin=text).out.splitlines()


def test_json_has_the_texts_and_their_token_log_probabilities(
    trained: Path, nmtkit: Command
) -> None:
    text = as_text(lines(4))
    words = ["translate", "-m", trained, *N_BEST]
    records = json_lines(nmtkit(*words, "--json", "--n-best", "2", stdin=text).out)
    assert [record["best"]["text"] for record in records] == nmtkit(
        *words, stdin=text
    ).out.splitlines()
    for record in records:
        assert record["best"]["log_prob"] == pytest.approx(
            sum(record["best"]["token_log_probs"]), abs=1e-4
        )
        assert len(record["others"]) == 1


def test_a_longer_list_widens_the_beam_with_a_note(trained: Path, nmtkit: Command) -> None:
    """The byte-order mark at the beginning of the input is no text."""
    text = as_text(lines(4))
    best = nmtkit("translate", "-m", trained, *N_BEST, stdin=text).out.splitlines()
    wider = succeeded(nmtkit("translate", "-m", trained, "--n-best", "4", stdin="\ufeff" + text))
    assert "beam size 4 instead of 3" in wider.err
    assert [line.split("\t")[3] for line in wider.out.splitlines()[::4]] == best


def test_the_length_penalty_divides_the_log_probability(trained: Path, nmtkit: Command) -> None:
    done = nmtkit(
        "translate",
        "-m",
        trained,
        "--json",
        "--length-penalty",
        "gnmt:0.6",
        stdin=as_text(lines(3)),
    )
    for record in json_lines(done.out):
        one = record["best"]
        length = len(one["token_log_probs"])
        assert one["score"] == pytest.approx(one["log_prob"] / ((5 + length) / 6) ** 0.6, abs=1e-4)


@pytest.fixture
def rescore(trained: Path, nmtkit: Command, tmp_path: Path) -> Command:
    """Scores targets, a text or lines of JSON, of source lines."""

    def run(source: str, target: str | list[Any], *options: str) -> Any:
        name = "out" if isinstance(target, str) else "out.jsonl"
        (tmp_path / "in").write_text(source)
        (tmp_path / name).write_text(
            target if isinstance(target, str) else as_text(map(json.dumps, target))
        )
        return nmtkit(
            "rescore",
            "-m",
            trained,
            "--source",
            tmp_path / "in",
            "--target",
            tmp_path / name,
            *options,
        )

    return run


@pytest.mark.parametrize("form", ["text", "tokens", "tokens without an end"])
def test_rescore_gives_the_scores_of_translate(
    trained: Path, nmtkit: Command, rescore: Command, form: str
) -> None:
    """Also where the text could be cut otherwise, and where the search ended at its length limit."""
    source = as_text([*lines(20), ""])
    options = ["--length-penalty", "average:1.0"]
    records = json_lines(nmtkit("translate", "-m", trained, "--json", *options, stdin=source).out)
    if form == "tokens without an end":
        for record in records[:20]:
            best = record["best"]
            best["log_prob"] -= best["token_log_probs"].pop()
            best["score"] = best["log_prob"] / len(best["token_log_probs"])
            best["finished"] = False
    texts = as_text(record["best"]["text"] for record in records)
    done = succeeded(rescore(source, texts if form == "text" else records, *options))
    for line, record in zip(done.out.splitlines(), records, strict=True):
        expected = [record["best"]["score"], record["best"]["log_prob"]]
        assert [float(number) for number in line.split("\t")] == pytest.approx(expected, abs=1e-4)
    assert "perplexity" in done.err


BEST = {"text": "BA", "score": -1, "log_prob": -1, "tokens": ["▁BA"], "finished": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": 10**400}, "out.jsonl, line 1: this was not written by"),
        ({"score": None}, "out.jsonl, line 1: this was not written by"),
        ({"tokens": 5}, "out.jsonl, line 1: this was not written by"),
        ({"tokens": ["</s>", "<pad>", "<s>"]}, "pair 1"),
        ({"tokens": ["▁BA", "</s>"]}, "'</s>'"),
        ({"tokens": ["▁nowhere"]}, "the token '▁nowhere' is not in the model's vocabulary"),
    ],
    ids=str,
)
def test_rescore_refuses_values_that_no_translation_has(
    rescore: Command, change: dict[str, Any], message: str
) -> None:
    refused(rescore("ba\n", [{"best": BEST | change}]), message)


def test_an_empty_translation_has_a_score(rescore: Command) -> None:
    ends, empty = json_lines(succeeded(rescore("ba ce\n\n", "\n\n", "--json")).out)
    assert ends["token_log_probs"] == [ends["log_prob"]]
    assert ends["log_prob"] < 0
    assert (empty["log_prob"], empty["token_log_probs"]) == (0.0, [])


def test_translate_prefers_the_average(trained: Path, nmtkit: Command) -> None:
    succeeded(nmtkit("average", "-m", trained, "--best", "2"))
    assert (trained / "average.safetensors").is_file()
    averaged = nmtkit("translate", "-m", trained, "--scores", stdin="ba ce di\n").out
    best = nmtkit(
        "translate", "-m", trained, "--checkpoint", "best", "--scores", stdin="ba ce di\n"
    ).out
    by_name = nmtkit(
        "translate", "-m", trained, "--checkpoint", "average", "--scores", stdin="ba ce di\n"
    ).out
    assert averaged == by_name != best
    (trained / "average.safetensors").unlink()


def test_recent_checkpoints_are_averaged_like_their_files(
    trained: Path, nmtkit: Command, tmp_path: Path
) -> None:
    kept = sorted((trained / "checkpoints").glob("weights-*"))
    done = succeeded(
        nmtkit("average", "-m", trained, "--recent", "2", "-o", tmp_path / "a.safetensors")
    )
    assert all((str(path) in done.err) == (path in kept[-2:]) for path in kept), done
    succeeded(nmtkit("average", *kept[-2:], "-o", tmp_path / "b.safetensors", cwd=tmp_path))
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert nmtkit("average", "-m", trained, "--recent", "2", "--best", "2").code == 2


def test_the_model_is_found_by_variable_folder_and_name(trained: Path, nmtkit: Command) -> None:
    here = trained.parent.parent
    by_variable = succeeded(nmtkit("translate", stdin="ba ce\n", NMTKIT_MODEL=str(trained)))
    assert "$NMTKIT_MODEL" in by_variable.err
    (here / "runs").mkdir(exist_ok=True)
    link = here / "runs" / "linked"
    link.symlink_to(trained)
    newest = succeeded(nmtkit("translate", stdin="ba ce\n", cwd=here))
    assert "newest finished run" in newest.err
    assert "runs/linked" in newest.err
    assert (
        newest.out
        == by_variable.out
        == nmtkit("translate", "-m", "linked", stdin="ba ce\n", cwd=here).out
    )


def test_preprocess_then_train_does_not_preprocess_again(
    corpus: Path, nmtkit: Command, tmp_path: Path
) -> None:
    first = succeeded(nmtkit("preprocess", corpus / "tiny.yaml", "--run", tmp_path / "run"))
    assert "1,500" in first.err
    done = succeeded(
        nmtkit(
            "train",
            corpus / "tiny.yaml",
            "--run",
            tmp_path / "run",
            "--set",
            "training.max_updates=2",
        )
    )
    assert "already preprocessed" in done.err
