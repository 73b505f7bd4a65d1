"""The weights of published encoders (`transformers`) in ours, for tests that compare the two."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nmtkit.data.batches.batch import Batch
from nmtkit.models.base import VocabularySizes
from nmtkit.training.losses.masked_words import MaskedWords, MaskedWordsConfig
from nmtkit.zoo.next_sentence import NextSentence
from tests.support.pretraining_batches import WORDS, seeded, texts, tokenizers

SIZES = VocabularySizes({"src": WORDS, "tgt": WORDS}, shared=True)
TINY = {
    "hidden_size": 16,
    "feed_forward_size": 24,
    "heads": 4,
    "layers": 2,
    "max_positions": 40,
    "norm_epsilon": 1e-12,
}
THEIRS = {"vocab_size": WORDS, "type_vocab_size": 2, "pad_token_id": 0, "num_hidden_layers": 2}
THEIRS |= {"intermediate_size": 24, "max_position_embeddings": 40, "layer_norm_eps": 1e-12}
OF_A_LAYER = {
    "attention.output.dense": "self_attention.out",
    "attention.output.LayerNorm": "around_self_attention.norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.out",
    "output.LayerNorm": "around_feed_forward.norm",
}
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "src_embedding.weight",
    "embeddings.position_embeddings.weight": "src_positions.table",
    "embeddings.token_type_embeddings.weight": "segment_embedding.weight",
    "embeddings.LayerNorm": "src_embedding_norm",
    "embeddings_project": "widen",
}


def take_weights(ours: nn.Module, theirs: nn.Module, heads: Mapping[str, str]) -> None:
    """Gives our model the weights of theirs; `heads` are our names of theirs that are not of the encoder."""
    given, weights = dict[str, Tensor](), theirs.state_dict()
    for name, tensor in weights.items():
        name = re.sub(r"^(bert|electra)\.", "", name)
        if found := re.match(r"encoder\.layer\.(\d+)\.(.*)\.(weight|bias)$", name):
            number, part, kind = found.groups()
            packed = f"encoder.{number}.self_attention.query_keys_values.{kind}"
            if part in OF_A_LAYER:
                given[f"encoder.{number}.{OF_A_LAYER[part]}.{kind}"] = tensor
            else:  # queries, keys, values, in this order
                given[packed] = torch.cat([given[packed], tensor]) if packed in given else tensor
            continue
        for begin, own in {**EMBEDDINGS, **heads}.items():
            if name.startswith(begin):
                given[own + name.removeprefix(begin)] = tensor
    missing, unknown = ours.load_state_dict(given, strict=False)
    assert unknown == []
    assert [
        name
        for name in missing
        if not name.startswith("generator.") and name != "output.words.weight"
    ] == []


@torch.no_grad()
def enlarged(model: nn.Module) -> nn.Module:
    """With weights at which outputs differ clearly."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.mul_(3).add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def asked(batch: Batch) -> dict[str, Tensor]:
    """As they are asked."""
    read = batch.inputs
    return {
        "input_ids": read.ids,
        "attention_mask": read.mask.long(),
        "token_type_ids": read.segments,
    }


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def parameters(model: nn.Module, *without: str) -> int:
    return sum(
        one.numel()
        for name, one in model.named_parameters()
        if not name.startswith(without or ("-",))
    )


def batch_of_pairs(rate: float = 0.3) -> Batch:
    """Texts of two segments with hidden words."""
    pairs = NextSentence().corrupt(texts(4, 9, 17, 2, 30), seeded(), tokenizers())
    return MaskedWords(settings=MaskedWordsConfig(rate=rate)).corrupt(pairs, seeded(), tokenizers())
