"""Public models with random weights and their tokenizers, written to a folder by `transformers`.

A module that imports this one is skipped where `transformers` is missing.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.convert.huggingface.public import TEXTS, byte_level, unigram, word_piece

transformers = pytest.importorskip("transformers")

PIECES = 84


def sentencepiece_model(path: Path, kind: str, **ids: int) -> Any:
    import sentencepiece

    path.parent.mkdir()
    how = {
        "model_type": kind,
        "vocab_size": PIECES,
        "model_prefix": path.with_suffix(""),
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), **how, **ids)
    path.with_suffix(".model").rename(path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def pegasus_files(folder: Path, **settings: Any) -> Any:
    """The files of a published Pegasus, whose special tokens are listed; returns the tokenizer of `transformers`."""
    sentencepiece_model(folder / "spiece.model", "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    listed = ["<mask_1>", *(f"<unk_{number}>" for number in range(2, settings.get("offset", 103)))]
    tokens = {
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask_2>",
    }
    tokens |= {"additional_special_tokens": listed}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens), encoding="utf-8")
    settings = {
        "tokenizer_class": "PegasusTokenizer",
        "model_max_length": 512,
        "mask_token_sent": "<mask_1>",
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens | settings), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "pegasus"}', encoding="utf-8")
    return transformers.AutoTokenizer.from_pretrained(folder)


def m2m100_files(folder: Path) -> Any:
    """The files of M2M100 without a list of its languages, as transformers 5 writes them, and its tokenizer."""
    model = sentencepiece_model(folder / "sentencepiece.bpe.model", "bpe")
    words = [model.id_to_piece(number) for number in range(3, PIECES)]
    ids = {token: row for row, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    files = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    tokenizer = transformers.M2M100Tokenizer(*files, src_lang="fr")
    tokenizer.save_pretrained(folder)
    return tokenizer


def bert(folder: Path, kind: str) -> tuple[Any, Any]:
    transformers.logging.set_verbosity_error()
    tokenizer = word_piece(folder)
    torch.manual_seed(4)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    config = transformers.BertConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=80)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return tokenizer, model


END = "<|endoftext|>"


def gpt2(folder: Path, **generation: Any) -> tuple[Any, Any]:
    transformers.logging.set_verbosity_error()
    tokenizer = byte_level(folder, eos_token=END, bos_token=END, unk_token=END)
    torch.manual_seed(4)
    end = tokenizer.eos_token_id
    sizes = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": len(tokenizer),
    }
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=end, eos_token_id=end)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05 if "ln_" in name else 0.25)
    model.generation_config.update(max_new_tokens=20, do_sample=False, **generation)
    model.save_pretrained(folder)
    return tokenizer, model


SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2}


SIZES |= {
    f"{side}_{key}": number
    for side in ("encoder", "decoder")
    for key, number in (("attention_heads", 4), ("ffn_dim", 40))
}


T5 = {
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
}


T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}


def multilingual(folder: Path, kind: Any, **languages: str) -> Any:
    """A tokenizer of mBART or NLLB."""
    pieces = json.loads(unigram(folder).backend_tokenizer.to_str())["model"]["vocab"][3:-100]
    names = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, _ in pieces)]
    if kind is transformers.NllbTokenizer:
        own = kind(vocab={name: row for row, name in enumerate(names)}, merges=[], **languages)
    else:
        own = kind(vocab=[*((name, 0.0) for name in names[:4]), *map(tuple, pieces)], **languages)
    for file in folder.iterdir():
        file.unlink()
    own.save_pretrained(folder)
    return own


def made(kind: str, folder: Path, **generation: Any) -> tuple[Any, Any]:
    """A tokenizer and a model with random weights, in a folder."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(6)
    special = {
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "bos_token": "<s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    if kind == "bart":
        tokenizer = byte_level(folder, **special)
        ids = {
            "forced_bos_token_id": tokenizer.bos_token_id,
            "decoder_start_token_id": tokenizer.eos_token_id,
        }
        config = transformers.BartConfig(
            vocab_size=len(tokenizer), **SIZES, max_position_embeddings=64
        )
        model = transformers.BartForConditionalGeneration(config)
    elif kind == "mbart":
        tokenizer = multilingual(
            folder, transformers.MBartTokenizer, src_lang="en_XX", tgt_lang="ro_RO"
        )
        ids = {"decoder_start_token_id": tokenizer.convert_tokens_to_ids("ro_RO")}
        more = {
            "max_position_embeddings": 64,
            "scale_embedding": True,
            "activation_function": "gelu",
        }
        model = transformers.MBartForConditionalGeneration(
            transformers.MBartConfig(vocab_size=len(tokenizer), **SIZES, **more)
        )
    elif kind == "mbart50":
        tokenizer = multilingual(
            folder, transformers.MBart50Tokenizer, src_lang="en_XX", tgt_lang="de_DE"
        )
        ids = {
            "decoder_start_token_id": 2,
            "forced_bos_token_id": tokenizer.convert_tokens_to_ids("de_DE"),
        }
        config = transformers.MBartConfig(
            vocab_size=len(tokenizer), **SIZES, max_position_embeddings=64
        )
        model = transformers.MBartForConditionalGeneration(config)
    elif kind == "m2m100":
        tokenizer = m2m100_files(folder)
        ids = {"decoder_start_token_id": 2}
        config = transformers.M2M100Config(
            vocab_size=len(tokenizer.get_vocab()) + 100, **SIZES, scale_embedding=True
        )
        model = transformers.M2M100ForConditionalGeneration(config)
    elif kind == "pegasus":
        tokenizer = pegasus_files(folder)
        ids = {"decoder_start_token_id": 0}
        more = {
            "max_position_embeddings": 64,
            "scale_embedding": True,
            "activation_function": "relu",
        }
        model = transformers.PegasusForConditionalGeneration(
            transformers.PegasusConfig(vocab_size=len(tokenizer), **SIZES, **more)
        )
    elif kind == "nllb":
        tokenizer = multilingual(
            folder, transformers.NllbTokenizer, src_lang="eng_Latn", tgt_lang="deu_Latn"
        )
        ids = {"decoder_start_token_id": 2}
        more = {"max_position_embeddings": 64, "scale_embedding": True}
        model = transformers.M2M100ForConditionalGeneration(
            transformers.M2M100Config(vocab_size=len(tokenizer), **SIZES, **more)
        )
    else:
        tokenizer = unigram(folder)
        forms = (
            {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
            if kind == "t5 v1.1"
            else {}
        )
        ids = {"decoder_start_token_id": 0}
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=len(tokenizer) + 5, **T5, **forms)
        )
        if forms:
            model.lm_head.weight = torch.nn.Parameter(0.2 * torch.randn_like(model.lm_head.weight))
    never = [[tokenizer.pad_token_id]]
    ids |= {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    spread = 0.12 if kind[:2] == "t5" else 0.3
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            crosses = "encoder_attn" in name or "EncDecAttention" in name
            parameter.add_(
                torch.randn_like(parameter),
                alpha=0.05 if parameter.ndim == 1 else (2.5 if crosses else 1.0) * spread,
            )
        if kind[:2] != "t5" and hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    model.config.update({key: one for key, one in ids.items() if not key.startswith("forced")})
    model.generation_config.update(
        **ids,
        max_new_tokens=20,
        bad_words_ids=never,
        do_sample=False,
        forced_eos_token_id=None,
        **generation,
    )
    model.eval().save_pretrained(folder)
    return tokenizer, model


def m2m100(folder: Path) -> tuple[Any, Any]:
    """M2M100 as its page on the hub has it, with random weights."""
    import sentencepiece

    folder.mkdir(parents=True)
    how = {
        "model_type": "bpe",
        "vocab_size": 84,
        "model_prefix": folder / "sentencepiece.bpe",
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), **how)
    (folder / "sentencepiece.bpe.vocab").unlink()
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "sentencepiece.bpe.model")
    )
    names = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *(pieces.id_to_piece(number) for number in range(3, 84)),
    ]
    (folder / "vocab.json").write_text(
        json.dumps({name: row for row, name in enumerate(names)}), encoding="utf-8"
    )
    files = [str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    tokenizer = transformers.M2M100Tokenizer(*files)
    languages = sorted(
        tokenizer.lang_token_to_id, key=lambda name: tokenizer.lang_token_to_id[name]
    )
    settings = {"additional_special_tokens": languages, "tokenizer_class": "M2M100Tokenizer"}
    settings |= {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    torch.manual_seed(6)
    size = len(names) + len(languages) + 8  # as many rows as the tokenizer has made-up words
    config = transformers.M2M100Config(
        vocab_size=size, **SIZES, max_position_embeddings=64, decoder_start_token_id=2
    )
    model = transformers.M2M100ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05 if parameter.ndim == 1 else 0.3)
    never = [[tokenizer.pad_token_id]]
    model.generation_config.update(
        max_new_tokens=20, do_sample=False, forced_eos_token_id=None, bad_words_ids=never
    )
    model.eval().save_pretrained(folder)
    return tokenizer, model


def public(kind: str, folder: Path, scale: float = 0.5) -> tuple[Any, Any]:
    """A tokenizer and a model of a family, in a folder; large weights multiply the rounding of single precision."""
    transformers.logging.set_verbosity_error()
    if kind == "m2m100":
        return m2m100(folder)
    tokenizer, model = made(kind, folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    model.save_pretrained(folder)
    return tokenizer, model
