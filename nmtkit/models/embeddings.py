"""Source embeddings that a recipe can choose by `model.src_embedding`: word vectors that depend on the context."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from torch import nn

from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings, TaggedUnion

EMBEDDINGS: Registry["type[SourceEmbedding]"] = Registry("source embedding", {"elmo": "nmtkit.zoo.elmo"})


class SourceEmbedding(nn.Embedding):
    """Vectors `(B,S,E)` of the words of whole texts `(B,S)`, made from a table of word vectors.

    A subclass has a nested `Config` with `kind: Literal["its_name"] = "its_name"`, and is built as
    `MyEmbedding(words, config)`.
    """

    Config: ClassVar[type[Settings]]
    is_pretrained: ClassVar[bool] = False
    """Whether it has weights of another run, which `init_from.src_embedding` must name."""

    def __init__(self, words: nn.Embedding, config: Any) -> None:
        super().__init__(words.num_embeddings, words.embedding_dim)
        self.weight = words.weight


if TYPE_CHECKING:
    AnyEmbeddingConfig = Settings | None
else:
    AnyEmbeddingConfig = Annotated[Any, TaggedUnion(EMBEDDINGS, optional=True)]


def source_embedding(words: nn.Embedding, config: Any) -> nn.Embedding:
    """The embedding of these settings over a table of word vectors; without settings the table itself."""
    return words if config is None else EMBEDDINGS.get(config.kind)(words, config)
