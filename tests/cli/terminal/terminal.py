"""A real terminal for the tests: programs that run in it, and what it was sent."""

import os
import pty
import subprocess
import sys


def in_terminal(
    program: str, columns: int = 80, stdout: int | None = None, **variables: str
) -> str:
    """Runs a Python program in a real terminal (its stdout too, unless given) and returns what the terminal got."""
    leader, follower = pty.openpty()
    environment = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")
    }
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), **variables}
    target = follower if stdout is None else stdout
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=target, stderr=follower, env=environment
    )
    os.close(follower)
    got = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # how Linux tells that the other end is closed
            break
        if not piece:
            break
        got += piece
    os.close(leader)
    assert process.wait(timeout=120) == 0
    return got.decode().replace("\r\n", "\n")
