"""Encoder, decoder and embeddings that begin as those of other runs, by name, shape and token."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmtkit import Translator
from nmtkit.config import load as load_recipe
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary
from nmtkit.experiment.presets.fine_tuning import score_before
from nmtkit.experiment.stages import train_stages
from nmtkit.models.base import MODELS, VocabularySizes
from nmtkit.runs.origin import copy_part, read_origin
from nmtkit.runs.run import Run
from nmtkit.training.checkpoints.weights import read_weights
from tests.support.begun_runs import begin_run
from tests.support.cases import daily
from tests.support.commands import sentence_pairs, write_lines

CPU = torch.device("cpu")
SIZES = "hidden_size: 8, feed_forward_size: 12, heads: 2, norm: post, activation: gelu"
TRAINING = "{lr: 0.001, max_updates: 2, best_metric: loss"
ONE_TEXT = """\
task: language-modelling
data: {train: {tgt: mono.txt}, valid: {tgt: mono.txt}}
tokenizer: {kind: word, vocab_size: 90, specials: [<mask>]}
"""
BERT = (
    ONE_TEXT + f"model: {{kind: bert, layers: 2, max_positions: 16, {SIZES}}}\n"
    f"training: {TRAINING}, objectives: {{masked_words: {{}}}}}}\n"
)
ELMO = (
    ONE_TEXT
    + f"model: {{kind: elmo, hidden_size: 6}}\ntraining: {TRAINING}, objectives: {{both_directions: {{}}}}}}\n"
)
GPT = (
    ONE_TEXT
    + f"model: {{kind: transformer_lm, layers: 2, max_positions: 16, {SIZES}}}\ntraining: {TRAINING}}}\n"
)
PAIRS = f"""\
data: {{train: &own {{src: own.src, tgt: own.tgt}}, valid: *own, test: *own}}
model: {{kind: transformer, layers: 2, positions: learned, max_positions: 20, scale_embeddings: false, {SIZES}}}
training: {TRAINING}}}
search: {{max_length: 10}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `bert`, `elmo` and `gpt`, trained on one text, and pairs."""
    folder = tmp_path_factory.mktemp("parts")
    pairs = sentence_pairs(40, 1)
    write_lines(folder / "mono.txt", [text for pair in pairs[:20] for text in pair])
    write_lines(folder / "own.src", [source for source, _ in pairs])
    write_lines(folder / "own.tgt", [f"{target} new" for _, target in pairs])
    for name, text in (("bert", BERT), ("elmo", ELMO), ("gpt", GPT)):
        (folder / f"{name}.yaml").write_text(text)
        trained(folder, name)
    return folder


def trained(folder: Path, name: str, *changes: str) -> tuple[Run, list[str]]:
    notes: list[str] = []
    run = begin_run(load_recipe(folder / f"{name}.yaml", changes), str(folder / name))
    list(train_stages(run, CPU, notes.append))
    run.close()
    return run, notes


def begun(
    folder: Path, given: str, tokenizer: str = ""
) -> tuple[Run, dict[str, Tensor], list[str]]:
    """A training that begins from parts, its first weights and what it said."""
    (folder / "own.yaml").write_text(PAIRS + f"init_from: {given}\n{tokenizer}")
    shutil.rmtree(folder / "own", ignore_errors=True)
    run, notes = trained(folder, "own", "training.lr=1e-30", "training.max_updates=1")
    # So small a rate moves only what is zero, which a processor's rounding may give a gradient.
    weights = read_weights(run.weights("last"))
    return (
        run,
        {name: one.masked_fill(one.abs() < 1e-25, 0.0) for name, one in weights.items()},
        notes,
    )


def weights_of(folder: Path, run: str) -> dict[str, Tensor]:
    return read_weights(Run.open(str(folder / run)).weights())


def test_bert_gives_the_encoder_and_its_tokenizer(runs: Path) -> None:
    run, now, notes = begun(runs, "{encoder: bert}")
    bert = weights_of(runs, "bert")
    assert {name for name in bert if name.startswith("encoder.")} < now.keys()
    for name in now:
        if name.startswith("encoder."):
            assert torch.equal(now[name], bert[name]), name
    tokenizers = run.load_tokenizers()
    assert tokenizers.shared
    assert (
        tokenizers.src.vocabulary == Run.open(str(runs / "bert")).load_tokenizers().tgt.vocabulary
    )
    assert torch.equal(now["src_embedding.weight"], bert["src_embedding.weight"])
    first_segment = bert["src_positions.table"] + bert["segment_embedding.weight"][0]
    assert torch.equal(now["src_positions.table"][:16], first_segment)
    said = next(note for note in notes if note.startswith("encoder from "))
    assert "taken: src_embedding.weight, src_positions.table, encoder.N.self_attention" in said
    assert "grown: src_positions.table: 4 of 20" in said
    assert "not used: segment_embedding" not in said
    assert json.loads(run.folder.origin.read_text())["parts"]["encoder"]["taken"] in said


def test_gpt_gives_a_decoder_whose_attention_to_the_source_is_new(runs: Path) -> None:
    _, now, notes = begun(runs, "{decoder: gpt, src_embedding: bert}")
    gpt, bert = weights_of(runs, "gpt"), weights_of(runs, "bert")
    of_decoder = [name for name in now if name.startswith("decoder.") and "cross" not in name]
    assert len(of_decoder) == len([name for name in gpt if name.startswith("decoder.")])
    assert all(torch.equal(now[name], gpt[name]) for name in (*of_decoder, "tgt_embedding.weight"))
    assert torch.equal(now["src_embedding.weight"], bert["src_embedding.weight"])
    assert any(
        "still random: decoder.N.cross_attention, decoder.N.around_cross_attention" in note
        for note in notes
    )


def test_bert2bert(runs: Path) -> None:
    """Rothe et al. 2020: the encoder's weights are the decoder's as well."""
    _, now, _ = begun(runs, "{encoder: bert, decoder: bert}")
    bert = weights_of(runs, "bert")
    for name in (name for name in bert if name.startswith("encoder.")):
        assert torch.equal(now[name], bert[name])
        assert torch.equal(now[name.replace("encoder.", "decoder.")], bert[name])
    assert torch.equal(now["tgt_embedding.weight"], bert["src_embedding.weight"])


def test_rows_of_embeddings_are_taken_by_token(runs: Path) -> None:
    run, now, notes = begun(
        runs, "{src_embedding: bert}", "tokenizer: {kind: word, vocab_size: 70, joint: false}"
    )
    own = run.load_tokenizers().src.vocabulary.tokens
    before = Run.open(str(runs / "bert")).load_tokenizers().tgt.vocabulary.tokens
    both, old = (
        [token for token in own if token in before],
        weights_of(runs, "bert")["src_embedding.weight"],
    )
    assert own[4:] != before[4 : len(own)]
    assert len(both) > 10
    for token in both:
        assert torch.equal(now["src_embedding.weight"][own.index(token)], old[before.index(token)])
    run, now, notes = begun(
        runs, "{tgt_embedding: gpt}", "tokenizer: {kind: word, vocab_size: 70, joint: false}"
    )
    new = [token for token in run.load_tokenizers().tgt.vocabulary.tokens if token not in before]
    assert "▁new" in new
    assert any(f"grown: tgt_embedding.weight: {len(new)} of" in note for note in notes)


@pytest.mark.parametrize("kind", ["intra_attention", "luong"])
def test_biases_of_output_words_are_taken_by_token(kind: str) -> None:
    config, models = TokenizerConfig(kind="whitespace"), list[Any]()
    both = [Vocabulary([*SPECIALS, *words]) for words in (["a", "b", "c"], ["d", "c", "a"])]
    for vocabulary in both:
        sizes = VocabularySizes({"src": len(vocabulary), "tgt": len(vocabulary)})
        models.append(MODELS.get(kind)(MODELS.get(kind).Config(kind=kind, tie="none"), sizes))
    now, before = (one.output.bias if kind == "luong" else one.output_bias for one in models)
    torch.nn.init.normal_(before)
    tokenizers = [Tokenizers(config, {"tgt": WordTokenizer(config, one)}) for one in both]
    copy_part(models[0], "decoder", models[1], tokenizers=(tokenizers[0], tokenizers[1]))
    assert torch.equal(now[both[0].ids(["a", "c"])], before[both[1].ids(["a", "c"])])


@pytest.mark.parametrize("kind", daily(["transformer", "luong"]))
def test_source_words_in_context(runs: Path, tmp_path: Path, kind: str) -> None:
    """The language models of an elmo run stay as they are, what weights them is trained; resumed exactly, and used."""
    folder, elmo = Path(shutil.copytree(runs, tmp_path / "parts")), weights_of(runs, "elmo")
    text = (
        PAIRS
        if kind == "transformer"
        else PAIRS.replace(PAIRS.splitlines()[1], "model: {kind: luong}")
    )
    (folder / "own.yaml").write_text(text + "init_from: {src_embedding: elmo}\n")
    changes = [
        "model.src_embedding={kind: elmo, hidden_size: 6, dropout: 0.2}",
        "training.max_updates=4",
        "training.save_every=2",
    ]
    shutil.rmtree(folder / "own", ignore_errors=True)
    whole, notes = trained(folder, "own", *changes)
    assert any(
        "taken: src_embedding.context.words" in note and "still random" in note for note in notes
    )
    now = read_weights(whole.weights("last"))
    assert {name for name in elmo if "context" in name} == {
        name for name in now if "context" in name
    }
    assert all(torch.equal(now[name], elmo[name]) for name in elmo if "context" in name)
    assert bool(now["src_embedding.s"].all())
    shutil.rmtree(folder / "own")
    trained(folder, "own", *changes, "training.max_updates=2")
    (folder / "elmo").rename(tmp_path / "elmo")
    run = begin_run(
        load_recipe(folder / "own" / "recipe.yaml", ["training.max_updates=4"]),
        str(folder / "own"),
        resume=True,
    )
    list(train_stages(run, CPU, resume=True))
    run.close()
    again = read_weights(run.weights("last"))
    assert all(torch.equal(again[name], one) for name, one in now.items())
    translations = [
        *Translator.load(str(folder / "own"), "cpu").translate(
            (folder / "own.src").read_text().splitlines()
        )
    ]
    assert len(translations) == 40


def test_the_runs_may_go_once_training_has_begun(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs, tmp_path / "parts"))
    run, now, _ = begun(folder, "{encoder: bert, decoder: gpt}")
    loaded = load_recipe(run.folder.recipe, ["training.max_updates=2"])
    for name in ("bert", "gpt"):
        (folder / name).rename(tmp_path / name)
    run = begin_run(loaded, str(folder / "own"), resume=True)
    list(train_stages(run, CPU, resume=True))
    run.close()
    assert read_weights(run.weights("last")).keys() == now.keys()


@pytest.mark.parametrize(
    ("given", "change", "said"),
    [
        (
            "{encoder: bert}",
            "model.hidden_size=6",
            "has shape [18, 6], but [24, 8] in that run\n.*`model.hidden_size` is 6, but 8",
        ),
        (
            "{encoder: bert}",
            "model={kind: luong, hidden_size: 8}",
            "src_embedding.weight has shape .*`model.layers` is 1, but 2",
        ),
        (
            "{run: bert, encoder: gpt}",
            "seed=1",
            r"set either `run` \(the whole model\) or one or more of encoder, decoder",
        ),
        (
            "{encoder: bert, tokenizer: gpt}",
            "tokenizer={kind: char}",
            "require the tokenizer of that run; remove `tokenizer` from the recipe",
        ),
        ("{encoder: best}", "tokenizer={kind: char}", "best: there is no such run"),
        (
            "{src_embedding: elmo}",
            "model.src_embedding={kind: elmo}",
            "has shape .*, 256], but .*6] in that run\n.*`model.src_embedding.hidden_size` is 256, but 6",
        ),
        (
            "{src_embedding: elmo}",
            "model.src_embedding={kind: elmo, hidden_size: 6, layers: 3}",
            "context.layers.2.0.* is frozen",
        ),
        (
            "{src_embedding: bert}",
            "model.src_embedding={kind: elmo}",
            "context.words.weight is frozen and must come from that run, which does not have it",
        ),
        (
            "{encoder: bert}",
            "model.elmo={}",
            "`model.src_embedding`: elmo needs the weights of another run; set `init_from.src_embedding`",
        ),
        ("{encoder: elmo}", "seed=1", "the elmo in that run has no "),
        (
            "{encoder: best}",
            "seed=1",
            "'best' is not the folder of a run, and the recipe itself has no tokenizer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_begun(
    runs: Path, given: str, change: str, said: str
) -> None:
    (runs / "wrong.yaml").write_text(PAIRS + f"init_from: {given}\n")
    with pytest.raises(Exception, match="(?s)" + said.replace("[", r"\[")) as refused:
        begin_run(load_recipe(runs / "wrong.yaml", [change]), str(runs / "wrong"))
    assert type(refused.value).__name__ in ("RecipeError", "CheckpointError")
    assert not (runs / "wrong").exists()


def test_a_run_of_another_task_is_not_scored_before(runs: Path) -> None:
    """Its texts are one, so that it has nothing to say of pairs."""
    whole = PAIRS.partition("model:")[2].replace("model:", "")
    (runs / "denoised.yaml").write_text(
        ONE_TEXT
        + "model:"
        + whole.replace(TRAINING, TRAINING + ", objectives: {denoising: {}}").partition("search:")[
            0
        ]
    )
    trained(runs, "denoised")
    run, _, _ = begun(runs, "denoised\ntask: translation", "")
    saved = Run(run.folder)
    assert (saved.recipe.task, read_origin(run.folder).run) == (
        "translation",
        str(runs / "denoised"),
    )
    score_before(saved, CPU)
    assert read_origin(run.folder).before == {}
