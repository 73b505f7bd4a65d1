"""Tokenizers of public models, learned in the test by the library that made the public ones."""

import json
import random
from pathlib import Path
from typing import Any

from tests.support.commands import sentence_pairs

TEXTS = [f"{src} {tgt}, isn't it? Größe: 3.5 %" for src, tgt in sentence_pairs(150, 9)]


def hostile_strings(count: int, seed: int = 3) -> list[str]:
    """Emoji, combining marks, right-to-left text, odd spaces, what looks like special tokens, and words."""
    draw = random.Random(seed)
    parts = [
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "é",
        "e\u0301",
        "שלום",
        "مرحبا",
        "  ",
        " ",
        "\t",
        "\u00a0",
        "\u200b",
        "\u2028",
        "ﬁ",
        "Å",
    ]
    parts += [
        "</s>",
        "<s>",
        "<|endoftext|>",
        "[MASK]",
        "[SEP]",
        "<unk>",
        "<pad>",
        "<extra_id_0>",
        "##a",
        "▁",
        "Ġ",
    ]
    parts += [
        "don't",
        "ISN'T",
        "3.14",
        "日本語",
        "ไทย",
        "\x00",
        "\x7f",
        "\ufeff",
        "'",
        '"',
        "\\",
        "{",
        "\U0010ffff",
    ]
    words = [*parts, *" ".join(TEXTS[:20]).split()]
    texts = ["", " ", "  a", "a  ", *parts]
    while len(texts) < count:
        texts.append(
            draw.choice(["", " "]).join(draw.choice(words) for _ in range(draw.randint(1, 12)))
        )
    return texts[:count]


def byte_level(folder: Path, **special: str) -> Any:
    """GPT-2's kind of tokenizer in a folder, as `transformers` writes it."""
    import tokenizers
    import transformers

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    names = [*dict.fromkeys(special.values())]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=names, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    given = json.loads(model.to_str())["model"]
    kind = transformers.BartTokenizer if "pad_token" in special else transformers.GPT2Tokenizer
    own = kind(vocab=given["vocab"], merges=[tuple(pair) for pair in given["merges"]], **special)
    own.save_pretrained(folder)
    return own


def word_piece(folder: Path) -> Any:
    """BERT's."""
    import tokenizers
    import transformers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    model.normalizer = tokenizers.normalizers.BertNormalizer()
    model.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=names, show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    own = transformers.BertTokenizer(vocab=json.loads(model.to_str())["model"]["vocab"])
    own.save_pretrained(folder)
    return own


def unigram(folder: Path) -> Any:
    """T5's."""
    import tokenizers
    import transformers

    model = tokenizers.Tokenizer(tokenizers.models.Unigram())
    model.normalizer = tokenizers.normalizers.NFKC()
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    model.train_from_iterator(TEXTS, trainer)
    learned = json.loads(model.to_str())["model"]["vocab"]
    # The library adds scores in an order that differs between processes: rounded and sorted, they are the same.
    pieces = [tuple(special) for special in learned[:3]]
    rounded = [(piece, round(score, 2)) for piece, score in learned[3:]]
    pieces += sorted(rounded, key=lambda pair: (-pair[1], pair[0]))
    own = transformers.T5Tokenizer(
        vocab=[*pieces, *((f"<extra_id_{one}>", 0.0) for one in range(99, -1, -1))]
    )
    own.save_pretrained(folder)
    return own
