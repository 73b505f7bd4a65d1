"""Published test sets by name, such as wmt14/en-de, from sacrebleu."""

import socket

from sacrebleu.dataset import DATASETS

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import suggest_names
from nmtkit.data.text.files.lines import read_lines

TIMEOUT = 30.0
"""Seconds to wait for a server."""


def load_sacrebleu_set(name: str) -> tuple[list[str], list[list[str]]]:
    """Sources and references of a test set such as "wmt14/en-de" or "wmt14/full/en-de"; one list for each reference.

    It is downloaded the first time and kept in ~/.sacrebleu, or $SACREBLEU.
    """
    test_set, _, pair = name.rpartition("/")
    if test_set not in DATASETS:
        raise DataError(
            f"unknown test set {name!r}; a name is a set and a language pair, such as wmt14/en-de: "
            + suggest_names(test_set or name, sorted(DATASETS))
        )
    pairs = sorted(DATASETS[test_set].langpairs)
    if pair not in pairs:
        raise DataError(f"{test_set} has no language pair {pair!r}: {suggest_names(pair, pairs)}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        source = DATASETS[test_set].get_source_file(pair)  # type: ignore[no-untyped-call]
        references = DATASETS[test_set].get_reference_files(pair)  # type: ignore[no-untyped-call]
    except (
        Exception,
        SystemExit,
    ) as fault:  # sacrebleu raises errors of several libraries, and sometimes exits
        reason = f" ({fault})" if isinstance(fault, Exception) else ""
        raise NmtkitError(
            f"{name}: cannot download it{reason}; without a network, get it elsewhere by `sacrebleu -t {test_set} -l "
            f"{pair} --echo src` and `--echo ref`, and give the files to --source and --ref"
        ) from fault
    finally:
        socket.setdefaulttimeout(before)
    return list(read_lines(source)), [list(read_lines(path)) for path in references]
