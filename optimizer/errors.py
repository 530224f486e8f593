"""The errors that the optimizer raises on purpose, each with the exit code of the command line."""

from __future__ import annotations


class TilewrightError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line returns for it."""

    exit_code = 4


class ModelError(TilewrightError):
    """The model or the file system is at fault: unreadable file, invalid graph, output that cannot be written."""

    exit_code = 1


class UsageError(TilewrightError):
    """The request is at fault: unknown value, unsupported target, shape that contradicts the model."""

    exit_code = 2


class VerificationError(TilewrightError):
    """The rewritten model does not give the answers of the original; nothing was written."""

    exit_code = 3


class CompileError(TilewrightError):
    """NVRTC refused a kernel, or the kernel breaks a limit (spills, shared memory); the site is dropped."""
