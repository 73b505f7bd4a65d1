"""Recurrent models that OpenNMT-py built, trained and saved translate here as they do there.

OpenNMT-py 3.5 asks for an older PyTorch, but runs with a new one. It needs an environment of its own, here `theirs`.
All else comes from `.venv`:

    python3.11 -m venv theirs
    realpath .venv/lib/python3.11/site-packages > theirs/lib/python3.11/site-packages/ours.pth
    theirs/bin/pip install --no-deps OpenNMT-py==3.5.1 configargparse pyonmttok pyahocorasick rapidfuzz
    touch theirs/lib/python3.11/site-packages/{spacy,fasttext}.py
    PYTHONPATH=. theirs/bin/python -m pytest tests/convert/test_opennmt_itself.py

`onmt_translate` 3.5.1 fails with every model that copies: it cannot read the generator that was saved, and its batches
lack the source's own words. So the model is taken as it was built, and functions of OpenNMT-py make the batches.
A batch is one sentence: in a larger one its second attention sees padding, and words of other sentences are copied.
Both vocabularies have one size: it subtracts the source's where it looks up a copied word, and not the target's.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.convert.importing import import_run
from nmtkit.inference.translator import Translator
from tests.convert.external_toolkits import words_of
from tests.support.random_runs import SOURCES, TARGETS, opened, raw

pytest.importorskip(
    "onmt", reason="OpenNMT-py is not installed; the head of this file says how it can be"
)

ONE = "-decoder_type rnn -layers 1 -encoder_type"
TWO = "-decoder_type rnn -layers 2 -encoder_type"
SUMMARIZER = f"{ONE} brnn -bridge -global_attention mlp -copy_attn"
SHARED = "-share_vocab -share_embeddings -share_decoder_embeddings"
KINDS = {
    "a summarizer": f"{SUMMARIZER} -reuse_copy_attn",
    "a summarizer, own copy attention": SUMMARIZER,
    "a summarizer, gru": f"{SUMMARIZER} -reuse_copy_attn -rnn_type GRU",
    "a summarizer, shared words": f"{SUMMARIZER} -reuse_copy_attn {SHARED}",
    "copying, two layers": f"{TWO} brnn -global_attention mlp -copy_attn",
    "copying by general attention, one direction": f"{ONE} rnn -bridge -global_attention general -copy_attn",
    "copying by dot attention, gru": f"{ONE} rnn -rnn_type GRU -global_attention dot -copy_attn -reuse_copy_attn",
    "bridge, mlp": f"{ONE} brnn -bridge -global_attention mlp",
    "two layers, general": f"{TWO} brnn -global_attention general",
    "two layers, dot, gru, one direction": f"{TWO} rnn -rnn_type GRU -global_attention dot",
    "two layers, general, not fed": f"{TWO} brnn -global_attention general -input_feed 0",
    "mlp, gru, not fed": f"{ONE} brnn -rnn_type GRU -global_attention mlp -input_feed 0",
}
SEARCHES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "greedy": ("-beam_size 1 -length_penalty none", 1, {"beam_size": 1, "length_penalty": "none"}),
    "beam": ("-beam_size 5 -n_best 5 -length_penalty none", 5, {"length_penalty": "none"}),
    "by default": ("", 1, {}),
}
"""Options there, how many of the best, and settings here; by default a beam of 5 and a length penalty."""
UPDATES = 120
LINES = [*(f"Zoe {line} Zoe" for line in SOURCES[60:64]), *SOURCES[64:76], "Zoe", "Ida Zoe Ida"]


class Theirs:
    """A model that is built, trained on some sentences and saved by OpenNMT-py; no vocabulary has a name.

    It translates in float64. In float32 a small 1 - p is inexact: p_copy is p there, and p_gen here.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        sides = words_of([])
        for name, words in zip(("src", "tgt"), sides, strict=True):
            (folder / name).write_text(
                "".join(f"{word}\n" for word in words[: min(map(len, sides))]), encoding="utf-8"
            )
        parser = import_module("onmt.bin.train")._get_parser()
        self.options, _ = parser.parse_known_args(
            f"-data {{}} -src_vocab {folder}/src -tgt_vocab {folder}/tgt -save_model {folder}/model -word_vec_size 24 "
            f"-hidden_size 24 -dropout 0.1 -optim adam -learning_rate 0.01 {kind}".split()
        )
        parser.update_model_opts(self.options)
        parser.validate_model_opts(self.options)
        self.options.data_task = self.options.model_task
        self.words = import_module("onmt.inputters.inputter").build_vocab(
            self.options, {"src": [], "tgt": []}
        )
        assert len(self.words["src"]) == len(self.words["tgt"])
        torch.manual_seed(3)
        build = import_module("onmt.model_builder").build_model
        self.model = build(self.options, self.options, self.words, None, -1)
        self.checkpoint = folder / f"model_step_{UPDATES}.pt"
        self.train()

    def train(self) -> None:
        loss = import_module("onmt.utils.loss").LossCompute.from_opts(
            self.options, self.model, self.words["tgt"]
        )
        optimizer = import_module("onmt.utils.optimizers").Optimizer.from_opt(
            self.model, self.options
        )
        for number in range(UPDATES):
            pair = [f"Ida {side[number % 60]}" for side in (SOURCES, TARGETS)]
            batch = self.batch(*pair)
            states, attention = self.model(batch["src"], batch["tgt"], batch["srclen"])
            optimizer.zero_grad()
            optimizer.backward(loss(batch, states, attention)[0].sum())
            optimizer.step()
        self.model.eval()
        generator = self.model.generator
        # a search here never writes padding or a start, which take places of its beam
        with torch.no_grad():
            (generator.linear if self.options.copy_attn else generator).bias[1:3] = -50.0
        save = import_module("onmt.models").build_model_saver
        save(self.options, self.options, self.model, self.words, optimizer, -1).save(UPDATES)
        self.model.double()

    def batch(self, source: str, target: str | None = None) -> Any:
        """A batch of one sentence, as its functions make it."""
        texts = import_module("onmt.inputters.text_utils")
        example = {
            "src": {"src": source},
            "tgt": target and {"tgt": target},
            "cid": "",
            "cid_line_number": 0,
        }
        example = texts.numericalize(self.words, example)
        if self.options.copy_attn:
            example = texts._addcopykeys(self.words, example)
        return texts.tensorify(self.words, [(example, 0)], torch.device("cpu"))

    def translate(self, search: str, n_best: int) -> list[list[tuple[str, float]]]:
        """Texts and scores of each line, the best first."""
        library = import_module("onmt.translate")
        options = (
            import_module("onmt.bin.translate")
            ._get_parser()
            .parse_args(f"-model 0 -src 0 {search}".split())
        )
        scorer = library.GNMTGlobalScorer.from_opt(options)
        translator = library.Translator.from_opt(
            self.model, self.words, options, self.options, scorer
        )
        builder, found = library.TranslationBuilder(self.words, n_best), []
        for line in LINES:
            [one] = builder.from_batch(translator.translate_batch(self.batch(line), False))
            texts = [" ".join(tokens) for tokens in one.pred_sents]
            found.append(list(zip(texts, map(float, one.pred_scores), strict=True)))
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_opennmt_py_translates_as_it_did_there(kind: str, tmp_path: Path) -> None:
    theirs = Theirs(tmp_path / "theirs", KINDS[kind])
    import_run(theirs.checkpoint, str(tmp_path / "run"), toolkit="opennmt-py")
    ours, exact = opened(tmp_path / "run"), raw(tmp_path / "run").double().eval()
    written: set[str] = set()
    for options, n_best, settings in SEARCHES.values():
        translator = Translator(exact, ours.tokenizers, ours.config.changed(settings))
        torch.set_default_dtype(torch.float64)  # as the model there is
        try:
            expected = theirs.translate(options, n_best)
        finally:
            torch.set_default_dtype(torch.float32)
        for wanted, found in zip(expected, translator.search(LINES, n_best), strict=True):
            assert [one.text for one in found] == [text for text, _ in wanted]
            assert [one.score for one in found] == pytest.approx(
                [score for _, score in wanted], abs=1e-9
            )
            written |= {word for one in found for word in one.text.split()}
    assert len(written) > 5
    assert ("Zoe" in written) == theirs.options.copy_attn
