"""How good an output is: BLEU, chrF, TER, ROUGE, wanted words, alignment error rate, perplexity.

The figures for text come from sacrebleu and rouge-score, and every one carries the signature that says how it was
made; this room is the only one that imports those two. Texts are lists of strings, one string per example.
References are a list of such lists: `refs[r][i]` is what reference file `r` says about example `i`.
"""

from nmtkit.metrics.alignments import AlignmentScores as AlignmentScores
from nmtkit.metrics.alignments import aer as aer
from nmtkit.metrics.perplexity import perplexity as perplexity
from nmtkit.metrics.rouge import ROUGE_METRICS as ROUGE_METRICS
from nmtkit.metrics.rouge import RougeScore as RougeScore
from nmtkit.metrics.rouge import outside_rouge as outside_rouge
from nmtkit.metrics.rouge import rouge as rouge
from nmtkit.metrics.score import Comparison as Comparison
from nmtkit.metrics.score import Options as Options
from nmtkit.metrics.score import Score as Score
from nmtkit.metrics.sentences import SENTENCE_RULES as SENTENCE_RULES
from nmtkit.metrics.sentences import lead as lead
from nmtkit.metrics.sentences import split_sentences as split_sentences
from nmtkit.metrics.several import MOST_SAMPLES as MOST_SAMPLES
from nmtkit.metrics.several import compare as compare
from nmtkit.metrics.several import metric_names as metric_names
from nmtkit.metrics.several import score_all as score_all
from nmtkit.metrics.translation import SACREBLEU_METRICS as SACREBLEU_METRICS
from nmtkit.metrics.translation import TOKENIZERS as TOKENIZERS
from nmtkit.metrics.translation import LengthBucket as LengthBucket
from nmtkit.metrics.translation import bleu as bleu
from nmtkit.metrics.translation import by_length as by_length
from nmtkit.metrics.translation import chrf as chrf
from nmtkit.metrics.translation import ter as ter
from nmtkit.metrics.wanted import copied_right as copied_right
