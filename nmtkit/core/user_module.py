"""The user's Python file that registers models, losses, tasks and so on (`--user-module`).

Training keeps a copy of the file in the run, and later commands load that copy. Because a run may come from somebody
else, a copy is executed only if the user has already loaded a file with the same content on this machine. The checksums
of loaded files are stored in the user's cache folder.
"""

import hashlib
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import user_cache, write_errors
from nmtkit.core.registry import Entries, noting

OPTION = "--user-module"
COPY = "user_module.py"
"""Name of the copy in a run."""


@dataclass(frozen=True)
class UserModule:
    """A user file that this process has executed."""

    path: Path
    code: bytes
    entries: Entries
    """The members that the file has registered. Members from a run's copy give way to members from the user's file."""

    @property
    def checksum(self) -> str:
        """SHA-256 checksum of the content."""
        return hashlib.sha256(self.code).hexdigest()


_loaded: list[UserModule] = []


def load_user_module(path: str | Path) -> None:
    """Executes, once, a Python file that registers models, losses, tasks and so on.

    Later training runs keep a copy of the file.

    Raises:
        NmtkitError: the file has an error; the message contains the file and line.
        OSError: the file cannot be read.
    """
    module = UserModule(Path(path), Path(path).read_bytes(), Entries())
    _execute(module)
    _remember(module.checksum)


def load_copy(folder: Path) -> None:
    """Executes the copy in a run's folder, if there is one.

    Raises:
        NmtkitError: this user has never loaded a file with this content, and has not specified another file, which
            could replace the copy.
    """
    path = folder / COPY
    if not path.is_file():  # reading a pipe would block
        return
    module = UserModule(path, path.read_bytes(), Entries(gives_way=True))
    if _is_executed(module) or _is_imported(module.code):
        return
    if module.checksum in _remembered():
        _execute(module)
    elif all(other.entries.gives_way for other in _loaded):
        raise NmtkitError(
            f"{path}: the run needs to execute this Python file, which may come from somebody "
            f"else; read it, and then add `{OPTION} {path}` to the command once (in Python, call "
            "nmtkit.load_user_module)"
        )


def loaded_modules() -> list[UserModule]:
    """Returns the files that this process has executed, which its workers must execute, too."""
    return list(_loaded)


def execute_again(modules: list[UserModule]) -> None:
    """Executes the files that another process of this command has executed."""
    for module in modules:
        _execute(UserModule(module.path, module.code, Entries(module.entries.gives_way)))


def module_to_keep() -> UserModule | None:
    """Returns the file that a new run has to keep, if any.

    Raises:
        NmtkitError: more than one file is loaded.
    """
    needed = [module for module in _loaded if module.entries.names or not module.entries.gives_way]
    if len(needed) > 1:
        names = " and ".join(str(module.path) for module in needed)
        raise NmtkitError(
            f"{names}: a run can keep a copy of only one Python file; merge these files into one, and pass that file"
        )
    return needed[0] if needed else None


def _is_executed(module: UserModule) -> bool:
    return any(module.code == other.code for other in _loaded)


def _is_imported(code: bytes) -> bool:
    """Returns whether Python has imported a file with this content, or runs it as the main program."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            with suppress(OSError):
                if os.path.getsize(path) == len(code) and Path(path).read_bytes() == code:
                    return True
    return False


def _execute(module: UserModule) -> None:
    if _is_executed(module):
        return
    # The module has the same name in all processes, so that they can exchange its objects.
    name = f"nmtkit_user_module_{module.checksum[:16]}"
    made = ModuleType(name)
    made.__file__ = str(module.path)
    sys.modules[name] = made
    try:
        with noting(module.entries):
            exec(compile(module.code, str(module.path), "exec"), vars(made))
    except (Exception, SystemExit) as fault:
        del sys.modules[name]
        raise NmtkitError(_describe(fault, module.path)) from fault
    _loaded.append(module)


def _describe(fault: BaseException, path: Path) -> str:
    """Returns the message for an exception in a user file, with the last line of the file that was executed."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(fault.__traceback__)
        if frame.filename == str(path)
    ]
    line = lines[-1] if lines else None
    what = f"{type(fault).__name__}: {fault}"
    if isinstance(fault, (NmtkitError, AssertionError)):
        what = str(fault) or what
    if isinstance(fault, SyntaxError) and fault.filename == str(path):
        line = fault.lineno
        what = f"{type(fault).__name__}: {fault.msg}"
    return f"{path}{f', line {line}' if line else ''}: {what}"


def _remembered_file() -> Path:
    return user_cache() / "user-modules"


def _remembered() -> set[str]:
    """Returns the checksums of the files that this user has loaded before."""
    path = _remembered_file()
    try:
        with path.open(encoding="ascii") as file:
            # The folder may be among the temporary files, where other users can write.
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return set()
            return set(file.read().split())
    except (OSError, ValueError):
        return set()


def _remember(checksum: str) -> None:
    if checksum in _remembered():
        return
    path = _remembered_file()
    with (
        suppress(NmtkitError),
        write_errors(path),
    ):  # if this fails, the option will be needed again
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write(f"{checksum}\n")
