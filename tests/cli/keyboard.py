"""A command in a real terminal, and somebody who types."""

import os
import pty
import select
import sys
from collections.abc import Sequence
from contextlib import closing, suppress

from nmtkit.cli import main


def typed(keys: Sequence[bytes], *words: object, after: bytes | None = None) -> tuple[int, str]:
    """What a terminal shows after some keys, and the exit code of the command in it.

    The keys are pressed one after the other; each as soon as the terminal shows `after` at its end, if that is given.
    """
    process, terminal = pty.fork()
    if not process:
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww")
        )
        sys.argv = ["nmtkit", *map(str, words)]
        try:
            main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))
        os._exit(99)
    shown, waiting, seconds = b"", list(keys), 0
    # the end of a terminal is an error
    with suppress(OSError), closing(os.fdopen(terminal, "wb", closefd=True)):
        while True:
            while waiting and (after is None or shown.endswith(after)):
                os.write(terminal, waiting.pop(0))
                shown += b"" if after is None else b"\n"
            if not select.select([terminal], [], [], 1)[0]:
                seconds += 1
                assert seconds < 60, shown
                # Python's readline misses a signal that comes just when it has shown its prompt.
                if after is not None and not waiting:
                    os.write(terminal, keys[-1])
                continue
            if not (part := os.read(terminal, 1 << 16)):
                break
            shown += part
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), shown.decode()
