"""The search of a line as a tree, in words."""

from collections.abc import Mapping, Sequence

from nmtkit.core import device as devices
from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.settings import SamplingConfig, SearchConfig
from nmtkit.decoding.tracing import SearchTrace, SearchTracer, TracedCandidate
from nmtkit.inference.inputs import SourceLine, make_batch
from nmtkit.inference.result import Translation, merge_and_rerank
from nmtkit.inference.translator import Translator
from nmtkit.plots.trees import Fate, RankedResult, SearchTree, TreeNode


def search_tree(
    translator: Translator, line: str, place: str = "the sentence", number: int = 0
) -> tuple[SearchTree, list[Translation]]:
    """What every step of the search of a line decided, and what it found, best first; messages call the line `place`.

    It is the search that `Translator.search` makes of the line by itself, or as line `number`, from 0, of several, on
    which samples depend, and finds the same with the same numbers. It keeps all hypotheses that ended, or were cut at
    the length limit, as many as the beam is wide at most; of groups, or with minimum Bayes risk, each text once. What a
    rule blocked is in the tree where its step would have looked at it.
    """
    (source,) = translator.encode_sources([line])
    if source.is_empty:
        raise DataError(f"{place} has no letters that the tokenizer knows: there is nothing to search for")
    engine = SearchTracer(
        translator.model,
        translator.config,
        need_attention=translator.model.config.copies,
        steps="eager",
        shortlist=translator.shortlist,
        token_classes=translator.token_classes(),
    )
    with devices.threads_for(1):
        trace = engine.trace(make_batch([source]), number)
    translations = [translator.translation(hypothesis, source) for hypothesis in trace.hypotheses]
    steps, places = list[list[TreeNode]](), {0: 0}
    for step in trace.steps:
        steps.append(_tree_nodes(translator, step, source, places))
        places = {one.slot: place for place, one in enumerate(_ranked(step)) if one.slot is not None}
    if translator.config.chooses_afterwards:
        translations = merge_and_rerank(translations, translator.config)
    tree = SearchTree(
        source=line.strip(),
        name=translator.name,
        settings=describe_search(translator.config),
        beam_size=translator.config.hypotheses,
        steps=steps,
        results=[_result(steps, one) for one in translations],
        stopped=_stop_reason(translator.config, trace),
    )
    return tree, translations


def describe_search(config: SearchConfig) -> str:
    """Describes a search: beam size, length penalty, and every setting that is not the default."""
    penalty = "" if config.length_penalty == "none" else f":{config.alpha:g}"
    width = f"{'samples' if isinstance(config, SamplingConfig) else 'beam size'} {config.hypotheses}"
    first = [width, f"length penalty {config.length_penalty}{penalty}"]
    others = config.model_dump(exclude_defaults=True, exclude={"beam_size", "samples", "length_penalty", "alpha"})
    return ", ".join(first + [f"{name} {value}" for name, value in others.items()])


ORDER: tuple[Fate, ...] = ("kept", "ended", "pruned", "blocked")


def _ranked(step: Sequence[TracedCandidate]) -> list[TracedCandidate]:
    """Those that were kept first, by their slots, of which some may be empty: samples end one by one."""
    return sorted(step, key=lambda one: (ORDER.index(_fate(one)), one.slot or 0))


def _tree_nodes(
    translator: Translator, step: Sequence[TracedCandidate], source: SourceLine, places: Mapping[int, int]
) -> list[TreeNode]:
    """The continuations of a step as `_ranked`; `places` are those of the slots among the nodes of the step before."""
    config = translator.config

    def tree_node(one: TracedCandidate) -> TreeNode:
        (token,) = translator.tokenizers.tgt.pieces([one.token], source.oov) or [translator.end]
        chosen = [other for other in step if not other.rule and other.group == one.group]
        if one.token == EOS and not one.rule:
            last = [other.log_prob for other in chosen[: config.hypotheses // config.groups]][-1:]
        else:
            last = [other.log_prob for other in chosen if other.slot is not None][-1:]
        return TreeNode(
            token=token,
            parent=places[one.parent],
            fate=_fate(one),
            token_log_prob=one.token_log_prob,
            log_prob=one.log_prob,
            margin=one.log_prob - last[0] if last else None,
            score=None if one.rule else one.score,
            rule=one.rule,
        )

    return [tree_node(one) for one in _ranked(step)]


def _fate(one: TracedCandidate) -> Fate:
    if one.rule:
        return "blocked"
    return "ended" if one.ended else "pruned" if one.slot is None else "kept"


def _result(steps: Sequence[Sequence[TreeNode]], one: Translation) -> RankedResult:
    """A translation with the place of its last token."""
    step = len(one.token_log_probs) - 1
    last: tuple[Fate, float] = ("ended" if one.finished else "kept", one.log_prob)
    number = [(node.fate, node.log_prob) for node in steps[step]].index(last)
    return RankedResult(one.text, one.score, one.log_prob, one.finished, step, number)


_STOP_REASONS = {
    "exact": "no other could become better than the best",
    "huggingface": "no other is better at its present length",
}
"""Why a search with ended hypotheses stops before its limit, by its rule."""


def _stop_reason(config: SearchConfig, trace: SearchTrace) -> str:
    ended = sum(one.ended for step in trace.steps for one in step)
    count = f"{ended} {'hypothesis' if ended == 1 else 'hypotheses'} ended"
    if isinstance(config, SamplingConfig) and ended == config.samples:
        return "The search stopped: all samples ended"
    if config.effective_stop == "first_k" and ended >= config.hypotheses:
        return f"The search stopped: {count}, and the beam is {config.hypotheses} wide"
    if len(trace.steps) >= trace.limit:
        return f"The search stopped at the length limit of {trace.limit} tokens; {count}"
    if ended and config.effective_stop in _STOP_REASONS:
        return f"The search stopped: {count}, and {_STOP_REASONS[config.effective_stop]}"
    return f"The search stopped: {count}, and no hypothesis was left to go on with"
