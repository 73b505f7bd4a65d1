"""What models have in common beside their contract: what they refuse, drop and show, and the gradient of a walk."""

import pytest
import torch

from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.layers.elementary import set_rows
from nmtkit.models.base import MODELS, Seq2Seq, VocabularySizes
from tests.support.small_models import SMALL, V, batch_of, build
from tests.support.step_by_step import Walk, told

BOTH_WAYS = "reverse_source: a bidirectional encoder reads the source in both directions"
NEEDS_POSITIONS = "depends on the source position.*set window to global"
NO_HEAD = "`alignment_heads`: must be mean or the number of a head, counted from 1 "

REFUSED: list[tuple[str, dict[str, object], str]] = [
    *(
        (kind, {"tie": "embeddings"}, r"`model\.tie: embeddings`.*set tokenizer\.joint to true")
        for kind in SMALL
    ),
    (
        "transformer",
        {"tie": "all"},
        r"`model\.tie: all`.*set tokenizer\.joint to true, or model\.tie to decoder",
    ),
    (
        "rnnsearch",
        {"tie": "decoder", "embedding_size": 4},
        r"maxout_size \(3\) must equal embedding_size \(4\)",
    ),
    (
        "rnn_encdec",
        {"tie": "decoder", "embedding_size": 4},
        r"embedding_size \(4\) must equal maxout_size \(3\)",
    ),
    (
        "rnn_encdec",
        {"tie": "decoder", "maxout_size": None},
        r"embedding_size \(3\) must equal hidden_size \(4\)",
    ),
    ("luong", {"tie": "decoder"}, r"hidden_size \(4\) must equal embedding_size \(3\)"),
    ("lstmn_seq2seq", {"tie": "all"}, r"hidden_size \(4\) must equal embedding_size \(3\)"),
    ("rnnsearch", {"score": "dots"}, "did you mean 'dot'"),
    (
        "rnnsearch",
        {"score": "dot"},
        "size 4 by encoder states of size 8; set encoder_hidden_size so that these sizes are equal",
    ),
    (
        "luong",
        {"score": "scaled_dot", "encoder_hidden_size": 3, "bridge": "tanh"},
        "size 4 by encoder states of size 3",
    ),
    ("luong", {"score": "location", "window": "local_m"}, NEEDS_POSITIONS),
    ("luong", {"score": "location", "window": "local_p"}, NEEDS_POSITIONS),
    ("luong", {"window_size": 0}, "greater than or equal to 1"),
    (
        "luong",
        {"bidirectional": True},
        "1 x 8 units.*but the decoder has 1 x 4.*or set bridge to tanh or linear",
    ),
    ("luong", {"encoder_layers": 2}, "2 x 4 units.*decoder has 1 x 4"),
    (
        "rnn_encdec",
        {"feed_context": False, "bidirectional": True},
        "1 x 8 units.*but the decoder has 1 x 4.*or set feed_context to true",
    ),
    (
        "rnn_encdec",
        {"feed_context": False, "encoder_layers": 3},
        "3 x 4 units.*but the decoder has 1 x 4",
    ),
    ("rnnsearch", {"reverse_source": True}, BOTH_WAYS),
    ("rnn_encdec", {"bidirectional": True, "reverse_source": True}, BOTH_WAYS),
    ("luong", {"reverse_source": True, "bidirectional": True, "bridge": "tanh"}, BOTH_WAYS),
    ("intra_attention", {"hidden_size": 7}, "even number"),
    ("transformer", {"hidden_size": 10, "heads": 4}, "must be a multiple of heads"),
    ("transformer", {"dropout": 1.0}, "less than 1"),
    ("transformer", {"norm": "per"}, "did you mean 'pre'"),
    (
        "transformer",
        {"decoder_layers": 2, "alignment_layer": 3},
        "alignment_layer: there is no decoder layer 3; choose a number from 1 to 2",
    ),
    ("transformer", {"experts": {"used": 1}}, r"experts\.used`.*greater than or equal to 2"),
    ("transformer", {"alignment_heads": 4}, "alignment_heads: there is no head 4"),
    ("transformer", {"alignment_heads": 0}, NO_HEAD),
    ("transformer", {"alignment_heads": "first"}, NO_HEAD),
    ("transformer", {"alignment_heads": True}, NO_HEAD),
]
TWO_VOCABULARIES = VocabularySizes({"src": V + 4, "tgt": V}, shared=False)


@pytest.mark.parametrize(("kind", "settings", "message"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused_with_the_reason(
    kind: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        build(kind, sizes=TWO_VOCABULARIES, **settings)


@pytest.mark.parametrize("kind", SMALL)
def test_every_setting_says_what_it_means(kind: str) -> None:
    config = MODELS.get(kind).Config
    assert [name for name in config.model_fields if not config.meaning(name)] == []


@torch.no_grad()
@pytest.mark.parametrize("kind", SMALL)
def test_two_vocabularies_may_differ_in_size(kind: str) -> None:
    model = build(kind, sizes=TWO_VOCABULARIES, tie="none")
    assert model.embedding("src").weight.shape[0] == V + 4
    assert model(batch_of([[4, 5]], [[4]])).shape == (1, 2, V)


@torch.no_grad()
@pytest.mark.parametrize("kind", SMALL)
def test_words_begin_with_given_vectors(kind: str) -> None:
    before, model = build(kind, tie="none"), build(kind, tie="none")
    others = dict(before.named_parameters())
    ids = torch.tensor([5, 9, 11])
    vectors = 30 * torch.randn(3, before.tgt_embedding.weight.shape[1])
    factor = set_rows(model.embedding("tgt").weight, ids, vectors)
    torch.testing.assert_close(model.tgt_embedding.weight[ids], vectors.double() * factor)
    length = before.tgt_embedding.weight.square().mean()
    torch.testing.assert_close(model.tgt_embedding.weight[ids].square().mean(), length)
    rest = torch.ones(V, dtype=torch.bool).index_fill(0, ids, False)
    assert torch.equal(model.tgt_embedding.weight[rest], before.tgt_embedding.weight[rest])
    assert (
        sum(torch.equal(weight, others[name]) for name, weight in model.named_parameters())
        == len(others) - 1
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", SMALL)
def test_dropout_acts_in_training_only(kind: str) -> None:
    model, batch = build(kind, dropout=0.5), batch_of([[4, 5]], [[4]])
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["rnnsearch", "luong", "transformer", "rnn_encdec"])
def test_attention_is_given_only_where_asked_for(kind: str) -> None:
    model, batch = build(kind, noise=0.1), batch_of([[4, 5]], [[4]])
    plain, attending = (told(model, batch, need_attention=wanted) for wanted in (False, True))
    assert plain.attention is None
    assert torch.equal(plain.log_probs, attending.log_probs)
    assert model.has_attention == (kind != "rnn_encdec")
    assert (
        (attending.attention.shape == (1, 2, 3))
        if model.has_attention
        else (attending.attention is None)
    )


@pytest.mark.parametrize("kind", SMALL)
def test_the_gradient_of_a_walk_is_that_of_all_steps_at_once(kind: str) -> None:
    model, batch = (
        build(kind, seed=5, noise=0.2),
        batch_of([[5, V, 7, V + 1, 6], [V]], [[V + 1, 7, 4], [V]]),
    )
    gradients = []
    for unroll in (type(model).unroll, Seq2Seq.unroll):
        model.zero_grad()
        memory = model.encode(batch)
        model.predict(unroll(model, batch, memory), memory)[..., :V].sin().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["pointer_generator", "intra_attention", "transformer"])
def test_words_that_only_the_source_has_are_read_as_unknown(kind: str) -> None:
    model = build(kind, **({"copying": "learned"} if kind == "transformer" else {}))
    memory = model.encode(batch_of([[5, V, V + 1]]))
    known = Walk(model, memory).step(torch.tensor([UNK]))[0]
    for word in (V, V + 1):
        assert torch.equal(Walk(model, memory).step(torch.tensor([word]))[0], known)


@pytest.mark.parametrize("kind", ["rnnsearch", "luong"])
def test_a_location_score_knows_so_many_positions(kind: str) -> None:
    model = build(kind, score="location", max_positions=4)
    model.encode(batch_of([[4] * 3]))
    with pytest.raises(DataError, match=r"a source has 5 tokens.*only 4 positions"):
        model.encode(batch_of([[4] * 4]))
