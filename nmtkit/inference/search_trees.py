"""Records the search for a line's translation as a tree of tokens."""

from collections.abc import Mapping, Sequence

from nmtkit.core import device as devices
from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.settings import SamplingConfig, SearchConfig
from nmtkit.decoding.tracing import SearchTrace, TracedContinuation, trace_search
from nmtkit.inference.inputs import SourceLine, make_batch
from nmtkit.inference.result import Translation, merge_and_rerank
from nmtkit.inference.translator import Translator
from nmtkit.plots.trees import Fate, RankedResult, SearchTree, TreeNode


def search_tree(
    translator: Translator, line: str, place: str = "the sentence", number: int = 0
) -> tuple[SearchTree, list[Translation]]:
    """Searches for a line's translation and records the decisions of each step.

    This is the same search as `Translator.search`, with the same results and scores. The results include all hypotheses
    that finished or reached the length limit, up to the beam size; with groups or MBR, duplicate texts are dropped.
    Tokens that a rule blocked are also in the tree if they are at least as likely as the worst candidate of the step.

    Args:
        translator: the model and the search settings.
        line: the source line.
        place: location of the line, for messages.
        number: number of the line in the input, counted from 0; it seeds random samples.

    Returns:
        The tree, and the translations, best first.

    Raises:
        DataError: the line has no tokens.
    """
    (source,) = translator.encode_sources([line])
    if source.is_empty:
        raise DataError(
            f"{place} contains no text that the tokenizer can encode, so there is nothing to translate"
        )
    search = BeamSearch(
        translator.model,
        translator.config,
        need_attention=translator.model.config.copies,
        shortlist=translator.shortlist,
        tokens=translator.target_tokens(),
    )
    with devices.threads_for(1):
        trace = trace_search(search, make_batch([source]), number)
    translations = [translator.translation(hypothesis, source) for hypothesis in trace.hypotheses]
    steps: list[list[TreeNode]] = []
    # Node index of each hypothesis that survived the previous step, by its beam index.
    parent_nodes = {0: 0}
    for step in trace.steps:
        steps.append(_tree_nodes(translator, step, source, parent_nodes=parent_nodes))
        parent_nodes = {}
        for node, continuation in enumerate(_ranked(step)):
            if continuation.beam_index is not None:
                parent_nodes[continuation.beam_index] = node
    if translator.config.needs_all_hypotheses:
        translations = merge_and_rerank(translations, translator.config)
    tree = SearchTree(
        source=line.strip(),
        name=translator.name,
        settings=describe_search(translator.config),
        beam_size=translator.config.n_hypotheses,
        steps=steps,
        results=[_ranked_result(steps, translation) for translation in translations],
        stopped=_stop_reason(translator.config, trace),
    )
    return tree, translations


def describe_search(config: SearchConfig) -> str:
    """Describes a search by its beam size, its length penalty, and all settings that differ from their defaults."""
    size_name = "samples" if isinstance(config, SamplingConfig) else "beam size"
    length_penalty = config.length_penalty
    if length_penalty != "none":
        length_penalty += f":{config.alpha:g}"
    parts = [f"{size_name} {config.n_hypotheses}", f"length penalty {length_penalty}"]
    described = {"beam_size", "samples", "length_penalty", "alpha"}
    for name, value in config.model_dump(exclude_defaults=True, exclude=described).items():
        parts.append(f"{name} {value}")
    return ", ".join(parts)


FATES: tuple[Fate, ...] = ("kept", "ended", "pruned", "blocked")
"""Possible fates of a continuation, in the order in which the nodes of a step are sorted."""


def _ranked(step: Sequence[TracedContinuation]) -> list[TracedContinuation]:
    """Sorts a step's continuations by fate, and survivors by beam index."""
    return sorted(
        step,
        key=lambda continuation: (FATES.index(_fate(continuation)), continuation.beam_index or 0),
    )


def _tree_nodes(
    translator: Translator,
    step: Sequence[TracedContinuation],
    source: SourceLine,
    parent_nodes: Mapping[int, int],
) -> list[TreeNode]:
    """Returns a step's nodes in ranked order.

    `parent_nodes` has the node index of each hypothesis that survived the previous step, by its beam index.
    """
    nodes = []
    for continuation in _ranked(step):
        pieces = translator.tokenizers.tgt.pieces([continuation.token], source.oov)  # none for EOS
        threshold = _survival_threshold(translator.config, continuation, step)
        node = TreeNode(
            token=pieces[0] if pieces else translator.eos_token,
            parent=parent_nodes[continuation.parent],
            fate=_fate(continuation),
            token_log_prob=continuation.token_log_prob,
            log_prob=continuation.log_prob,
            margin=None if threshold is None else continuation.log_prob - threshold,
            score=continuation.ranking_score,
            rule=continuation.forbidden_by or "",
        )
        nodes.append(node)
    return nodes


def _survival_threshold(
    config: SearchConfig, continuation: TracedContinuation, step: Sequence[TracedContinuation]
) -> float | None:
    """Returns the log-probability that a continuation needed to survive the step; None if none of its group survived.

    EOS had to rank among the top k candidates of its group, where k is the group's number of hypotheses. Any other
    token, and any token that a rule forbade, had to be at least as probable as the least probable survivor of its
    group, or of all groups if its group is not known.
    """
    group = []
    for other in step:
        is_same_group = continuation.group is None or other.group == continuation.group
        if is_same_group and not other.is_forbidden:
            group.append(other)
    if continuation.token == EOS and not continuation.is_forbidden:
        # The best candidates of a group come first or, in a search with terms, the survivors. Samples are not sorted,
        # but there are at most k of them.
        group_size = config.n_hypotheses // config.n_groups
        successful = group[:group_size]
    else:
        successful = [other for other in group if other.beam_index is not None]
    return min((other.log_prob for other in successful), default=None)


def _fate(continuation: TracedContinuation) -> Fate:
    if continuation.is_forbidden:
        return "blocked"
    if continuation.ended:
        return "ended"
    return "pruned" if continuation.beam_index is None else "kept"


def _ranked_result(steps: Sequence[Sequence[TreeNode]], translation: Translation) -> RankedResult:
    """Returns a translation together with the tree position of its last token."""
    step = len(translation.token_log_probs) - 1
    fate: Fate = "ended" if translation.finished else "kept"
    # The log-probabilities are bit-identical: see `TracedContinuation.log_prob`.
    nodes = [(node.fate, node.log_prob) for node in steps[step]]
    return RankedResult(
        text=translation.text,
        score=translation.score,
        log_prob=translation.log_prob,
        finished=translation.finished,
        step=step,
        number=nodes.index((fate, translation.log_prob)),
    )


_STOP_REASONS = {
    "exact": "no other hypothesis could become better than the best one",
    "huggingface": "no other hypothesis is better at its current length",
}
"""Why a search with ended hypotheses stops before the length limit, by the value of `search.stop`."""


def _stop_reason(config: SearchConfig, trace: SearchTrace) -> str:
    ended = 0
    for step in trace.steps:
        ended += sum(continuation.ended for continuation in step)
    noun = "hypothesis" if ended == 1 else "hypotheses"
    count = f"{ended} {noun} ended"
    if isinstance(config, SamplingConfig) and ended == config.samples:
        return "The search stopped: all samples ended"
    if config.effective_stop == "first_k" and ended >= config.n_hypotheses:
        return f"The search stopped: {count}, reaching the beam size of {config.n_hypotheses}"
    if len(trace.steps) >= trace.length_limit:
        return f"The search stopped at the length limit of {trace.length_limit} tokens; {count}"
    if ended and config.effective_stop in _STOP_REASONS:
        return f"The search stopped: {count}, and {_STOP_REASONS[config.effective_stop]}"
    return f"The search stopped: {count}, and no hypothesis was left to continue"
