"""The page about a training that `train` draws at its end, and `plot-training --what report` at any time."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from nmtkit.cli.training import train
from tests.support.command_cases import words_of
from tests.support.commands import Command, logged, refused, succeeded
from tests.support.markup import Page

RESUMED = ["--device", "cpu", "--threads", "1", "--resume"]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def drawn(console: Command, run: Path) -> str:
    succeeded(console("plot-training", run, "--what", "report", "-o", "page.html"))
    return Path("page.html").read_text(encoding="utf-8")


def test_training_ends_with_a_page_that_has_what_was_logged(trained: Path) -> None:
    page = html.unescape((trained / "report.html").read_text(encoding="utf-8"))
    steps, validations = logged(trained, "step"), logged(trained, "evaluated")
    for source, reference, answer in validations[-1]["samples"]:
        assert f">{source}</td>" in page
        assert f">{reference}</td>" in page
        assert f">{answer}</td>" in page
    assert len(validations[-1]["samples"]) == 4
    best = max(validations, key=lambda one: one["valid_bleu"])
    assert f"{best['valid_bleu']:.2f} at update {best['update']}" in page
    assert f"<td>{torch.__version__}</td>" in page
    report = json.loads((trained / "data-report.json").read_text(encoding="utf-8"))
    sums = [one for files in report["files"].values() for one in files.values()]
    assert [one for one in sums if one not in page] == []
    curve = page.split('<polyline class="thin" points="')[1].split('"')[0].split()
    heights = [float(point.split(",")[1]) for point in curve]
    losses = [step["nll"] for step in steps]
    assert (heights.index(max(heights)), len(heights)) == (losses.index(min(losses)), len(losses))
    Page(trained / "report.html").check_stands_alone()


def test_a_page_counts_operations_and_shows_texts_as_they_are(run: Path, console: Command) -> None:
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    source = logged(run, "evaluated")[-1]["samples"][0][0]
    (run / "metrics.jsonl").write_text(
        text.replace(json.dumps(source), '"<script>x</script>\\u001b"'), encoding="utf-8"
    )
    page = drawn(console, run)
    assert "<script" not in page
    assert "&lt;script&gt;x&lt;/script&gt;�" in page
    counted = page.split("all updates</th><td>")[1].split("<")[0]
    tokens = sum(step["tokens"] for step in logged(run, "step"))
    assert float(counted) > 6 * 1000 * tokens  # the model has some thousands of weights
    shutil.rmtree(run / "data")
    assert "not counted: " in drawn(console, run)


def test_a_page_names_the_best_weights_alone_by_the_update_from_the_first_stage(
    run: Path, console: Command
) -> None:
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    kept = [
        {"update": update, "value": value} for update, value in ((4, 10.0), (8, 30.0), (12, 20.0))
    ]
    of_stages = [{"name": "first", "updates": 100}, {"name": "second", "updates": 12}]
    result |= {"kept": kept, "best": "weights-00000008.safetensors", "stages": of_stages}
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert '<th scope="row">best</th><td>30.00 at update 108</td>' in drawn(console, run)


def test_the_only_point_of_a_curve_is_a_dot(run: Path, console: Command) -> None:
    assert all(
        'class="' in dot and " hover" in dot for dot in drawn(console, run).split("<circle ")[1:]
    )
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = [line for line in lines if json.loads(line)["event"] == "evaluated"][-1]
    kept = [line for line in lines if json.loads(line)["event"] == "step"] + [last]
    (run / "metrics.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    dots = [dot for dot in drawn(console, run).split("<circle ")[1:] if " hover" not in dot]
    assert [dot.split('"')[1] for dot in dots] == ["", ""]  # loss and score of the validation set


def test_axes_of_a_page_have_round_ticks_and_scores_begin_at_zero(
    run: Path, console: Command
) -> None:
    events = [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    validations = [event for event in events if event["event"] == "evaluated"]
    for number, event in enumerate(validations):
        event["valid_bleu"] = 50.3 + number
    validations[-1]["update"] = 2332
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in events), encoding="utf-8"
    )
    page = drawn(console, run)
    chart = page.split('aria-label="BLEU over the updates"')[1].split("</svg>")[0]
    labels = re.findall(r"<text [^>]*>([^<]*)</text>", chart)
    assert labels == ["0", "20", "40", "60", "0", "500", "1,000", "1,500", "2,000"]


def test_answers_to_examples_of_another_stage_do_not_stand_under_those_of_the_last(
    run: Path, console: Command
) -> None:
    events = [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    first, *_, last = [event for event in events if event["event"] == "evaluated"]
    first["samples"] = [["another source", "another reference", "an answer to it"]]
    last["samples"][0][2] = "an answer to this"
    lines = [json.dumps(event | {"stage": "tune"}) + "\n" for event in events]
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    page = drawn(console, run)
    assert ("an answer to it" in page, "an answer to this" in page) == (False, True)
    assert "the first validation examples of the last stage; long texts are truncated" in page


@pytest.mark.parametrize("samples", ["5", '["a"]', '[["a", "b"]]'])
def test_a_damaged_log_is_one_clear_error(run: Path, console: Command, samples: str) -> None:
    (run / "result.json").unlink()
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(
            f'{{"update": 99, "event": "evaluated", "valid_bleu": 1.0, "samples": {samples}}}\n'
        )
    refused(
        console("plot-training", run, "--what", "report", "-o", "page.html"), "logs are damaged"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("RUN RUN --what report -o page.html", "report describes a single run"),
        ("RUN --what report", "report describes a single run"),
        ("RUN --what report -o page.html --title x", "remove --what report"),
        ("RUN --what report -o page.html --style size=3", "remove --what report"),
        ("RUN --what report -o page.html --style font_size=9", "remove --what report"),
        ("RUN --what report -o page.html --style colours=tab10", "remove --what report"),
        ("RUN --what report -o page.png", "use a name that ends in .html"),
    ],
)
def test_a_page_is_of_one_run_and_has_no_look(
    trained: Path, console: Command, line: str, message: str
) -> None:
    refused(console("plot-training", *words_of(line, {"RUN": trained})), message)
    assert not list(Path().iterdir())


def test_a_page_that_cannot_be_drawn_is_told(
    corpus: Path, run: Path, console: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no ink")

    monkeypatch.setattr(train, "save_report", fail)
    done = succeeded(console("train", corpus / "tiny.yaml", "--run", run, *RESUMED))
    assert "the report on this run could not be written: no ink" in done.err
