"""Source embeddings that a recipe selects with `model.src_embedding`, such as contextual word vectors."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from torch import nn

from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings, TaggedUnion

EMBEDDINGS: Registry["type[SourceEmbedding]"] = Registry(
    "source embedding", {"elmo": "nmtkit.zoo.elmo"}
)


class SourceEmbedding(nn.Embedding):
    """Base class of modules that compute vectors `(B, S, E)` for whole texts `(B, S)` from a table of word vectors.

    A subclass has a nested `Config` with `kind: Literal["its_name"] = "its_name"` and is built as
    `MyEmbedding(words, config)`, where `words` is the table.
    """

    Config: ClassVar[type[Settings]]
    is_pretrained: ClassVar[bool] = False
    """Whether the module needs weights from another run, which the recipe must name in `init_from.src_embedding`."""

    def __init__(self, words: nn.Embedding, config: Any) -> None:
        super().__init__(words.num_embeddings, words.embedding_dim)
        self.weight = words.weight


if TYPE_CHECKING:
    AnyEmbeddingConfig = Settings | None
else:
    AnyEmbeddingConfig = Annotated[Any, TaggedUnion(EMBEDDINGS, optional=True)]


def source_embedding(words: nn.Embedding, config: Any) -> nn.Embedding:
    """Builds the configured embedding on top of a table of word vectors; returns the table if `config` is None."""
    if config is None:
        return words
    kind = EMBEDDINGS.get(config.kind)
    return kind(words, config)
