"""Freed memory is kept: a second array of the same size costs no page faults."""

import sys

import pytest

from antiphase.isolated_process import run_isolated

FAULTS = """
import resource, numpy
from antiphase.allocator import keep_freed_memory
told = {call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones(1 << 23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(told, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_a_freed_block_is_used_again():
    told, kept = run_isolated(FAULTS.format(call="keep_freed_memory()"), timeout=120).stdout.split()
    if told != "True":
        pytest.skip("this C library has no mallopt")
    _, fresh = run_isolated(FAULTS.format(call="None"), timeout=120).stdout.split()
    assert int(kept) < 100
    assert int(fresh) > 10 * int(kept) + 10
