"""Prints what is computed from text without a model, for comparison between processes with other hash seeds."""

import json
import random
import tempfile
from pathlib import Path

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.config import joined_corpora
from nmtkit.data.text.splitting import choose_hold_out
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.metrics import METRICS, Options, Resampling, Texts, score_all
from nmtkit.metrics.systems import score_texts
from tests.support.commands import sentence_pairs
from tests.support.learned_tokenizers import learn_tokenizers

NEEDS_A_MODEL = {"comet", "bertscore"}
KINDS = {"bpe": 60, "unigram": 64, "char": 60, "wordpiece": 60, "word": 30, "whitespace": 30}


def main() -> None:
    draw = random.Random(1)
    pairs = sentence_pairs(200, seed=1)
    examples = [Example(src, tgt, number) for number, (src, tgt) in enumerate(pairs, start=1)]
    words = [f"w{number}" for number in range(30)]
    hypotheses, *references = (
        [" ".join(draw.choices(words, k=12)) for _ in range(40)] for _ in range(3)
    )
    results: dict[str, object] = {}
    for name in METRICS:
        if name in NEEDS_A_MODEL:
            continue
        try:
            (score,) = score_all(hypotheses, references, [name])
            results[f"metric {name}"] = score.value.hex()
        except NmtkitError as fault:
            results[f"metric {name}"] = str(fault)
    texts = [Texts(hypotheses, references), Texts(references[0], references)]
    for kind in ("bs", "ar"):
        results[f"resampling {kind}"] = repr(
            score_texts(texts, ["bleu", "cider"], Options(), Resampling(kind, 50))
        )
    train: list[Example] = []
    results["hold out"] = repr(choose_hold_out(examples, with_test=True, train=train.append))
    results["train"] = [pair.line for pair in train]
    for kind, size in KINDS.items():
        config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": size, "sampling": 0})
        with tempfile.TemporaryDirectory() as folder:
            learn_tokenizers(config, examples).save(Path(folder))
            contents = {
                path.name: path.read_bytes().hex() for path in sorted(Path(folder).iterdir())
            }
        results[f"tokenizer {kind}"] = contents
    for kind, size in (("bpe", 60), ("unigram", 64)):
        config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": size, "sampling": 0.3})
        tokenizer = learn_tokenizers(config, examples).src
        results[f"sampled {kind}"] = tokenizer.encode_many([pair.src for pair in examples], seed=7)
    corpora = [
        {"src": "a", "tgt": "b", "alignment": "c"},
        {"src": "d", "tgt": "e", "alignment": "f"},
    ]
    results["corpora"] = repr(joined_corpora(corpora))
    try:
        TokenizerConfig.model_validate(
            {"joint": False, "columns": {"src": {"tgt_vocab_size": 9, "joint": True}}}
        )
    except NmtkitError as fault:
        results["faults"] = str(fault)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
