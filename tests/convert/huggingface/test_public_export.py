"""A fine-tuned public model is exported for `transformers` and CTranslate2, and writes the same texts there."""

import shutil
from pathlib import Path

import pytest
import torch
from commands import Command, refused, succeeded, write_lines
from public import TEXTS

from nmtkit import Translator
from nmtkit.convert.exporting import export_run
from nmtkit.convert.importing import import_run
from nmtkit.runs.saved import SavedRun

pytest.importorskip("transformers")
import transformers
from test_bert import bert
from test_gpt2 import gpt2
from test_multilingual import LANGUAGES, SOURCES, TARGETS, public, trained, write_recipe
from test_seq2seq import made

CONVERTED = ["bart", "mbart", "nllb", "m2m100", "t5", "t5 v1.1"]
"""Families that CTranslate2 converts; the small tokenizer of mBART-50 here has <unk> twice, which it refuses."""
PAIRS = ["bart", "pegasus", "mbart", "mbart50", "nllb", "m2m100", "t5", "t5 v1.1"]
LINES = [" ".join(text.split()[: 2 + number % 9]) for number, text in enumerate(TEXTS[:24])]
BEAMS = [1, 4]


def tuned(kind: str, folder: Path) -> SavedRun:
    """A public model with random weights, fine-tuned on a few pairs."""
    write_lines(folder / "src", SOURCES)
    write_lines(folder / "tgt", TARGETS)
    corpora = {"src": "src", "tgt": "tgt"}
    if kind == "gpt2":
        gpt2(folder / "theirs")
        corpora = {"tgt": "tgt"}
    else:
        public(kind, folder / "theirs", scale=1.0)
    if kind in LANGUAGES:
        corpora |= dict(zip(("src_lang", "tgt_lang"), LANGUAGES[kind], strict=False))
    import_run(folder / "theirs", str(folder / "imported"))
    path = write_recipe(folder / "tuned.yaml", folder / "imported", corpora, updates=2)
    run, losses = trained(path, folder / "tuned")
    assert losses[1] < losses[0]
    return run


def ours(folder: Path, beam_size: int, **settings: object) -> list[str]:
    search = {"beam_size": beam_size, **settings}
    return Translator.load(folder, device="cpu", search_settings=search).translate(LINES)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_tuned_model_writes_the_same_in_transformers(kind: str, tmp_path: Path) -> None:
    run = tuned(kind, tmp_path)
    export_run(run, "huggingface", tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported")
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    expected = {beam: ours(run.folder.path, beam) for beam in BEAMS}
    assert len({*expected[4]}) > 9
    for beam in BEAMS:
        written = model.generate(**batch, num_beams=beam)
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        # transformers shows rows without a token, which M2M100 has, as <unk>.
        pairs = [(text, own) for text, own in zip(texts, expected[beam], strict=True) if "<unk>" not in text]
        assert len(pairs) >= 20
        assert [text.split() for text, _ in pairs] == [own.split() for _, own in pairs]
    # What was exported can be imported again, with its languages.
    import_run(tmp_path / "exported", str(tmp_path / "again"))
    assert ours(tmp_path / "again", 1) == expected[1]


@pytest.mark.parametrize("kind", CONVERTED)
def test_a_tuned_model_writes_the_same_in_ctranslate2(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = tuned(kind, tmp_path)
    export_run(run, "ctranslate2", tmp_path / "exported")
    found, expected = ctranslate2_texts(tmp_path / "exported", kind, 1), ours(run.folder.path, 1)
    assert [text.split() for text in found] == [text.split() for text in expected]
    # It ends a beam by another rule; scores of single precision let a few beams of random weights differ.
    pairs = zip(
        ctranslate2_texts(tmp_path / "exported", kind, 4), ours(run.folder.path, 4, stop="first_k"), strict=True
    )
    assert sum(text.split() == own.split() for text, own in pairs) >= 16


def ctranslate2_texts(folder: Path, kind: str, beam: int) -> list[str]:
    ctranslate2 = pytest.importorskip("ctranslate2")
    translator = ctranslate2.Translator(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = [tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids) for line in LINES]
    prefix = None
    if kind in LANGUAGES or kind == "bart":
        prefix = [[LANGUAGES[kind][1] if kind in LANGUAGES else "<s>"]] * len(LINES)
    results = translator.translate_batch(
        tokens,
        target_prefix=prefix,
        beam_size=beam,
        max_decoding_length=20,
        max_input_length=0,
        suppress_sequences=[["<pad>"]],
    )
    ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def test_a_tuned_gpt2_writes_the_same_in_transformers(tmp_path: Path) -> None:
    run = tuned("gpt2", tmp_path)
    export_run(run, "huggingface", tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    for beam in BEAMS:
        texts = []
        for line in LINES:
            ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(line).input_ids]])
            how = {"attention_mask": torch.ones_like(ids), "pad_token_id": tokenizer.eos_token_id, "num_beams": beam}
            texts.append(tokenizer.decode(model.generate(ids, **how)[0], skip_special_tokens=True))
        assert texts == ours(run.folder.path, beam)


def test_what_cannot_be_exported_is_refused(tmp_path: Path, console: Command) -> None:
    bert(tmp_path / "bert", "BertForMaskedLM")
    succeeded(console("import", "bert", "-o", "runs/bert"))
    refused(console("export", "runs/bert", "out", "--to", "huggingface"), "type bert cannot be exported", "safetensors")
    made("t5", tmp_path / "t5")
    succeeded(console("import", "t5", "-o", "runs/t5"))
    # A run without settings of its own can be exported by way of safetensors, which keeps the files.
    succeeded(console("export", "runs/t5", "copy", "--to", "safetensors"))
    succeeded(console("export", "copy", "again", "--to", "huggingface"))
    shutil.rmtree(tmp_path / "runs/t5/public")
    refused(console("export", "runs/t5", "out", "--to", "huggingface"), "import the public model again")
