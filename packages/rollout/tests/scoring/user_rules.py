"""Verifiers of a user's own, which processes of the sandbox import by name."""

import ctypes
import errno
import os
import resource
import signal
import time

libc = ctypes.CDLL(None, use_errno=True)


def called(name, *values):
    """Call a function of the C library; return 0, or the number of its error."""
    ctypes.set_errno(0)
    values = [v if isinstance(v, bytes) else ctypes.c_long(v) for v in values]
    return ctypes.get_errno() if getattr(libc, name)(*values) == -1 else 0


def executes(response, answer, metadata):
    """Execute the response, and compare what it calls the answer."""
    scope = {"called": called, "os": os, "resource": resource, "signal": signal, "errno": errno, "time": time}
    exec(response, scope)
    return scope.get("answer") == answer


def limited(response, answer, metadata):
    """Right where the response is the limit on processes."""
    return resource.getrlimit(resource.RLIMIT_NPROC)[0] == int(response)


def contains(response, answer, metadata):
    """Right where the answer occurs; a fraction where it does but for case."""
    if metadata.get("strict") and response != answer:
        return False
    return 1.0 if answer in response else 0.25 * (answer.lower() in response.lower())


def wrong_type(response, answer, metadata):
    """Return what is no score."""
    return "1"


def raises(response, answer, metadata):
    """Break on every response."""
    raise ValueError("no " + response + "\nsecond line")


class Inner:
    """A function within a class."""

    same = staticmethod(lambda response, answer, metadata: response == answer)


not_a_function = 3
