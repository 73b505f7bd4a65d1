"""A fine-tuned public model is exported for `transformers` and CTranslate2, and writes the same texts there."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit import Translator
from nmtkit.convert.engines import ctranslate2_options
from nmtkit.convert.exporting import export_run
from nmtkit.convert.importing import import_run
from nmtkit.data.tokenizers.huggingface_tokenizer import HuggingFaceTokenizer
from nmtkit.decoding import beam_search as search_steps
from nmtkit.decoding.candidates import Candidates, best_candidates
from nmtkit.decoding.rules import LiveHypotheses, Rule, apply_rules
from nmtkit.runs.run import Run
from tests.convert.huggingface.public import TEXTS
from tests.support.cases import daily
from tests.support.commands import Command, refused, succeeded, write_lines

pytest.importorskip("transformers")
import transformers

from tests.convert.huggingface.fine_tuning import LANGUAGES, SOURCES, TARGETS, trained, write_recipe
from tests.convert.huggingface.random_models import bert, gpt2, made, public

PAIRS = ["bart", "pegasus", "nllb", "t5 v1.1", "mbart", "m2m100", "t5", "mbart50"]
QUICK_FIRST = daily(PAIRS, 4)
"""The others combine parts of these: m2m100 and mbart50 get their languages as nllb does, t5 has a plain layer."""
LINES = [" ".join(text.split()[: 2 + number % 9]) for number, text in enumerate(TEXTS[:12])]
BEAMS = [1, 4]
ROUNDING = 3e-5
"""Sums of log-probabilities near -40 in single precision differ by less between two libraries."""


def tuned(kind: str, folder: Path, updates: int = 2, **training: Any) -> Run:
    """A public model with random weights, fine-tuned on a few pairs."""
    write_lines(folder / "src", SOURCES)
    write_lines(folder / "tgt", TARGETS)
    corpora = {"src": "src", "tgt": "tgt"}
    if kind == "gpt2":
        gpt2(folder / "theirs")
        corpora = {"tgt": "tgt"}
    else:
        public(kind, folder / "theirs", scale=1.0)
    if kind == "t5":
        path = folder / "theirs" / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(config | {"layer_norm_epsilon": 0.01}), encoding="utf-8")
    if kind in LANGUAGES:
        corpora |= dict(zip(("src_lang", "tgt_lang"), LANGUAGES[kind], strict=False))
    import_run(folder / "theirs", str(folder / "imported"))
    path = write_recipe(folder / "tuned.yaml", folder / "imported", corpora, updates, **training)
    run, losses = trained(path, folder / "tuned")
    assert losses[1] < losses[0]
    return run


def ours(folder: Path, beam_size: int, **settings: object) -> list[str]:
    search = {"beam_size": beam_size, **settings}
    return Translator.load(folder, device="cpu", search_settings=search).translate(LINES)


@pytest.mark.parametrize("kind", QUICK_FIRST)
def test_a_tuned_model_writes_the_same_in_transformers(kind: str, tmp_path: Path) -> None:
    run = tuned(kind, tmp_path)
    export_run(run, "huggingface", tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported")
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    expected = {beam: ours(run.folder.path, beam) for beam in BEAMS}
    assert len({*expected[4]}) > 6
    for beam in BEAMS:
        written = model.generate(**batch, num_beams=beam)
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        # transformers shows rows without a token, which M2M100 has, as <unk>.
        pairs = [
            (text, own)
            for text, own in zip(texts, expected[beam], strict=True)
            if "<unk>" not in text
        ]
        assert len(pairs) >= 10
        assert [text.split() for text, _ in pairs] == [own.split() for _, own in pairs]
    # What was exported can be imported again, with its languages.
    import_run(tmp_path / "exported", str(tmp_path / "again"))
    assert ours(tmp_path / "again", 1) == expected[1]


@pytest.mark.parametrize("kind", QUICK_FIRST)
def test_a_tuned_model_writes_the_same_in_ctranslate2(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    # At the higher rate these two write nearly the same text for every line.
    lr = 0.002 if kind in ("bart", "mbart") else 0.004
    run = tuned(kind, tmp_path, updates=20, optimizer="adam", lr=lr)
    folder = tmp_path / "exported"
    export_run(run, "ctranslate2", folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    names = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    assert len({*names}) == len(names)

    # Forbidden tokens do not change which token is the best, so a greedy search writes the same texts.
    greedy = Translator.load(
        run.folder.path, device="cpu", engine="nmtkit", search_settings={"beam_size": 1}
    )
    found = by_ctranslate2(folder, tokenizer, greedy)
    assert [decoded(tokenizer, result.hypotheses[0]) for result in found] == [
        text.split() for text in greedy.translate(LINES)
    ]
    for line in LINES[:3]:
        assert printed_by_card(folder, line, capsys).split() == greedy.translate(line).split()

    monkeypatch.setattr(search_steps, "apply_rules", with_renormalized_rules(apply_rules))
    prefix = first_tokens(greedy)
    all_texts, finished = [], []
    for least in (0, len(prefix) + 1):
        settings = {"beam_size": 4, "stop": "first_k", "min_length": least}
        beam = Translator.load(
            run.folder.path, device="cpu", engine="nmtkit", search_settings=settings
        )
        searched = beam.search(LINES, n_best=4)
        for line, result, ours in zip(
            LINES, by_ctranslate2(folder, tokenizer, beam), searched, strict=True
        ):
            all_texts += [one.text for one in ours]
            finished += [one.finished for one in ours]
            if least == 0 and prefix and any(one.finished and one.tokens == prefix for one in ours):
                # CTranslate2 lets a text end with its prefix only if that is the best continuation
                continue
            texts = [decoded(tokenizer, tokens) for tokens in result.hypotheses]
            if texts == [one.text.split() for one in ours]:
                assert result.scores == pytest.approx([one.score for one in ours], abs=1e-4)
            else:
                assert smallest_gap(beam, line, monkeypatch) < ROUNDING
    assert len({*all_texts}) > 20
    assert {*finished} == {True, False}


@pytest.mark.parametrize("kind", ["nllb", "m2m100", "mbart", "mbart50"])
def test_the_card_of_a_multilingual_model_shows_how_to_choose_the_language(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    source, french, german = LANGUAGES[kind]
    public(kind, tmp_path / "theirs", scale=1.0)
    leave_target_open(kind, tmp_path / "theirs")
    run = Run(import_run(tmp_path / "theirs", str(tmp_path / "imported")))
    folder = tmp_path / "exported"
    export_run(run, "ctranslate2", folder)

    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"    target_prefix=[[{french!r}]],  # the target language\n" in card
    assert f"`{french}` is only an example" in card
    tokens = transformers.AutoTokenizer.from_pretrained(folder).all_special_tokens
    assert {french, german} <= {*tokens}
    line = LINES[3]
    for target, changes in ((french, {}), (german, {"target_prefix": [[german]]})):
        ours = Translator.load(
            run.folder.path, device="cpu", engine="nmtkit", source_language=source, to=target
        )
        assert (
            printed_by_card(folder, line, capsys, **changes).split() == ours.translate(line).split()
        )


def leave_target_open(kind: str, folder: Path) -> None:
    """Removes the language to write from the folder of a public model."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings.pop("tgt_lang", None)
        settings.pop("forced_bos_token_id", None)
        if kind == "mbart":  # BOS is the language
            settings.pop("decoder_start_token_id", None)
        path.write_text(json.dumps(settings), encoding="utf-8")


def with_renormalized_rules(
    apply_rules: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """CTranslate2 gives the probability of forbidden tokens, which is padding here, to the others."""

    def renormalized(
        rules: Sequence[Rule], log_probs: torch.Tensor, live: LiveHypotheses
    ) -> torch.Tensor:
        return apply_rules(rules, log_probs, live).log_softmax(1)

    return renormalized


def smallest_gap(translator: Translator, line: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """The smallest difference between two scores that a search compares, which rounding may reverse."""
    gaps = []

    def noting_gaps(
        log_probs: torch.Tensor,
        scores: torch.Tensor,
        beam_size: int,
        block_maxima: torch.Tensor | None,
    ) -> Candidates:
        candidates = best_candidates(log_probs, scores, beam_size, block_maxima)
        gaps.append((candidates.scores[:, :-1] - candidates.scores[:, 1:]).min().item())
        return candidates

    with monkeypatch.context() as patch:
        patch.setattr(search_steps, "best_candidates", noting_gaps)
        (found,) = translator.search([line], n_best=translator.config.n_hypotheses)
    ranked = [one.score for one in found]
    return min(*gaps, *(better - worse for better, worse in pairwise(ranked)))


def first_tokens(translator: Translator) -> list[str]:
    tokenizer = translator.tokenizers.tgt
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    return tokenizer.first_tokens()


def by_ctranslate2(folder: Path, tokenizer: Any, ours: Translator) -> list[Any]:
    """The n-best lists that CTranslate2 finds with the settings of a translator."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    target = ours.tokenizers.tgt
    assert isinstance(target, HuggingFaceTokenizer)
    prefix = target.public_names(first_tokens(ours))
    return list(
        ctranslate2.Translator(str(folder)).translate_batch(
            [tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids) for line in LINES],
            target_prefix=[prefix] * len(LINES) if prefix else None,
            suppress_sequences=[["<pad>"]],
            num_hypotheses=ours.config.n_hypotheses,
            return_scores=True,
            **ctranslate2_options(ours.config),
        )
    )


def decoded(tokenizer: Any, tokens: list[str]) -> list[str]:
    text: str = tokenizer.decode(tokenizer.convert_tokens_to_ids(tokens), skip_special_tokens=True)
    return text.split()


def printed_by_card(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str], **changes: object
) -> str:
    """The text that the program of the model card prints, for a text in place of TEXT."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    program = card.split("```python\n")[1].split("```")[0]
    program = program.replace("DIR", str(folder)).replace('"TEXT"', repr(text))
    for key, value in changes.items():
        program, count = re.subn(rf"\b{key}=[^,]+,", f"{key}={value!r},", program)
        assert count == 1
    capsys.readouterr()
    exec(program, {})
    return capsys.readouterr().out


def test_a_tuned_gpt2_writes_the_same_in_transformers(tmp_path: Path) -> None:
    run = tuned("gpt2", tmp_path)
    export_run(run, "huggingface", tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    for beam in BEAMS:
        texts = []
        for line in LINES:
            ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(line).input_ids]])
            how = {
                "attention_mask": torch.ones_like(ids),
                "pad_token_id": tokenizer.eos_token_id,
                "num_beams": beam,
            }
            texts.append(tokenizer.decode(model.generate(ids, **how)[0], skip_special_tokens=True))
        assert texts == ours(run.folder.path, beam)


def test_a_tuned_gpt2_writes_the_same_in_ctranslate2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    run = tuned("gpt2", tmp_path)
    export_run(run, "ctranslate2", tmp_path / "exported")
    for beam in BEAMS:
        expected = ours(run.folder.path, beam, stop="first_k")[:8]
        texts = [
            printed_by_card(tmp_path / "exported", line, capsys, beam_size=beam)
            for line in LINES[:8]
        ]
        assert [text.removesuffix("\n") for text in texts] == expected


def test_what_cannot_be_exported_is_refused(tmp_path: Path, console: Command) -> None:
    bert(tmp_path / "bert", "BertForMaskedLM")
    succeeded(console("import", "bert", "-o", "runs/bert"))
    refused(
        console("export", "runs/bert", "out", "--to", "huggingface"),
        "type bert cannot be exported",
        "safetensors",
    )
    made("t5", tmp_path / "t5")
    succeeded(console("import", "t5", "-o", "runs/t5"))
    # A run without settings of its own can be exported by way of safetensors, which keeps the files.
    succeeded(console("export", "runs/t5", "copy", "--to", "safetensors"))
    succeeded(console("export", "copy", "again", "--to", "huggingface"))
    shutil.rmtree(tmp_path / "runs/t5/public")
    refused(
        console("export", "runs/t5", "out", "--to", "huggingface"), "import the public model again"
    )
